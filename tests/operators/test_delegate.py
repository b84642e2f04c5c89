"""`delegate`: another graph as one node, in runs in virtual time."""

from __future__ import annotations

import asyncio

import pytest
import virtual
from driven import Replies

from aiflow_jupyter.errors import ConfigError, GraphError, RunCancelled, RunError
from aiflow_jupyter.events import Event, Failure
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.operators.delegate import MOST_DEPTH, _Shown, depth_of
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler

STREAMED = "ask = generate()\nout = sink(display=true)\nask -> out"
COLLECTED = 'ask = generate()\nout = sink(var="text")\nask -> out'


def spec_of(text, name="g"):
    return parse(text, name, SIGNATURES).spec


def build(loop, text, source=None, flows=None, **functions):
    known = {name: spec_of(each, name) for name, each in (flows or {}).items()}
    spec = spec_of(text)
    require(spec, SIGNATURES, functions, flows=known)
    return Run(spec, OPERATORS, Scheduler(loop, loop.clock), functions=functions, source=source, flows=known)


def run(text, source, flows, value="hello", **functions):
    async def story(loop):
        outer = build(loop, text, source, flows, **functions)
        return outer, await outer.run(value)

    return virtual.run(story)


OUTER = """
sub = delegate(flow=inner) {policy}
out = sink(function=see, inline=true)
sub -> out
"""


def seeing(seen):
    def see(event: Event):
        seen.append(event)

    see.__annotations__["event"] = Event
    return see


# -- streamed


def test_what_the_inner_graph_shows_streams_out_as_one_answer():
    seen = []
    source = Replies(lambda request: [f"{request.messages[-1]['content']} ", "said"], pause=1)

    async def story(loop):
        outer = build(loop, OUTER.format(policy=""), source, {"inner": STREAMED}, see=seeing(seen))
        await outer.offer("sub", "one")
        await asyncio.sleep(1.5)
        assert [event.payload for event in seen] == ["one "]
        await outer.offer("sub", "two")
        await outer.close_inputs()
        return outer, await outer.wait()

    outer, result = virtual.run(story)
    assert [(event.payload, event.lineage, event.sequence) for event in seen] == [
        ("one ", "0/0.sub", 0),
        ("said", "0/0.sub", 1),
        ("two ", "1/1.sub", 0),
        ("said", "1/1.sub", 1),
    ]
    assert {(event.kind, event.source, event.phase) for event in seen} == {("token", "sub", "answer")}
    assert [answer.node for answer in result.answers] == ["ask", "ask"]
    assert outer.guardians["sub"].processed == 2


def test_an_answer_can_be_gathered_behind_it():
    text = 'sub = delegate(flow=inner)\nall = reduce("join")\nout = sink(var="x")\nsub -> all -> out'
    _, result = run(text, Replies(lambda _r: ["a", "b"]), {"inner": STREAMED})
    assert result.variables["x"] == ["ab"]


def test_what_is_shown_waits_for_whoever_takes_it():
    async def story(loop):
        taken = []

        async def slow(text: str) -> None:
            await asyncio.sleep(10)
            taken.append(text)

        given = []

        def reply(_request):
            for number in range(100):
                given.append(number)
                yield f"{number} "

        text = "sub = delegate(flow=inner) [queue=1]\nout = sink(function=slow) [queue=1]\nsub -> out"
        inner = "ask = generate() [queue=1]\nout = sink(display=true) [queue=1]\nask -> out"
        outer = build(loop, text, Replies(reply), {"inner": inner}, slow=slow)
        await outer.start("go")
        await asyncio.sleep(35)
        assert len(taken) == 3
        assert len(given) <= len(taken) + 9
        await outer.cancel()

    virtual.run(story)


def test_a_graph_may_be_run_for_several_events_at_once_and_keeps_their_order():
    seen = []
    source = Replies(lambda request: [request.messages[-1]["content"]] * 3, pause=1)

    async def story(loop):
        outer = build(loop, OUTER.format(policy="[workers=4]"), source, {"inner": STREAMED}, see=seeing(seen))
        for number in range(4):
            await outer.offer("sub", str(number))
        await outer.close_inputs()
        await outer.wait()
        assert outer.elapsed_s < 8

    virtual.run(story)
    assert [event.payload for event in seen] == [str(number) for number in range(4) for _ in range(3)]


