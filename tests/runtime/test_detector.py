"""The detector of deadlocks finds none where a node is merely letting the loop turn, however often it looks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import virtual
from graphs import Lab, Seen, burst, make_run, source

from aiflow_jupyter.runtime import deadlock


@pytest.mark.parametrize("queue", [1, 2, 8])
@pytest.mark.parametrize("modes", [["inline"], ["await"], ["inline", "await"], ["stream", "iterate", "inline"]])
@pytest.mark.parametrize("sink", ["inline", "await"])
def test_a_run_whose_slices_run_out_at_every_event_is_not_stuck(modes, sink, queue, monkeypatch):
    monkeypatch.setattr(deadlock, "FIRST_S", 1e-4)
    monkeypatch.setattr(deadlock, "LONGEST_S", 1e-4)

    async def story(loop):
        lab, seen = Lab(), Seen()
        nodes = {f"n{i}": lab.node(f"n{i}", mode) for i, mode in enumerate(modes)}
        behaviours = {"src": source(burst(60)), **nodes, "sink": seen.behaviour(sink)}
        lab.run = make_run(
            loop, behaviours, list(pairwise(behaviours)), {name: {"queue": queue} for name in behaviours}
        )
        await lab.run.run("go")
        assert len(seen.data) == 60

    virtual.run(story, tick_ns=300_000)
