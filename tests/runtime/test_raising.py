"""Whatever a user's code raises is its node's failure: the run fails by name, and the loop goes on."""

from __future__ import annotations

import asyncio

import pytest

from aiflow_jupyter.errors import GraphError, RunError
from aiflow_jupyter.graph.builder import Flow
from aiflow_jupyter.graph.checks import require
from aiflow_jupyter.operators import OPERATORS, SIGNATURES, route, sink
from aiflow_jupyter.operators import map as map_
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


RAISED = [
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
    BaseException,
    Mute,
    StopIteration,
    Exception,
]


async def ran(flow):
    require(flow.spec, SIGNATURES, flow.functions)
    run = Run(flow.spec, OPERATORS, Scheduler(asyncio.get_running_loop()), functions=flow.functions)
    return await asyncio.wait_for(run.run("x"), 10)


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("kind", ["plain", "inline", "async", "route"])
async def test_whatever_a_function_raises_fails_its_node_and_no_more(raised, kind):
    def plain(text):
        raise raised

    async def on_loop(text):
        raise raised

    flow = Flow("g")
    bad = {
        "plain": lambda: map_(plain),
        "inline": lambda: map_(plain, inline=True),
        "async": lambda: map_(on_loop),
        "route": lambda: route(plain),
    }[kind]()
    node, out = flow.add("bad", bad), flow.add("out", sink(var="out"))
    (node["else"] if kind == "route" else node) >> out
    with pytest.raises(RunError, match="bad") as caught:
        await ran(flow)
    assert caught.value.node == "bad"


@pytest.mark.parametrize("raised", RAISED)
async def test_a_failure_far_down_a_chain_fails_the_run(raised):
    def bad(text):
        raise raised

    flow = Flow("g")
    last = flow.add("n0", map_(same, inline=True))
    for index in range(1, 60):
        last = last >> flow.add(f"n{index}", map_(same, inline=True))
    last >> flow.add("bad", map_(bad, inline=True)) >> flow.add("out", sink(var="out"))
    with pytest.raises(RunError, match="bad"):
        await ran(flow)


def same(text):
    return text


async def test_an_empty_graph_is_refused_like_an_empty_text():
    with pytest.raises(GraphError, match="empty"):
        await ran(Flow("nothing"))
