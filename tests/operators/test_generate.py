"""`generate`, in real runs in virtual time."""

from __future__ import annotations

import asyncio

import pytest
import virtual
from driven import END, NUMBERS, Node, Replies, Scripted, build, error, tell, told, value
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import CommandError, RunError, StreamCut
from aiflow_jupyter.events import Event, Finish, Retrieval, ToolFragment, ToolResult, Usage
from aiflow_jupyter.operators.generate import messages_of
from aiflow_jupyter.operators.retrieve import Passages

ASK = 'ask = generate(system="Be brief.", temperature=0)\nout = sink(var="x")\nask -> out'


def test_generate_asks_with_the_system_message_and_gives_tokens_of_its_input():
    source = Scripted("a", "b")
    run, result = tell(ASK, source)
    assert [(m["role"], m["content"]) for m in source.requests[0].messages] == [
        ("system", "Be brief."),
        ("user", "hello"),
    ]
    assert source.requests[0].temperature == 0
    assert result["x"] == "ab"
    assert result.answers[0].usage == Usage(completion_tokens=7)
    assert (result.answers[0].node, result.answers[0].lineage, result.answers[0].pieces) == ("ask", "0/0.ask", 2)
    assert run.guardians["ask"].emitted == 2  # usage is no event of its own


class Letters:
    """Answers "abc" with the lines a, b and c, and one letter with two lines of it in capitals."""

    async def stream(self, request):
        asked = request.messages[-1]["content"]
        text = "\n".join(asked) if len(asked) > 1 else f"{asked * 3}\n{asked * 2}".upper()
        for number, token in enumerate(text):
            await asyncio.sleep(0.01)
            yield Event("token", token, sequence=number, meta=NUMBERS)
        if asked == "x":
            raise StreamCut("cut")
        yield Event("finish", Finish())


async def slowly(text):
    await asyncio.sleep(0.1)
    return text


SEVERAL = """
first = generate()
lines = segment(by="line")
ask   = generate() {ask}
left  = map(slowly) {left}
right = map(same, inline=true)
out   = segment(by="line")
seen  = sink(var="x")
first -> lines -> ask -> left, right
left, right -> out -> seen
"""


@pytest.mark.parametrize("ask", ["", "[workers=3]", "[workers=3, order=none]"])
@pytest.mark.parametrize("left", ["", "[workers=3]", "[workers=3, order=none]"])
def test_several_answers_to_one_input_are_never_glued_by_a_merge_or_a_segment(ask, left):
    text = SEVERAL.format(ask=ask, left=left)
    _, result = tell(text, Letters(), value="abc", slowly=slowly, same=lambda text: text)
    found = result.variables["x"]
    assert all(len(set(piece)) == 1 for piece in found), found
    assert sorted("".join(found)) == sorted(2 * "AAAAABBBBBCCCCC")
    assert sorted(answer.lineage for answer in result.answers) == [
        "0/0.first",
        *(f"0/0.first/{n}.ask" for n in range(3)),
    ]


def test_answers_of_two_models_to_one_input_are_never_glued():
    text = 'q = map(same, inline=true)\na = generate()\nb = generate()\nout = segment()\nseen = sink(var="x")\n'
    _, result = tell(text + "q -> a, b -> out -> seen", Letters(), value="a", same=lambda text: text)
    assert result.variables["x"] == ["AAA\nAA", "AAA\nAA"]


def test_answer_that_breaks_off_leaves_the_others_to_the_same_input_whole():
    shown = []
    text = SEVERAL.format(ask="", left="") + 'failed = sink(var="failed")\nask.error -> failed\nout -> all'
    text += "\nall = sink(function=see, inline=true)"

    def see(event: Event):
        shown.append((event.payload[0], event.complete))

    see.__annotations__["event"] = Event
    _, result = tell(text, Letters(), value="axb", slowly=slowly, same=lambda text: text, see=see)
    assert len(result.variables["failed"]) == 1
    assert {piece for piece, complete in shown if not complete} == {"X"}
    assert {piece for piece, complete in shown if complete} >= {"A", "B"}


def test_generate_takes_messages_and_refuses_what_is_neither():
    source = Scripted("a")
    tell(ASK, source, value=[{"role": "user", "content": "q"}])
    assert source.requests[0].messages[-1]["content"] == "q"
    with pytest.raises(RunError) as error:
        tell(ASK, source, value=3)
    assert (error.value.code, error.value.node) == ("AF302", "ask")


