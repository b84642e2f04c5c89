"""Answers that begin anew where their ways meet again: what came before is void, and what comes behind is kept."""

from __future__ import annotations

import asyncio

import pytest
import virtual
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.graph.shape import Shape
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.runtime.meeting import MOST_BEGUN, Meeting, meets
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler


class Tries:
    """Answers with the texts of each try in turn; all but the last break off behind theirs."""

    def __init__(self, *tries):
        self.left = list(tries)

    async def stream(self, _request):
        texts = self.left.pop(0)
        for number, text in enumerate(texts):
            yield Event("token", text, sequence=number, meta={"phase": "answer"})
            await asyncio.sleep(1)
        if self.left:
            raise ConnectionError
        yield Event("finish", Finish())


def result_of(text, tries, functions, prompt="q"):
    """What a graph gives for the tries of one answer."""

    async def story(loop):
        parsed = parse(text, "g", SIGNATURES)
        require(parsed.spec, SIGNATURES, functions, parsed)
        run = Run(parsed.spec, OPERATORS, Scheduler(loop, loop.clock), functions=functions, source=Tries(*tries))
        result = await run.run(prompt)
        return result, run

    return virtual.run(story)


def late(seconds, mark):
    """A function that takes so long and marks its text."""

    async def later(text):
        await asyncio.sleep(seconds)
        return f"{text}{mark}"

    return later


ASK = "ask = generate() [retry=9, restart=true, backoff=0.01]\n"
MEETING = {
    "nothing": "o = sink(var='o')\na, b -> o",
    "merge": "m = merge()\no = sink(var='o')\na, b -> m -> o",
    "merge by source": "m = merge(order='source')\no = sink(var='o')\na, b -> m -> o",
    "map": "m = map(same)\no = sink(var='o')\na, b -> m -> o",
    "reduce": "m = reduce('join')\no = sink(var='o')\na, b -> m -> o",
    "window": "m = window(count=3)\no = sink(var='o')\na, b -> m -> o",
    "join": "m = join()\no = sink(var='o')\na, b -> m -> o",
    "twice": "m = map(same)\nn = map(slow)\no = sink(var='o')\na, b -> m -> n -> o\nb -> o",
}


def pieces(value):
    """The texts of a result, in no order."""
    if isinstance(value, str):
        return sorted(value.replace("]", "] ").split())
    if isinstance(value, dict):
        return [*value.values()]
    return sorted(piece for each in value for piece in pieces(each))


@pytest.mark.parametrize("how", MEETING)
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(0, 4),
    st.sampled_from([0.1, 0.7, 1.5, 4.5]),
    st.sampled_from([0.1, 0.7, 1.5, 4.5]),
    st.sampled_from(["", " [queue=1]", " [workers=3]", " [workers=3, order=none]"]),
)
def test_what_is_given_anew_is_whole_where_ways_meet(how, before, new, a, b, policy):
    """The ways tell of each restart in their own times, and some text waits in front of a node that is full."""
    functions = {"fast": late(a, "a]"), "slow": late(b, "b]"), "same": late(0.3, "")}
    text = f"{ASK}a = map(fast){policy}\nb = map(slow){policy}\nask -> a, b\n{MEETING[how]}"
    tries = [[f"[old{at}.{number}" for number in range(count)] for at, count in enumerate(before)]
    last = [f"[new{number}" for number in range(new)]
    result, run = result_of(text, [*tries, last], functions)
    alone, _ = result_of(text, [last], functions)
    assert pieces(result["o"]) == pieces(alone["o"])
    assert result.complete
    assert all(not guardian.owned() for guardian in run.guardians.values())


@pytest.mark.parametrize(
    ("edges", "gives", "whole"),
    [
        ("q -> a, b\na, b -> o", ["q", "q0"], False),
        ("q -> a, b\na -> o\nb -> p\np = sink(var='p')", ["q0", "q1"], True),
        ("q -> a -> b -> o", ["q0", "q1"], True),
    ],
)
def test_values_of_the_runs_inputs_are_not_voided_by_a_restart_of_what_another_node_made_of_them(edges, gives, whole):
    tries = []

    async def twice(text):
        tries.append(text)
        yield f"{text}0"
        await asyncio.sleep(1)
        if len(tries) == 1:
            raise ConnectionError
        yield f"{text}1"

    text = "q = map(same)\na = flat_map(twice) [retry=2, restart=true]\na.error -> e\nb = map(same)\n"
    text += "o = sink(var='o')\ne = sink(var='e')\n"
    result, _ = result_of(text + edges, [], {"same": late(0.1, ""), "twice": twice})
    assert (sorted(result["o"]), result.complete) == (gives, whole)


def test_workers_that_are_ahead_of_a_restart_give_no_number_twice():
    numbers = []

    async def twice(text):
        await asyncio.sleep(2.5 if text.startswith("old") else 0.1)
        yield text
        await asyncio.sleep(0.1)
        yield f"{text}!"

    def see(event: Event):
        numbers.append((event.payload, event.sequence))
        return event

    text = f"{ASK}w = flat_map(twice) [workers=4]\ns = map(see, inline=true)\no = sink(var='o')\nask -> w -> s -> o"
    result, _ = result_of(text, [["old"], ["a", "b", "c"]], {"twice": twice, "see": see})
    assert result["o"] == "aa!bb!cc!"
    new = [number for text, number in numbers if not text.startswith("old")]
    assert len(new) == len(set(new)) == 6


