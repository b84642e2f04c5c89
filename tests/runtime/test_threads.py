"""Plain functions in threads, on the real clock: threads do not know a virtual one."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from graphs import Boom, Seen, burst, make_run, source

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.threads import NodeThreads


def threaded(call, seen, *, count=6, **policy) -> Run:
    loop = asyncio.get_running_loop()
    behaviours = {
        "src": source(burst(count)),
        "work": Behaviour("thread", call),
        "sink": seen.behaviour(),
    }
    return make_run(loop, behaviours, [("src", "work"), ("work", "sink")], {"work": policy}, scheduler=Scheduler(loop))


async def until(condition) -> None:
    """Let the loop turn until something that another thread does has happened."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


async def test_three_workers_are_three_threads_at_once_and_never_four():
    inside, together = 0, threading.Barrier(3, timeout=20)
    highest, lock = 0, threading.Lock()

    def work(event):
        nonlocal inside, highest
        with lock:
            inside += 1
            highest = max(highest, inside)
        together.wait()  # passes only if three are in here at once
        with lock:
            inside -= 1
        return event

    seen = Seen()
    await threaded(work, seen, count=9, workers=3).run("go")
    assert highest == 3
    assert seen.data == list(range(9))


async def test_results_of_threads_keep_their_order_when_the_first_is_the_last_to_return():
    last_started = threading.Event()

    def work(event):
        if event.payload == 0:
            assert last_started.wait(20)
        elif event.payload == 5:
            last_started.set()
        return event

    seen = Seen()
    await threaded(work, seen, workers=2, reorder=8).run("go")
    assert seen.data == list(range(6))
    assert seen.count("finish", "a0") == 1


async def test_each_node_runs_in_threads_of_its_own_name_off_the_loop():
    names = set()

    def work(event):
        names.add(threading.current_thread().name)
        return event

    await threaded(work, Seen(), workers=2).run("go")
    assert names == {"aiflow:work"}


async def test_hanging_function_is_named_and_does_not_hold_cancel_up():
    let_go, started = threading.Event(), threading.Event()
    returned = []

    def work(event):
        started.set()
        let_go.wait(20)
        returned.append(event.payload)
        return event

    seen = Seen()
    run = threaded(work, seen)
    await run.start("go")
    await until(started.is_set)
    await run.cancel()
    assert run.still_running == ["work"]
    assert returned == []
    let_go.set()
    await until(lambda: not run.still_running)
    await asyncio.sleep(0)
    assert returned == [0]  # one call was under way; no other one started
    assert seen.events == []


@pytest.mark.parametrize("workers", [1, 3])
async def test_what_a_node_holds_open_is_closed_off_the_loop_after_its_last_call_has_returned(workers):
    let_go, started, said = threading.Event(), threading.Event(), []

    def work(event):
        started.set()
        let_go.wait(20)
        said.append("returned")
        return event

    def close():
        said.append(threading.current_thread().name)

    loop = asyncio.get_running_loop()
    behaviours = {"work": Behaviour("thread", work, close=close), "sink": Seen().behaviour()}
    policies = {"work": {"workers": workers}}
    run = make_run(loop, behaviours, [("work", "sink")], policies, scheduler=Scheduler(loop))
    await run.offer("work", 1)
    await until(started.is_set)
    before = time.perf_counter()
    await run.cancel()
    assert said == []
    assert run.still_running == ["work"]
    assert time.perf_counter() - before < 10
    let_go.set()
    await until(lambda: len(said) == 2)
    assert said == ["returned", "aiflow:work"]
    said.clear()
    await make_run(loop, behaviours, [("work", "sink")], policies, scheduler=Scheduler(loop)).run("go")
    assert said == ["returned", "aiflow:work"]


async def test_late_result_of_a_cancelled_run_is_discarded():
    let_go, started = threading.Event(), threading.Event()

    def work(event):
        started.set()
        let_go.wait(20)
        return event

    seen = Seen()
    run = threaded(work, seen, count=1)
    await run.start("go")
    await until(started.is_set)
    await run.cancel()
    emitted = run.guardians["work"].emitted
    let_go.set()
    await until(lambda: not run.still_running)
    for _ in range(20):
        await asyncio.sleep(0)
    assert run.guardians["work"].emitted == emitted == 0
    assert seen.events == []


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (Boom("bad"), "Boom: bad"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration("x"), "StopIteration"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_a_thread_raises_fails_the_run_naming_node_and_event(raised, says):
    def work(event):
        if event.payload == 2:
            raise raised
        return event

    seen = Seen()
    run = threaded(work, seen)
    with pytest.raises(RunError) as error:
        await run.run("go")
    assert (error.value.node, error.value.sequence) == ("work", 2)
    assert says in error.value.message
    assert seen.data == [0, 1]
    assert run.still_running == []


async def test_loop_goes_on_while_a_thread_sleeps():
    started, let_go = threading.Event(), threading.Event()

    def work(event):
        started.set()
        assert let_go.wait(20)
        return event

    run = threaded(work, Seen(), count=1)
    await run.start("go")
    await until(started.is_set)
    assert run.guardians["work"].active() == 1
    let_go.set()  # the loop gets here although the function waits for it
    await run.wait()


def test_call_that_nobody_waits_for_ends_without_a_word_when_the_loop_is_closed(monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    loop = asyncio.new_event_loop()
    threads = NodeThreads("late", 1, loop)
    loop.run_until_complete(threads.submit(lambda: None))
    (thread,) = threads._threads
    with threads._lock:  # the thread has the call in hand, and has not looked at it yet
        threads.submit(lambda: None).cancel()
        loop.close()
    thread.join(20)
    assert not thread.is_alive()
    assert raised == []


async def test_threads_of_a_run_that_is_over_end():
    run = threaded(lambda event: event, Seen(), workers=3)
    before = {t for t in threading.enumerate() if t.name == "aiflow:work"}
    await run.run("go")
    await until(lambda: not {t for t in threading.enumerate() if t.name == "aiflow:work"} - before)


async def test_time_in_a_thread_counts_as_service_and_waiting_for_it_as_wait():
    def work(event):
        time.sleep(0.001)
        return event

    run = threaded(work, Seen(), count=4)
    await run.run("go")
    status = {node.node: node for node in run.status().nodes}["work"]
    assert status.service_s >= 0.004
    assert status.wait_s > 0
    assert status.blocked_s == 0
