"""Loops: what goes round comes back first, ends when all is quiet, and never goes round for ever."""

from __future__ import annotations

import asyncio

import pytest
import virtual
from graphs import Boom, Lab, Seen, burst, make_run, source
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.spec import Feedback
from aiflow_jupyter.runtime.behaviour import Behaviour


def by_rounds(rounds):
    """Sends an event back `rounds(number)` times, then lets it out."""

    def port(event: Event):
        number, left = event.payload if isinstance(event.payload, tuple) else (event.payload, rounds(event.payload))
        return ("again" if left else "out"), event.derive((number, left - 1) if left else number)

    return Behaviour("inline", port, routes=True)


def looped(loop, events, rounds, work, *, limit=4, hops=8, policies=None, seen=None):
    seen = seen or Seen()
    behaviours = {"src": source(events), "work": work, "turn": by_rounds(rounds), "sink": seen.behaviour()}
    edges = [
        ("src", "work"),
        ("work", "turn"),
        ("turn", "work", "again", Feedback(limit=limit, hops=hops)),
        ("turn", "sink", "out"),
    ]
    return make_run(loop, behaviours, edges, policies), seen


def pass_on(event):
    return event


async def after_a_while(event):
    await asyncio.sleep(1)
    return event


@pytest.mark.parametrize("mode", ["inline", "await"])
def test_every_event_goes_round_as_often_as_it_should_and_the_run_ends(mode):
    async def story(loop):
        work = Behaviour("inline", pass_on) if mode == "inline" else Behaviour("await", after_a_while)
        run, seen = looped(loop, burst(20), lambda n: n % 4, work)
        await run.run("go")
        assert sorted(seen.data) == list(range(20))
        assert seen.count("end") == 1
        assert run.state == "done"
        assert run.guardians["work"].processed == 20 + sum(n % 4 for n in range(20))

    virtual.run(story)


def test_what_comes_back_is_served_before_what_waits():
    async def story(loop):
        run, seen = looped(loop, burst(6), lambda n: 1 if n == 0 else 0, Behaviour("await", after_a_while))
        await run.run("go")
        assert seen.data.index(0) <= 1

    virtual.run(story)


def test_event_that_goes_round_too_often_fails_by_name():
    async def story(loop):
        run, _ = looped(loop, burst(1), lambda _n: 100, Behaviour("inline", pass_on), hops=3)
        with pytest.raises(RunError) as raised:
            await run.run("go")
        assert raised.value.code == "AF606"
        assert "turn -> work" in raised.value.message
        assert run.guardians["work"].processed == 4

    virtual.run(story)


def test_more_events_than_the_edge_may_hold_fail_the_run():
    async def story(loop):
        seen = Seen()

        def many(event: Event):
            if event.meta.get("hops"):
                yield event.derive(("out", event.payload))
            else:
                yield from (event.derive(("again", n)) for n in range(10))

        def turn(event: Event):
            return event.payload[0], event.derive(event.payload[1])

        behaviours = {
            "src": source(burst(1)),
            "work": Behaviour("await", after_a_while),
            "many": Behaviour("iterate", many),
            "turn": Behaviour("inline", turn, routes=True),
            "sink": seen.behaviour(),
        }
        edges = [
            ("src", "work"),
            ("work", "many"),
            ("many", "turn"),
            ("turn", "work", "again", Feedback(limit=4)),
            ("turn", "sink", "out"),
        ]
        with pytest.raises(RunError) as raised:
            await make_run(loop, behaviours, edges).run("go")
        assert raised.value.code == "AF607"
        assert "limit" in raised.value.message
        seen.events.clear()
        edges[3] = ("turn", "work", "again", Feedback(limit=10))
        await make_run(loop, behaviours, edges).run("go")
        assert sorted(seen.data) == list(range(10))

    virtual.run(story)


