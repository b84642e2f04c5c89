"""State: who shares it, one call at a time, and all of a transaction or nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
import virtual
from graphs import Boom, Seen, burst, make_run, source
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.scheduler import Scheduler

STATE = frozenset({"state"})


def stateful(loop, call, policy, *, mode="await", count=10, functions=None):
    seen, failures = Seen(), Seen()
    behaviours = {
        "src": source(burst(count)),
        "work": Behaviour(mode, call, extras=STATE),
        "sink": seen.behaviour(),
        "failures": failures.behaviour(),
    }
    edges = [("src", "work"), ("work", "sink"), ("work", "failures", "error")]
    scheduler = None if hasattr(loop, "clock") else Scheduler(loop)
    return make_run(loop, behaviours, edges, {"work": policy}, functions=functions, scheduler=scheduler), seen, failures


async def count_up(event: Event, *, state) -> Event:
    before = state.get("count", 0)
    await asyncio.sleep(event.payload % 3)
    state["count"] = before + 1
    return event.derive(state["count"])


@pytest.mark.parametrize("mode", ["serialized", "transactional"])
@pytest.mark.parametrize("workers", [1, 4])
def test_one_state_is_seen_by_one_call_at_a_time_in_order(mode, workers):
    async def story(loop):
        run, seen, _ = stateful(loop, count_up, {"state": mode, "workers": workers})
        await run.run("go")
        assert seen.data == list(range(1, 11))

    virtual.run(story)


def test_partitioned_state_is_the_keys_own_and_lives_with_the_run():
    async def story(loop):
        async def call(event: Event, *, state) -> Event:
            before = state.get("count", 0)
            await asyncio.sleep(1)
            state["count"] = before + 1
            return event.derive((event.payload % 3, state["count"]))

        for _ in range(2):
            policy = {"state": "partitioned", "key": "key", "workers": 4}
            run, seen, _ = stateful(loop, call, policy, functions={"key": lambda n: n % 3})
            await run.run("go")
            assert seen.data == [(n % 3, n // 3 + 1) for n in range(10)]

    virtual.run(story)


def test_one_key_too_many_fails_its_event():
    async def story(loop):
        policy = {"state": "partitioned", "key": "key", "keys": 2}
        run, seen, failures = stateful(loop, count_up, policy, count=4, functions={"key": lambda n: min(n, 2)})
        await run.run("go")
        assert len(seen.data) == 2
        assert {failure.error.code for failure in failures.data} == {"AF611"}

    virtual.run(story)


@pytest.mark.parametrize("mode", ["await", "stream", "inline", "iterate"])
def test_failed_transaction_leaves_neither_state_nor_output(mode):
    def work(event: Event, state):
        log = state.setdefault("log", [])
        log.append(event.payload)
        if event.payload % 3 == 1:
            raise Boom

    async def call(event: Event, *, state) -> Event:
        work(event, state)
        return event.derive(tuple(state["log"]))

    async def stream(event: Event, *, state) -> AsyncIterator[Event]:
        yield event.derive("first")
        work(event, state)
        yield event.derive(tuple(state["log"]))

    def inline(event: Event, *, state) -> Event:
        work(event, state)
        return event.derive(tuple(state["log"]))

    def iterate(event: Event, *, state):
        yield event.derive("first")
        work(event, state)
        yield event.derive(tuple(state["log"]))

    calls = {"await": call, "stream": stream, "inline": inline, "iterate": iterate}

    async def story(loop):
        run, seen, failures = stateful(loop, calls[mode], {"state": "transactional"}, mode=mode, count=6)
        await run.run("go")
        told = [out for out in seen.data if out != "first"]
        assert told == [(0,), (0, 2), (0, 2, 3), (0, 2, 3, 5)]
        assert seen.data.count("first") == (4 if mode in ("stream", "iterate") else 0)
        assert len(failures.data) == 2

    virtual.run(story)


def test_transaction_keeps_at_most_what_it_may_hold():
    async def story(loop):
        async def many(event: Event, *, state) -> AsyncIterator[Event]:
            for number in range(5):
                yield event.derive(number)

        for hold, fits in ((5, True), (4, False)):
            policy = {"state": "transactional", "hold": hold}
            run, seen, failures = stateful(loop, many, policy, mode="stream", count=1)
            await run.run("go")
            assert seen.data == (list(range(5)) if fits else [])
            assert [f.error.code for f in failures.data] == ([] if fits else ["AF612"])

    virtual.run(story)


def test_retried_transaction_starts_from_the_state_before_it():
    async def story(loop):
        tries: list[int] = []

        async def call(event: Event, *, state) -> Event:
            state["sum"] = state.get("sum", 0) + event.payload
            tries.append(event.payload)
            if tries.count(event.payload) == 1:
                raise Boom
            return event.derive(state["sum"])

        run, seen, _ = stateful(loop, call, {"state": "transactional", "retry": 2}, count=5)
        await run.run("go")
        assert seen.data == [0, 1, 3, 6, 10]

    virtual.run(story)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["serialized", "transactional", "partitioned"]),
    st.integers(1, 5),
    st.integers(1, 5),
    st.lists(st.floats(0, 2), min_size=1, max_size=5),
    st.sets(st.integers(0, 11)),
)
def test_no_update_is_lost_whatever_the_timing(mode, workers, queue, delays, failing):
    async def story(loop):
        async def call(event: Event, *, state) -> Event:
            before = state.get("count", 0)
            await asyncio.sleep(delays[event.payload % len(delays)])
            state["count"] = before + 1
            if event.payload in failing:
                raise Boom
            return event.derive((event.payload, state["count"]))

        policy = {"state": mode, "workers": workers, "queue": queue}
        if mode == "partitioned":
            policy["key"] = "key"
        run, seen, failures = stateful(loop, call, policy, count=12, functions={"key": lambda n: n % 2})
        await run.run("go")
        counts: dict[int, int] = {}
        expected = []
        for number in range(12):
            key = number % 2 if mode == "partitioned" else 0
            if number in failing and mode == "transactional":
                continue
            counts[key] = counts.get(key, 0) + 1
            if number not in failing:
                expected.append((number, counts[key]))
        assert seen.data == expected
        assert len(failures.data) == len(failing)

    virtual.run(story)


def test_stateless_call_that_wants_a_state_has_the_nodes_one():
    async def story(loop):
        def call(event: Event, *, state) -> Event:
            state["n"] = state.get("n", 0) + 1
            return event.derive(state["n"])

        run, seen, _ = stateful(loop, call, {}, mode="inline", count=3)
        await run.run("go")
        assert seen.data == [1, 2, 3]

    virtual.run(story)


def test_missing_key_function_is_told_before_the_run():
    async def story(loop):
        with pytest.raises(Exception, match="no function is called 'key'") as raised:
            stateful(loop, count_up, {"state": "partitioned", "key": "key"})
        assert raised.value.code == "AF205"
        assert not isinstance(raised.value, RunError)

    virtual.run(story)


# -- what is copied for a transaction


class Where:
    """Notes in which thread it is copied."""

    def __init__(self, seen):
        self.seen = seen

    def __deepcopy__(self, memo):
        self.seen.append(threading.current_thread().name)
        return Where(self.seen)


@pytest.mark.parametrize("mode", ["thread", "thread_iterate", "await", "stream", "inline", "iterate"])
@pytest.mark.parametrize("items", [10, 10_000])
async def test_state_is_copied_in_a_thread_unless_it_is_small_or_the_call_is_inline(mode, items):
    copied = []

    def work(event: Event, state):
        state["all"] = [Where(copied), *range(items)]
        return event

    def call(event: Event, *, state) -> Event:
        return work(event, state)

    def steps(event: Event, *, state):
        yield work(event, state)

    async def awaited(event: Event, *, state) -> Event:
        return work(event, state)

    async def stream(event: Event, *, state) -> AsyncIterator[Event]:
        yield work(event, state)

    calls = {"thread": call, "inline": call, "await": awaited, "stream": stream}
    run, seen, _ = stateful(
        asyncio.get_running_loop(), calls.get(mode, steps), {"state": "transactional"}, mode=mode, count=3
    )
    await run.run("go")
    assert seen.data == [0, 1, 2]
    inline = mode in ("inline", "iterate") or (mode in ("await", "stream") and items == 10)
    assert set(copied) == {threading.current_thread().name if inline else "aiflow:work"}
    assert len(copied) == 3


@pytest.mark.parametrize("mode", ["thread", "await", "inline"])
async def test_what_can_not_be_copied_fails_the_call_that_put_it_there(mode):
    def call(event: Event, *, state) -> Event:
        state["sum"] = state.get("sum", 0) + event.payload
        if event.payload == 2:
            state["lock"] = threading.Lock()
        return event.derive(state["sum"])

    async def awaited(event: Event, *, state) -> Event:
        return call(event, state=state)

    run, seen, failures = stateful(
        asyncio.get_running_loop(),
        awaited if mode == "await" else call,
        {"state": "transactional"},
        mode=mode,
        count=5,
    )
    await run.run("go")
    assert seen.data == [0, 1, 4, 8]
    (failure,) = failures.data
    assert (failure.sequence, failure.error.code) == (2, "AF615")
    assert "node 'work': `state`, as the call for event 2 left it, can't be copied: TypeError" in str(failure.error)


def asked_for_keys(keys):
    """A key function that notes what it is asked for, and gives a key for each payload."""
    asked = []

    def key(number):
        asked.append(number)
        return keys(number)

    return key, asked


@pytest.mark.parametrize("extras", [STATE, frozenset()])
@pytest.mark.parametrize("mode", ["await", "stream"])
@pytest.mark.parametrize("workers", [1, 3])
def test_key_is_asked_for_once_for_each_event_however_often_it_is_tried(extras, mode, workers):
    async def story(loop):
        key, asked = asked_for_keys(lambda number: number % 2)
        tried: list[int] = []

        def go(event, state):
            tried.append(event.payload)
            if tried.count(event.payload) < 3:
                raise Boom
            state["count"] = state.get("count", 0) + 1
            return event.derive((event.payload % 2, state["count"]))

        async def call(event, *, state=None):
            await asyncio.sleep(1)
            return go(event, {} if state is None else state)

        async def stream(event, *, state=None):
            await asyncio.sleep(1)
            yield go(event, {} if state is None else state)

        policy = {"state": "partitioned", "key": "key", "workers": workers, "retry": 3, "backoff": 0.1}
        work = Behaviour(mode, call if mode == "await" else stream, extras=extras)
        seen = Seen()
        nodes = {"src": source(burst(10)), "work": work, "sink": seen.behaviour()}
        run = make_run(loop, nodes, [("src", "work"), ("work", "sink")], {"work": policy}, functions={"key": key})
        await run.run("go")
        assert sorted(asked) == list(range(10))
        assert sorted(tried) == sorted(list(range(10)) * 3)
        if extras:
            assert sorted(seen.data) == [(side, count) for side in (0, 1) for count in range(1, 6)]
        assert run.guardians["work"]._key.serving == {}

    virtual.run(story)


@pytest.mark.parametrize("extras", [STATE, frozenset()])
@pytest.mark.parametrize("mode", ["await", "stream"])
@pytest.mark.parametrize("order", ["source", "none"])
def test_key_without_a_hash_is_a_failure_of_its_event_that_names_the_node(extras, mode, order):
    async def story(loop):
        def odd(number):
            if number == 3:
                raise Boom
            return (number, []) if number % 2 else number

        key, asked = asked_for_keys(odd)

        async def call(event, *, state=None):
            return event

        async def stream(event, *, state=None):
            yield event

        policy = {"state": "partitioned", "key": "key", "workers": 2, "order": order}
        seen, failures = Seen(), Seen()
        nodes = {
            "src": source(burst(6)),
            "work": Behaviour(mode, call if mode == "await" else stream, extras=extras),
            "sink": seen.behaviour(),
            "bad": failures.behaviour(),
        }
        edges = [("src", "work"), ("work", "sink"), ("work", "bad", "error")]
        run = make_run(loop, nodes, edges, {"work": policy}, functions={"key": key})
        await run.run("go")
        assert sorted(seen.data) == [0, 2, 4]
        assert sorted(asked) == list(range(6))
        errors = {failure.sequence: failure.error for failure in failures.data}
        assert isinstance(errors.pop(3), Boom)
        assert [error.code for error in errors.values()] == ["AF303"] * 2
        assert all("node 'work': 'key' returned a tuple" in error.message for error in errors.values())

    virtual.run(story)
