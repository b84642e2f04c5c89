"""One guardian at a time: what a full queue does, how results keep their order, and how a node ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import virtual
from graphs import Boom, Lab, Seen, assert_sane_figures, burst, make_run, source

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event, Failure
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.scheduler import SLICE_NS, Scheduler


def first_then_burst(count: int) -> Behaviour:
    """Gives 0, waits until the receiver is busy with it, then gives the rest at once."""

    async def give(_event: Event) -> AsyncIterator[Event]:
        yield Event("value", 0, sequence=0, lineage="a")
        await asyncio.sleep(0.1)
        for number in range(1, count):
            yield Event("value", number, sequence=number, lineage="a")

    return Behaviour("stream", give)


async def _busy(event: Event) -> Event:
    await asyncio.sleep(1)
    return event


def _overflowing(loop, overflow, seen, queue=3):
    behaviours = {"src": first_then_burst(10), "slow": Behaviour("await", _busy), "sink": seen.behaviour()}
    return make_run(
        loop, behaviours, [("src", "slow"), ("slow", "sink")], {"slow": {"queue": queue, "overflow": overflow}}
    )


@pytest.mark.parametrize(
    ("overflow", "delivered"),
    [
        ("drop_newest", [0, 1, 2, 3]),
        ("drop_oldest", [0, 7, 8, 9]),
        ("block", list(range(10))),
    ],
)
def test_full_queue_of_three_keeps_what_its_rule_says(overflow, delivered):
    async def story(loop):
        seen = Seen()
        run = _overflowing(loop, overflow, seen)
        await run.run("go")
        assert seen.data == delivered
        assert run.guardians["slow"].dropped == 10 - len(delivered)
        assert run.guardians["slow"].peak == 3
        assert seen.count("end") == 1

    virtual.run(story)


def test_full_queue_with_overflow_error_fails_the_run_naming_the_node_and_the_event():
    async def story(loop):
        with pytest.raises(RunError) as raised:
            await _overflowing(loop, "error", Seen()).run("go")
        assert raised.value.code == "AF602"
        assert (raised.value.node, raised.value.sequence) == ("slow", 4)
        assert "queue of 3" in raised.value.message
        assert "overflow=block" in raised.value.hint

    virtual.run(story)


def test_full_queue_with_overflow_error_reports_each_refused_event_to_the_error_port():
    async def story(loop):
        seen, failures = Seen(), Seen()
        run = make_run(
            loop,
            {
                "src": first_then_burst(6),
                "slow": Behaviour("await", _busy),
                "sink": seen.behaviour(),
                "failures": failures.behaviour(),
            },
            [("src", "slow"), ("slow", "sink"), ("slow", "failures", "error")],
            {"slow": {"queue": 3, "overflow": "error"}},
        )
        await run.run("go")
        assert seen.data == [0, 1, 2, 3]
        assert [f.sequence for f in failures.data] == [4, 5]
        assert {f.error.code for f in failures.data} == {"AF602"}
        assert seen.count("error", "a") == 2

    virtual.run(story)


def test_drop_rule_never_drops_a_control_event():
    async def story(loop):
        seen = Seen()
        behaviours = {
            "src": source(burst(40, answers=40)),
            "slow": Behaviour("await", _busy),
            "sink": seen.behaviour(),
        }
        run = make_run(
            loop, behaviours, [("src", "slow"), ("slow", "sink")], {"slow": {"queue": 1, "overflow": "drop_oldest"}}
        )
        await run.run("go")
        assert [e.lineage for e in seen.events if e.kind == "finish"] == [f"a{i}" for i in range(40)]
        assert seen.data == [39]

    virtual.run(story)


@pytest.mark.parametrize(("reorder", "starts_by_then"), [(0, 3), (1, 4), (4, 7), (8, 11)])
def test_reorder_says_how_far_workers_run_ahead_of_a_slow_event(reorder, starts_by_then):
    async def story(loop):
        lab, seen = Lab(), Seen()
        node = lab.node("work", "await", delay=lambda n: 10.0 if n == 0 else 0.01)
        behaviours = {"src": source(burst(20)), "work": node, "sink": seen.behaviour()}
        policy = {"queue": 2, "workers": 3, "reorder": reorder}
        lab.run = make_run(loop, behaviours, [("src", "work"), ("work", "sink")], {"work": policy})
        task = asyncio.ensure_future(lab.run.run("go"))
        await asyncio.sleep(5)
        assert lab.calls == starts_by_then
        assert seen.data == []
        await task
        assert [number for number, _ in seen.data] == list(range(20))

    virtual.run(story)


def test_without_order_results_leave_as_they_finish_but_no_answer_overtakes_its_finish():
    async def story(loop):
        lab, seen = Lab(), Seen()
        node = lab.node("work", "await", delay=lambda n: (6 - n) * 1.0)
        behaviours = {"src": source(burst(6, answers=2)), "work": node, "sink": seen.behaviour()}
        lab.run = make_run(
            loop, behaviours, [("src", "work"), ("work", "sink")], {"work": {"workers": 3, "order": "none"}}
        )
        await lab.run.run("go")
        assert [e.payload[0] if e.kind == "value" else e.kind for e in seen.events] == [
            *(2, 1, 0, "finish"),
            *(5, 4, 3, "finish"),
            "end",
        ]

    virtual.run(story)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mode", ["inline", "iterate", "await", "stream"])
@pytest.mark.parametrize("fails", [False, True])
def test_service_is_the_time_of_the_call_once_for_each_event_also_where_it_raises(mode, fails, workers):
    async def story(loop):
        def spend():
            loop.now_ns += 1_000_000_000

        def inline(event):
            spend()
            return event if not fails else 1 / 0

        def iterate(event):
            spend()
            yield event
            spend()
            yield event if not fails else 1 / 0

        async def await_(event):
            await asyncio.sleep(1)
            return event if not fails else 1 / 0

        async def stream(event):
            await asyncio.sleep(1)
            yield event
            await asyncio.sleep(1)
            yield event if not fails else 1 / 0

        async def slow(event):
            await asyncio.sleep(10)
            return event

        call = {"inline": inline, "iterate": iterate, "await": await_, "stream": stream}[mode]
        behaviours = {
            "src": source(burst(4)),
            "work": Behaviour(mode, call),
            "slow": Behaviour("await", slow),
            "sink": Seen().behaviour(),
            "failures": Seen().behaviour(),
        }
        edges = [("src", "work"), ("work", "slow"), ("slow", "sink"), ("work", "failures", "error")]
        policies = {"slow": {"queue": 1}}
        if mode in ("await", "stream"):
            policies["work"] = {"workers": workers}
        run = make_run(loop, behaviours, edges, policies)
        await run.run("go")
        work = run.guardians["work"]
        each = 1 if mode in ("inline", "await") else 2
        assert work.service_ns == pytest.approx(4 * each * 1_000_000_000)
        assert work.histogram[(each * 1_000_000_000).bit_length()] == sum(work.histogram) == work.processed == 4

    virtual.run(story)


def test_call_that_fails_the_run_books_its_time_too():
    async def story(loop):
        def bad(_event):
            loop.now_ns += 1_000_000_000
            raise Boom

        def bad_too(_event):
            yield bad(None)

        for mode, call in (("inline", bad), ("iterate", bad_too)):
            run = make_run(loop, {"bad": Behaviour(mode, call), "sink": Seen().behaviour()}, [("bad", "sink")])
            with pytest.raises(RunError):
                await run.run("go")
            assert (run.guardians["bad"].service_ns, run.guardians["bad"].processed) == (1_000_000_000, 1)

    virtual.run(story)


def test_workers_serve_at_the_same_time():
    async def story(loop):
        lab = Lab()
        behaviours = {
            "src": source(burst(9)),
            "work": lab.node("work", "await", delay=lambda _n: 1.0),
            "sink": Seen().behaviour(),
        }
        lab.run = make_run(loop, behaviours, [("src", "work"), ("work", "sink")], {"work": {"workers": 3}})
        result = await lab.run.run("go")
        assert result.status.elapsed_s == pytest.approx(3.0)

    virtual.run(story)


def test_slow_branch_that_drops_does_not_slow_its_sibling():
    async def story(loop):
        fast, slow = Seen(), Seen()
        behaviours = {
            "src": first_then_burst(50),
            "slow": Behaviour("await", _busy),
            "fast": fast.behaviour(),
            "end": slow.behaviour(),
        }
        run = make_run(
            loop,
            behaviours,
            [("src", "slow"), ("src", "fast"), ("slow", "end")],
            {"slow": {"queue": 1, "overflow": "drop_newest"}},
        )
        task = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(0.2)
        assert fast.data == list(range(50))
        await task
        assert slow.data == [0, 1]

    virtual.run(story)


def test_merge_finishes_an_answer_when_the_branch_without_it_has_ended():
    async def story(loop):
        seen = Seen()
        behaviours = {
            "answers": source(burst(3)),
            "plain": Behaviour("inline", lambda event: event.derive("aside")),
            "sink": seen.behaviour(),
        }
        run = make_run(loop, behaviours, [("answers", "sink"), ("plain", "sink")])
        await run.run("go", to="answers")
        assert [e.kind for e in seen.events] == ["value", "value", "value", "finish", "end"]

    virtual.run(story)


def test_merge_waits_for_the_finish_of_every_branch():
    async def story(loop):
        lab, seen = Lab(), Seen()
        behaviours = {
            "src": source(burst(2)),
            "quick": lab.node("quick", "inline"),
            "slow": lab.node("slow", "await", delay=lambda _n: 1.0),
            "sink": seen.behaviour(),
        }
        edges = [("src", "quick"), ("src", "slow"), ("quick", "sink"), ("slow", "sink")]
        lab.run = make_run(loop, behaviours, edges)
        await lab.run.run("go")
        assert [e.kind for e in seen.events] == ["value"] * 4 + ["finish", "end"]

    virtual.run(story)


def test_failing_control_is_the_failure_of_its_node_and_replaces_the_finish():
    def control(event):
        if event.kind == "finish":
            raise Boom("held")
        return ()

    async def story(loop):
        seen, failures = Seen(), Seen()
        behaviours = {
            "src": source(burst(1)),
            "holds": Behaviour("inline", lambda event: event, control=control),
            "sink": seen.behaviour(),
            "failures": failures.behaviour(),
        }
        edges = [("src", "holds"), ("holds", "sink"), ("holds", "failures", "error")]
        await make_run(loop, behaviours, edges).run("go")
        assert [e.kind for e in seen.events] == ["value", "error", "end"]
        assert [f.node for f in failures.data] == ["holds"]
        with pytest.raises(RunError, match="'holds' failed"):
            await make_run(loop, behaviours, [*edges[:2], ("holds", "failures")]).run("go")

    virtual.run(story)


RAISED = [
    (mode, e) for mode in ("inline", "iterate", "await", "stream") for e in (SystemExit, StopIteration, TimeoutError)
]


@pytest.mark.parametrize(
    ("mode", "raised"), [*RAISED, ("await", asyncio.CancelledError), ("stream", asyncio.CancelledError)]
)
def test_whatever_a_call_raises_is_the_failure_of_its_node(mode, raised):
    def plain(_event):
        raise raised

    def iterate(_event):
        raise raised
        yield

    async def await_(_event):
        raise raised

    async def stream(_event):
        raise raised
        yield

    call = {"inline": plain, "iterate": iterate, "await": await_, "stream": stream}[mode]

    async def story(loop):
        failures = Seen()
        behaviours = {
            "src": source(burst(2)),
            "bad": Behaviour(mode, call),
            "sink": Seen().behaviour(),
            "failures": failures.behaviour(),
        }
        edges = [("src", "bad"), ("bad", "sink")]
        with pytest.raises(RunError) as error:
            await make_run(loop, {k: v for k, v in behaviours.items() if k != "failures"}, edges).run("go")
        assert error.value.node == "bad"
        await make_run(loop, behaviours, [*edges, ("bad", "failures", "error")]).run("go")
        assert [f.sequence for f in failures.data] == [0, 1]

    virtual.run(story)


def test_slow_handler_of_failures_holds_the_failing_node_back():
    async def story(loop):
        failures = Seen()
        lab = Lab()
        behaviours = {
            "src": source(burst(30)),
            "bad": lab.node("bad", "inline", fails=lambda _n: True),
            "sink": Seen().behaviour(),
            "failures": failures.behaviour("await"),
        }
        edges = [("src", "bad"), ("bad", "sink"), ("bad", "failures", "error")]
        lab.run = make_run(loop, behaviours, edges, {"failures": {"queue": 2}})
        await lab.run.run("go")
        assert [f.sequence for f in failures.data] == list(range(30))
        assert all(isinstance(f, Failure) for f in failures.data)
        assert lab.run.guardians["failures"].peak == 2
        assert lab.run.guardians["bad"].blocked_ns > 0

    virtual.run(story)


def test_stream_is_closed_when_its_run_is_cancelled_and_says_nothing_more():
    async def story(loop):
        closed = []

        async def forever(_event):
            try:
                number = 0
                while True:
                    yield Event("value", number)
                    number += 1
                    await asyncio.sleep(1)
            finally:
                closed.append(loop.time())

        seen = Seen()
        run = make_run(loop, {"src": Behaviour("stream", forever), "sink": seen.behaviour()}, [("src", "sink")])
        await run.start("go")
        await asyncio.sleep(5.5)
        await run.cancel()
        assert closed == [loop.time()]
        assert len(seen.data) == 6
        assert run.status().nodes[0].state == "cancelled"

    virtual.run(story)


def test_code_that_will_not_stop_is_named_and_does_not_hold_cancel_up():
    async def story(loop):
        async def stubborn(event):
            for _ in range(100):
                try:
                    await asyncio.sleep(1)
                except asyncio.CancelledError:
                    continue
            return event

        seen = Seen()
        run = make_run(loop, {"bad": Behaviour("await", stubborn), "sink": seen.behaviour()}, [("bad", "sink")])
        await run.start("go")
        await asyncio.sleep(1.5)
        await run.cancel()
        assert run.still_running == ["bad"]
        await asyncio.sleep(1000)
        assert seen.events == []

    virtual.run(story)


def test_offer_that_waits_is_told_when_the_run_ends():
    async def story(loop):
        async def never(event):
            await asyncio.sleep(3600)
            return event

        behaviours = {"in": Behaviour("await", never), "sink": Seen().behaviour()}
        run = make_run(loop, behaviours, [("in", "sink")], {"in": {"queue": 1}})
        await run.offer("in", 0)
        await asyncio.sleep(1)
        await run.offer("in", 1)
        waiting = asyncio.ensure_future(run.offer("in", 2))
        await asyncio.sleep(1)
        assert not waiting.done()
        await run.cancel()
        with pytest.raises(Exception, match="cancelled"):
            await waiting
        with pytest.raises(Exception, match="cancelled"):
            await run.offer("in", 3)

    virtual.run(story)


def test_offer_to_a_run_that_is_done_is_refused():
    async def story(loop):
        run = make_run(loop, {"in": Seen().behaviour()}, [])
        await run.run("go")
        with pytest.raises(RunError, match="over") as raised:
            await run.offer("in", 1)
        assert raised.value.code == "AF605"

    virtual.run(story)


def test_offer_begins_the_run_and_a_failure_before_its_start_fails_it():
    async def story(loop):
        def bad(_event):
            raise Boom("early")

        run = make_run(loop, {"in": Behaviour("inline", bad), "sink": Seen().behaviour()}, [("in", "sink")])
        await run.offer("in", 1)
        assert run.state == "failed"
        with pytest.raises(RunError, match="'in' failed"):
            await run.wait()
        with pytest.raises(RunError, match="'in' failed"):
            await run.start(2)
        assert run.status().nodes[0].first_s == 0

    virtual.run(story)


def test_offer_behind_the_end_of_the_inputs_is_refused_and_what_was_offered_before_is_not_lost():
    async def story(loop):
        async def slow(event):
            await asyncio.sleep(1)
            return event

        seen = Seen()
        behaviours = {"a": Behaviour("await", slow), "b": Behaviour("await", slow), "sink": seen.behaviour()}
        run = make_run(loop, behaviours, [("a", "sink"), ("b", "sink")], {"b": {"queue": 1}})
        offers = [asyncio.ensure_future(run.offer("b", number)) for number in range(5)]
        await asyncio.sleep(0.5)
        start = asyncio.ensure_future(run.start(5, to="a"))
        await asyncio.sleep(0)
        for refused in (run.offer("b", 6), run.offer("a", 6), run.start(6, to="a")):
            with pytest.raises(RunError, match="inputs are closed") as raised:
                await refused
            assert raised.value.code == "AF605"
        await asyncio.gather(start, *offers)
        await run.wait()
        assert sorted(seen.data) == [0, 1, 2, 3, 4, 5]
        assert seen.events[-1].kind == "end"

    virtual.run(story)


@pytest.mark.parametrize("mode", ["inline", "iterate", "await", "stream"])
@pytest.mark.parametrize("keeps", [True, False])
def test_scheduler_names_a_node_only_in_the_turn_in_which_it_was_called(mode, keeps):
    async def story(loop):
        lab = Lab()
        scheduler = Scheduler(loop, loop.clock)
        called = []

        async def idle(_event):
            for number in range(5):
                yield Event("value", number)
                await asyncio.sleep(1)

        work = lab.node("work", mode, delay=lambda _n: 0.3, keeps=lambda _n: keeps)
        call = work.call
        work.call = lambda event: called.append(scheduler.current.node) or call(event)
        behaviours = {"src": Behaviour("stream", idle), "work": work, "sink": Seen().behaviour()}
        lab.run = make_run(loop, behaviours, [("src", "work"), ("work", "sink")], scheduler=scheduler)
        running = asyncio.ensure_future(lab.run.run("go"))
        while not running.done():
            await asyncio.sleep(0.07)  # a timer at no other's time: the turn before is over
            assert scheduler.current is None
        assert called == ["work"] * 5

    virtual.run(story)


# -- stacks, many runs, fairness


def _chain(lab: Lab, mode: str, length: int) -> dict[str, Behaviour]:
    return {f"n{i}": lab.node(f"n{i}", mode) for i in range(length)}


@pytest.fixture
def no_check(monkeypatch):
    """Checking a thousand guardians at each of a thousand calls is for the small graphs."""
    monkeypatch.setattr(Lab, "check", lambda _self: None)


@pytest.mark.parametrize("mode", ["inline", "iterate"])
@pytest.mark.parametrize("tail", ["inline", "await"])
@pytest.mark.parametrize("bypass", [False, True], ids=["chain", "ways around the cuts"])
def test_thousand_inline_nodes_do_not_overflow_the_stack(mode, tail, bypass, no_check):
    async def story(loop):
        lab, seen = Lab(), Seen()
        events = burst(3, answers=3)
        behaviours = {"src": source(events), **_chain(lab, mode, 990), "sink": seen.behaviour(tail)}
        names = list(behaviours)
        edges = list(pairwise(names))
        if bypass:  # each cut of a plain chain is passed by an edge around it; the way through it filters
            for at in range(31, 990, 32):
                behaviours[names[at]] = Behaviour("inline", lambda _event: None)
                edges.append((names[at - 1], names[at + 1]))
        lab.run = make_run(loop, behaviours, edges, {n: {"queue": 1} for n in names})
        await lab.run.run("go")
        assert [number for number, _ in seen.data] == [0, 1, 2]
        assert seen.count("finish") == 3
        assert seen.count("end") == 1

    virtual.run(story)


def test_two_hundred_runs_share_one_loop(no_check):
    async def story(loop):
        scheduler = Scheduler(loop, loop.clock)
        runs, all_seen = [], []
        for index in range(200):
            lab, seen = Lab(), Seen()
            behaviours = {
                "src": source(burst(10, answers=2)),
                "a": lab.node("a", "inline"),
                "b": lab.node("b", "await", delay=lambda n, i=index: (n + i) % 7 * 0.01),
                "c": lab.node("c", "stream", delay=lambda n, i=index: (n * i) % 5 * 0.01),
                "sink": seen.behaviour(),
            }
            names = list(behaviours)
            edges = list(pairwise(names))
            lab.run = make_run(loop, behaviours, edges, {"b": {"workers": 3}}, scheduler=scheduler)
            runs.append(lab.run)
            all_seen.append(seen)
        await asyncio.gather(*(run.run("go") for run in runs))
        for run, seen in zip(runs, all_seen, strict=True):
            assert [number for number, _ in seen.data] == list(range(10))
            assert seen.count("finish") == 2
            assert_sane_figures(run)

    virtual.run(story)


def _flood(count: int, overflow: str, tail: str = "inline") -> tuple[dict[str, Behaviour], list, dict]:
    def give(_event):
        for number in range(count):
            yield Event("value", number, sequence=number)

    def same(event):
        return event

    async def same_later(event):
        return event

    behaviours = {"src": Behaviour("iterate", give)}
    behaviours |= {f"n{i}": Behaviour("inline", same) for i in range(5)}
    behaviours["tail"] = Behaviour("await", same_later) if tail == "await" else Behaviour("inline", same)
    behaviours["sink"] = Behaviour("inline", lambda _event: None)
    names = list(behaviours)
    return behaviours, list(pairwise(names)), {n: {"overflow": overflow} for n in names}


@pytest.mark.parametrize("overflow", ["block", "drop_newest", "drop_oldest"])
@pytest.mark.parametrize("tail", ["inline", "await"])
@pytest.mark.parametrize("floods", [1, 8])
def test_quiet_run_beside_floods_waits_for_few_slices(overflow, tail, floods):
    """Each reading of the clock takes 2 us, so a slice of 1 ms is some 500 readings."""

    async def story(loop):
        scheduler = Scheduler(loop, loop.clock)
        late: list[int] = []

        async def quiet(_event):
            for number in range(40):
                due = loop.now_ns + 10_000_000
                await asyncio.sleep(0.01)
                yield Event("value", (number, due))

        def arrive(event):
            late.append(loop.now_ns - event.payload[1])

        flooding = [make_run(loop, *_flood(300_000, overflow, tail), scheduler=scheduler) for _ in range(floods)]
        run = make_run(
            loop,
            {"src": Behaviour("stream", quiet), "sink": Behaviour("inline", arrive)},
            [("src", "sink")],
            scheduler=scheduler,
        )
        tasks = [asyncio.ensure_future(f.run("go")) for f in flooding]
        await run.run("go")
        busy = [t for t in tasks if not t.done()]
        assert len(late) == 40
        assert busy, "the floods were over before the quiet run: nothing was tested"
        # The first turn's slices are whole ones, one for each flood; later ones share a millisecond.
        assert max(late) < (floods + 4) * SLICE_NS
        for flood in flooding:
            await flood.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    virtual.run(story, tick_ns=2_000)


def test_one_error_that_fails_many_events_says_once_where_it_was_raised():
    error = Boom("shared")

    def fail(event: Event) -> Event:
        raise error

    async def story(loop):
        errors = Seen()
        behaviours = {"work": Behaviour("inline", fail), "bad": errors.behaviour()}
        run = make_run(loop, behaviours, [("work", "bad", "error")])
        for number in range(50):
            await run.offer("work", number)
        await run.close_inputs()
        await run.wait()
        assert len(errors.data) == 50
        assert len(error.__notes__) == 1

    virtual.run(story)