def test_what_an_operator_in_the_loop_still_holds_goes_round_before_the_end_passes():
    async def story(loop):
        seen = Seen()
        held: list[Event] = []

        def gather(event: Event):
            held.append(event)
            if len(held) == 3:
                yield from held
                held.clear()

        def control(event: Event):
            if event.kind in ("flush", "end"):
                yield from held
                held.clear()
            if event.kind != "end":
                yield event

        behaviours = {
            "src": source(burst(7)),
            "gather": Behaviour("iterate", gather, control=control, holds=lambda: len(held)),
            "turn": by_rounds(lambda n: 1 if n % 2 else 0),
            "sink": seen.behaviour(),
        }
        edges = [
            ("src", "gather"),
            ("gather", "turn"),
            ("turn", "gather", "again", Feedback(limit=8)),
            ("turn", "sink", "out"),
        ]
        run = make_run(loop, behaviours, edges)
        run.guardians["gather"].bound += 3
        await run.run("go")
        assert sorted(seen.data) == list(range(7))
        assert seen.events[-1].kind == "end"
        assert "flush" not in [event.kind for event in seen.events]  # it stays within the loop

    virtual.run(story)


def test_failure_in_a_loop_is_told_once_and_the_rest_goes_on():
    async def story(loop):
        seen, failures = Seen(), Seen()

        def work(event: Event):
            if event.meta.get("hops") == 2:
                raise Boom("second time round")
            return event

        behaviours = {
            "src": source(burst(5)),
            "work": Behaviour("inline", work),
            "turn": by_rounds(lambda n: 3 if n == 1 else 0),
            "sink": seen.behaviour(),
            "failures": failures.behaviour(),
        }
        edges = [
            ("src", "work"),
            ("work", "turn"),
            ("turn", "work", "again", Feedback()),
            ("turn", "sink", "out"),
            ("work", "failures", "error"),
        ]
        await make_run(loop, behaviours, edges).run("go")
        assert sorted(seen.data) == [0, 2, 3, 4]
        assert [failure.node for failure in failures.data] == ["work"]

    virtual.run(story)


def test_loop_within_a_loop_ends():
    async def story(loop):
        seen = Seen()
        behaviours = {
            "src": source(burst(8)),
            "outer": Behaviour("inline", pass_on),
            "inner": Behaviour("await", after_a_while),
            "turn": Behaviour("inline", lambda e: (_side(e), e), routes=True),
            "sink": seen.behaviour(),
        }

        def _side(event: Event) -> str:
            hops = event.meta.get("hops", 0)
            return "inner" if hops < event.payload % 3 else "outer" if hops < event.payload % 5 else "out"

        edges = [
            ("src", "outer"),
            ("outer", "inner"),
            ("inner", "turn"),
            ("turn", "inner", "inner", Feedback(limit=8)),
            ("turn", "outer", "outer", Feedback(limit=8)),
            ("turn", "sink", "out"),
        ]
        await make_run(loop, behaviours, edges).run("go")
        assert sorted(seen.data) == list(range(8))

    virtual.run(story)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=25),
    st.sampled_from(["inline", "await", "stream", "iterate"]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.floats(0, 2),
)
def test_loops_lose_nothing_repeat_nothing_and_end(rounds, mode, workers, queue, reorder, delay):
    async def story(loop):
        lab, seen = Lab(), Seen()
        work = lab.node("work", mode, delay=lambda n: delay * (n % 3))
        turns: dict[int, int] = {}

        def turn(event: Event):
            number = event.payload[0]
            turns[number] = turns.get(number, 0) + 1
            return ("again" if turns[number] <= rounds[number] else "out"), event.derive((number, ()))

        behaviours = {
            "src": source(burst(len(rounds))),
            "work": work,
            "turn": Behaviour("inline", turn, routes=True),
            "sink": seen.behaviour(),
        }
        edges = [
            ("src", "work"),
            ("work", "turn"),
            ("turn", "work", "again", Feedback(limit=32)),
            ("turn", "sink", "out"),
        ]
        policy = {"queue": queue, "reorder": reorder}
        if mode in ("await", "stream"):
            policy["workers"] = workers
        lab.run = make_run(loop, behaviours, edges, {"work": policy})
        await lab.run.run("go")
        assert sorted(number for number, _ in seen.data) == list(range(len(rounds)))
        assert turns == {n: r + 1 for n, r in enumerate(rounds)}
        assert lab.open == 0
        assert all(g.owned() == 0 for g in lab.run.guardians.values())

    virtual.run(story)
