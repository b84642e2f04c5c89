"""What a control event lets go, sent through the node's call: in its place in the order, and failing as a call does."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
import virtual
from graphs import Boom, Seen, burst, make_run, source

from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.scheduler import Scheduler


def gathering(mode, work):
    """Gathers the payloads of each answer; at its finish they go through `work`."""
    kept: dict[str, list[int]] = defaultdict(list)

    def gather(event):
        kept[event.lineage].append(event.payload)

    def control(event):
        if event.kind == "finish":
            yield event.derive(kept.pop(event.lineage), "value")
        if event.kind != "end":
            yield event

    async def awaited(event: Event):
        if not isinstance(event.payload, list):
            return gather(event)
        await asyncio.sleep(1)
        return event.derive(work(event.payload), "value")

    async def stream(event: Event):
        if not isinstance(event.payload, list):
            gather(event)
            return
        for payload in event.payload:
            await asyncio.sleep(1)
            yield event.derive(work([payload]), "value")

    def plain(event: Event):
        return event.derive(work(event.payload), "value") if isinstance(event.payload, list) else gather(event)

    calls = {"await": awaited, "stream": stream, "thread": plain}
    return Behaviour(mode, calls[mode], control=control, recalls=True)


def gathered(loop, mode, workers, scheduler=None):
    seen = Seen()
    behaviours = {"src": source(burst(6, answers=2)), "gather": gathering(mode, sum), "sink": seen.behaviour()}
    edges = [("src", "gather"), ("gather", "sink")]
    return make_run(loop, behaviours, edges, {"gather": {"workers": workers}}, scheduler=scheduler), seen


def assert_in_place(seen, results):
    assert seen.data == results
    assert max(seen.place("value", "a0")) < min(seen.place("finish", "a0")) < min(seen.place("value", "a1"))
    assert [event.kind for event in seen.events][-2:] == ["finish", "end"]


@pytest.mark.parametrize(("mode", "results"), [("await", [3, 12]), ("stream", [0, 1, 2, 3, 4, 5])])
@pytest.mark.parametrize("workers", [1, 3])
def test_what_was_gathered_goes_through_the_call_before_the_finish_that_let_it_go(mode, results, workers):
    async def story(loop):
        run, seen = gathered(loop, mode, workers)
        await run.run("go")
        assert_in_place(seen, results)

    virtual.run(story)


async def test_in_threads_too():
    loop = asyncio.get_running_loop()
    run, seen = gathered(loop, "thread", 1, Scheduler(loop))
    await run.run("go")
    assert_in_place(seen, [3, 12])


def test_call_that_fails_breaks_the_lineage_off():
    def work(payloads):
        raise Boom

    async def story(loop):
        seen, failures = Seen(), Seen()
        behaviours = {
            "src": source(burst(4, answers=2)),
            "gather": gathering("await", work),
            "sink": seen.behaviour(),
            "failures": failures.behaviour(),
        }
        edges = [("src", "gather"), ("gather", "sink"), ("gather", "failures", "error")]
        run = make_run(loop, behaviours, edges)
        await run.run("go")
        assert [event.kind for event in seen.events] == ["error", "error", "end"]
        assert [event.payload.node for event in failures.events if event.kind == "value"] == ["gather", "gather"]
        assert run.guardians["gather"].errors == 2

    virtual.run(story)
