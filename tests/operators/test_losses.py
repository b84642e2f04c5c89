"""What overflow drops by declaration is said: what is made of the rest is a part, and no failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from driven import Replies, Scripted, tell
from test_delegate import run as run_with

from aiflow_jupyter.events import Event, ToolFragment

TOKENS = [str(number) for number in range(8)]


async def slow(text: str) -> str:
    await asyncio.sleep(1)
    return text


def seeing():
    """A function that notes what comes, and whether it is whole."""
    seen = []

    def see(event: Event) -> None:
        seen.append((event.payload, event.complete))

    see.__annotations__["event"] = Event
    return seen, see


def told(text, source, value="hello", **functions):
    seen, see = seeing()
    run, result = tell(text, source, value, see=see, slow=slow, **functions)
    assert run.state == "done"
    assert not any(guardian.errors for guardian in run.guardians.values())
    return run, result, seen


ANSWER = """
ask   = generate()
s     = {s}
whole = {whole}
out   = sink(function=see, inline=true)
ask -> s -> whole -> out
"""
DROPS = ["drop_newest", "drop_oldest"]


@pytest.mark.parametrize("rule", DROPS)
@pytest.mark.parametrize(
    ("whole", "made"),
    [
        ('reduce("join")', "".join),
        ("reduce(listed, inline=true)", lambda kept: kept),
        ("reduce(listed_later)", lambda kept: kept),
        ("window(count=64)", lambda kept: kept),
        ('segment(by="line")', "".join),
    ],
)
@pytest.mark.parametrize("policy", ["", ", state=partitioned, key=same, workers=2"])
def test_what_is_made_of_an_answer_that_overflow_took_from_is_a_part(rule, whole, made, policy):
    async def listed_later(texts: list) -> list:
        return texts

    run, result, seen = told(
        ANSWER.format(s=f"map(slow) [queue=1, overflow={rule}{policy}]", whole=whole),
        Scripted(*TOKENS),
        listed=list,
        listed_later=listed_later,
        same=lambda _text: 0,
    )
    dropped = run.guardians["s"].dropped
    kept = TOKENS[:2] if rule == "drop_newest" else [TOKENS[0], TOKENS[-1]]
    assert dropped == 6
    assert seen == [(made(kept), False)]
    assert not result.complete
    assert result.status.warnings == ("node 's' dropped 6 events, as its overflow says: the result is not whole",)


def test_the_node_that_gathers_may_be_the_one_that_drops():
    async def both(first: str, second: str) -> str:
        await asyncio.sleep(1)
        return first + second

    text = ANSWER.format(s="map(same, inline=true)", whole="reduce(both) [queue=1, overflow=drop_newest]")
    _, result, seen = told(text, Scripted(*TOKENS), same=lambda each: each, both=both)
    assert [complete for _, complete in seen] == [False]
    assert not result.complete


def test_an_answer_that_nothing_was_taken_from_is_whole_beside_one_that_is_a_part():
    text = """
each  = flat_map(split)
ask   = generate()
s     = map(slow) [queue=1, overflow=drop_newest]
whole = reduce("join")
out   = sink(function=see, inline=true)
each -> ask -> s -> whole -> out
"""

    async def split(text: str) -> AsyncIterator[str]:
        for each in text.split():
            yield each
            await asyncio.sleep(10)

    source = Replies(lambda request: TOKENS if request.messages[-1]["content"] == "long" else ["a"])
    _, result, seen = told(text, source, "long short", split=split)
    assert seen == [("01", False), ("a", True)]
    assert not result.complete


def test_conflate_loses_nothing():
    _, result, seen = told(
        ANSWER.format(s="map(slow) [queue=1, overflow=conflate]", whole='reduce("join")'), Scripted(*TOKENS)
    )
    assert seen == [("".join(TOKENS), True)]
    assert result.complete
    assert result.status.warnings == ()


def test_a_part_that_waited_for_a_verdict_is_one_still():
    text = """