# -- collected


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (COLLECTED, "a b"),
        ('ask = generate()\nall = reduce("join")\nout = sink(var="x")\nask -> all -> out', "a b"),
        ('ask = generate()\nall = window(count=1)\nout = sink(var="x")\nask -> all -> out', [["a "], ["b"]]),
        (
            'ask = generate()\nn = reduce("count")\nx = sink(var="x")\ny = sink(var="y")\nask -> x\nask -> n -> y',
            {"x": "a b", "y": 2},
        ),
    ],
)
def test_what_the_inner_graph_collects_is_one_value_with_the_events_identity(inner, expected):
    seen = []
    run(OUTER.format(policy=""), Replies(lambda _r: ["a ", "b"]), {"inner": inner}, see=seeing(seen))
    ((event),) = seen
    assert (event.payload, event.kind, event.identity, event.complete) == (expected, "value", ("0", 0), True)


def test_two_graphs_of_one_question_can_be_joined():
    text = """
    start = map(same, inline=true)
    one = delegate(flow=first)
    two = delegate(flow=second)
    both = join()
    out = sink(var="x")
    start -> one, two
    one, two -> both -> out
    """

    async def story(loop):
        source = Replies(lambda request: [request.messages[-1]["content"]])
        flows = {"first": COLLECTED, "second": COLLECTED.replace("generate()", 'generate(system="s")')}
        outer = build(loop, text, source, flows, same=lambda each: each)
        for number in range(5):
            await outer.offer("start", str(number))
        await outer.close_inputs()
        return (await outer.wait()).variables["x"]

    assert virtual.run(story) == [{"one": str(n), "two": str(n)} for n in range(5)]


# -- what goes wrong inside


def failing(request):
    return ["part ", OSError("the line is cut")] if request.messages[-1]["content"] != "good" else ["fine"]


@pytest.mark.parametrize("inner", [STREAMED, COLLECTED])
def test_a_failure_names_the_inner_node_and_goes_to_the_error_port(inner):
    with pytest.raises(RunError) as raised:
        run(OUTER.format(policy=""), Replies(failing), {"inner": inner}, see=seeing([]))
    assert raised.value.node == "sub"
    assert "in graph 'inner': node 'ask' failed" in raised.value.message
    assert "the line is cut" in raised.value.message

    async def story(loop):
        text = OUTER.format(policy="") + 'failed = sink(var="failed")\nsub.error -> failed'
        outer = build(loop, text, Replies(failing), {"inner": inner}, see=seeing([]))
        await outer.offer("sub", "bad")
        await outer.offer("sub", "good")
        await outer.close_inputs()
        return await outer.wait()

    (failure,) = virtual.run(story).variables["failed"]
    assert isinstance(failure, Failure)
    assert (failure.node, failure.error.code) == ("sub", "AF603")


def test_an_answer_that_broke_off_inside_and_was_caught_there_is_no_whole_one():
    caught = "failed = sink(function=note, inline=true)\nask.error -> failed"
    text = 'sub = delegate(flow=inner)\nall = reduce("join")\nout = sink(function=see, inline=true)\nsub -> all -> out'
    for inner in (STREAMED, COLLECTED):
        seen = []
        run(text, Replies(failing), {"inner": f"{inner}\n{caught}"}, see=seeing(seen), note=seeing([]))
        assert [(event.payload, event.complete) for event in seen] == [("part ", False)]


def test_what_is_retracted_inside_is_retracted_here():
    inner = "ask = generate()\nsafe = guard(check, inline=true)\nout = sink(display=true)\nask -> safe -> out"
    text = 'sub = delegate(flow=inner)\nout = sink(var="x")\nsub -> out'
    source = Replies(lambda _r: ["Fine. ", "Also. ", "secret. ", "More."])
    _, result = run(text, source, {"inner": inner}, check=lambda text: "secret" not in text)
    assert result.variables["x"] == []


