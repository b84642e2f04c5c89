"""Who holds the others up: shares of time that add up, and the first busy node below blocked ones."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
import virtual
from graphs import Lab, Seen, burst, make_run, source
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.runtime.behaviour import Behaviour


def chain(loop, delays, *, workers=None, queue=4, count=60):
    """A chain of coroutines of those delays, and a sink."""
    lab = Lab()
    behaviours = {"src": source(burst(count))}
    for number, delay in enumerate(delays):
        behaviours[f"n{number}"] = lab.node(f"n{number}", "await", delay=lambda _n, d=delay: d)
    behaviours["sink"] = Seen().behaviour()
    names = list(behaviours)
    policies = {f"n{n}": {"queue": queue, "workers": (workers or {}).get(n, 1)} for n in range(len(delays))}
    lab.run = make_run(loop, behaviours, list(pairwise(names)), policies)
    return lab.run


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=5), st.integers(0, 4))
def test_the_slowest_node_of_a_chain_is_named_and_shares_add_up(delays, slowest):
    slowest %= len(delays)
    delays[slowest] = 3.0

    async def story(loop):
        run = chain(loop, delays)
        await run.start("go")
        await asyncio.sleep(40)
        for _ in range(2):  # while it runs, and over the whole run
            found = run.bottleneck()
            assert found is not None
            assert found.node == f"n{slowest}"
            for node in run.status().nodes:
                assert node.busy + node.blocked + node.idle == pytest.approx(1)
            await run.wait()
        status = {node.node: node for node in run.status().nodes}
        assert status[f"n{slowest}"].busy > 0.9
        for number in range(slowest):
            assert status[f"n{number}"].blocked > 0.3
        for number in range(slowest + 1, len(delays)):
            assert status[f"n{number}"].blocked < 0.05

    virtual.run(story)


def test_workers_as_advised_move_the_bottleneck_and_queues_that_suffice_leave_none():
    async def story(loop):
        run = chain(loop, [0.1, 0.4])
        await run.start("go")
        await run.wait()
        found = run.bottleneck()
        assert found is not None
        assert found.node == "n1"
        assert "workers=2" in found.advice[0]
        run = chain(loop, [0.4, 0.4], workers={1: 4})
        await run.start("go")
        await run.wait()
        moved = run.bottleneck()
        assert moved is not None
        assert moved.node == "n0"
        run = chain(loop, [0.1, 0.4], queue=60)
        await run.start("go")
        await run.wait()
        assert run.bottleneck() is None  # the queues took all: nobody waited

    virtual.run(story)


def test_long_call_and_long_wait_show_while_they_last():
    async def story(loop):
        async def long(event):
            await asyncio.sleep(1_000)
            return event

        behaviours = {
            "src": source(burst(5)),
            "quick": Behaviour("await", lambda event: asyncio.sleep(0, event)),
            "long": Behaviour("await", long),
            "sink": Seen().behaviour(),
        }
        edges = [("src", "quick"), ("quick", "long"), ("long", "sink")]
        run = make_run(loop, behaviours, edges, {"long": {"queue": 1}})
        await run.start("go")
        await asyncio.sleep(500)
        status = {node.node: node for node in run.status().nodes}
        assert status["long"].busy == pytest.approx(1, abs=0.01)
        assert status["quick"].blocked == pytest.approx(1, abs=0.01)
        assert run.bottleneck().node == "long"
        await run.cancel()

    virtual.run(story)