def test_answer_that_breaks_off_is_a_cut_stream():
    with pytest.raises(RunError) as error:
        tell(ASK, Scripted("a", cut=True))
    assert isinstance(error.value.__cause__, StreamCut)
    assert (error.value.code, error.value.node, error.value.sequence) == ("AF702", "ask", 0)


def test_source_is_closed_when_the_run_is_cancelled():
    async def story(loop):
        source = Scripted(*"abcdef", pause=1)
        run = build(loop, ASK, source)
        await run.start("hello")
        await asyncio.sleep(2.5)
        assert source.closed == 0
        await run.cancel()
        assert source.closed == 1
        assert run.variables["x"] == ["a", "b"]

    virtual.run(story)


# -- what is asked


def test_passages_are_told_with_their_question():
    found = [Retrieval("Owls hoot.", "What hoots?"), Retrieval("Cats purr.", "What hoots?")]
    told = ({"role": "user", "content": "[1] Owls hoot.\n\n[2] Cats purr.\n\nWhat hoots?"},)
    assert messages_of(found) == messages_of(Passages("What hoots?", found)) == told
    assert messages_of(Passages("What?", []))[0]["content"] == "(no passage was found)\n\nWhat?"


def test_messages_keep_calls_and_results_and_nothing_else():
    said = [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}], "refusal": None},
        {"role": "tool", "content": "4", "tool_call_id": "a", "name": "f", "extra": 1},
    ]
    assert messages_of(said) == (
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]},
        {"role": "tool", "content": "4", "tool_call_id": "a", "name": "f"},
    )


@pytest.mark.parametrize("payload", [[], [1], [Retrieval("a"), "b"], [{"role": "user"}], None, b"x"])
def test_what_no_model_can_be_asked_is_refused(payload):
    with pytest.raises(CommandError) as raised:
        messages_of(payload)
    assert raised.value.code == "AF302"


# -- results of calls


def lookup(key: str) -> str:
    """What stands under a key."""
    return key


def calls_of(request):
    """Two calls for a question, then the results in the order in which they were told."""
    told = [m["content"] for m in request.messages if m["role"] == "tool"]
    if told:
        return [request.messages[0]["content"], *told]
    count = int(request.messages[0]["content"])
    return [ToolFragment(n, f"c{n}", "lookup", "{}") for n in range(count)]


def asking(source, **policy):
    return Node("generate", policy, {"lookup": lookup}, source=source, arguments={"tools": ["lookup"]})


def result(call, lineage, calls=1, **meta):
    payload = ToolResult(f"c{call}", "lookup", f"r{call}", calls=calls)
    return Event("tool_result", payload, source="act", sequence=call, lineage=lineage, meta=meta)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_the_model_is_asked_again_once_all_results_are_there_in_whatever_order(counts, data):
    source = Replies(calls_of)
    node = asking(source)
    for n, count in enumerate(counts):
        node.put(value(str(count), n, str(n)))
    waiting = [(n, call) for n, count in enumerate(counts) for call in range(count)]
    left = dict(enumerate(counts))
    for n, call in data.draw(st.permutations(waiting)):
        out = node.put(result(call, f"{n}/{n}.n", counts[n]))
        left[n] -= 1
        if left[n]:
            assert out == []
            continue
        texts = [event.payload for event in out if event.kind == "token"]
        assert texts == [str(counts[n]), *(f"r{each}" for each in range(counts[n]))]
        assert {event.lineage for event in out} == {f"{n}/{n}.n+1"}
    assert node.behaviour.holds() == 0


def test_what_came_round_keeps_its_hops():
    node = asking(Replies(calls_of))
    node.put(value("1"))
    out = node.put(result(0, "0/0.n", hops=3))
    assert [event.meta.get("hops") for event in out if event.kind == "token"] == [3, 3]
    assert len({id(event.meta) for event in out}) < len(out)


def test_the_same_result_twice_counts_once():
    node = asking(Replies(calls_of))
    node.put(value("2"))
    assert node.put(result(0, "0/0.n", 2), result(0, "0/0.n", 2)) == []
    assert node.put(result(1, "0/0.n", 2)) != []