def test_a_cancel_goes_down():
    async def story(loop):
        ended = []

        class Endless:
            async def stream(self, request):
                try:
                    await asyncio.sleep(1e6)
                    yield
                finally:
                    ended.append(request.messages[-1]["content"])

        outer = build(loop, OUTER.format(policy="[workers=2]"), Endless(), {"inner": STREAMED}, see=seeing([]))
        await outer.offer("sub", "a")
        await outer.offer("sub", "b")
        await asyncio.sleep(5)
        await outer.cancel()
        assert sorted(ended) == ["a", "b"]
        with pytest.raises(RunCancelled):
            await outer.wait()
        assert outer.still_running == []

    virtual.run(story)


def test_time_and_tries_hold_for_the_inner_run_as_a_whole():
    calls = []

    def reply(request):
        calls.append(request)
        return [OSError("again")] if len(calls) == 1 else ["fine"]

    seen = []
    outer, _ = run(OUTER.format(policy="[retry=2]"), Replies(reply), {"inner": STREAMED}, see=seeing(seen))
    assert [event.payload for event in seen] == ["fine"]
    assert outer.guardians["sub"].retries == 1
    with pytest.raises(RunError) as raised:
        run(
            OUTER.format(policy="[timeout=2]"), Replies(lambda _r: ["x"], pause=9), {"inner": COLLECTED}, see=seeing([])
        )
    assert raised.value.code == "AF610"


# -- graphs within graphs


def chain(length):
    flows = {f"f{n}": f'sub = delegate(flow=f{n + 1})\nout = sink(var="x")\nsub -> out' for n in range(length - 1)}
    return flows | {f"f{length - 1}": COLLECTED}


def test_graphs_may_be_within_graphs_so_deep_and_no_deeper():
    text = 'sub = delegate(flow=f0)\nout = sink(var="x")\nsub -> out'
    _, result = run(text, Replies(lambda _r: ["deep"]), chain(MOST_DEPTH))
    assert result.variables["x"] == ["deep"]
    with pytest.raises(ConfigError) as raised:
        run(text, Replies(lambda _r: ["deep"]), chain(MOST_DEPTH + 1))
    assert raised.value.code == "AF625"


def test_a_graph_that_would_run_itself_is_refused_by_its_way():
    flows = {"a": "x = delegate(flow=b)\nout = sink(display=true)\nx -> out"}
    flows["b"] = flows["a"].replace("=b", "=c")
    flows["c"] = flows["a"].replace("=b", "=a")
    with pytest.raises(ConfigError) as raised:
        run(OUTER.format(policy="").replace("inner", "b"), None, flows, see=seeing([]))
    assert raised.value.code == "AF625"
    assert "b -> c -> a -> b" in raised.value.message


def test_many_ways_to_one_graph_are_looked_at_once():
    flows = {"f7": spec_of(COLLECTED)}
    for level in range(7):
        nodes = [f"n{each} = delegate(flow=f{level + 1})" for each in range(99)]
        edges = [f"n{each} -> out" for each in range(99)]
        flows[f"f{level}"] = spec_of("\n".join([*nodes, 'out = sink(var="x")', *edges]))
    assert depth_of("f0", flows, "n") == 8


@pytest.mark.parametrize(
    ("inner", "code"),
    [
        ('ask = generate()\nout = sink(jsonl="/dev/null")\nask -> out', "AF624"),
        ('a = generate()\nb = generate()\nout = sink(var="x")\na, b -> out', "AF624"),
    ],
)
def test_a_graph_that_can_not_be_a_node_is_refused(inner, code):
    with pytest.raises(ConfigError) as raised:
        run(OUTER.format(policy=""), Replies(lambda _r: []), {"inner": inner}, see=seeing([]))
    assert raised.value.code == code


def test_an_inner_graph_passes_its_checks_first():
    with pytest.raises(GraphError) as raised:
        run(
            OUTER.format(policy=""),
            Replies(lambda _r: []),
            {"inner": STREAMED + "\nx = nothing\nask -> x"},
            see=seeing([]),
        )
    assert "inner" in str(raised.value) or raised.value.problems[0].code == "AF201"


def test_checks_take_anything_from_it():
    for target in ("segment()", "map(same)", 'prompt(template="{value}")'):
        text = f'sub = delegate(flow=inner)\nmid = {target}\nout = sink(var="x")\nsub -> mid -> out'
        require(spec_of(text), SIGNATURES, {"same": lambda x: x}, flows=["inner"])
    with pytest.raises(GraphError) as raised:
        require(spec_of(OUTER.format(policy="")), SIGNATURES, {"see": print}, flows=["other"])
    assert [problem.code for problem in raised.value.problems] == ["AF205"]


