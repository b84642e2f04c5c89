"""Who waits for room: nobody while there is some, and several get the same share."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
import virtual
from graphs import Lab, Seen, burst, make_run, source

from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.behaviour import Behaviour


@pytest.mark.parametrize("mode", ["await", "stream"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("queue", [1, 2, 8])
def test_a_queue_is_full_while_its_sender_has_more(mode, workers, queue):
    async def story(loop):
        lab, seen = Lab(), Seen()
        slow = lab.node("slow", mode, delay=lambda _n: 1.0)
        behaviours = {"src": source(burst(60)), "quick": lab.node("quick", "inline"), "slow": slow}
        behaviours["sink"] = seen.behaviour()
        policies = {"quick": {"queue": queue}, "slow": {"queue": queue, "workers": workers}}
        lab.run = make_run(loop, behaviours, list(pairwise(behaviours)), policies)
        await lab.run.start("go")
        await asyncio.sleep(0.5)
        for _ in range(40 // workers - 2 * queue):
            await asyncio.sleep(1.0)
            assert lab.run.guardians["slow"].depth == queue
            assert lab.run.guardians["quick"].depth == queue
        await lab.run.wait()
        assert len(seen.data) == 60

    virtual.run(story)


def test_nodes_that_wait_for_one_another_use_the_whole_queue():
    """What is not taken from a blocked node's queue leaves no room unused there, or the other branch would starve."""

    async def story(loop):
        lab, seen = Lab(), Seen()
        behaviours = {"src": source(burst(60)), "a": lab.node("a", "inline"), "b": lab.node("b", "inline")}
        behaviours["sink"] = seen.behaviour("await")
        edges = [("src", "a"), ("src", "b"), ("a", "b"), ("b", "sink")]
        lab.run = make_run(loop, behaviours, edges, {name: {"queue": 3} for name in behaviours})
        await lab.run.start("go")
        while not lab.run.guardians["src"].done:
            await asyncio.sleep(0.0005)
            waiting = [guardian for guardian in lab.run.guardians.values() if guardian.waiters]
            assert all(guardian.depth == guardian.policy.queue for guardian in waiting)
        await lab.run.wait()
        assert len(seen.data) == 120

    virtual.run(story)


@pytest.mark.parametrize("pause", [None, 0.001])
@pytest.mark.parametrize("meet", ["merge", "sink"])
def test_senders_that_wait_together_take_turns(meet, pause):
    async def story(loop):
        taken = []

        async def take(event):
            if pause:
                await asyncio.sleep(pause)
            taken.append(event.payload)

        behaviours = {"src": source([Event("value", 0)])}
        behaviours |= {name: source([Event("value", name) for _ in range(300)]) for name in "xyz"}
        behaviours |= {"merge": Behaviour("inline", lambda event: event), "sink": Behaviour("await", take)}
        if meet == "sink":
            del behaviours["merge"]
        edges = (
            [("src", name) for name in "xyz"]
            + [(name, meet) for name in "xyz"]
            + [("merge", "sink")] * (meet == "merge")
        )
        await make_run(loop, behaviours, edges).run("go")
        assert len(taken) == 900
        shares = Counter(taken[100:700])
        assert max(shares.values()) - min(shares.values()) <= 1

    virtual.run(story)
