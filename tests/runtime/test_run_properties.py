"""What every graph keeps, whatever its shape: bounds, order, nothing lost, an end; on random graphs in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import virtual
from graphs import Boom, Lab, Seen, assert_sane_figures, burst, make_run, source
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import RunCancelled, RunError
from aiflow_jupyter.events import Event, Failure

MODES = ("inline", "iterate", "await", "stream")
COUNT = 12
ANSWERS = 3


@dataclass
class Plan:
    """A random graph: node i takes from `before[i]`; nodes are numbered from 1, the source is 0."""

    before: list[list[int]]
    modes: list[str]
    policies: list[dict[str, Any]]
    delays: list[int]
    copies: list[int]
    drops: list[int]
    sinks: list[str]
    tick_ns: int

    def name(self, index: int) -> str:
        return f"n{index}" if index else "src"

    @property
    def ends(self) -> list[int]:
        used = {b for before in self.before for b in before}
        return [i for i in range(1, len(self.before) + 1) if i not in used]

    @property
    def edges(self) -> list[tuple[str, str]]:
        inner = [(self.name(b), self.name(i)) for i, before in enumerate(self.before, 1) for b in before]
        return inner + [(self.name(i), f"sink{i}") for i in self.ends]

    def keeps(self, index: int, number: int) -> bool:
        every = self.drops[index - 1]
        return every == 0 or number % every != 0

    def expected(self) -> dict[int, Counter[tuple[int, tuple[Any, ...]]]]:
        """Every (number, way) that has to arrive at each end."""
        ways: dict[int, list[tuple[int, tuple[Any, ...]]]] = {0: [(n, ()) for n in range(COUNT)]}
        for i, before in enumerate(self.before, 1):
            copies = self.copies[i - 1] if self.modes[i - 1] in ("iterate", "stream") else 1
            ways[i] = [
                (number, (*way, (self.name(i), copy)))
                for b in before
                for number, way in ways[b]
                if self.keeps(i, number)
                for copy in range(copies)
            ]
        return {i: Counter(ways[i]) for i in self.ends}

    def build(
        self, loop: virtual.VirtualLoop, fails: tuple[int, int] | None = None, extra: list[Any] | None = None
    ) -> tuple[Any, Lab, dict[int, Seen]]:
        lab = Lab()
        behaviours = {"src": source(burst(COUNT, ANSWERS))}
        for i, mode in enumerate(self.modes, 1):
            seed = self.delays[i - 1]
            behaviours[self.name(i)] = lab.node(
                self.name(i),
                mode,
                delay=lambda n, seed=seed: (n * 7919 + seed) % 13 * 0.001 if seed else 0.0,
                copies=self.copies[i - 1],
                keeps=lambda n, i=i: self.keeps(i, n),
                fails=lambda n, i=i: (i, n) == fails,
            )
        seen = {i: Seen() for i in self.ends}
        for i, sink in zip(self.ends, self.sinks, strict=False):
            behaviours[f"sink{i}"] = seen[i].behaviour(sink)
        edges: list[Any] = list(self.edges)
        if extra:
            name, behaviour, edge = extra
            behaviours[name] = behaviour
            edges.append(edge)
        policies = {self.name(i): policy for i, policy in enumerate(self.policies, 1)}
        lab.run = make_run(loop, behaviours, edges, policies)
        return lab.run, lab, seen


@st.composite
def plans(draw: st.DrawFn, overflow: tuple[str, ...] = ("block",), filters: bool = True) -> Plan:
    size = draw(st.integers(1, 5))
    before = [draw(st.lists(st.integers(0, i), min_size=1, max_size=2, unique=True)) if i else [0] for i in range(size)]
    policy = st.fixed_dictionaries(
        {
            "queue": st.integers(1, 8),
            "workers": st.integers(1, 5),
            "reorder": st.none() | st.integers(0, 8),
            "order": st.sampled_from(["source", "none"]),
            "overflow": st.sampled_from(overflow),
        }
    )

    def each(strategy: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(strategy, min_size=size, max_size=size))

    return Plan(
        before,
        each(st.sampled_from(MODES)),
        each(policy),
        each(st.integers(0, 50)),
        each(st.sampled_from([1, 1, 1, 2])),
        each(st.sampled_from([0, 0, 2, 3]) if filters else st.just(0)),
        each(st.sampled_from(["inline", "await"])),
        draw(st.sampled_from([0, 0, 10_000, 300_000])),
    )


def loose(plan: Plan) -> set[str]:
    return {
        plan.name(i)
        for i, policy in enumerate(plan.policies, 1)
        if policy["order"] == "none" and policy["workers"] > 1 and plan.modes[i - 1] in ("await", "stream")
    }


def assert_in_order(plan: Plan, seen: Seen) -> None:
    """Along each way that keeps order, numbers grow."""
    ways: dict[tuple[Any, ...], list[int]] = {}
    for number, way in seen.data:
        if not {name for name, _ in way} & loose(plan):
            ways.setdefault(way, []).append(number)
    for numbers in ways.values():
        assert numbers == sorted(set(numbers))


def assert_finished_once(seen: Seen, answers: list[str]) -> None:
    """Each answer finishes once, after all that belongs to it; the edge closes once, last."""
    for lineage in answers:
        finish = seen.place("finish", lineage)
        assert len(finish) == 1
        assert all(at < finish[0] for at in seen.place("value", lineage))
    assert seen.count("end") == 1
    assert seen.events[-1].kind == "end"


ALL = [f"a{i}" for i in range(ANSWERS)]


@settings(max_examples=300, deadline=None)
@given(plans())
def test_blocking_graph_delivers_everything_once_in_order_within_its_bounds(plan: Plan) -> None:
    async def story(loop):
        run, _, seen = plan.build(loop)
        await run.run("go")
        for end, expected in plan.expected().items():
            assert Counter(seen[end].data) == expected
            assert_in_order(plan, seen[end])
            assert_finished_once(seen[end], ALL)
        assert_sane_figures(run)
        assert run.status().state == "done"

    virtual.run(story, tick_ns=plan.tick_ns)


@settings(max_examples=200, deadline=None)
@given(plans(overflow=("block", "drop_newest", "drop_oldest")))
def test_what_is_offered_to_a_node_is_either_processed_or_counted_as_dropped(plan: Plan) -> None:
    async def story(loop):
        run, _, seen = plan.build(loop)
        await run.run("go")
        guardians = run.guardians
        for i, before in enumerate(plan.before, 1):
            node = guardians[plan.name(i)]
            assert node.processed + node.dropped == sum(guardians[plan.name(b)].emitted for b in before)
        for end, expected in plan.expected().items():
            assert Counter(seen[end].data) <= expected
            assert len(seen[end].data) == guardians[plan.name(end)].emitted
            assert_in_order(plan, seen[end])
            assert_finished_once(seen[end], ALL)
        assert_sane_figures(run)

    virtual.run(story, tick_ns=plan.tick_ns)


@settings(max_examples=200, deadline=None)
@given(plans(overflow=("block", "drop_newest", "drop_oldest", "error")), st.integers(0, 60_000_000))
def test_after_cancel_nothing_is_called_emitted_or_open(plan: Plan, after_ns: int) -> None:
    async def story(loop):
        run, lab, seen = plan.build(loop)
        running = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(after_ns / 1e9)
        await run.cancel()
        assert lab.open == 0
        calls, lengths = lab.calls, {end: len(s.events) for end, s in seen.items()}
        emitted = {node: guardian.emitted for node, guardian in run.guardians.items()}
        await asyncio.sleep(1000)
        assert (lab.calls, lengths) == (calls, {end: len(s.events) for end, s in seen.items()})
        assert emitted == {node: guardian.emitted for node, guardian in run.guardians.items()}
        assert run.still_running == []
        assert_sane_figures(run)
        (error,) = await asyncio.gather(running, return_exceptions=True)
        assert run.state in ("cancelled", "done", "failed")
        assert isinstance(error, RunCancelled) == (run.state == "cancelled")

    virtual.run(story, tick_ns=plan.tick_ns)


@settings(max_examples=200, deadline=None)
@given(plans(filters=False), st.data())
def test_failure_without_an_error_port_ends_the_run_naming_node_and_event(plan: Plan, data: st.DataObject) -> None:
    node = data.draw(st.integers(1, len(plan.before)))
    number = data.draw(st.integers(0, COUNT - 1))

    async def story(loop):
        run, lab, seen = plan.build(loop, fails=(node, number))
        with pytest.raises(RunError) as raised:
            await run.run("go")
        error = raised.value
        assert (error.node, error.sequence, error.code) == (f"n{node}", number, "AF603")
        assert f"'n{node}'" in error.message
        assert f"event {number}" in error.message
        assert isinstance(error.__cause__, Boom)
        assert run.status().state == "failed"
        assert lab.open == 0
        for end, expected in plan.expected().items():
            assert Counter(seen[end].data) <= expected
        lengths = [len(s.events) for s in seen.values()]
        await asyncio.sleep(1000)
        assert lengths == [len(s.events) for s in seen.values()]
        assert_sane_figures(run)

    virtual.run(story, tick_ns=plan.tick_ns)


def downstream(plan: Plan, node: int) -> set[int]:
    found = {node}
    for i, before in enumerate(plan.before, 1):
        if found & set(before):
            found.add(i)
    return found


@settings(max_examples=300, deadline=None)
@given(plans(filters=False), st.data())
def test_failure_with_an_error_port_reaches_it_and_its_answer_never_finishes(plan: Plan, data: st.DataObject) -> None:
    node = data.draw(st.integers(1, len(plan.before)))
    number = data.draw(st.integers(0, COUNT - 1))
    broken = f"a{number * ANSWERS // COUNT}"
    mode = data.draw(st.sampled_from(["inline", "await"]))

    async def story(loop):
        failures = Seen()
        extra = ["failures", failures.behaviour(mode), (f"n{node}", "failures", "error")]
        run, _, seen = plan.build(loop, fails=(node, number), extra=extra)
        result = await run.run("go")
        assert not result.complete
        errors = run.guardians[f"n{node}"].errors
        assert errors >= 1
        assert len(failures.data) == errors
        for failure in failures.data:
            assert isinstance(failure, Failure)
            assert (failure.node, failure.sequence) == (f"n{node}", number)
            assert isinstance(failure.error, Boom)
        assert failures.count("end") == 1
        for end in plan.ends:
            if end not in downstream(plan, node):
                assert_finished_once(seen[end], ALL)
                continue
            assert seen[end].count("error", broken) >= 1
            assert seen[end].count("finish", broken) == 0
            assert_finished_once(seen[end], [a for a in ALL if a != broken])
            others = Counter(d for d in seen[end].data if d[0] != number)
            assert others == Counter({k: v for k, v in plan.expected()[end].items() if k[0] != number})
        assert_sane_figures(run)

    virtual.run(story, tick_ns=plan.tick_ns)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(MODES), min_size=1, max_size=6), st.data())
def test_what_a_chain_holds_never_exceeds_the_sum_of_its_bounds(modes: list[str], data: st.DataObject) -> None:
    count = 60
    policies = {
        f"n{i}": {"queue": data.draw(st.integers(1, 4)), "workers": data.draw(st.integers(1, 4))}
        for i in range(len(modes))
    }

    async def story(loop):
        lab, arrived, given_out = Lab(), Seen(), 0
        highest = 0

        def give(_event):
            nonlocal given_out, highest
            for number in range(count):
                given_out += 1
                highest = max(highest, given_out - len(arrived.events))
                yield Event("value", number, sequence=number)

        behaviours = {"src": source([])}
        behaviours["src"].call = give
        for i, mode in enumerate(modes):
            behaviours[f"n{i}"] = lab.node(f"n{i}", mode, delay=lambda _n: 0.01)
        behaviours["sink"] = arrived.behaviour("await")
        names = list(behaviours)
        lab.run = make_run(loop, behaviours, list(pairwise(names)), policies)
        await lab.run.run("go")
        assert len(arrived.data) == count
        # One more is in the source's own hands, and one is counted before it is handed out.
        assert highest <= sum(lab.run.guardians[name].bound for name in names[1:]) + 2

    virtual.run(story)