@pytest.mark.parametrize("wrong", [result(7, "0/0.n"), result(0, "1/0.n"), result(0, "0/0.n+1")])
def test_result_that_answers_no_call_fails_by_name(wrong):
    node = asking(Replies(calls_of))
    node.put(value("2"))
    with pytest.raises(RunError) as raised:
        node.put(wrong)
    assert raised.value.code == "AF621"


def test_more_answers_than_may_wait_fail_by_name_and_keep_the_others():
    node = asking(Replies(calls_of), hold=4)
    node.put(value("2"), value("2", 0, "1"), value("2", 0, "2"), result(0, "0/0.n"))
    with pytest.raises(RunError) as raised:
        node.put(value("2", 0, "3"))
    assert raised.value.code == "AF621"
    with pytest.raises(RunError):
        node.put(result(1, "0/0.n"))


@pytest.mark.parametrize(
    "event", [error("0/0.n"), told("retract", "0/0.n"), told("retract", "0"), told("restart", "0")]
)
def test_answer_that_is_void_is_forgotten_and_its_late_results_too(event):
    source = Replies(calls_of)
    node = asking(source)
    node.put(value("1"), value("1", 0, "1"))
    assert node.put(event) == [event]
    assert node.put(result(0, "0/0.n")) == []
    assert node.put(result(0, "1/0.n")) != []
    assert len(source.requests) == 3


def test_failure_of_a_later_question_leaves_the_answer_to_wait():
    node = asking(Replies(calls_of))
    node.put(value("1"))
    node.put(error("0", 1), told("flush"))
    assert node.put(result(0, "0/0.n")) != []
    node.put(value("1", 2))
    assert node.put(END) == []
    assert node.behaviour.holds() == 0


def test_second_turn_that_fails_may_be_tried_again():
    failing = [True]

    def reply(request):
        if len(request.messages) > 1 and failing:
            failing.clear()
            return [OSError("cut")]
        return calls_of(request)

    node = asking(Replies(reply))
    node.put(value("1"))
    with pytest.raises(OSError, match="cut"):
        node.put(result(0, "0/0.n"))
    assert [event.payload for event in node.put(result(0, "0/0.n")) if event.kind == "token"] == ["1", "r0"]


def same(x: str) -> str:
    """What is said."""
    return x


@pytest.mark.parametrize(
    ("policy", "effect", "restart"),
    [("", "", None), ("", " [effect=non_idempotent]", False), (" [restart=true]", "", True)],
)
def test_the_request_says_how_far_it_may_go_and_whether_it_may_be_begun_anew(policy, effect, restart):
    source = Scripted("a")
    text = f'ask = generate(stay="institution", fallback=true){policy}\nout = sink(function=heard){effect}\nask -> out'

    async def heard(x: str) -> None:
        """On the loop, as virtual time has no threads."""

    tell(text, source, heard=heard)
    (request,) = source.requests
    assert (request.stay, request.fallback, request.restart) == ("institution", True, restart)


def test_an_answer_keeps_the_decision_about_who_gives_it():
    class Decided:
        def badge(self):
            return "judged LOW"

    class Deciding(Scripted):
        async def stream(self, request):
            request.decided(decision)
            async for event in super().stream(request):
                yield event

    decision = Decided()
    _, result = tell(ASK, Deciding("a"))
    assert result.answers[0].decision is decision
    assert result.answers[0].badge().endswith("judged LOW")


def test_an_answer_that_is_begun_anew_voids_what_came_and_its_calls():
    class Twice:
        async def stream(self, request):
            meta = {"phase": "answer", "tier": request.tier}
            yield Event("token", "old", sequence=0, time=1, meta=meta)
            yield Event("tool_fragment", ToolFragment(0, "c1", "same", '{"x": 1}'), sequence=1, time=2)
            yield Event("restart", None, sequence=2, time=3)
            yield Event("token", "new", sequence=3, time=4, meta=meta | {"tier": "hpc"})
            yield Event("finish", Finish(), sequence=4, time=5)

    text = """
ask  = generate(tools=(same,))
lane = route(by="kind")
act  = tools(functions=(same,))
out  = sink(var="x")

ask -> lane
lane.token         -> out
lane.tool_fragment -> act
act -> ask [feedback, limit=8, hops=5]
"""
    _, result = tell(text, Twice(), same=same)
    assert result["x"] == "new"
    (answer,) = result.answers
    assert (answer.tier, answer.pieces, answer.first) == ("hpc", 1, 4)