# -- what is told of the inner run


GUARDED = "ask = generate()\nsafe = guard(check, inline=true)\nout = sink({})\nask -> safe -> out"


@pytest.mark.parametrize("how", ["display=true", 'var="text"'])
@pytest.mark.parametrize("good", [True, False])
def test_what_an_inner_run_warns_of_stands_in_the_outer_one_which_is_not_whole_either(how, good):
    source = Replies(lambda _request: ["One. ", "Two."])
    flows = {"inner": GUARDED.format(how)}
    _, result = run(OUTER.format(policy=""), source, flows, see=seeing([]), check=lambda _text: good)
    assert result.complete == good
    if good:
        assert result.status.warnings == ()
    else:
        refused, part = result.status.warnings
        assert refused.startswith("in graph 'inner': node 'safe': 'check' refused a part of it")
        assert part == "node 'sub': what graph 'inner' gave is not whole"


def test_warnings_of_a_graph_two_graphs_down_name_the_way():
    source = Replies(lambda _request: ["One. ", "Two."])
    flows = {
        "inner": GUARDED.format("display=true"),
        "middle": "sub = delegate(flow=inner)\nout = sink(display=true)\nsub -> out",
    }
    text = OUTER.format(policy="").replace("flow=inner", "flow=middle")
    _, result = run(text, source, flows, see=seeing([]), check=lambda _text: False)
    assert any(each.startswith("in graph 'middle': in graph 'inner': node 'safe'") for each in result.status.warnings)
    assert not result.complete


# -- keys


def test_key_of_a_call_in_an_inner_graph_is_the_same_for_each_try_and_another_for_each_event_and_run():
    keys = []

    async def pay(text: str, idempotency_key: str) -> str:
        keys.append((text, idempotency_key))
        if keys.count((text, idempotency_key)) < 2:
            raise ValueError("again")
        return text

    async def split(text: str) -> list[str]:
        return text.split()

    inner = 'act = map(pay) [effect=idempotent, retry=2, backoff=0.01]\nout = sink(var="done")\nact -> out'
    outer = 'each = flat_map(split)\nsub = delegate(flow=inner)\nout = sink(var="all")\neach -> sub -> out'
    for _ in range(2):
        run(outer, None, {"inner": inner}, value="Ann Bob", pay=pay, split=split)
    assert len(keys) == 8
    assert len(set(keys)) == len({key for _, key in keys}) == 4


def test_what_is_told_beside_what_is_shown_does_not_pile_up():
    async def story(_loop):
        shown = _Shown()
        sink = shown.operator().bind({"display": True}, None)
        await sink.call(Event("token", "a", lineage="0/0.ask"))
        for number in range(1_000):
            for kind in ("error", "skip", "flush", "finish", "restart", "retract"):
                word = Event(kind, number, lineage=f"{number}/1.ask")
                assert list(sink.control(word)) == [word]
        assert (shown._events.qsize(), shown.broken, shown.finish) == (1, True, 999)
        assert list(sink.control(Event("restart", lineage="0")))
        assert shown._events.qsize() == 2

    virtual.run(story)


def test_two_events_of_one_identity_are_two_runs_within():
    async def pay(text: str, idempotency_key: str) -> str:
        keys.append((text, idempotency_key.partition("/")[2]))
        return text

    async def same(text: str) -> str:
        return text

    async def loud(text: str) -> str:
        return text.upper()

    keys = []
    inner = 'send = map(pay)\nout = sink(var="paid")\nsend -> out'
    text = 'q = map(same)\na = map(same)\nb = map(loud)\nd = delegate(flow=inner)\no = sink(var="o")\n'
    text += "q -> a, b\na, b -> d -> o"
    run(text, None, {"inner": inner}, pay=pay, same=same, loud=loud)
    assert sorted(key for _, key in keys) == ["d/0/0+1/send/0/0", "d/0/0/send/0/0"]
    assert {text for text, _ in keys} == {"hello", "HELLO"}