@pytest.mark.parametrize(
    ("by", "drops"), [("one", ""), ("two", ""), ("one", "x"), ("two", "y"), ("one", "xy"), ("none", "")]
)
def test_event_that_has_no_result_by_one_way_is_paired_with_what_it_became_by_another(by, drops):
    """The way that an event does not take says so before the event is through the other one."""

    async def kept(text):
        await asyncio.sleep(1)
        return None if text[0] in drops else text

    text = "q = map(same)\nr = route(by=way)\nx = map(kept)\ny = map(kept)\nk = map(same)\nm = merge()\nj = join()\n"
    text += "o = sink(var='o')\ns = sink(var='s')\nq -> r, k\nr.one -> x\nr.two -> y\nr.else -> s\nx, y -> m\n"
    text += "m, k -> j -> o"
    functions = {"same": late(0.1, ""), "kept": kept, "way": lambda text: by}
    for prompt in ("x", "y"):
        result, run = result_of(text, [], functions, prompt)
        told = by != "none" and prompt not in drops
        assert list(result["o"]) == ([{"m": prompt, "k": prompt}] if told else [])
        assert run.guardians["j"].dropped == (not told)


def test_what_failed_before_a_restart_makes_no_part_of_what_came_after():
    seen = []

    async def picky(text):
        if text == "old":
            raise ValueError(text)
        return text

    def see(event: Event):
        seen.append((event.payload, event.complete))

    text = f"{ASK}m = map(picky)\nr = reduce('join')\ns = sink(see, inline=true)\ne = sink(var='e')\n"
    result_of(f"{text}ask -> m -> r -> s\nm.error -> e", [["old"], ["new"]], {"picky": picky, "see": see})
    assert seen == [("new", True)]


# -- one node


SPLIT = "ask = generate()\nsub = generate()\na = map(f)\nb = map(f)\nc = map(f)\no = sink(var='o')\n"


def meeting(edges):
    """Where the given edges lead into `o`, and these by the name of the node that they come from."""
    spec = parse(f"{SPLIT}{edges}", "g", SIGNATURES).spec
    shape = Shape(spec)
    by = meets(shape, shape.into["o"], shape.bit["ask"] | shape.bit["sub"])
    return by and Meeting(None, by), {shape.edges[index].source: index for index in shape.into["o"]}


def told(lineage, source="ask"):
    return Event("restart", None, source=source, lineage=lineage)


def test_first_that_tells_of_a_restart_speaks_for_all_and_what_the_others_bring_until_they_tell_is_void():
    met, edge = meeting("ask -> a, b -> o")
    assert not met.behind("0/0.ask", edge["a"])
    assert met.restarted(told("0/0.ask"), edge["a"])
    assert [met.behind(of, edge["b"]) for of in ("0/0.ask", "0/0.ask/2.sub", "1/0.ask", "0")] == [1, 1, 0, 0]
    assert not met.behind("0/0.ask", edge["a"])
    assert met.restarted(told("0/0.ask"), edge["a"])
    assert not met.restarted(told("0/0.ask"), edge["b"])
    assert met.behind("0/0.ask", edge["b"])
    assert not met.restarted(told("0/0.ask"), edge["b"])
    assert not met.begun


def test_restarts_of_an_answer_are_counted_within_the_one_that_it_is_about():
    met, edge = meeting("ask -> sub -> a, b -> o")
    assert met.restarted(told("0/0.ask/0.sub", "sub"), edge["a"])
    assert met.restarted(told("0/0.ask"), edge["a"])
    assert met.restarted(told("0/0.ask/0.sub", "sub"), edge["a"])
    assert not met.restarted(told("0/0.ask/0.sub", "sub"), edge["b"])  # of the first try
    assert not met.restarted(told("0/0.ask"), edge["b"])
    assert met.behind("0/0.ask/0.sub", edge["b"])
    assert not met.behind("0/0.ask/0.sub", edge["a"])
    assert not met.restarted(told("0/0.ask/0.sub", "sub"), edge["b"])
    assert not met.begun


def test_way_that_an_answer_does_not_come_by_waits_for_no_restart():
    met, edge = meeting("ask -> a, b -> o\nc -> o")
    assert met.restarted(told("0", "ask"), edge["a"])
    assert not met.behind("0", edge["c"])
    assert not met.restarted(told("0", "ask"), edge["b"])
    assert not met.begun


def test_ways_that_nothing_restarted_comes_by_are_no_meeting():
    assert meeting("a -> b, c -> o\nask -> o")[0] is None


def test_answers_that_never_begin_anew_by_all_ways_are_remembered_within_a_bound():
    met, edge = meeting("ask -> a, b -> o")
    for number in range(MOST_BEGUN + 10):
        met.restarted(told(f"{number}/0.ask"), edge["a"])
    assert len(met.begun) == MOST_BEGUN
    assert not met.behind("9/0.ask", edge["b"])
    assert met.behind("10/0.ask", edge["b"])
