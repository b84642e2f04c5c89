"""A run from outside: offering, leaving open, pausing, draining, stopping a node, and noticing a deadlock."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
import virtual
from graphs import Boom, Lab, Seen, burst, make_run, source, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import CommandError, RunCancelled, RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.builder import Flow
from aiflow_jupyter.graph.signatures import OperatorSignature
from aiflow_jupyter.graph.spec import Feedback
from aiflow_jupyter.operators import OPERATORS, delegate, sink
from aiflow_jupyter.operators import map as map_
from aiflow_jupyter.runtime.behaviour import Behaviour, Operator
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler


def pass_on(event):
    return event


async def after_a_while(event):
    await asyncio.sleep(1)
    return event


def chain(loop, *modes, policies=None, seen=None, **more):
    seen = seen or Seen()
    known = {"inline": Behaviour("inline", pass_on), "await": Behaviour("await", after_a_while)}
    behaviours = {f"n{i}": known[mode] for i, mode in enumerate(modes)} | {"sink": seen.behaviour()}
    names = list(behaviours)
    run = make_run(loop, behaviours, list(pairwise(names)), policies, **more)
    return run, seen


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


def test_offers_reach_any_node_and_inputs_stay_open_until_closed():
    async def story(loop):
        run, seen = chain(loop, "inline", "inline")
        await run.start("first", leave_open=True)
        await run.offer("n1", "middle")
        await run.offer("n0", "second")
        await settled()
        assert seen.data == ["first", "middle", "second"]
        assert run.state == "running"
        await run.close_inputs()
        result = await run.wait()
        assert result.complete
        with pytest.raises(RunError) as raised:
            await run.offer("n0", "late")
        assert raised.value.code == "AF605"

    virtual.run(story)


def test_offer_obeys_the_policy_and_says_what_is_wrong():
    async def story(loop):
        run, seen = chain(loop, "await", policies={"n0": {"queue": 1, "overflow": "drop_newest"}}, inject={"n0": "int"})
        for number in range(5):
            await run.offer("n0", number)
            await settled()
        with pytest.raises(CommandError, match="takes int from outside, not str") as raised:
            await run.offer("n0", "text")
        assert raised.value.code == "AF807"
        with pytest.raises(CommandError, match="not bool"):
            await run.offer("n0", True)  # noqa: FBT003
        with pytest.raises(CommandError, match="no node is called 'n9'") as raised:
            await run.offer("n9", 1)
        assert "n0" in raised.value.hint
        await run.close_inputs()
        await run.wait()
        assert seen.data == [0, 1]

    virtual.run(story)


def test_closing_the_inputs_of_a_run_that_never_began_ends_it():
    async def story(loop):
        run, seen = chain(loop, "inline")
        await run.close_inputs()
        assert (await run.wait()).complete
        assert seen.data == []

    virtual.run(story)


def test_a_start_that_was_given_up_leaves_the_inputs_open():
    async def story(loop):
        run, seen = chain(loop, "await", policies={"n0": {"queue": 1}})
        for number in range(2):
            await run.offer("n0", number)
            await settled()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.start(2), 0.5)
        await run.offer("n0", 3)
        await run.close_inputs()
        assert (await run.wait()).complete
        assert seen.data == [0, 1, 3]

    virtual.run(story)


@pytest.mark.parametrize("ends", ["wait", "drain", "close_inputs"])
def test_inputs_whose_closing_was_given_up_close_once_what_waits_is_in(ends):
    async def story(loop):
        run, seen = chain(loop, "await", policies={"n0": {"queue": 1}})
        for number in range(2):
            await run.offer("n0", number)
            await settled()
        offering = asyncio.ensure_future(run.offer("n0", 2))
        await settled()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.close_inputs(), 0.5)
        with pytest.raises(RunError, match="inputs are closed"):
            await run.offer("n0", 3)
        if ends == "close_inputs":
            await run.close_inputs()
        await asyncio.wait_for(run.cancel(drain=True) if ends == "drain" else run.wait(), 60)
        await offering
        assert run.state == "done"
        assert seen.data == [0, 1, 2]

    virtual.run(story)


def test_what_was_offered_within_the_graph_before_the_inputs_closed_is_taken_in():
    async def story(loop):
        seen = Seen()
        behaviours = {name: Behaviour("inline", pass_on) for name in ("x", "y", "both")}
        behaviours |= {"slow": Behaviour("await", after_a_while), "sink": seen.behaviour()}
        edges = [("x", "both"), ("y", "both"), ("both", "slow"), ("slow", "sink")]
        run = make_run(loop, behaviours, edges, {"slow": {"queue": 1}})
        offers = [asyncio.ensure_future(run.offer("slow", number)) for number in range(4)]
        await settled()
        await run.stop("x")  # the end that comes of this is of the node before, not of the run
        await run.close_inputs()
        await asyncio.gather(*offers)
        await run.wait()
        assert seen.data == [0, 1, 2, 3]
        assert seen.events[-1].kind == "end"

    virtual.run(story)


def test_inputs_close_once_however_often_that_is_asked():
    async def story(loop):
        run, seen = chain(loop, "await", "await")
        for number in range(3):
            await run.offer("n0", number)
        for _ in range(3):
            await run.close_inputs()
        await run.wait()
        assert seen.data == [0, 1, 2]
        assert seen.count("end") == 1

    virtual.run(story)


def test_inputs_close_although_the_last_offer_that_waited_was_given_up():
    async def story(loop):
        run, seen = chain(loop, "await", policies={"n0": {"queue": 1}})
        for number in range(2):
            await run.offer("n0", number)
            await settled()
        offering = asyncio.ensure_future(run.offer("n0", 2))
        await settled()
        closing = asyncio.ensure_future(run.close_inputs())
        await settled()
        offering.cancel()
        await closing
        await asyncio.wait_for(run.wait(), 60)
        assert seen.data == [0, 1]

    virtual.run(story)


@pytest.mark.parametrize("mode", ["inline", "await"])
def test_pause_serves_nothing_and_resume_loses_nothing(mode):
    async def story(loop):
        run, seen = chain(loop, mode, "inline", policies={"n0": {"queue": 3}})
        offering = asyncio.ensure_future(feed(run, 10))
        await asyncio.sleep(2.5)
        run.pause()
        await asyncio.sleep(1)  # what is in service may go on
        before = [g.processed for g in run.guardians.values()]
        await asyncio.sleep(100)
        assert [g.processed for g in run.guardians.values()] == before
        assert all(g.owned() <= g.bound for g in run.guardians.values())
        run.resume()
        await offering
        await run.close_inputs()
        await run.wait()
        assert seen.data == list(range(10))

    async def feed(run, count):
        for number in range(count):
            await run.offer("n0", number)
            await asyncio.sleep(0.5)

    virtual.run(story)


def test_paused_run_can_be_cancelled_and_drained():
    async def story(loop):
        for drain in (False, True):
            run, seen = chain(loop, "await", "await")
            for number in range(4):
                await run.offer("n0", number)
            run.pause()
            await asyncio.sleep(5)
            await run.cancel(drain=drain)
            assert run.state == ("done" if drain else "cancelled")
            assert seen.data == (list(range(4)) if drain else seen.data[:1])

    virtual.run(story)


def test_drain_finishes_what_was_admitted_and_takes_nothing_more():
    async def story(loop):
        run, seen = chain(loop, "await", "await")
        for number in range(5):
            await run.offer("n0", number)
        draining = asyncio.ensure_future(run.cancel(drain=True))
        await asyncio.sleep(0.1)
        with pytest.raises(RunError, match="closed"):
            await run.offer("n0", 9)
        await draining
        assert seen.data == list(range(5))
        assert (await run.wait()).complete

    virtual.run(story)


def fork(loop, cancel):
    """A source and a feeder into two branches; the left one is slow."""
    left, right = Seen(), Seen()
    lab = Lab()
    behaviours = {
        "src": source(burst(50)),
        "feed": lab.node("feed", "await", delay=lambda _n: 1.0),
        "left": lab.node("left", "await", delay=lambda _n: 2.0),
        "right": lab.node("right", "await", delay=lambda _n: 0.5),
        "out": left.behaviour(),
        "kept": right.behaviour(),
    }
    edges = [("src", "feed"), ("feed", "left"), ("feed", "right"), ("left", "out"), ("right", "kept")]
    policies = {node: {"cancel": cancel, "queue": 4} for node in behaviours}
    lab.run = make_run(loop, behaviours, edges, policies)
    return lab, left, right


def test_stopping_a_branch_leaves_its_sibling_alone_and_marks_the_result():
    async def story(loop):
        lab, left, right = fork(loop, "both")
        run = lab.run
        await run.start("go")
        await asyncio.sleep(5.2)
        await run.stop("left")
        count = len(left.data)
        assert not run.guardians["feed"].closed
        result = await run.wait()
        assert [number for number, _ in right.data] == list(range(50))
        assert len(left.data) == count
        assert left.count("end") == 1
        assert not result.complete
        assert next(n for n in run.status().nodes if n.node == "left").state == "cancelled"

    virtual.run(story)


@pytest.mark.parametrize(("cancel", "upstream_stops"), [("both", True), ("upstream", True), ("downstream", False)])
def test_inputs_that_nobody_else_needs_stop_too(cancel, upstream_stops):
    async def story(loop):
        lab, _, _ = fork(loop, cancel)
        run = lab.run
        await run.start("go")
        await asyncio.sleep(3.2)
        await run.stop("left")
        await run.stop("right")
        calls = lab.calls
        assert run.guardians["feed"].closed is upstream_stops
        assert run.guardians["src"].closed is upstream_stops
        await run.wait()
        assert (lab.calls > calls) is not upstream_stops

    virtual.run(story)


@pytest.mark.parametrize(("cancel", "kept"), [("downstream", 1), ("both", 1), ("upstream", 10), ("none", 10)])
def test_what_a_stopped_node_gave_and_nobody_took_is_discarded_or_served(cancel, kept):
    async def story(loop):
        seen = Seen()
        behaviours = {
            "src": source(burst(20)),
            "quick": Behaviour("inline", pass_on),
            "slow": Behaviour("await", after_a_while),
            "sink": seen.behaviour(),
        }
        edges = [("src", "quick"), ("quick", "slow"), ("slow", "sink")]
        run = make_run(loop, behaviours, edges, {"quick": {"cancel": cancel}})
        await run.start("go")
        await asyncio.sleep(0.5)
        await run.stop("quick")
        await run.wait()
        assert seen.data == list(range(kept))

    virtual.run(story)


def test_stop_of_an_unknown_node_is_refused_and_of_one_that_is_over_is_nothing():
    async def story(loop):
        run, seen = chain(loop, "inline")
        with pytest.raises(CommandError, match="no node is called"):
            await run.stop("nix")
        await run.run("x")
        await run.stop("n0")
        assert seen.data == ["x"]
        assert run.state == "done"

    virtual.run(story)


def test_deadlock_of_a_ring_that_blocks_is_found_and_names_the_ring():
    async def story(loop):
        def twice(event: Event):
            yield event
            yield event

        behaviours = {
            "src": source(burst(3)),
            "a": Behaviour("iterate", twice),
            "b": Behaviour("inline", pass_on),
            "c": Behaviour("await", after_a_while),
        }
        edges = [("src", "a"), ("a", "b"), ("b", "c"), ("c", "a")]  # the checks refuse it; a run must still notice
        run = make_run(loop, behaviours, edges, {node: {"queue": 2} for node in behaviours})
        with pytest.raises(RunError) as raised:
            await run.run("go")
        assert raised.value.code == "AF510"
        assert "a waits for" in raised.value.message
        ring = raised.value.message.split(": ", 1)[1].split(" waits for ")
        assert set(ring) == {"a", "b", "c"}

    virtual.run(story)


def test_slow_and_paused_runs_are_no_deadlock():
    async def story(loop):
        async def very_slow(event: Event) -> Event:
            await asyncio.sleep(10_000)
            return event

        seen = Seen()
        behaviours = {"src": source(burst(12)), "slow": Behaviour("await", very_slow), "sink": seen.behaviour()}
        run = make_run(loop, behaviours, [("src", "slow"), ("slow", "sink")], {"slow": {"queue": 1}})
        await run.start("go")
        await asyncio.sleep(5_000)
        run.pause()
        await asyncio.sleep(50_000)
        run.resume()
        await run.wait()
        assert seen.data == list(range(12))

    virtual.run(story)


@pytest.mark.parametrize("opened_by", ["an offer", "a timer", "nobody"])
def test_what_waits_for_an_offer_or_a_timer_is_no_deadlock(opened_by):
    async def story(loop):
        seen, opened = Seen(), asyncio.Event()

        async def wait(event: Event) -> Event:
            await opened.wait()
            return event

        def bind_opener(binding):
            def control(event: Event):
                if event.kind == "flush":
                    opened.set()
                elif event.kind != "end":
                    yield event

            def call(event: Event) -> None:
                if event.payload == "open":
                    opened.set()
                elif opened_by == "a timer":
                    binding.later(50.0, Event("flush", source=binding.node))

            return Behaviour("inline", call, control=control)

        bound = {
            "src": lambda _binding: source(burst(5)),
            "gate": lambda _binding: Behaviour("await", wait, waits=lambda: not opened.is_set()),
            "sink": lambda _binding: seen.behaviour(),
            "opener": bind_opener,
        }
        spec = spec_of(bound, [("src", "gate"), ("gate", "sink")], {"gate": {"queue": 1}})
        known = {"node": Operator(OperatorSignature("node"), lambda _args, binding: bound[binding.node](binding))}
        run = Run(spec, known, Scheduler(loop, loop.clock))
        await run.offer("opener", "begin")
        await run.offer("src", "go")
        if opened_by != "an offer":
            await run.close_inputs()
        await asyncio.sleep(20)
        assert run.state == ("failed" if opened_by == "nobody" else "running")
        if opened_by == "nobody":
            assert run.error.code == "AF510"
            return
        if opened_by == "an offer":
            await run.offer("opener", "open")
            await run.close_inputs()
        await run.wait()
        assert seen.data == list(range(5))

    virtual.run(story)


def by_key(payload):
    return payload % 3


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(0, 6),
    st.sampled_from(["source", "none"]),
    st.lists(st.floats(0, 3), min_size=1, max_size=7),
    st.sampled_from(["await", "stream"]),
    st.booleans(),
)
def test_one_event_per_key_at_a_time_in_order_whatever_the_timing(workers, queue, reorder, order, delays, mode, fails):
    async def story(loop):
        lab, seen, failures = Lab(), Seen(), Seen()
        now: set[int] = set()
        served: list[int] = []

        def enter(number: int) -> None:
            assert number % 3 not in now
            now.add(number % 3)
            served.append(number)

        async def call(event: Event) -> Event:
            enter(event.payload)
            try:
                lab.check()
                await asyncio.sleep(delays[event.payload % len(delays)])
                if fails and event.payload == 5:
                    raise Boom("five")
                return event
            finally:
                now.discard(event.payload % 3)

        async def stream(event: Event):
            yield await call(event)

        behaviours = {
            "src": source(burst(20)),
            "work": Behaviour(mode, call if mode == "await" else stream),
            "sink": seen.behaviour(),
            "failures": failures.behaviour(),
        }
        policy = {
            "workers": workers,
            "queue": queue,
            "reorder": reorder,
            "order": order,
            "state": "partitioned",
            "key": "by_key",
        }
        edges = [("src", "work"), ("work", "sink"), ("work", "failures", "error")]
        lab.run = make_run(loop, behaviours, edges, {"work": policy}, functions={"by_key": by_key})
        await lab.run.run("go")
        expected = [n for n in range(20) if not (fails and n == 5)]
        assert sorted(seen.data) == expected
        if order == "source":
            assert seen.data == expected
        for key in range(3):
            assert [n for n in served if n % 3 == key] == [n for n in range(20) if n % 3 == key]
        assert len(failures.data) == fails

    virtual.run(story)


def test_busy_key_does_not_hold_up_the_others():
    async def story(loop):
        seen = Seen()

        async def call(event: Event) -> Event:
            await asyncio.sleep(100 if event.payload % 3 == 0 else 1)
            return event

        behaviours = {"src": source(burst(8)), "work": Behaviour("await", call), "sink": seen.behaviour()}
        policy = {"workers": 2, "order": "none", "state": "partitioned", "key": "by_key"}
        run = make_run(
            loop, behaviours, [("src", "work"), ("work", "sink")], {"work": policy}, functions={"by_key": by_key}
        )
        await run.start("go")
        await asyncio.sleep(50)
        assert seen.data == [1, 2, 4, 5, 7]
        await run.wait()

    virtual.run(story)


@pytest.mark.parametrize("policy", [{}, {"state": "partitioned", "key": "by_key", "workers": 2}])
def test_lag_of_a_source_that_stamps_is_counted_with_keys_and_without(policy):
    async def story(loop):
        seen = Seen()
        born = loop.clock()
        stamped = [Event("value", n, source="src", sequence=n, time=born, lineage="a") for n in range(3)]
        behaviours = {"src": source(stamped), "slow": Behaviour("await", after_a_while), "sink": seen.behaviour()}
        edges = [("src", "slow"), ("slow", "sink")]
        run = make_run(loop, behaviours, edges, {"slow": policy}, functions={"by_key": lambda _payload: 0})
        run.guardians["slow"].lag_ns = 0
        await run.run("go")
        assert {node.node: node.lag_s for node in run.status().nodes}["slow"] == pytest.approx(1.0)

    virtual.run(story)


def test_key_function_that_raises_fails_its_event_in_its_place():
    def key(payload):
        if payload == 2:
            raise Boom("no key")
        return payload

    async def story(loop):
        seen, failures = Seen(), Seen()
        behaviours = {
            "src": source(burst(5)),
            "work": Behaviour("await", after_a_while),
            "sink": seen.behaviour(),
            "failures": failures.behaviour(),
        }
        policy = {"workers": 3, "state": "partitioned", "key": "key"}
        edges = [("src", "work"), ("work", "sink"), ("work", "failures", "error")]
        await make_run(loop, behaviours, edges, {"work": policy}, functions={"key": key}).run("go")
        assert seen.data == [0, 1, 3, 4]
        assert [failure.sequence for failure in failures.data] == [2]

    virtual.run(story)


def pairing(loop, left, right, *, policies=None, events=None):
    """A split into two branches and a node that notes what arrives from which."""
    seen: list[tuple[str, str, tuple[str, int]]] = []

    def note(event: Event) -> None:
        seen.append((event.source, event.kind, event.identity))

    def control(event: Event):
        if event.kind == "skip":
            note(event)
        if event.kind != "end":
            yield event

    behaviours = {
        "src": source(events or burst(6)),
        "split": Behaviour("inline", pass_on),
        "left": left,
        "right": right,
        "pair": Behaviour("inline", note, control=control),
    }
    edges = [("src", "split"), ("split", "left"), ("split", "right"), ("left", "pair"), ("right", "pair")]
    return make_run(loop, behaviours, edges, policies, pairs=["pair"]), seen


def test_what_gives_nothing_between_split_and_join_says_skip_under_its_identity():
    async def story(loop):
        lab = Lab()
        for mode in ("inline", "await"):
            even = lab.node("left", mode, keeps=lambda n: n % 2 == 0)
            lab.run, seen = pairing(loop, even, Behaviour("inline", pass_on))
            await lab.run.run("go")
            from_left = [(kind, identity) for source_, kind, identity in seen if source_ == "left"]
            assert from_left == [("skip" if n % 2 else "value", ("a0", n)) for n in range(6)]
            assert [k for s, k, _ in seen if s == "right"] == ["value"] * 6
            assert not lab.run.guardians["split"].skips

    virtual.run(story)


@pytest.mark.parametrize("rule", ["drop_newest", "drop_oldest"])
def test_what_overflow_drops_between_split_and_join_says_skip(rule):
    async def story(loop):
        run, seen = pairing(
            loop,
            Behaviour("await", after_a_while),
            Behaviour("inline", pass_on),
            policies={"left": {"queue": 2, "overflow": rule}},
        )
        await run.run("go")
        left = {identity: kind for source_, kind, identity in seen if source_ == "left"}
        assert left.keys() == {("a0", n) for n in range(6)}
        assert list(left.values()).count("skip") == run.guardians["left"].dropped > 0

    virtual.run(story)


def test_route_tells_the_branch_that_it_did_not_take():
    async def story(loop):
        seen: list[tuple[str, str, int]] = []

        def control(event: Event):
            if event.kind == "skip":
                seen.append((event.source, event.kind, event.sequence))
            if event.kind != "end":
                yield event

        behaviours = {
            "src": source(burst(4)),
            "lane": Behaviour("inline", lambda e: ("odd" if e.payload % 2 else "even", e), routes=True),
            "left": Behaviour("inline", pass_on),
            "right": Behaviour("inline", pass_on),
            "pair": Behaviour("inline", lambda e: seen.append((e.source, e.kind, e.sequence)), control=control),
        }
        edges = [
            ("src", "lane"),
            ("lane", "left", "odd"),
            ("lane", "right", "even"),
            ("left", "pair"),
            ("right", "pair"),
        ]
        await make_run(loop, behaviours, edges, pairs=["pair"]).run("go")
        assert sorted(seen) == sorted(
            [("left", "value" if n % 2 else "skip", n) for n in range(4)]
            + [("right", "skip" if n % 2 else "value", n) for n in range(4)]
        )

    virtual.run(story)


def test_cancel_of_a_loop_leaves_nothing_behind():
    async def story(loop):
        lab = Lab()
        behaviours = {
            "src": source(burst(5)),
            "work": lab.node("work", "await", delay=lambda _n: 1.0),
            "turn": Behaviour("inline", lambda e: ("again", e.derive(e.payload[0])), routes=True),
        }
        edges = [("src", "work"), ("work", "turn"), ("turn", "work", "again", Feedback(limit=9, hops=1000))]
        lab.run = make_run(loop, behaviours, edges)
        await lab.run.start("go")
        await asyncio.sleep(50)
        await lab.run.cancel()
        calls = lab.calls
        with pytest.raises(RunCancelled):
            await lab.run.wait()
        await asyncio.sleep(10)
        assert lab.calls == calls
        assert lab.open == 0

    virtual.run(story)


# -- a function of the run that would wait for the run


ASKS = {"drain": lambda run: run.cancel(drain=True), "wait": lambda run: run.wait()}


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("mode", ["await", "stream"])
def test_function_that_waits_for_the_end_of_its_own_run_is_told_so(asks, mode):
    async def story(loop):
        async def call(event):
            await ASKS[asks](run)

        async def stream(event):
            await ASKS[asks](run)
            yield event

        work = Behaviour(mode, call if mode == "await" else stream)
        run = make_run(loop, {"work": work, "sink": Seen().behaviour()}, [("work", "sink")])
        with pytest.raises(RunError, match=r"node 'work'.*can't wait for the run's end") as raised:
            await run.run("go")
        assert (raised.value.code, raised.value.node) == ("AF604", "work")
        assert "close_inputs" in raised.value.hint

    virtual.run(story)


def test_function_may_close_the_inputs_of_its_run_and_another_task_of_its_may_drain_it():
    async def story(loop):
        tasks = []

        async def last(event):
            if event.payload == "close":
                await run.close_inputs()
            elif event.payload == "drain":
                tasks.append(asyncio.create_task(run.cancel(drain=True)))
            return event

        for ending in ("close", "drain"):
            seen = Seen()
            nodes = {"work": Behaviour("await", last), "sink": seen.behaviour()}
            run = make_run(loop, nodes, [("work", "sink")])
            await run.offer("work", "first")
            await run.offer("work", ending)
            await run.wait()
            assert seen.data == ["first", ending]
        await asyncio.gather(*tasks)

    virtual.run(story)


async def test_thread_of_a_run_that_waits_for_the_run_to_drain_is_told_so():
    loop = asyncio.get_running_loop()

    def ask(text):
        asyncio.run_coroutine_threadsafe(run.cancel(drain=True), loop).result()

    flow = Flow("g")
    flow.add("ask", map_(ask)) >> flow.add("out", sink(var="out"))
    run = Run(flow.spec, OPERATORS, Scheduler(loop), functions=flow.functions)
    with pytest.raises(RunError, match="node 'ask'") as raised:
        await run.run("go")
    assert raised.value.code == "AF604"


async def test_function_of_a_graph_within_that_waits_for_the_outer_run_is_told_so():
    async def ask(text):
        await outer.cancel(drain=True)

    inner = Flow("inner")
    inner.add("ask", map_(ask)) >> inner.add("out", sink(var="out"))
    flow = Flow("g")
    flow.add("within", delegate(inner)) >> flow.add("out", sink(var="out"))
    loop = asyncio.get_running_loop()
    outer = Run(
        flow.spec, OPERATORS, Scheduler(loop), functions=flow.functions | inner.functions, flows={"inner": inner.spec}
    )
    with pytest.raises(RunError, match="node 'within': in graph 'inner': node 'ask'") as raised:
        await outer.run("go")
    assert raised.value.code == "AF604"


@pytest.mark.parametrize(("at", "served"), [(1, [0, 1, 3]), (2, [0, 1, 2, 3])])
def test_an_offer_cancelled_as_its_place_comes_free_takes_its_value_back_or_returns_where_that_is_served(at, served):
    async def story(loop):
        seen = []

        async def serve(event):
            seen.append(event.payload)
            if event.payload == at:
                waits.cancel()
            if event.payload in (0, at):
                await asyncio.sleep(1)

        run = make_run(loop, {"work": Behaviour("await", serve)}, [], {"work": {"queue": 1}})
        await run.offer("work", 0)
        await asyncio.sleep(0)
        await run.offer("work", 1)
        waits, behind = (asyncio.ensure_future(run.offer("work", number)) for number in (2, 3))
        (outcome,) = await asyncio.gather(waits, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError) is (2 not in served)
        await behind
        await run.close_inputs()
        await run.wait()
        assert seen == served

    virtual.run(story)
