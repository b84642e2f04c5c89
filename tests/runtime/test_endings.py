"""How answers end at a node: one last word by every edge, when a finish goes on, what is remembered until then."""

from __future__ import annotations

import asyncio

import pytest
import virtual
from graphs import Boom, Seen, make_run

from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.endings import MOST_BROKEN, Endings, answering, close, signed
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler

FINISH = Event("finish", Finish(), source="ask", lineage="0/0.ask")


class Says:
    """Answers every request with the same two tokens, or breaks off after the first where the prompt asks for it."""

    async def stream(self, request):
        await asyncio.sleep(0.01)
        yield Event("token", "yes, ", source="m", meta={"phase": "answer"})
        if "cut" in str(request.messages[-1]):
            raise ConnectionError
        yield Event("token", "no", source="m", sequence=1, meta={"phase": "answer"})
        yield Event("finish", Finish())


def run_of(loop, text, **functions):
    parsed = parse(text, "g", SIGNATURES)
    require(parsed.spec, SIGNATURES, functions, parsed)
    return Run(parsed.spec, OPERATORS, Scheduler(loop, loop.clock), functions=functions, source=Says())


def remembered(run):
    """How many answers the nodes of a run remember, now."""
    return {
        name: known
        for name, guardian in run.guardians.items()
        if (known := len(guardian.endings.broken) + len(guardian.endings._partly))
    }


# -- one node


def test_finish_goes_on_when_all_inputs_that_its_answer_can_come_by_have_given_it():
    endings = Endings()
    endings.giving = {"ask": ("a", "b"), "": ()}.__getitem__
    assert endings.take(FINISH, 3) is None
    assert endings.take(FINISH, 3) is FINISH
    put_in = Event("finish", lineage="a")
    assert [endings.take(put_in, 3) for _ in range(3)] == [None, None, put_in]


def test_close_takes_the_place_of_the_finish_of_what_broke_off():
    endings = Endings()
    endings.broke(FINISH.lineage)
    word = endings.take(FINISH, 1)
    assert (word.kind, word.complete, word.lineage) == ("finish", False, FINISH.lineage)
    endings.passed(FINISH.lineage)
    assert not endings.broken


def test_finish_of_one_input_is_not_lost_where_another_keeps_its_own():
    endings = Endings()
    endings.giving = lambda _node: ("a", "b")
    assert endings.take(FINISH, 2) is None
    assert endings.take(close(FINISH, broken=False), 2) is FINISH


def test_what_broke_off_on_one_way_finishes_on_none():
    for words in ([FINISH, close(FINISH, broken=True)], [close(FINISH, broken=True), FINISH]):
        endings = Endings()
        endings.giving = lambda _node: ("a", "b")
        assert endings.take(words[0], 2) is None
        word = endings.take(words[1], 2)
        assert (word.complete, word.payload) == (False, True)


def test_what_never_has_a_last_word_is_remembered_within_a_bound_and_inputs_not_at_all():
    endings = Endings()
    for number in range(MOST_BROKEN + 10):
        endings.broke(f"{number}/0.ask")
        endings.broke(str(number))
    assert len(endings.broken) == MOST_BROKEN
    assert "9/0.ask" not in endings.broken
    assert "10/0.ask" in endings.broken


def test_node_that_answers_is_told_by_the_lineage():
    assert [answering(each) for each in ("0/0.ask", "0/0.ask+12", "0/0.a/3.b", "7", "")] == ["ask", "ask", "b", "", ""]


# -- open runs


TWO = """
question = prompt("{text}")
one = generate()
two = generate()
whole = reduce("join")
out = sink(var="o")
question -> one, two
one -> whole
two -> whole
whole -> out
"""


def test_reduce_behind_two_models_gives_each_answer_when_it_is_complete_in_a_run_that_stays_open():
    async def story(loop):
        run = run_of(loop, TWO)
        await run.offer("question", "why?")
        await asyncio.sleep(1)
        assert list(run.variables["o"]) == ["yes, no"] * 2
        assert run.state == "running"
        assert remembered(run) == {}
        await run.cancel(drain=True)
        assert list(run.variables["o"]) == ["yes, no"] * 2

    virtual.run(story)


