"""Storms: a flood of failures stays within bounds, and nothing of a user's ends more than its own node."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest
import virtual
from graphs import Boom, Seen, burst, make_run, source

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.admission import MOST_CONTROLS
from aiflow_jupyter.runtime.behaviour import Behaviour

MANY = 3 * MOST_CONTROLS


def failing(event: Event) -> Event:
    held = bytearray(10_000)
    raise Boom(f"{event.payload} {len(held)}")


async def stuck(event: Event) -> Event:
    await asyncio.sleep(1_000)
    return event


@pytest.mark.parametrize("mode", ["inline", "await"])
def test_a_storm_of_failures_waits_for_a_stuck_receiver_and_none_is_lost(mode):
    async def story(loop):
        seen, failures = Seen(), Seen()

        async def failing_later(event: Event) -> Event:
            return failing(event)

        behaviours = {
            "src": source(burst(MANY)),
            "bad": Behaviour(mode, failing if mode == "inline" else failing_later),
            "stuck": Behaviour("await", stuck),
            "sink": seen.behaviour(),
            "failures": failures.behaviour(),
        }
        edges = [("src", "bad"), ("bad", "stuck"), ("stuck", "sink"), ("bad", "failures", "error")]
        run = make_run(loop, behaviours, edges)
        await run.offer("stuck", "for long")
        await run.offer("src", "go")
        await run.close_inputs()
        most = 0
        for _ in range(9):
            await asyncio.sleep(100)
            most = max(most, *(len(guardian.queue) for guardian in run.guardians.values()))
        assert MOST_CONTROLS <= most <= MOST_CONTROLS + 16
        assert MOST_CONTROLS <= len(failures.data) < MANY  # the others wait
        await run.wait()
        assert len(failures.data) == seen.count("error") == MANY
        assert all(failure.error.__traceback__ is None for failure in failures.data)

    virtual.run(story)


def test_every_failure_of_a_storm_arrives_once_the_receiver_goes_on():
    async def story(loop):
        seen, failures = Seen(), Seen()
        slowly = iter([1_000.0])

        async def first_slow(event: Event) -> Event:
            await asyncio.sleep(next(slowly, 0.0))
            return event

        def every_third(event: Event) -> Event:
            if event.payload % 3:
                return failing(event)
            return event

        behaviours = {
            "src": source(burst(MANY)),
            "bad": Behaviour("inline", every_third),
            "slow": Behaviour("await", first_slow),
            "sink": seen.behaviour(),
            "failures": failures.behaviour(),
        }
        edges = [("src", "bad"), ("bad", "slow"), ("slow", "sink"), ("bad", "failures", "error")]
        run = make_run(loop, behaviours, edges)
        await run.run("go")
        assert seen.data == list(range(0, MANY, 3))
        assert seen.count("error") == len(failures.data) == MANY - len(seen.data)

    virtual.run(story)


def test_refusals_of_a_full_queue_wait_too():
    async def story(loop):
        failures = Seen()
        behaviours = {
            "src": source(burst(MANY)),
            "stuck": Behaviour("await", stuck),
            "sink": Seen().behaviour(),
            "failures": failures.behaviour(),
        }
        edges = [("src", "stuck"), ("stuck", "sink"), ("stuck", "failures", "error")]
        run = make_run(loop, behaviours, edges, {"stuck": {"overflow": "error"}})
        await run.start("go")
        await asyncio.sleep(500)
        assert len(run.guardians["stuck"].queue) <= MOST_CONTROLS + 8
        await run.cancel()

    virtual.run(story)


@pytest.mark.parametrize("policy", [{"retry": 3}, {"timeout": 5.0}])
def test_stop_async_iteration_is_a_failure_like_any_other(policy):
    async def story(loop):
        async def call(event: Event) -> Event:
            raise StopAsyncIteration

        behaviours = {"src": source(burst(1)), "work": Behaviour("await", call), "sink": Seen().behaviour()}
        with pytest.raises(RunError, match="StopAsyncIteration"):
            await make_run(loop, behaviours, [("src", "work"), ("work", "sink")], {"work": policy}).run("go")

    virtual.run(story)


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_key_that_raises_anything_fails_its_event_and_no_other_run(raised):
    def key(_payload):
        raise raised

    async def story(loop):
        async def pass_on(event: Event) -> Event:
            return event

        seen, failures, other = Seen(), Seen(), Seen()
        behaviours = {
            "src": source(burst(3)),
            "work": Behaviour("await", pass_on),
            "sink": seen.behaviour(),
            "failures": failures.behaviour(),
        }
        policy = {"state": "partitioned", "key": "key", "workers": 2}
        edges = [("src", "work"), ("work", "sink"), ("work", "failures", "error")]
        run = make_run(loop, behaviours, edges, {"work": policy}, functions={"key": key})
        beside = make_run(loop, {"src": source(burst(3)), "sink": other.behaviour("await")}, [("src", "sink")])
        await asyncio.gather(run.run("go"), beside.run("go"))
        assert len(failures.data) == 3
        assert other.data == [0, 1, 2]

    virtual.run(story)


@pytest.mark.parametrize("state", ["serialized", "partitioned", "transactional"])
async def test_a_call_that_timed_out_still_counts_as_the_one_at_a_time(state):
    now, most = 0, 0
    lock = threading.Lock()

    def call(event: Event) -> Event:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return event

    loop = asyncio.get_running_loop()
    loop.clock = time.perf_counter_ns  # type: ignore[attr-defined]
    failures = Seen()
    behaviours = {
        "src": source(burst(6)),
        "work": Behaviour("thread", call),
        "sink": Seen().behaviour(),
        "failures": failures.behaviour(),
    }
    policy = {"state": state, "workers": 3, "timeout": 0.01} | ({"key": "key"} if state == "partitioned" else {})
    edges = [("src", "work"), ("work", "sink"), ("work", "failures", "error")]
    run = make_run(loop, behaviours, edges, {"work": policy}, functions={"key": lambda _payload: 1})
    await run.run("go")
    assert most == 1
    assert len(failures.data) == 6


async def test_what_is_undone_is_undone_after_it_was_done():
    log: list[str] = []

    def pay(event: Event) -> Event:
        log.append("begin")
        time.sleep(0.05)
        log.append("paid")
        return event

    async def undo(_payload, _error):
        log.append("undo")

    loop = asyncio.get_running_loop()
    loop.clock = time.perf_counter_ns  # type: ignore[attr-defined]
    behaviours = {
        "src": source(burst(1)),
        "work": Behaviour("thread", pay),
        "sink": Seen().behaviour(),
        "failures": Seen().behaviour(),
    }
    policy = {
        "workers": 2,
        "timeout": 0.01,
        "retry": 2,
        "backoff": 0.001,
        "effect": "non_idempotent",
        "compensate": "undo",
    }
    edges = [("src", "work"), ("work", "sink"), ("work", "failures", "error")]
    await make_run(loop, behaviours, edges, {"work": policy}, functions={"undo": undo}).run("go")
    assert log == ["begin", "paid", "undo", "begin", "paid"]


async def test_an_exception_that_can_not_be_shown_fails_its_node_and_hangs_nothing():
    class Unshowable(BaseException):
        def __str__(self) -> str:
            raise ZeroDivisionError

    def call(event: Event) -> Event:
        raise Unshowable

    loop = asyncio.get_running_loop()
    loop.clock = time.perf_counter_ns  # type: ignore[attr-defined]
    behaviours = {"src": source(burst(1)), "work": Behaviour("thread", call), "sink": Seen().behaviour()}
    with pytest.raises(RunError, match="Unshowable"):
        await asyncio.wait_for(make_run(loop, behaviours, [("src", "work"), ("work", "sink")]).run("go"), 10)


@pytest.mark.parametrize("policy", [{}, {"workers": 3}, {"workers": 3, "order": "none"}])
@pytest.mark.parametrize("mode", ["await", "stream"])
def test_generator_exit_of_the_users_own_is_a_failure_like_any_other(mode, policy):
    async def awaited(event: Event) -> Event:
        if event.payload == 1:
            raise GeneratorExit("the user's")
        return event

    async def streamed(event: Event) -> AsyncIterator[Event]:
        yield await awaited(event)

    async def story(loop):
        seen, errors = Seen(), Seen()
        work = Behaviour(mode, awaited if mode == "await" else streamed)
        behaviours = {"work": work, "sink": seen.behaviour(), "bad": errors.behaviour()}
        run = make_run(loop, behaviours, [("work", "sink"), ("work", "bad", "error")], {"work": policy})
        for number in range(3):
            await run.offer("work", number)
        await run.close_inputs()
        await run.wait()
        assert seen.data == [0, 2]
        assert [repr(failure.error) for failure in errors.data] == ["""GeneratorExit("the user's")"""]

    virtual.run(story)
