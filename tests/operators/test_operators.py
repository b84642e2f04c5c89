"""The operators, each in a real run in virtual time; `sink(jsonl=...)` and plain functions in real threads."""

from __future__ import annotations

import asyncio
import functools
import json
from itertools import pairwise

import pytest
import virtual
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import AiflowError, ConfigError, RunError, StreamCut
from aiflow_jupyter.events import Event, Failure, Finish, Usage
from aiflow_jupyter.graph.checks import require
from aiflow_jupyter.graph.language import parse
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.operators.segment import MOST_HELD
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler

NUMBERS = {"phase": "answer", "tier": "local", "model": "m", "provider": "scripted"}


class Scripted:
    """A source that answers every request with the same events."""

    def __init__(self, *script, pause=0.0, cut=False):
        self.script, self.pause, self.cut = script, pause, cut
        self.requests, self.closed = [], 0

    async def stream(self, request):
        self.requests.append(request)
        try:
            for number, item in enumerate(self.script):
                await asyncio.sleep(self.pause)
                if isinstance(item, Event):
                    yield item
                else:
                    text, phase = item if isinstance(item, tuple) else (item, "answer")
                    yield Event("token", text, source="scripted", sequence=number, meta={**NUMBERS, "phase": phase})
            if not self.cut:
                usage = Usage(completion_tokens=7)
                yield Event("usage", usage)
                yield Event("finish", Finish("stop", usage))
        finally:
            self.closed += 1


def build(loop, text, source=None, show=None, **functions):
    parsed = parse(text, "g", SIGNATURES)
    require(parsed.spec, SIGNATURES, functions, parsed)
    clock = getattr(loop, "clock", None)
    scheduler = Scheduler(loop, clock) if clock else Scheduler(loop)
    return Run(parsed.spec, OPERATORS, scheduler, functions=functions, source=source, show=show)


def tell(text, source, value="hello", **functions):
    """Run a graph in virtual time; the run and its result."""

    async def story(loop):
        run = build(loop, text, source, **functions)
        return run, await run.run(value)

    return virtual.run(story)


def pieces(*script, by="sentence", cut=False):
    text = f'ask = generate()\nparts = segment(by="{by}")\nout = sink(var="x")\nask -> parts -> out'
    if cut:
        text += '\nfailed = sink(var="failed")\nask.error -> failed'
    return tell(text, Scripted(*script, cut=cut))[1].variables["x"]


# -- segment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pi is 3.14 here. Next one!", ["Pi is 3.14 here.", "Next one!"]),
        ("Use a list, e.g. this one. Dr. Who came.", ["Use a list, e.g. this one.", "Dr. Who came."]),
        ("1. First item.\n2. Second item.", ["1. First item.", "2. Second item."]),
        ("J. Smith said (really) no... Yes.", ["J. Smith said (really) no...", "Yes."]),
        ('He said "Stop." Then left.', ['He said "Stop."', "Then left."]),
        ("你好。「好！」再见？ok", ["你好。", "「好！」", "再见？", "ok"]),
        ("Title\n \nBody", ["Title", "Body"]),
        ("no end", ["no end"]),
        (" \n ", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text, expected):
    assert pieces(text) == expected
    assert pieces(*text) == expected


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="aA1 .!?…\"')。」\n", max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_pieces_do_not_depend_on_how_the_text_was_cut_into_tokens(text, cuts):
    at = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    tokens = [text[a:b] for a, b in pairwise(at)]
    whole = pieces(text)
    assert pieces(*tokens) == whole == pieces(*text)
    assert "".join("".join(whole).split()) == "".join(text.split())


def test_lines_end_at_their_newline():
    assert pieces("one. two\nthr", "ee\n\nfour", by="line") == ["one. two", "three", "four"]


