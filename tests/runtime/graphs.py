"""Graphs of instrumented nodes: each one checks the bounds of the whole graph whenever it is called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.signatures import OperatorSignature
from aiflow_jupyter.graph.spec import EdgeSpec, Feedback, GraphSpec, NodeSpec
from aiflow_jupyter.runtime.behaviour import Behaviour, Operator
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler

Edge = tuple[str, str] | tuple[str, str, str] | tuple[str, str, str, Feedback]


class Boom(Exception):
    """What a node of these tests raises."""


def spec_of(nodes: Iterable[str], edges: Iterable[Edge], policies: dict[str, Any]) -> GraphSpec:
    """A graph of nodes of the one operator `node`; an edge is source, target, perhaps a port, and a feedback."""
    return GraphSpec(
        name="g",
        nodes={n: NodeSpec(operator="node", policy=Policy(**policies.get(n, {}))) for n in nodes},
        edges=[
            EdgeSpec(source=e[0], target=e[1], port=(e[2:] or ("",))[0] or None, feedback=(e[3:] or (None,))[0])
            for e in edges
        ],
    )


def make_run(
    loop: Any,
    behaviours: dict[str, Behaviour],
    edges: Iterable[Edge],
    policies: dict[str, Any] | None = None,
    *,
    scheduler: Scheduler | None = None,
    functions: dict[str, Any] | None = None,
    inject: dict[str, str] | None = None,
    pairs: Iterable[str] = (),
    **more: Any,
) -> Run:
    """A run whose nodes do what `behaviours` say; those in `pairs` tell their inputs apart."""
    spec = spec_of(behaviours, edges, policies or {})
    nodes = {name: each.model_copy(update={"operator": "pair"}) for name, each in spec.nodes.items() if name in pairs}
    spec = spec.model_copy(update={"nodes": spec.nodes | nodes, "inject": inject or {}})
    operators = {
        "node": Operator(OperatorSignature("node"), lambda _args, binding: behaviours[binding.node]),
        "pair": Operator(OperatorSignature("pair", pairs=True), lambda _args, binding: behaviours[binding.node]),
    }
    return Run(spec, operators, scheduler or Scheduler(loop, loop.clock), functions=functions, **more)


def burst(count: int, answers: int = 1) -> list[Event]:
    """`count` events in `answers` answers, each with its lineage and its `finish`; payloads count from 0."""
    out: list[Event] = []
    for answer in range(answers):
        lineage = f"a{answer}"
        for payload in range(answer * count // answers, (answer + 1) * count // answers):
            out.append(Event("value", payload, source="src", sequence=payload, lineage=lineage))
        out.append(Event("finish", Finish(), source="src", lineage=lineage))
    return out


def source(events: list[Event]) -> Behaviour:
    """Emits the same events for whatever comes in."""
    return Behaviour("iterate", lambda _event: iter(events))


@dataclass
class Seen:
    """What arrived at one sink, data and control, in order."""

    events: list[Event] = field(default_factory=list)

    @property
    def data(self) -> list[Any]:
        return [event.payload for event in self.events if event.kind not in ("finish", "end", "error")]

    def count(self, kind: str, lineage: str | None = None) -> int:
        return sum(e.kind == kind and lineage in (None, e.lineage) for e in self.events)

    def place(self, kind: str, lineage: str) -> list[int]:
        return [i for i, e in enumerate(self.events) if e.kind == kind and e.lineage == lineage]

    def behaviour(self, mode: str = "inline") -> Behaviour:
        def take(event: Event) -> None:
            self.events.append(event)

        async def take_slowly(event: Event) -> None:
            await asyncio.sleep(0.001)
            self.events.append(event)

        def control(event: Event) -> Iterable[Event]:
            self.events.append(event)
            return () if event.kind == "end" else (event,)

        return Behaviour(mode, take_slowly if mode == "await" else take, control=control)  # type: ignore[arg-type]


@dataclass
class Lab:
    """Makes nodes that note their calls and check every bound of the run at each of them.

    Attributes:
        run: set once it exists.
        calls: how many calls have started.
        open: coroutines and streams that have started and not ended.
        active: calls in service now, by node.
    """

    run: Run | None = None
    calls: int = 0
    open: int = 0
    active: dict[str, int] = field(default_factory=dict)

    def check(self) -> None:
        assert self.run is not None
        for guardian in self.run.guardians.values():
            assert 0 <= guardian.depth <= guardian.policy.queue, guardian.node
            assert 0 <= guardian.active() <= guardian.workers, guardian.node
            assert 0 <= guardian.held() <= guardian.policy.held_results, guardian.node
            assert guardian.owned() <= guardian.bound, guardian.node
            assert guardian.peak <= guardian.policy.queue, guardian.node
            assert guardian.most <= guardian.bound, guardian.node
            assert self.active.get(guardian.node, 0) <= guardian.workers, guardian.node

    def node(
        self,
        name: str,
        mode: str,
        delay: Callable[[int], float] = lambda _n: 0.0,
        fails: Callable[[int], bool] = lambda _n: False,
        copies: int = 1,
        keeps: Callable[[int], bool] = lambda _n: True,
    ) -> Behaviour:
        """A node that adds its name to the way of each event.

        Args:
            name: the node's name.
            mode: as of `Behaviour`.
            delay: seconds of service by payload number.
            fails: which payload numbers raise.
            copies: how many events come out for one, where the mode allows more than one.
            keeps: which payload numbers come out at all.
        """

        def enter() -> None:
            self.calls += 1
            self.active[name] = self.active.get(name, 0) + 1
            self.check()

        def leave() -> None:
            self.active[name] -= 1

        def out(event: Event, copy: int) -> Event:
            number, way = event.payload if isinstance(event.payload, tuple) else (event.payload, ())
            return event.derive((number, (*way, (name, copy))))

        def number_of(event: Event) -> int:
            return event.payload[0] if isinstance(event.payload, tuple) else event.payload

        def inline(event: Event) -> Event | None:
            enter()
            leave()
            if fails(number_of(event)):
                raise Boom(name)
            return out(event, 0) if keeps(number_of(event)) else None

        def iterate(event: Event) -> Iterator[Event]:
            enter()
            try:
                for copy in range(copies if keeps(number_of(event)) else 0):
                    yield out(event, copy)
                    self.check()
                if fails(number_of(event)):
                    raise Boom(name)
            finally:
                leave()

        async def await_(event: Event) -> Event | None:
            self.open += 1
            try:
                enter()
                await asyncio.sleep(delay(number_of(event)))
                self.check()
                if fails(number_of(event)):
                    raise Boom(name)
                return out(event, 0) if keeps(number_of(event)) else None
            finally:
                leave()
                self.open -= 1

        async def stream(event: Event) -> AsyncIterator[Event]:
            self.open += 1
            try:
                enter()
                for copy in range(copies if keeps(number_of(event)) else 0):
                    await asyncio.sleep(delay(number_of(event)))
                    yield out(event, copy)
                    self.check()
                if fails(number_of(event)):
                    raise Boom(name)
            finally:
                leave()
                self.open -= 1

        calls = {"inline": inline, "iterate": iterate, "await": await_, "stream": stream}
        return Behaviour(mode, calls[mode])  # type: ignore[arg-type]


def assert_sane_figures(run: Run) -> None:
    """No figure of a run is negative, and no peak is above its queue."""
    for node in run.status().nodes:
        assert node.wait_s >= 0, node
        assert node.service_s >= 0, node
        assert node.blocked_s >= 0, node
        assert node.first_s is None or node.first_s >= 0, node
        assert node.depth <= node.peak <= node.queue, node
        assert node.owned <= node.most <= node.bound, node
        assert min(node.busy, node.blocked, node.idle) >= -1e-9, node
        assert abs(node.busy + node.blocked + node.idle - 1) < 1e-9, node
        assert sum(node.drops.values()) == node.dropped, node
