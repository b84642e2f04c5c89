"""`tools`: fragments become calls, calls become results; driven by hand, and in runs in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections import Counter
from collections.abc import Mapping
from datetime import date

import pytest
import virtual
from driven import END, Node, Replies, build, error, finish, tell, token, told
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import ConfigError, RunCancelled, RunError
from aiflow_jupyter.events import Event, ToolFragment, ToolResult
from aiflow_jupyter.operators.calls import Assembly
from aiflow_jupyter.operators.retrieve import Passages

LOOP = """
ask  = generate(tools=({names})) {ask}
lane = route(by="kind")
act  = tools(functions=({names})) {act}
out  = sink(var="x")
ask -> lane
lane.token         -> out
lane.tool_fragment -> act
act -> ask [feedback, limit=8, hops={hops}]
"""


def loop(*names, ask="", act="", hops=5):
    return LOOP.format(names=", ".join(names), ask=ask, act=act, hops=hops)


def fragment(index=0, call=None, name=None, arguments="", lineage="0/0.ask", **meta):
    return Event("tool_fragment", ToolFragment(index, call, name, arguments), source="ask", lineage=lineage, meta=meta)


def calling(name, arguments="{}", index=0, call=None):
    return ToolFragment(index, call or f"c{index}", name, arguments)


async def double(n: int) -> int:
    return 2 * n


async def slow(n: int) -> str:
    await asyncio.sleep(n)
    return f"slept {n}"


async def broken(n: int = 0) -> str:
    raise ValueError("no such n")


FUNCTIONS = {"double": double, "slow": slow, "broken": broken}


def node(policy=None, **functions):
    known = functions or FUNCTIONS
    return Node("tools", policy, known, arguments={"functions": list(known)})


def results(events):
    return [event.payload for event in events if event.kind == "tool_result"]


# -- fragments


@st.composite
def answers(draw):
    """Calls, and a way in which they may come in pieces."""
    calls = draw(
        st.lists(
            st.tuples(
                st.text("abc_", min_size=1, max_size=9),
                st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=3),
            ),
            max_size=4,
        )
    )
    parts: list[list[ToolFragment]] = []
    for index, (name, arguments) in enumerate(calls):
        text = json.dumps(arguments, ensure_ascii=draw(st.booleans()))
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=5)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        said = [ToolFragment(index, None, None, piece) for piece in pieces]
        said[draw(st.integers(0, len(said) - 1))].id = f"id{index}"
        at = draw(st.integers(1, len(name)))
        if name[:at] == name[at:] or at == len(name):
            said[draw(st.integers(0, len(said) - 1))].name = name
        else:
            said[0].name, rest = name[:at], ToolFragment(index, None, name[at:])
            said.insert(draw(st.integers(1, len(said))), rest)
        parts.append(said)
    order = draw(st.permutations([index for index, said in enumerate(parts) for _ in said]))
    first = list(dict.fromkeys(order))
    return [(f"id{i}", calls[i][0], calls[i][1]) for i in first], [parts[index].pop(0) for index in order]


@settings(max_examples=300, deadline=None)
@given(answers())
def test_calls_are_the_same_however_they_come_in_pieces(answer):
    calls, fragments = answer
    assembly = Assembly("0/0.ask")
    for each in fragments:
        assembly.add(each)
    assert [(said.id, said.name, json.loads(said.arguments)) for said in assembly.calls()] == calls


@settings(max_examples=100, deadline=None)
@given(st.lists(answers(), min_size=1, max_size=3), st.data())
def test_answers_that_come_at_once_are_kept_apart(several, data):
    given = node(f=double)
    left = {f"{n}/0.ask": list(fragments) for n, (_, fragments) in enumerate(several)}
    while any(left.values()):
        lineage = data.draw(st.sampled_from([each for each, fragments in left.items() if fragments]))
        piece = left[lineage].pop(0)
        assert given.put(fragment(piece.index, piece.id, piece.name, piece.arguments, lineage)) == []
    for n, (calls, _) in enumerate(several):
        out = given.put(finish(f"{n}/0.ask", "tool_calls"))
        assert [(each.id, each.name, each.calls) for each in results(out)] == [
            (call, name, len(calls)) for call, name, _ in calls
        ]
        assert {event.lineage for event in out} == {f"{n}/0.ask"}
        assert [event.sequence for event in out[:-1]] == list(range(len(calls)))
        assert out[-1].kind == "finish"
    assert given.behaviour.holds() == 0


def test_calls_under_one_index_are_told_apart_by_their_ids():
    out = node().put(
        fragment(0, "a", "double", '{"n": 1}'), fragment(0, "b", "double", '{"n": 2}'), finish(reason="tool_calls")
    )
    assert [(each.id, each.content) for each in results(out)] == [("a", "2"), ("b", "4")]


def test_call_without_an_id_of_its_own_gets_the_same_one_each_time():
    pieces = [
        fragment(0, None, "double", '{"n":1}'),
        fragment(1, "x", "double", '{"n":2}'),
        fragment(2, "x", "double", '{"n":3}'),
    ]
    first = results(node().put(*pieces, finish()))
    again = results(node().put(*pieces, finish()))
    assert [each.id for each in first] == [each.id for each in again]
    assert len({each.id for each in first}) == 3
    assert first[1].id == "x"
    assert first[0].id.startswith("call_")
    elsewhere = results(node().put(fragment(0, None, "double", '{"n":1}', "1/0.ask"), finish("1/0.ask")))
    assert elsewhere[0].id != first[0].id


# -- what the model is told


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("double", '{"n": 4', "Invalid JSON"),
        ("double", "[4]", "should be an object"),
        ("double", "", "n: Field required"),
        ("double", '{"n": "four"}', "n: Input should be a valid integer"),
        ("double", '{"n": 1, "m": 2}', "m: Extra inputs are not permitted"),
        ("double", "[" * 10_000, "Invalid JSON"),
        ("triple", "{}", "no function 'triple'; there are: double, slow, broken"),
        ("", "{}", "name one of: double, slow, broken"),
        ("broken", "{}", "ValueError: no such n"),
    ],
)
def test_what_goes_wrong_with_a_call_is_a_result_that_says_so(name, arguments, said):
    (result,) = results(node().put(fragment(0, "a", name, arguments), finish(reason="tool_calls")))
    assert result.failed
    assert (result.id, result.name, result.calls) == ("a", name, 1)
    assert said in result.content


def test_arguments_come_as_the_hints_want_them_and_the_result_as_text():
    async def known(n: int, where: str = "here") -> dict[str, object]:
        return {"n": n, "where": where, "bad": float("nan")}

    out = node(known=known).put(fragment(0, "a", "known", '{"n": "3"}'), finish())
    (result,) = results(out)
    assert json.loads(result.content) == {"n": 3, "where": "here", "bad": "NaN"}
    assert not result.failed


def test_a_long_result_is_cut_and_says_so():
    async def long() -> str:
        return "x" * 1_000

    (result,) = results(node({"hold_bytes": 100}, long=long).put(fragment(0, "a", "long"), finish()))
    assert result.content == "x" * 100 + "\n[cut here: 900 more characters]"


@pytest.mark.parametrize(("gives", "cut"), [("漢" * 50, "漢" * 33), (["漢" * 50], '["' + "漢" * 32)])
def test_long_result_is_cut_by_its_bytes_and_never_within_a_character(gives, cut):
    (result,) = results(node({"hold_bytes": 100}, long=lambda: gives).put(fragment(0, "a", "long"), finish()))
    assert result.content.startswith(cut + "\n[cut here: ")


def test_arguments_that_are_too_long_fail_their_call_alone():
    big = json.dumps({"n": 1, "x": "y" * 200})
    out = node({"hold_bytes": 100}).put(
        fragment(0, "a", "double", big),
        fragment(0, None, None, "more"),
        fragment(1, "b", "double", '{"n": 2}'),
        finish(),
    )
    first, second = results(out)
    assert first.failed
    assert "too long" in first.content
    assert (second.content, second.failed) == ("4", False)


def test_more_calls_than_may_be_kept_fail_by_name():
    given = node({"hold": 2})
    given.put(fragment(0, "a", "double", '{"n":1}'), fragment(0, "b", "double", '{"n":1}', lineage="1/0.ask"))
    with pytest.raises(RunError) as raised:
        given.put(fragment(1, "c", "double", '{"n":1}'))
    assert raised.value.code == "AF620"
    assert given.behaviour.holds() == 1


def test_a_function_that_no_model_can_call_is_refused_at_once():
    def positional(n, /):
        return n

    class Strange:
        pass

    def strange(x: Strange):
        return x

    def yields():
        yield 1

    for name, function in {"positional": positional, "strange": strange, "yields": yields}.items():
        with pytest.raises(ConfigError) as raised:
            node(**{name: function})
        assert raised.value.code == "AF303", name
    with pytest.raises(ConfigError) as raised:
        Node("tools", arguments={"functions": ["missing"]})
    assert raised.value.code == "AF205"


# -- what ends an answer


@pytest.mark.parametrize("event", [error(), told("retract"), told("retract", "0"), END])
def test_calls_of_an_answer_that_is_no_answer_are_not_made(event):
    calls = []

    async def noted(n: int) -> int:
        calls.append(n)
        return n

    given = node(noted=noted)
    given.put(fragment(0, "a", "noted", '{"n": 1}'))
    assert [each.kind for each in given.put(event)] == ([] if event is END else [event.kind])
    assert given.behaviour.holds() == 0
    if event is not END:
        given.put(fragment(0, None, None, "x"))  # comes late
    assert results(given.put(finish())) == []
    assert calls == []


def test_answer_that_begins_anew_has_the_calls_of_the_new_one():
    given = node()
    given.put(fragment(0, "a", "double", '{"n": 1'), told("restart"), fragment(0, "b", "double", '{"n": 2}'))
    assert [(each.id, each.content) for each in results(given.put(finish()))] == [("b", "4")]


def test_what_is_no_fragment_passes_by_and_a_second_finish_makes_no_call():
    given = node()
    assert given.put(token("text"), fragment(0, "a", "double", '{"n": 1}'), told("flush"), told("skip")) != []
    assert len(results(given.put(finish()))) == 1
    assert [each.kind for each in given.put(finish())] == ["finish"]


# -- in runs


def asked_on(request):
    """The text of an answer that repeats the results."""
    return [f"{m['name']}={m['content']};" for m in request.messages if m["role"] == "tool"]


def test_results_go_back_until_the_model_answers():
    def reply(request):
        turns = sum(m["role"] == "assistant" for m in request.messages)
        if turns == 0:
            return [
                "Let me see. ",
                calling("double", '{"n":', 0),
                calling("double", '{"n":5}', 1),
                ToolFragment(0, arguments="4}"),
            ]
        if turns == 1:
            return [calling("double", '{"n":6}')]
        return asked_on(request)

    source = Replies(reply)
    run, result = tell(loop("double"), source, double=double)
    assert result["x"] == "Let me see. double=8;double=10;double=12;"
    assert [answer.lineage for answer in result.answers] == ["0/0.ask", "0/0.ask+1", "0/0.ask+2"]
    first, second, third = (request.messages for request in source.requests)
    assert first == ({"role": "user", "content": "hello"},)
    assert second[1:] == (
        {
            "role": "assistant",
            "content": "Let me see. ",
            "tool_calls": [
                {"id": "c0", "type": "function", "function": {"name": "double", "arguments": '{"n":4}'}},
                {"id": "c1", "type": "function", "function": {"name": "double", "arguments": '{"n":5}'}},
            ],
        },
        {"role": "tool", "content": "8", "tool_call_id": "c0", "name": "double"},
        {"role": "tool", "content": "10", "tool_call_id": "c1", "name": "double"},
    )
    assert third[:4] == second
    assert source.requests[0].tools[0]["function"]["parameters"]["required"] == ["n"]
    assert run.guardians["ask"].holds() == 0


def test_one_result_of_the_whole_conversation_leaves_reduce():
    text = (
        loop("double")
        + 'whole = reduce("join")\nans = sink(var="whole")\nask -> t -> whole -> ans\nt = filter(w, inline=true)'
    )

    def w(payload: object) -> bool:
        return isinstance(payload, str)

    def reply(request):
        return asked_on(request) or ["hm ", calling("double", '{"n":1}')]

    _, result = tell(text, Replies(reply), double=double, w=w)
    assert result.variables["whole"] == ["double=2;"]


def test_a_failed_call_is_told_and_broken_json_is_not_repeated():
    def reply(request):
        return asked_on(request) or [calling("double", '{"n": 4', 0), calling("nothing", "{}", 1)]

    source = Replies(reply)
    _, result = tell(loop("double"), source, double=double)
    assert "Invalid JSON" in result["x"]
    assert "no function 'nothing'" in result["x"]
    said = source.requests[1].messages[1]["tool_calls"]
    assert [each["function"]["arguments"] for each in said] == ["{}", "{}"]


def test_calls_are_made_at_once_as_far_as_there_are_workers():
    def reply(request):
        return asked_on(request) or [calling("slow", f'{{"n":{n + 1}}}', n) for n in range(4)]

    for workers, seconds in ((1, 10), (4, 4), (2, 6)):
        run, result = tell(loop("slow", act=f"[workers={workers}]"), Replies(reply), slow=slow)
        assert result["x"] == "".join(f"slow=slept {n};" for n in range(1, 5))
        assert seconds <= run.elapsed_s < seconds + 0.1


def test_each_call_is_tried_by_itself_with_a_key_that_stays():
    tries: Counter[int] = Counter()
    keys: dict[int, set[str]] = {}

    async def flaky(n: int, idempotency_key: str) -> int:
        tries[n] += 1
        keys.setdefault(n, set()).add(idempotency_key)
        if tries[n] <= n:
            raise OSError("again")
        return n

    def reply(request):
        return asked_on(request) or [calling("flaky", f'{{"n":{n}}}', n) for n in range(4)]

    run, result = tell(loop("flaky", act="[retry=3, effect=idempotent, backoff=1]"), Replies(reply), flaky=flaky)
    assert result["x"] == "flaky=0;flaky=1;flaky=2;flaky=Error: OSError: again;"
    assert tries == {0: 1, 1: 2, 2: 3, 3: 3}
    assert all(len(each) == 1 for each in keys.values())
    assert len(set.union(*keys.values())) == 4
    assert run.guardians["act"].retries == 1 + 2 + 2
    assert run.guardians["act"].errors == 0


def test_key_does_not_depend_on_the_ids_that_a_server_gives():
    seen = []

    async def keyed(idempotency_key: str) -> str:
        seen.append(idempotency_key)
        return "ok"

    for number in range(2):
        tell(
            loop("keyed"),
            Replies(lambda r, n=number: asked_on(r) or [calling("keyed", call=f"random-{n}")]),
            keyed=keyed,
        )
    assert len(set(seen)) == 2  # another run asks for another call
    assert len({key.partition("/")[2] for key in seen}) == 1


def test_a_call_that_takes_too_long_is_a_failed_result_and_leaves_the_others():
    def reply(request):
        return asked_on(request) or [calling("slow", f'{{"n":{n}}}', at) for at, n in enumerate((1, 99, 1))]

    run, result = tell(loop("slow", act="[timeout=5]"), Replies(reply), slow=slow)
    assert result["x"].startswith("slow=slept 1;slow=Error: node 'act': no result within 5 s")
    assert result["x"].endswith("slow=slept 1;")
    assert run.elapsed_s < 8


def test_calls_that_share_a_state_see_what_the_others_left():
    async def count(state: dict) -> int:
        state["n"] = state.get("n", 0) + 1
        return state["n"]

    async def peek(state: dict) -> int:
        return state["n"]

    def reply(request):
        return asked_on(request) or [calling("count", index=0), calling("count", index=1), calling("peek", index=2)]

    _, result = tell(loop("count", "peek"), Replies(reply), count=count, peek=peek)
    assert result["x"] == "count=1;count=2;peek=2;"


def test_a_model_that_calls_for_ever_is_stopped_by_the_hops():
    async def story(virtual_loop):
        run = build(
            virtual_loop, loop("double", hops=3), Replies(lambda _r: [calling("double", '{"n":1}')]), double=double
        )
        with pytest.raises(RunError) as raised:
            await run.run("go")
        assert raised.value.code == "AF606"
        assert len(run.answers) == 4

    virtual.run(story)


@pytest.mark.parametrize("act", ["", "[workers=3]", "[queue=1]", "[workers=3, order=none]"])
@pytest.mark.parametrize("ask", ["", "[workers=3]", "[queue=1]"])
def test_many_conversations_at_once_keep_their_results_apart(ask, act):
    async def story(virtual_loop):
        def reply(request):
            question = request.messages[0]["content"]
            turn = sum(m["role"] == "assistant" for m in request.messages)
            if turn < 2:
                return [calling("slow", f'{{"n": {int(question) % 3 + 1}}}', n, f"same{n}") for n in range(2)]
            return [question, ":", str(sum(m["role"] == "tool" for m in request.messages)), ";"]

        run = build(virtual_loop, loop("slow", ask=ask, act=act), Replies(reply, pause=0.3), slow=slow)
        for number in range(6):
            await run.offer("ask", str(number))
        await run.close_inputs()
        result = await run.wait()
        assert sorted(result["x"].split(";")) == ["", *(f"{n}:4" for n in range(6))]
        assert run.guardians["ask"].holds() == run.guardians["act"].holds() == 0

    virtual.run(story)


# -- interruptions lose no result


def two_turns(request):
    return asked_on(request) or [calling("slow", '{"n": 2}', n) for n in range(3)]


def test_results_are_not_lost_when_the_run_is_drained_in_the_middle_of_a_call():
    async def story(virtual_loop):
        run = build(virtual_loop, loop("slow"), Replies(two_turns), slow=slow)
        await run.start("go", leave_open=True)
        await asyncio.sleep(3)
        await run.cancel(drain=True)
        assert run.state == "done"
        assert run.result()["x"] == "slow=slept 2;" * 3

    virtual.run(story)


def test_results_are_not_lost_over_a_pause():
    async def story(virtual_loop):
        run = build(virtual_loop, loop("slow"), Replies(two_turns), slow=slow)
        await run.start("go")
        await asyncio.sleep(3)
        run.pause()
        await asyncio.sleep(60)
        assert run.variables["x"] == []
        run.resume()
        assert (await run.wait())["x"] == "slow=slept 2;" * 3

    virtual.run(story)


def test_results_are_not_lost_when_another_answer_breaks_off():
    def reply(request):
        if request.messages[0]["content"] == "bad":
            return ["part", OSError("cut")]
        return two_turns(request)

    async def story(virtual_loop):
        text = loop("slow") + 'failed = sink(var="failed")\nask.error -> failed'
        run = build(virtual_loop, text, Replies(reply, pause=0.5), slow=slow)
        await run.offer("ask", "good")
        await run.offer("ask", "bad")
        await run.close_inputs()
        result = await run.wait()
        assert result["x"] == "part" + "slow=slept 2;" * 3
        assert len(result.variables["failed"]) == 1

    virtual.run(story)


def test_overflow_drops_no_result():
    async def story(virtual_loop):
        text = loop("slow") + "all = sink(function=see) [queue=1, overflow=drop_oldest]\nact -> all"
        seen = []

        async def see(result: ToolResult):
            await asyncio.sleep(10)
            seen.append(result.content)

        run = build(virtual_loop, text, Replies(two_turns), slow=slow, see=see)
        await run.run("go")
        assert seen == ["slept 2"] * 3

    virtual.run(story)


def test_cancel_ends_the_calls():
    async def story(virtual_loop):
        ended = []

        async def endless() -> str:
            try:
                await asyncio.sleep(1e6)
            finally:
                ended.append(1)
            return ""

        reply = lambda _r: [calling("endless", index=n) for n in range(3)]
        run = build(virtual_loop, loop("endless", act="[workers=2]"), Replies(reply), endless=endless)
        await run.start("go")
        await asyncio.sleep(5)
        await run.cancel()
        assert ended == [1, 1]
        with pytest.raises(RunCancelled):
            await run.wait()

    virtual.run(story)


def test_function_that_raises_what_ends_programs_ends_none():
    async def leaves() -> str:
        raise SystemExit(3)

    async def gives_up() -> str:
        raise asyncio.CancelledError("enough")

    def reply(request):
        return asked_on(request) or [calling("leaves", index=0), calling("gives_up", index=1)]

    _, result = tell(loop("leaves", "gives_up"), Replies(reply), leaves=leaves, gives_up=gives_up)
    assert result["x"] == "leaves=Error: SystemExit: 3;gives_up=Error: enough;"


async def test_plain_functions_run_in_the_nodes_threads():
    names = set()

    def plain(n: int) -> str:
        names.add(threading.current_thread().name)
        return f"plain {n}"

    def wrong(n: int) -> object:
        return double(n)

    def reply(request):
        return asked_on(request) or [calling("plain", '{"n": 1}', 0), calling("wrong", '{"n": 1}', 1)]

    real = asyncio.get_running_loop()
    run = build(real, loop("plain", "wrong", act="[workers=2]"), Replies(reply), plain=plain, wrong=wrong)
    result = await run.run("go")
    assert result["x"] == "plain=plain 1;wrong=Error: 'wrong' returned a coroutine, not a value;"
    assert names == {"aiflow:act"}


# -- what a function returns


def holding_itself():
    found = []
    found.append(found)
    return found


def calling_f():
    return fragment(0, "a", "f", '{"n": 1}')


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (itertools.count, "returned a count, not a value"),
        (lambda: map(str, itertools.count()), "returned a map, not a value"),
        (lambda: (n for n in "ab"), "returned a generator, not a value"),
        (lambda: [1, {"n": itertools.count()}], "holds a count, which is no value"),
        (lambda: Passages("q", iter([])), "holds a list_iterator"),
        (holding_itself, "holds itself"),
        (lambda: asyncio.sleep(0), "returned a coroutine, not a value"),
    ],
)
def test_what_has_no_end_is_told_as_a_failure_and_written_no_further(returned, said, awaits):
    async def later(n: int) -> object:
        return returned()

    (result,) = results(node(f=later if awaits else lambda n: returned()).put(calling_f(), finish()))
    assert result.failed
    assert said in result.content


def test_a_long_value_is_written_only_as_far_as_it_is_told():
    seen = []

    class Endless(Mapping):
        def __getitem__(self, key):
            seen.append(key)
            return float("nan")

        def __iter__(self):
            return itertools.count()

        def __len__(self):
            return 1

    (result,) = results(node({"hold_bytes": 40}, f=lambda n: Endless()).put(calling_f(), finish()))
    assert result.content == '{"0":"NaN","1":"NaN","2":"NaN","3":"NaN"\n[cut here: there is more]'
    assert len(seen) <= 6


def test_values_are_told_as_json():
    given = {"a": (1, 2.5, None), (1, 2): {"\ud83d"}, "when": date(2026, 1, 2), "what": Passages("q", []), "x": object}
    (result,) = results(node(f=lambda n: given).put(calling_f(), finish()))
    assert json.loads(result.content) == {
        "a": [1, 2.5, None],
        "(1, 2)": ["\ufffd"],
        "when": "2026-01-02",
        "what": {"query": "q", "passages": []},
        "x": str(object),
    }


async def test_a_value_is_written_in_the_nodes_thread():
    threads = []

    class Slow:
        def __str__(self):
            threads.append(threading.current_thread().name)
            return "slow"

    def f(n: int) -> object:
        return Slow()

    def reply(request):
        return ["done"] if len(request.messages) > 1 else [calling("f", '{"n": 1}')]

    run = build(asyncio.get_running_loop(), loop("f"), Replies(reply), f=f)
    assert (await run.run("go"))["x"] == "done"
    assert threads == ["aiflow:act"]