@pytest.mark.parametrize("char", ["a", ".", "\n", '"', "。", "1.", " .", '."', "\n "])
def test_a_million_characters_without_an_end_go_out_in_bounded_pieces(char):
    text = char * (1_000_000 // len(char))
    found = pieces(text)
    assert all(len(piece) <= MOST_HELD for piece in found)
    assert "".join("".join(found).split()) == "".join(text.split())


def test_last_piece_of_a_broken_answer_is_marked_incomplete_and_keeps_its_phase():
    seen = []
    text = "ask = generate()\nparts = segment()\nout = sink(function=see, inline=true)\nask -> parts -> out"
    text += '\nfailed = sink(var="failed")\nask.error -> failed'

    def see(event: Event):
        seen.append((event.payload, event.complete, event.phase, event.lineage))

    see.__annotations__["event"] = Event
    _, result = tell(text, Scripted("One. ", "Two", cut=True), see=see)
    assert seen == [("One.", True, "answer", "0/0.ask"), ("Two", False, "answer", "0/0.ask")]
    assert isinstance(result.variables["failed"][0], Failure)
    assert not result.complete


def test_reasoning_and_answer_are_never_in_one_piece():
    assert pieces(("so I say hi", "reasoning"), "Hello.") == ["so I say hi", "Hello."]


# -- route


def test_route_by_phase_sends_each_token_to_its_lane_and_counts_what_has_none():
    text = 'ask = generate()\nlane = route(by="phase")\na = sink(var="a")\nask -> lane\nlane.answer -> a\n'
    source = Scripted(("hm", "reasoning"), "yes", " sir")
    run, result = tell(text, source)
    assert result["a"] == "yes sir"
    assert run.guardians["lane"].unrouted == 1
    _, result = tell(text + 'b = sink(var="b")\nlane.else -> b', Scripted(("hm", "reasoning"), "yes"))
    assert (result["a"], result["b"]) == ("yes", "hm")


def test_route_by_kind_has_a_port_for_each_kind():
    text = 'ask = generate()\nlane = route(by="kind")\na = sink(var="a")\nb = sink(var="b")\n'
    text += "ask -> lane\nlane.token -> a\nlane.tool_fragment -> b"
    _, result = tell(text, Scripted("yes", Event("tool_fragment", 1)))
    assert (result.variables["a"], result.variables["b"]) == (["yes"], [1])


def test_route_by_a_function_and_what_it_raises_is_the_nodes_failure():
    text = 'ask = generate()\nlane = route(by=pick)\na = sink(var="a")\nb = sink(var="b")\n'
    text += "ask -> lane\nlane.short -> a\nlane.else -> b"
    _, result = tell(text, Scripted("x", "xyz"), pick=lambda t: "short" if len(t) < 2 else "long")
    assert (result["a"], result["b"]) == ("x", "xyz")
    with pytest.raises(RunError, match="'lane' failed on event 0: ZeroDivisionError"):
        tell(text, Scripted("x"), pick=lambda _t: 1 / 0)


def test_route_sends_no_data_by_the_port_of_failures():
    text = 'ask = generate()\nlane = route(by=pick)\na = sink(var="a")\nb = sink(var="b")\n'
    text += "ask -> lane\nlane.x -> a\nlane.error -> b"
    _, result = tell(text, Scripted("x", "error", "x"), pick=str)
    assert result["a"] == "xx"
    (failure,) = result.variables["b"]
    assert (failure.node, failure.error.code) == ("lane", "AF303")


def test_route_by_an_async_function_is_refused_before_the_run():
    async def pick(_text):
        return "a"

    with pytest.raises(ConfigError, match="plain function"):
        tell('lane = route(by=pick)\na = sink(var="a")\nlane.a -> a', None, pick=pick)


# -- map, filter


@pytest.mark.parametrize(
    ("function", "kind", "payload"),
    [
        (str.upper, "token", "AB"),
        (len, "value", 2),
        (lambda _t: Event("label", "HIGH", lineage="z"), "label", "HIGH"),
    ],
)
def test_map_gives_text_as_it_was_an_event_as_it_is_and_else_a_value(function, kind, payload):
    seen = []
    text = "ask = generate()\nm = map(f, inline=true)\nout = sink(function=see, inline=true)\nask -> m -> out"

    def see(event):
        seen.append((event.kind, event.payload))

    see.__annotations__["event"] = Event
    tell(text, Scripted("ab"), f=function, see=see)
    assert seen == [(kind, payload)]


CHAIN = 'ask = generate()\nm = {}(f, inline=true)\nout = sink(var="x")\nask -> m -> out'


def test_map_that_returns_none_drops_and_filter_keeps_what_is_true():
    assert tell(CHAIN.format("map"), Scripted("a", "b"), f=lambda t: None if t == "a" else t)[1]["x"] == "b"
    assert tell(CHAIN.format("filter"), Scripted("a", "", "b"), f=lambda t: t)[1]["x"] == "ab"


def test_map_may_not_return_a_control_event():
    with pytest.raises(RunError, match="control event"):
        tell(CHAIN.format("map"), Scripted("a"), f=lambda _t: Event("finish"))


def test_async_functions_are_awaited_also_in_partials_and_objects():
    async def slow(mark, text):
        await asyncio.sleep(1)
        return text + mark

    class Callable:
        async def __call__(self, text):
            return await slow("!", text)

    for function in (functools.partial(slow, "!"), Callable()):
        assert tell(CHAIN.format("map"), Scripted("a"), f=function)[1]["x"] == "a!"


def test_function_that_yields_is_refused_before_the_run():
    def f(text):
        yield text

    with pytest.raises(AiflowError) as error:
        tell(CHAIN.format("map"), Scripted("a"), f=f)
    assert error.value.code == "AF303"


# -- generate


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


# -- sink, in real threads


async def test_jsonl_sink_writes_one_object_for_each_event_whatever_its_workers(tmp_path):
    path = tmp_path / "out.jsonl"
    text = f"m = map(f)\nout = sink(jsonl={json.dumps(str(path))}) [workers=4]\nm -> out\nm.error -> out"
    for value in ("é", None):
        run = build(asyncio.get_running_loop(), text, f=lambda t: {"t": t} if t else 1 / 0)
        await run.run(value)
    first, second = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert (first["kind"], first["payload"], first["lineage"]) == ("value", {"t": "é"}, "0")
    assert second["payload"]["node"] == "m"
    assert "ZeroDivisionError" in second["payload"]["error"]


async def test_jsonl_sink_that_cannot_write_fails_naming_its_node(tmp_path):
    text = f"out = sink(jsonl={json.dumps(str(tmp_path / 'no' / 'out'))})"
    with pytest.raises(RunError) as error:
        await build(asyncio.get_running_loop(), text).run("x")
    assert (error.value.code, error.value.node) == ("AF730", "out")
    assert error.value.message.count("'out'") == 1


async def test_function_sink_is_called_with_each_payload_and_display_with_each_event():
    called, shown = [], []
    loop = asyncio.get_running_loop()
    await build(loop, "out = sink(function=f)", f=called.append).run("x")
    await build(loop, "out = sink(display=true)", show=shown.append).run("y")
    assert (called, [e.payload for e in shown]) == (["x"], ["y"])
