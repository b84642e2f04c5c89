"""Speculation: nothing leaves that nobody vouched for, and all that somebody did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import virtual
from graphs import Boom, Seen, make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.runtime.behaviour import Behaviour


def script(*steps) -> Behaviour:
    """Gives events and waits for seconds, in turn."""

    async def give(_event: Event) -> AsyncIterator[Event]:
        for step in steps:
            if isinstance(step, Event):
                yield step
            else:
                await asyncio.sleep(step)

    return Behaviour("stream", give)


def data(payload, lineage="a"):
    return Event("token", payload, source="src", lineage=lineage)


def finish(lineage="a"):
    return Event("finish", Finish(), source="src", lineage=lineage)


def verdict(kind, lineage="a"):
    return Event(kind, None, source="judge", lineage=lineage)


def told(events, verdicts, *, mode="inline", policy=None):
    async def story(loop):
        seen = Seen()

        def inline(event):
            return event

        async def call(event):
            await asyncio.sleep(0.01)
            return event

        async def stream(event):
            yield event

        def iterate(event):
            yield event

        calls = {"inline": inline, "await": call, "stream": stream, "iterate": iterate}
        behaviours = {
            "start": Behaviour("inline", lambda event: event),
            "src": script(*events),
            "judge": script(*verdicts),
            "spec": Behaviour(mode, calls[mode]),
            "sink": seen.behaviour(),
        }
        edges = [("start", "src"), ("start", "judge"), ("src", "spec"), ("judge", "spec"), ("spec", "sink")]
        run = make_run(loop, behaviours, edges, {"spec": {"effect": "speculative", **(policy or {})}})
        try:
            await run.run("go")
        finally:
            assert run.guardians["spec"].most <= run.guardians["spec"].bound
        assert run.guardians["spec"].holds() == 0
        return seen

    return virtual.run(story)


@pytest.mark.parametrize("mode", ["inline", "await", "stream", "iterate"])
def test_what_is_committed_leaves_in_order_and_not_before(mode):
    seen = told([data("a"), data("b"), finish()], [5, verdict("commit")], mode=mode)
    assert seen.data[:2] == ["a", "b"]
    kinds = [event.kind for event in seen.events]
    assert kinds.index("token") < kinds.index("commit")


@pytest.mark.parametrize("verdicts", [[5, verdict("retract")], [verdict("retract")], []])
def test_what_is_retracted_or_never_judged_never_leaves(verdicts):
    seen = told([1, data("a"), data("b"), finish()], verdicts)
    assert "token" not in [event.kind for event in seen.events]
    assert seen.count("finish", "a") == 0


def test_verdict_that_comes_before_what_it_judges_holds_for_it():
    seen = told([5, data("a"), data("x", "b"), finish()], [verdict("commit"), verdict("retract", "b")])
    assert [e.payload for e in seen.events if e.kind == "token"] == ["a"]


def test_verdict_holds_for_the_answers_below_its_lineage_only():
    events = [data("below", "a/0.ask"), data("beside", "ab"), data("own")]
    seen = told(events, [5, verdict("commit")])
    assert sorted(e.payload for e in seen.events if e.kind == "token") == ["below", "own"]


def test_no_verdict_in_time_is_a_retraction():
    seen = told(
        [data("late"), 10, data("x", "b")], [6, verdict("commit"), verdict("commit", "b")], policy={"timeout": 5}
    )
    assert [e.payload for e in seen.events if e.kind == "token"] == ["x"]


def test_more_than_may_be_held_fails_by_name():
    with pytest.raises(Exception, match="wait for a verdict") as raised:
        told([data(str(n)) for n in range(5)], [5, verdict("commit")], policy={"hold": 4})
    assert raised.value.code == "AF613"


def test_failure_of_the_lineage_discards_what_is_held():
    async def fail(_event):
        yield data("a")
        raise Boom

    async def story(loop):
        seen = Seen()
        behaviours = {
            "start": Behaviour("inline", lambda event: event),
            "src": Behaviour("stream", fail),
            "judge": script(5, verdict("commit")),
            "spec": Behaviour("inline", lambda event: event),
            "sink": seen.behaviour(),
            "failures": Seen().behaviour(),
        }
        edges = [
            ("start", "src"),
            ("start", "judge"),
            ("src", "spec"),
            ("judge", "spec"),
            ("spec", "sink"),
            ("src", "failures", "error"),
        ]
        await make_run(loop, behaviours, edges, {"spec": {"effect": "speculative"}}).run("go")
        assert "token" not in [event.kind for event in seen.events]
        assert seen.count("error") == 1

    virtual.run(story)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 2)), max_size=12),
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.floats(0, 10), st.booleans())),
    st.sampled_from(["inline", "await", "stream", "iterate"]),
)
def test_exactly_the_committed_lineages_leave_whole_and_in_order(tokens, verdicts, mode):
    events: list[Event | float] = []
    for number, (lineage, pause) in enumerate(tokens):
        events += [pause, data(number, lineage)]
    steps: list[Event | float] = []
    now = 0.0
    for lineage, (at, good) in sorted(verdicts.items(), key=lambda item: item[1][0]):
        steps += [at - now, verdict("commit" if good else "retract", lineage)]
        now = at
    seen = told(events, steps, mode=mode)
    for lineage in "abc":
        came = [e.payload for e in seen.events if e.kind == "token" and e.lineage == lineage]
        good = lineage in verdicts and verdicts[lineage][1]
        assert came == ([n for n, (each, _) in enumerate(tokens) if each == lineage] if good else [])