ask   = generate()
s     = map(slow) [queue=1, overflow=drop_newest]
lines = segment(by="line") [effect=speculative]
safe  = guard(check, inline=true)
out   = sink(function=see, inline=true)
ask -> s -> lines -> out
ask -> safe
safe.verdict -> lines
"""
    _, _, seen = told(text, Scripted(*TOKENS, pause=0.1), check=lambda _text: True)
    assert [complete for _, complete in seen] == [False]


def test_one_way_of_two_that_drops_makes_a_part_of_what_both_come_to():
    text = """
ask   = generate()
fast  = map(same, inline=true)
s     = map(slow) [queue=1, overflow=drop_oldest]
both  = merge()
whole = reduce("join")
out   = sink(function=see, inline=true)
ask -> fast, s
fast, s -> both -> whole -> out
"""
    _, result, seen = told(text, Scripted(*TOKENS), same=lambda each: each)
    assert [complete for _, complete in seen] == [False]
    assert not result.complete


@pytest.mark.parametrize("pause", [0.1, 10.0])  # the way that drops ends last, or first
def test_without_a_finish_each_way_says_at_its_end_what_it_lost(pause):
    text = """
each  = flat_map(split)
other = map(at_a_pace) [queue=9]
s     = map(slow) [queue=1, overflow=drop_newest]
both  = merge()
whole = reduce("join")
out   = sink(function=see, inline=true)
each -> other, s
other, s -> both -> whole -> out
"""

    async def split(text: str) -> list[str]:
        return text.split()

    async def at_a_pace(text: str) -> str:
        await asyncio.sleep(pause)
        return text

    _, _, seen = told(text, None, "a b c d e", split=split, at_a_pace=at_a_pace)
    assert [complete for _, complete in seen] == [False]


def test_what_has_no_finish_is_a_part_at_the_end():
    text = """
each  = flat_map(split)
s     = map(slow) [queue=1, overflow=drop_newest]
whole = reduce("join")
out   = sink(function=see, inline=true)
each -> s -> whole -> out
"""

    async def split(text: str) -> list[str]:
        return text.split()

    _, result, seen = told(text, None, "a b c d e", split=split)
    assert [complete for _, complete in seen] == [False]
    assert len(result.status.warnings) == 1


def test_no_call_is_made_of_fragments_of_which_some_were_dropped():
    made = []

    async def act(n: int) -> str:
        made.append(n)
        await asyncio.sleep(1)
        return "ok"

    async def split(text: str) -> list[str]:
        return text.split()

    text = """
each = flat_map(split)
ask  = generate(tools=(act,))
lane = route(by="kind")
do   = tools(functions=(act,)) [queue=1, overflow=drop_newest]
out  = sink(var="x")
each -> ask -> lane
lane.tool_fragment -> do
do -> out
"""
    fragments = [ToolFragment(number, f"c{number}", "act", f'{{"n": {number}}}') for number in range(2)]
    run, result, _ = told(text, Replies(lambda _request: fragments), "one two", act=act, split=split)
    assert run.guardians["do"].dropped == 1  # of the second answer, while the calls of the first were made
    assert made == [0, 1]
    assert not result.complete


@pytest.mark.parametrize("end", ["display=true", 'var="text"'])
def test_what_a_graph_within_dropped_makes_a_part_of_what_is_made_of_its_answer(end):
    seen, see = seeing()
    inner = f"ask = generate()\ns = map(slow) [queue=1, overflow=drop_newest]\nout = sink({end})\nask -> s -> out"
    outer = (
        'sub = delegate(flow=inner)\nwhole = reduce("last")\nout = sink(function=see, inline=true)\nsub -> whole -> out'
    )
    _, result = run_with(outer, Scripted(*TOKENS), {"inner": inner}, see=see, slow=slow)
    assert [complete for _, complete in seen] == [False]
    assert not result.complete
    assert any("in graph 'inner': node 's' dropped 6 events" in warning for warning in result.status.warnings)
