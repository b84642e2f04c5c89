"""A function that raises, hangs, returns what is no value, gives without end or holds the loop is told by its node.

One table: each of these with each kind of function that a node can have.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest

from aiflow_jupyter.errors import RunCancelled, RunError
from aiflow_jupyter.graph.builder import Flow
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.operators import OPERATORS, SIGNATURES, flat_map, sink
from aiflow_jupyter.operators import map as map_
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.watchdog import Watchdog

PLAIN = ("plain", "inline", "async")
STEPS = ("steps", "inline steps", "async steps")
KINDS = (*PLAIN, *STEPS)
ON_LOOP = ("inline", "async", "inline steps", "async steps")
IN_THREADS = ("plain", "steps")


def function_of(kind, do, wait=None):
    """A function of one kind, which does something and gives what that returns.

    Args:
        kind: the kind of function.
        do: what it does.
        wait: what it awaits before, where it may.
    """

    def plain(text):
        return do(text)

    async def on_loop(text):
        if wait is not None:
            await wait()
        return do(text)

    def steps(text):
        yield do(text)

    async def async_steps(text):
        if wait is not None:
            await wait()
        yield do(text)

    return {"async": on_loop, "async steps": async_steps}.get(kind, plain if kind in PLAIN else steps)


def each_of(kind, function):
    """A node that gives each item of what a function gives."""
    return flat_map(function, inline=True if "inline" in kind else None)


def node_of(kind, do, wait=None):
    """A node around such a function."""
    function = function_of(kind, do, wait)
    return map_(function, inline=True if "inline" in kind else None) if kind in PLAIN else each_of(kind, function)


def same(text):
    return text


def drop(_item):
    return None


def run_of(operator, **policy):
    flow = Flow("g")
    good, bad = flow.add("good", map_(same, inline=True)), flow.add("bad", operator, **policy)
    good >> bad >> flow.add("out", sink(drop, inline=True))
    require(flow.spec, SIGNATURES, flow.functions)
    return Run(flow.spec, OPERATORS, Scheduler(asyncio.get_running_loop()), functions=flow.functions)


async def failure_of(operator, **policy):
    """How a run ends whose node `bad` misbehaves."""
    run = run_of(operator, **policy)
    with pytest.raises(RunError) as caught:
        await asyncio.wait_for(run.run("x"), 30)
    assert caught.value.node == "bad"
    assert "node 'bad'" in caught.value.message
    assert next(node.state for node in run.status().nodes if node.node == "bad") == "failed"
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_raises(kind):
    def do(_text):
        raise ValueError("no such thing")

    error = await failure_of(node_of(kind, do))
    assert error.code == "AF603"
    assert "ValueError: no such thing" in error.message


@pytest.fixture
def released():
    """What a thread waits for until the test is over."""
    event = threading.Event()
    yield event
    event.set()


def hanging(kind, released):
    """A node whose function does not return; one that runs on the loop in one piece can't but hold it."""
    if kind in IN_THREADS:
        return node_of(kind, lambda _text: released.wait())
    return node_of(kind, lambda text: text, asyncio.Event().wait)


@pytest.mark.parametrize("kind", [*IN_THREADS, "async", "async steps"])
async def test_one_that_hangs_longer_than_its_timeout(kind, released):
    error = await failure_of(hanging(kind, released), timeout=0.05)
    assert error.code == "AF610"
    assert "no result within 0.05 s" in error.message


@pytest.mark.parametrize("kind", [*IN_THREADS, "async", "async steps"])
async def test_one_that_hangs_without_timeout_is_seen_in_the_status_and_after_a_cancel(kind, released):
    run = run_of(hanging(kind, released))
    running = asyncio.ensure_future(run.run("x"))
    while run.guardians["bad"].active() == 0:
        await asyncio.sleep(0)
    assert [node.node for node in run.status().nodes if node.state == "running"] == ["bad"]
    while kind in IN_THREADS and not run._threads["bad"].running:
        await asyncio.sleep(0)
    await run.cancel()
    assert run.still_running == (["bad"] if kind in IN_THREADS else [])
    with pytest.raises(RunCancelled):
        await running


async def later():
    return "later"


@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_returns_what_is_still_to_be_awaited(kind):
    error = await failure_of(node_of(kind, lambda _text: later()))
    assert error.code == "AF303"
    assert "returned a coroutine, not a value" in error.message


@pytest.mark.parametrize("kind", PLAIN)
async def test_one_that_returns_no_list_where_one_is_wanted(kind):
    error = await failure_of(each_of(kind, function_of(kind, lambda _text: 7)))
    assert error.code == "AF303"
    assert "returned int" in error.message


@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_gives_without_end(kind):
    def steps(_text):
        yield from itertools.count()

    async def async_steps(_text):
        for number in itertools.count():
            yield number

    function = function_of(kind, lambda _text: itertools.count())
    if kind in STEPS:
        function = async_steps if kind == "async steps" else steps
    error = await failure_of(each_of(kind, function), timeout=0.05)
    assert error.code == "AF610"


@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_holds_the_loop_is_warned_of_and_one_in_threads_does_not(kind):
    def do(text):
        time.sleep(0.6)
        return text

    run = run_of(node_of(kind, do))
    watchdog = Watchdog(run._scheduler)
    watchdog.start()
    try:
        result = await run.run("x")
    finally:
        watchdog.stop()
    if kind in ON_LOOP:
        (warning,) = result.status.warnings
        assert warning.startswith("node 'bad' held the event loop for")
        assert "in do, line" in warning
    else:
        assert result.status.warnings == ()


@pytest.mark.parametrize("kind", ON_LOOP)
async def test_one_that_holds_the_loop_longer_than_its_timeout_is_told_when_it_returns(kind):
    error = await failure_of(node_of(kind, lambda text: time.sleep(0.05) or text), timeout=0.01)
    assert error.code == "AF610"
