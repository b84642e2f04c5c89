"""A result: what it tells does not change any more, and it keeps nothing of its run alive but what it tells."""

from __future__ import annotations

import asyncio
import gc
import weakref

import virtual
from graphs import make_run

from aiflow_jupyter.runtime.behaviour import Behaviour


def pass_on(event):
    return event


async def after_a_while(event):
    await asyncio.sleep(1)
    return event


def chain(loop, **policies):
    behaviours = {"a": Behaviour("inline", pass_on), "b": Behaviour("await", after_a_while)}
    return make_run(loop, behaviours, [("a", "b")], policies)


def test_result_of_a_run_that_goes_on_stays_what_it_was():
    async def story(loop):
        run = chain(loop)
        await run.start("first", leave_open=True)
        await asyncio.sleep(0.5)
        early, told = run.result(), run.status()
        await asyncio.sleep(1)
        await run.offer("a", "second")
        await run.close_inputs()
        last = await run.wait()
        assert early.status == told
        assert [(n.node, n.state, n.processed) for n in early.status.nodes] == [("a", "idle", 1), ("b", "running", 0)]
        assert [(n.node, n.state, n.processed) for n in last.status.nodes] == [("a", "done", 2), ("b", "done", 2)]
        assert (early.status.state, early.status.elapsed_s) == ("running", 0.5)
        assert last.status is last.status

    virtual.run(story)


def test_result_does_not_keep_its_run():
    async def story(loop):
        run = chain(loop)
        kept = weakref.ref(run)
        result = await run.run("go")
        del run
        await asyncio.sleep(1)  # what the loop still holds of it
        gc.collect()
        assert kept() is None
        assert [n.processed for n in result.status.nodes] == [1, 1]

    virtual.run(story)


def test_percentiles_are_upper_edges_and_no_more_than_all_service():
    async def story(loop):
        run = chain(loop)
        await run.start(0, leave_open=True)
        for value in range(1, 4):
            await run.offer("a", value)
        await run.close_inputs()
        node = (await run.wait()).status.nodes[1]
        assert node.service_s == 4
        edge = (1 << (10**9).bit_length()) / 1e9
        assert (node.p50_s, node.p95_s, node.p99_s) == (edge, edge, edge)
        assert (await run.wait()).status.nodes[0].p99_s == 0

    virtual.run(story)


def test_closing_waits_for_what_a_node_holds_open_and_makes_no_task_where_nothing_runs():
    async def story(loop):
        run = make_run(loop, {"a": Behaviour("inline", pass_on), "b": Behaviour("inline", pass_on)}, [("a", "b")])
        before = asyncio.all_tasks()
        await run.start("go")
        for _ in range(2):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == before
        assert (await run.wait()).complete

        closed = []

        async def close():
            await asyncio.sleep(1)
            closed.append(loop.time())

        run = make_run(loop, {"a": Behaviour("inline", pass_on), "b": Behaviour("inline", pass_on, close=close)}, [])
        await run.start("go", to="a")
        start = loop.time()
        await run.wait()
        assert closed == [start + 1]

    virtual.run(story)
