"""What the checks prove of loops and joins holds when the graph runs, at the limits that they name."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.checks.checking import examine
from aiflow_jupyter.graph.forms.language import read
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler
from tests import virtual


def named(text, functions, code):
    """The graph, and the number that the hint of its problem names."""
    parsed = read(text, "g", SIGNATURES)
    findings = examine(parsed.spec, SIGNATURES, functions, parsed)
    hints = [p.hint for p in (*findings.errors, *findings.warnings) if p.code == code]
    return parsed.spec, int(re.findall(r"limit=(\d+)", hints[0])[-1]) if hints else None


def ran(spec, functions, values):
    """What a run of a graph gives, all its inputs being offered as fast as they are taken in."""

    async def story(loop):
        run = Run(spec, OPERATORS, Scheduler(loop, loop.clock), functions=functions)
        for value in values:
            await run.offer(spec.inputs()[0], value)
        await run.close_inputs()
        return (await run.wait())["out"]

    return virtual.run(story)


def sleeper(pauses):
    """An asynchronous function that takes its time from a list, over and over."""
    turn = iter(range(10**9))

    async def work(text: str) -> str:
        await asyncio.sleep(pauses[next(turn) % len(pauses)])
        return text

    return work


PAUSES = st.lists(st.sampled_from([0, 0.1, 1, 5, 50]), min_size=1, max_size=6)

LOOP = """
head = map(first)  [queue={0}, workers={1}]
body = map(second) [queue={2}, workers={3}]
turn = route(by=way)
out  = sink(var="out")
head -> body -> turn
turn.again -> head [feedback, limit={limit}, hops=99]
turn.out -> out
inject head: str
"""


def way(event: Event) -> str:
    return "again" if event.meta.get("hops", 0) < len(event.payload) % 5 else "out"


@settings(deadline=None, max_examples=60)
@given(sizes=st.tuples(*[st.integers(1, 5)] * 4), first=PAUSES, second=PAUSES)
def test_loop_within_the_limit_that_is_named_never_overflows(sizes, first, second):
    functions = {"first": sleeper(first), "second": sleeper(second), "way": way}
    _, limit = named(LOOP.format(*sizes, limit=1), functions, "AF503")
    spec, again = named(LOOP.format(*sizes, limit=limit), functions, "AF503")
    assert again is None
    values = ["x" * number for number in range(60)]
    assert sorted(ran(spec, functions, values)) == values


def test_loop_below_that_limit_can_overflow():
    sizes = (8, 1, 8, 5)
    pauses = [9, 1, 1, 1, 1]  # the first of five is the last to be done, so that all five come back at once
    functions = {"first": sleeper([0.5]), "second": sleeper(pauses), "way": way}
    spec, limit = named(LOOP.format(*sizes, limit=4), functions, "AF503")
    assert limit > 4
    try:
        ran(spec, functions, ["x" * 4] * 20)
    except AiflowError as error:
        assert "which is its limit" in str(error)
    else:
        raise AssertionError("it was refused for nothing")


@settings(deadline=None, max_examples=40)
@given(sizes=st.tuples(*[st.integers(1, 5)] * 4), first=PAUSES, second=PAUSES, limit=st.integers(1, 4))
def test_one_value_goes_round_within_any_limit_and_nothing_is_said(sizes, first, second, limit):
    functions = {"first": sleeper(first), "second": sleeper(second), "way": way}
    alone = LOOP.format(*sizes, limit=limit).replace("inject head: str", "")
    spec, said = named(alone, functions, "AF503")
    assert said is None
    assert ran(spec, functions, ["x" * 4]) == ["x" * 4]


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("before -> head", False),
        ("many = reduce(f)\nbefore -> many -> head", False),
        ("many = flat_map(f)\nbefore -> many -> head", True),
        ("many = flat_map(f)\none = reduce(f)\nbefore -> many -> one -> head", False),
        ("other = map(f)\nbefore -> other\nbefore, other -> head", True),
        ("other = map(f)\nbefore, other -> head", True),
        ("other = map(f)\nboth = join()\nbefore -> other\nbefore, other -> both -> head", False),
        ("other = delegate(flow=x)\nbefore -> other -> head", True),
        ("other = map(f)\nother -> before\nbefore -> head\ninject other: str", True),
    ],
)
def test_a_loop_is_warned_of_where_more_than_one_event_may_enter_it(before, said):
    text = f"""
    head = map(f)
    turn = route(by=f)
    out  = sink(var="x")
    before = map(f)
    head -> turn
    turn.again -> head [feedback]
    turn.out -> out
    {before}
    """
    parsed = read(text, "g", SIGNATURES)
    findings = examine(parsed.spec, SIGNATURES, ["f"], parsed)
    assert findings.errors == []
    assert ("AF503" in [each.code for each in findings.warnings]) == said


TOOLS = """ask  = generate(tools=(f,))
lane = route(by="kind")
act  = tools(functions=(f,)) {act}
out  = sink(var="x")
ask -> lane
lane.token -> out
lane.tool_fragment -> act
act -> ask [feedback, limit={limit}]
inject ask: str
{more}"""


@pytest.mark.parametrize(
    ("limit", "act", "more", "said"),
    [
        (64, "", "", ""),
        (8, "[hold=8]", "", ""),
        (8, "", "", "one answer may make 64 calls"),
        (8, "[hold=9]", "", "one answer may make 9 calls"),
        (64, "", "many = flat_map(f)\nmany -> ask", "can own"),
    ],
)
def test_a_loop_of_tools_holds_the_calls_of_an_answer(limit, act, more, said):
    parsed = read(TOOLS.format(limit=limit, act=act, more=more), "g", SIGNATURES)
    warnings = [each for each in examine(parsed.spec, SIGNATURES, ["f"], parsed).warnings if each.code == "AF503"]
    assert [said in str(each) for each in warnings] == ([True] if said else [])


def test_ports_of_kinds_that_never_come_are_not_missed():
    text = TOOLS.format(limit=64, act="", more="").replace("lane.token -> out\n", "act -> out\n")
    parsed = read(text, "g", SIGNATURES)
    (found,) = (each for each in examine(parsed.spec, SIGNATURES, ["f"], parsed).warnings if each.code == "AF212")
    assert "leaves by lane.token: " in str(found)


@pytest.mark.parametrize("name", ["ProviderError", "StreamCut", "AiflowError", "RunError", "OSError"])
def test_retry_knows_the_errors_of_the_library_and_of_python(name):
    text = f'ask = generate() [retry=2, retry_on=({name},)]\nout = sink(var="x")\nask -> out'
    assert examine(read(text, "g", SIGNATURES).spec, SIGNATURES, ()).errors == []