DRAFT = """
first = generate()
draft = reduce("join")
second = generate()
all = merge()
whole = reduce("join")
out = sink(var="o")
first -> draft -> second -> all
first -> all -> whole -> out
"""


def test_finish_is_not_waited_for_from_a_way_on_which_an_operator_keeps_it():
    async def story(loop):
        run = run_of(loop, DRAFT)
        await run.offer("first", "why?")
        await asyncio.sleep(1)
        assert list(run.variables["o"]) == ["yes, no"] * 2
        assert remembered(run) == {}
        await run.cancel()

    virtual.run(story)


BROKEN = """
ask = generate()
lane = route(by="phase")
odd = filter(fine, inline=true)
parts = segment()
both = merge()
whole = reduce("join")
out = sink(var="o")
bad = sink(var="bad")
ask -> lane
lane.answer -> odd -> parts -> both
lane.else -> both
both -> whole -> out
ask.error -> bad
odd.error -> bad
"""


@pytest.mark.parametrize("value", ["why?", "cut"])
def test_nothing_is_remembered_of_answers_that_broke_off_in_a_run_that_stays_open(value):
    def fine(text):
        if "no" in text or "cut" in value:
            raise Boom
        return True

    async def story(loop):
        run = run_of(loop, BROKEN, fine=fine)
        for _ in range(20):
            await run.offer("ask", value)
        await asyncio.sleep(100)
        assert run.state == "running"
        assert len(run.variables["bad"]) >= 20
        assert remembered(run) == {}
        await run.cancel(drain=True)
        assert not run.result().complete

    virtual.run(story)


def test_part_that_a_branch_lost_never_finishes_behind_the_merge():
    async def story(loop):
        seen = Seen()

        def pick(event):
            if event.payload == 1:
                raise Boom
            return event

        def give(event):
            lineage = event.answer_lineage("src")
            for number in range(3):
                yield Event("value", number, source="src", sequence=number, lineage=lineage)
            yield Event("finish", Finish(), source="src", lineage=lineage)

        nodes = {
            "src": Behaviour("iterate", give),
            "well": Behaviour("inline", lambda event: event),
            "badly": Behaviour("inline", pick),
            "sink": seen.behaviour(),
            "bad": Seen().behaviour(),
        }
        edges = [("src", "badly"), ("src", "well"), ("well", "sink"), ("badly", "sink"), ("badly", "bad", "error")]
        run = make_run(loop, nodes, edges)
        await run.offer("src", "go")
        await asyncio.sleep(1)
        assert sorted(seen.data) == [0, 0, 1, 2, 2]
        assert seen.count("error") == 1
        assert seen.count("finish") == 0
        assert remembered(run) == {}
        await run.cancel(drain=True)
        assert seen.count("finish") == 0

    virtual.run(story)


def test_values_put_in_that_fail_leave_nothing_behind():
    def odd(number):
        if number % 2:
            raise Boom
        return number

    async def story(loop):
        text = 'work = map(odd)\nout = sink(var="o")\nbad = sink(function=drop)\nwork -> out\nwork.error -> bad'
        run = run_of(loop, text.replace("map(odd)", "map(odd, inline=true)"), odd=odd, drop=drop)
        for number in range(500):
            await run.offer("work", number)
        await asyncio.sleep(1)
        assert run.guardians["work"].errors == 250
        assert remembered(run) == {}
        await run.cancel()

    virtual.run(story)


def test_what_overflow_took_is_told_with_the_last_word_of_its_answer_alone():
    endings = Endings()
    endings.lose("0/0.ask")
    ours, other = (Event("finish", Finish(), lineage=lineage) for lineage in ("0/0.ask", "0/1.ask"))
    assert endings.take(other, 1) is other
    told = endings.take(ours, 1)
    assert (told.meta["lost"], told.complete, told.payload) == ({"0/0.ask"}, True, ours.payload)
    endings.passed("0/0.ask")
    assert endings.take(ours, 1) is ours
    assert endings.take(told, 2) is None  # of one of two inputs, and the other one lost nothing
    assert endings.take(ours, 2).meta["lost"] == {"0/0.ask"}
    endings.passed("0/0.ask")
    assert endings.take(ours, 2) is None
    endings.lose("0/0.ask")
    assert [word.meta["lost"] for word in endings.left()] == [{"0/0.ask"}]


