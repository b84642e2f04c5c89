"""Retry, timeout and effects: tried as often as allowed, told once, and no visible text is repeated."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import virtual
from graphs import Boom, Seen, burst, make_run, source
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.keys import MOST_KEYS, Keys

EDGES = [("src", "work"), ("work", "sink")]


def real_loop():
    """The running loop with a clock, as `make_run` wants it."""
    loop = asyncio.get_running_loop()
    loop.clock = time.perf_counter_ns
    return loop


def governed(loop, work, policy, *, count=1, seen=None, functions=None, failures=None):
    seen = seen or Seen()
    behaviours = {"src": source(burst(count)), "work": work, "sink": seen.behaviour()}
    edges = list(EDGES)
    if failures is not None:
        behaviours["failures"] = failures.behaviour()
        edges.append(("work", "failures", "error"))
    return make_run(loop, behaviours, edges, {"work": policy}, functions=functions), seen


def flaky(failing, calls, mode="await", error=Boom):
    """Fails the first `failing[number]` calls for each event."""

    def enter(event: Event) -> None:
        calls.append(event.payload)
        if calls.count(event.payload) <= failing.get(event.payload, 0):
            raise error(f"call {calls.count(event.payload)}")

    async def call(event: Event) -> Event:
        enter(event)
        return event

    def inline(event: Event) -> Event:
        enter(event)
        return event

    async def stream(event: Event) -> AsyncIterator[Event]:
        enter(event)
        yield event

    def iterate(event: Event):
        enter(event)
        yield event

    return Behaviour(mode, {"await": call, "inline": inline, "stream": stream, "iterate": iterate}[mode])


@pytest.mark.parametrize("mode", ["await", "inline", "stream", "iterate"])
def test_failing_call_is_tried_again_and_the_order_kept(mode):
    async def story(loop):
        calls: list[int] = []
        run, seen = governed(loop, flaky({1: 2, 3: 1}, calls, mode), {"retry": 3, "workers": 1}, count=5)
        await run.run("go")
        assert seen.data == [0, 1, 2, 3, 4]
        assert [calls.count(n) for n in range(5)] == [1, 3, 1, 2, 1]
        assert run.guardians["work"].retries == 3
        assert run.guardians["work"].errors == 0

    virtual.run(story)


def test_last_failure_is_the_one_that_is_told():
    async def story(loop):
        calls: list[int] = []
        run, _ = governed(loop, flaky({0: 9}, calls), {"retry": 4})
        with pytest.raises(RunError, match="Boom: call 4"):
            await run.run("go")
        assert calls == [0] * 4

    virtual.run(story)


def test_pauses_double_with_jitter_and_take_no_worker_of_others():
    async def story(loop):
        at: list[float] = []

        async def call(event: Event) -> Event:
            at.append(loop.time())
            raise Boom

        run, _ = governed(loop, Behaviour("await", call), {"retry": 4, "backoff": 1.0})
        with pytest.raises(RunError):
            await run.run("go")
        pauses = [b - a for a, b in pairwise(at)]
        assert len(pauses) == 3
        for number, pause in enumerate(pauses):
            assert 2**number <= pause <= 2**number + 0.5 + 1e-6

    virtual.run(story)


@pytest.mark.parametrize(("names", "tried"), [([], 3), (["OSError"], 3), (["TimeoutError", "ValueError"], 1)])
def test_only_the_named_exceptions_are_tried_again_by_any_of_their_classes(names, tried):
    async def story(loop):
        calls: list[int] = []
        work = flaky({0: 9}, calls, error=ConnectionResetError)
        run, _ = governed(loop, work, {"retry": 3, "retry_on": names})
        with pytest.raises(RunError):
            await run.run("go")
        assert len(calls) == tried

    virtual.run(story)


def half(failing, calls, error=Boom, own=True):
    """Answers each event in two pieces and fails between them, the first times."""

    async def stream(event: Event) -> AsyncIterator[Event]:
        def piece(number: int) -> Event:
            return Event(
                "value", (event.payload, number), lineage=event.answer_lineage("work") if own else event.lineage
            )

        calls.append(event.payload)
        yield piece(1)
        if calls.count(event.payload) <= failing:
            raise error("half way")
        yield piece(2)

    return Behaviour("stream", stream)


def test_after_the_first_output_nothing_is_repeated_unless_restart_says_so():
    async def story(loop):
        calls: list[int] = []
        seen, failures = Seen(), Seen()
        run, _ = governed(loop, half(1, calls), {"retry": 3}, seen=seen, failures=failures)
        await run.run("go")
        assert seen.data == [(0, 1)]
        assert seen.count("restart") == 0
        assert calls == [0]
        assert len(failures.data) == 1

        calls.clear()
        run, seen = governed(loop, half(1, calls), {"retry": 3, "restart": True})
        await run.run("go")
        kinds = [e.kind if e.kind != "value" else e.payload for e in seen.events]
        assert kinds == [(0, 1), "restart", (0, 1), (0, 2), "finish", "end"]
        restart = next(e for e in seen.events if e.kind == "restart")
        assert (restart.lineage, restart.source) == ("a0/0.work", "work")

    virtual.run(story)


def test_nothing_restarts_a_lineage_that_others_give_to():
    async def story(loop):
        calls: list[int] = []
        seen, failures = Seen(), Seen()
        work = half(1, calls, own=False)
        run, _ = governed(loop, work, {"retry": 3, "restart": True}, seen=seen, failures=failures, count=2)
        await run.run("go")
        assert seen.data == [(0, 1), (1, 1)]
        assert seen.count("restart") == 0
        assert calls == [0, 1]
        assert len(failures.data) == 2

    virtual.run(story)


def test_non_idempotent_call_is_never_repeated_without_a_compensation():
    async def story(loop):
        calls: list[int] = []
        run, _ = governed(loop, flaky({0: 1}, calls), {"retry": 3, "effect": "non_idempotent"})
        with pytest.raises(RunError):
            await run.run("go")
        assert calls == [0]

    virtual.run(story)


async def test_compensation_undoes_each_failed_call_before_the_next():
    for is_async in (False, True):
        log: list[str] = []

        async def call(event: Event, log=log) -> Event:
            log.append("call")
            if log.count("call") < 3:
                raise Boom("no")
            return event

        def undo(payload, error, log=log):
            assert threading.current_thread() is not threading.main_thread() or is_async  # noqa: B023
            log.append(f"undo {payload} {error}")

        async def undo_later(payload, error):
            await asyncio.sleep(0.001)
            undo(payload, error)

        policy = {"retry": 3, "backoff": 0.001, "effect": "non_idempotent", "compensate": "undo"}
        functions = {"undo": undo_later if is_async else undo}
        run, seen = governed(real_loop(), Behaviour("await", call), policy, functions=functions)
        await run.run("go")
        assert seen.data == [0]
        assert log == ["call", "undo 0 no", "call", "undo 0 no", "call"]


def test_compensation_that_fails_is_told_and_ends_the_tries():
    async def story(loop):
        calls: list[int] = []

        async def undo(payload, error):
            raise ValueError("can't undo")

        policy = {"retry": 5, "effect": "non_idempotent", "compensate": "undo"}
        run, _ = governed(loop, flaky({0: 9}, calls), policy, functions={"undo": undo})
        with pytest.raises(RunError, match="can't undo"):
            await run.run("go")
        assert calls == [0]

    virtual.run(story)


async def test_compensation_that_only_returns_what_is_still_to_run_has_undone_nothing():
    async def later(payload, error):
        raise AssertionError("nobody awaits it")

    def steps(payload, error):
        yield

    for undo in (lambda payload, error: later(payload, error), steps):  # noqa: PLW0108 - no coroutine function
        calls: list[int] = []
        policy = {"retry": 5, "backoff": 0.001, "effect": "non_idempotent", "compensate": "undo"}
        run, _ = governed(real_loop(), flaky({0: 9}, calls), policy, functions={"undo": undo})
        with pytest.raises(RunError, match=r"'undo' returned a .*, not a value"):
            await run.run("go")
        assert calls == [0]


def test_idempotency_key_is_the_same_for_each_try_and_another_for_each_event_and_each_run():
    async def story(loop):
        keys: list[str] = []

        async def call(event: Event, *, idempotency_key: str) -> Event:
            keys.append(idempotency_key)
            if keys.count(idempotency_key) < 2:
                raise Boom
            return event

        work = Behaviour("await", call, extras=frozenset({"idempotency_key"}))
        run, _ = governed(loop, work, {"retry": 2, "effect": "idempotent"}, count=3)
        await run.run("go")
        assert len(keys) == 6
        assert len(set(keys)) == 3
        assert all("work" in key and "a0" in key for key in keys)
        again, _ = governed(loop, work, {"retry": 2, "effect": "idempotent"}, count=3)
        first = set(keys)
        keys.clear()
        await again.run("go")
        assert set(keys).isdisjoint(first)  # what another run asks for is not done yet

    virtual.run(story)


@pytest.mark.parametrize("mode", ["inline", "iterate", "await", "stream"])
@pytest.mark.parametrize("retry", [1, 2])
def test_events_of_one_identity_have_keys_of_their_own_and_each_try_of_one_has_the_same(mode, retry):
    async def story(loop):
        tries: list[tuple[str, str]] = []

        def send(event: Event, *, idempotency_key: str) -> Event:
            tries.append((event.payload, idempotency_key.partition("/")[2]))
            if len([each for each in tries if each[0] == event.payload]) < retry:
                raise Boom
            return event

        async def awaited(event: Event, **extras: str) -> Event:
            return send(event, **extras)

        async def streamed(event: Event, **extras: str) -> AsyncIterator[Event]:
            yield send(event, **extras)

        call = {"inline": send, "iterate": lambda *a, **k: iter([send(*a, **k)]), "await": awaited, "stream": streamed}
        work = Behaviour(mode, call[mode], extras=frozenset({"idempotency_key"}))
        copies = source([Event("value", text, lineage="a") for text in "xyz"])
        run = make_run(
            loop,
            {"src": copies, "work": work, "sink": Seen().behaviour()},
            EDGES,
            {"work": {"retry": retry, "effect": "idempotent"}},
        )
        await run.run("go")
        keys = {"x": "work/a/0", "y": "work/a/0+1", "z": "work/a/0+2"}
        assert tries == [(text, keys[text]) for text in "xyz" for _ in range(retry)]

    virtual.run(story)


def test_keys_remember_within_bounds_and_count_anew_what_came_long_before():
    keys = Keys("r", "n")
    key_of = keys.given(lambda _event, idempotency_key: idempotency_key)
    first = Event("value", lineage="first")
    assert [key_of(first), key_of(first)] == ["r/n/first/0", "r/n/first/0+1"]
    for number in range(MOST_KEYS):
        key_of(Event("value", sequence=number))
    assert len(keys._came) == MOST_KEYS
    assert key_of(first) == "r/n/first/0"


def test_jitter_comes_from_the_run_and_leaves_the_randomness_of_the_process_alone():
    def ends(seed):
        async def story(loop):
            begun = loop.time()
            work = flaky({0: 3}, [])
            run = make_run(
                loop,
                {"src": source(burst(1)), "work": work, "sink": Seen().behaviour()},
                EDGES,
                {"work": {"retry": 4}},
                random=random.Random(seed),
            )
            await run.run("go")
            return loop.time() - begun

        return virtual.run(story)

    before = random.getstate()
    assert ends(1) == ends(1) != ends(2)
    assert random.getstate() == before


@pytest.mark.parametrize("mode", ["await", "stream"])
def test_timeout_names_the_node_and_is_tried_again_like_any_failure(mode):
    async def story(loop):
        calls: list[int] = []

        async def call(event: Event) -> Event:
            calls.append(event.payload)
            await asyncio.sleep(10 if len(calls) == 1 else 0.1)
            return event

        async def stream(event: Event) -> AsyncIterator[Event]:
            yield await call(event)

        work = Behaviour(mode, call if mode == "await" else stream)
        run, seen = governed(loop, work, {"timeout": 1.0, "retry": 2})
        await run.run("go")
        assert seen.data == [0]
        calls.clear()
        run, _ = governed(loop, work, {"timeout": 1.0})
        with pytest.raises(RunError, match="no result within 1 s") as raised:
            await run.run("go")
        assert (raised.value.code, raised.value.node) == ("AF610", "work")

    virtual.run(story)


def test_time_that_an_output_waits_for_its_receiver_is_not_the_calls():
    async def story(loop):
        async def stream(event: Event) -> AsyncIterator[Event]:
            for number in range(5):
                yield event.derive(number)

        async def slow(event: Event) -> Event:
            await asyncio.sleep(10)
            return event

        seen = Seen()
        behaviours = {
            "src": source(burst(1)),
            "work": Behaviour("stream", stream),
            "slow": Behaviour("await", slow),
            "sink": seen.behaviour(),
        }
        edges = [("src", "work"), ("work", "slow"), ("slow", "sink")]
        await make_run(loop, behaviours, edges, {"work": {"timeout": 1.0}, "slow": {"queue": 1}}).run("go")
        assert seen.data == [0, 1, 2, 3, 4]

    virtual.run(story)


async def test_thread_that_timed_out_keeps_its_slot_and_is_named():
    let_go = threading.Event()
    inside = threading.Semaphore(0)
    served: list[int] = []

    def call(event: Event) -> Event:
        if event.payload == 0:
            inside.release()
            let_go.wait(20)
        served.append(event.payload)
        return event

    loop = real_loop()
    seen, failures = Seen(), Seen()
    run, _ = governed(loop, Behaviour("thread", call), {"timeout": 0.05}, count=2, seen=seen, failures=failures)
    await run.start("go")
    while not failures.data:
        await asyncio.sleep(0.005)
    assert failures.data[0].error.code == "AF610"
    assert run.still_running == ["work"]
    await asyncio.sleep(0.15)
    assert served == []  # the second event has no worker yet, and its time does not run
    let_go.set()
    await run.wait()
    assert seen.data == [1]
    assert run.still_running == []
    assert len(failures.data) == 1


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 4)),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["await", "stream"]),
)
def test_every_event_is_called_as_often_as_allowed_and_comes_once_or_fails_once(failing, tries, workers, mode):
    async def story(loop):
        calls: list[int] = []
        seen, failures = Seen(), Seen()
        policy = {"retry": tries, "workers": workers}
        run, _ = governed(loop, flaky(failing, calls, mode), policy, count=10, seen=seen, failures=failures)
        await run.run("go")
        good = [n for n in range(10) if failing.get(n, 0) < tries]
        assert seen.data == good
        assert sorted(f.sequence for f in failures.data) == [n for n in range(10) if n not in good]
        for number in range(10):
            assert calls.count(number) == min(failing.get(number, 0) + 1, tries)

    virtual.run(story)