def test_lineages_that_lost_something_are_remembered_within_bounds():
    endings = Endings()
    endings.lose(*map(str, range(2 * MOST_BROKEN)))
    assert len(endings.lost) == MOST_BROKEN


async def drop(_failure):
    return None


SPECULATIVE = """
ask = generate()
act = look [effect=speculative]
safe = guard(check, inline=true)
out = sink(var="o")
ask -> act, safe
safe -> out
safe.verdict -> act
act -> out
"""


@pytest.mark.parametrize("good", [True, False])
def test_speculative_answer_has_one_last_word_whatever_the_verdict(good):
    async def look(text):
        return text

    async def story(loop):
        run = run_of(loop, SPECULATIVE, look=look, check=lambda text: good)
        await run.offer("ask", "why?")
        await asyncio.sleep(1)
        assert remembered(run) == {}
        assert len(run.variables["o"]) == (4 if good else 0)
        await run.cancel()

    virtual.run(story)


# -- an input that has ended


async def same(payload):
    return payload


BRANCHES = 'ask = generate()\na = map(same)\nb = map(same)\nr = reduce("join")\nseen = map(see, inline=true)\n'
BRANCHES += 'o = sink(var="o")\nask -> a, b\na, b -> r -> seen -> o'


def test_stop_of_one_branch_leaves_the_answers_of_the_other_and_says_that_they_are_parts():
    seen = []

    def see(event: Event):
        seen.append((event.payload, event.complete))
        return event

    async def story(loop):
        run = run_of(loop, BRANCHES, same=same, see=see)
        await run.offer("ask", "first")
        await asyncio.sleep(1)
        await run.stop("b")
        for _ in range(3):
            await run.offer("ask", "later")
        await asyncio.sleep(1)
        assert [complete for _, complete in seen] == [True, False, False, False]
        assert [text for text, _ in seen[1:]] == ["yes, no"] * 3
        assert remembered(run) == {}
        await run.close_inputs()
        assert not (await run.wait()).complete

    virtual.run(story)


def test_what_waits_for_a_branch_alone_goes_on_when_that_is_stopped():
    async def late(payload):
        await asyncio.sleep(100)
        return payload

    async def story(loop):
        seen = []

        def see(event: Event):
            seen.append((event.payload, event.complete))

        run = run_of(loop, BRANCHES.replace("b = map(same)", "b = map(late)"), same=same, late=late, see=see)
        await run.offer("ask", "first")
        await asyncio.sleep(1)
        assert not seen
        await run.stop("b")
        await asyncio.sleep(1)
        assert seen == [("yes, no", False)]
        assert remembered(run) == {}
        await run.cancel()

    virtual.run(story)


def test_an_input_that_ended_after_its_word_does_not_stand_for_one_that_has_not_spoken():
    endings = Endings()
    endings.giving = lambda _node: ("a", "b")
    assert endings.take(signed(FINISH, "a"), 2) is None
    assert endings.over(Event("end", source="a", meta={"complete": False}))
    assert list(endings.freed(2)) == []
    assert endings.take(signed(FINISH, "b"), 2).complete
    assert endings.take(signed(Event("finish", Finish(), lineage="1/0.ask"), "b"), 2).meta["lost"] == {"1/0.ask"}


def test_an_input_that_does_not_lead_to_an_answer_changes_nothing_when_it_ends():
    endings = Endings()
    endings.giving = lambda _node: ("a", "b")
    assert not endings.over(Event("end", source="c"))
    assert endings.take(signed(FINISH, "a"), 3) is None
    assert list(endings.freed(3)) == []
