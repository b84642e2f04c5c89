"""From a graph to what runs it: every node gets its behaviour, its guardian, its edges, and its threads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph import hints
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.attempts import govern
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.cycle import Cycle
from aiflow_jupyter.runtime.edges import FeedbackEdge
from aiflow_jupyter.runtime.emission import Receiver
from aiflow_jupyter.runtime.guardian import Guardian, Owner
from aiflow_jupyter.runtime.inline import CUT_EVERY, InlineGuardian
from aiflow_jupyter.runtime.meeting import Meeting, Way
from aiflow_jupyter.runtime.partitioned import PartitionedGuardian
from aiflow_jupyter.runtime.plan import NodePlan, plan_of
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.speculation import Gate, VerdictEdge
from aiflow_jupyter.runtime.state import Key, in_turn, keep
from aiflow_jupyter.runtime.threads import NodeThreads
from aiflow_jupyter.runtime.topology import cuts
from aiflow_jupyter.runtime.within import context_of
from aiflow_jupyter.runtime.workers import WorkerGuardian

ON_LOOP: Final = ("inline", "iterate")
_OWN: Final = frozenset(("node", "policy", "inputs", "later", "threads", "govern", "dropped", "withheld"))
_SHARED: Final = tuple(field.name for field in fields(Binding) if field.name not in _OWN)
"""What all nodes are bound with; the others are a node's own. `dataclasses.replace` would take three times as long."""


@dataclass(frozen=True, slots=True)
class Wired:
    """What runs a graph.

    Attributes:
        guardians: by node, in the order of the graph.
        threads: of the nodes that have any.
    """

    guardians: dict[str, Guardian]
    threads: dict[str, NodeThreads]


def wire(
    spec: GraphSpec,
    operators: Mapping[str, Operator],
    common: Binding,
    scheduler: Scheduler,
    owner: Owner,
    timers: set[Timer],
) -> Wired:
    """Build the guardians of a graph, connected, in the order of its nodes.

    Args:
        spec: a graph that passed `graph.checks.checking`.
        operators: the known operators.
        common: what all nodes are bound with; each gets it under its own name.
        scheduler: the scheduler of the loop that will run them.
        owner: what they report to.
        timers: where the nodes' timers stand while they wait.

    Raises:
        AiflowError: a function or an argument turned out not to fit.
    """
    return _Wiring(spec, operators, common, scheduler, owner, timers).wired()


class Timer:
    """A control event that a node will be sent by itself, later."""

    __slots__ = ("_event", "_guardian", "_handle", "_timers")

    def __init__(self, guardian: Guardian, seconds: float, event: Event, timers: set[Timer]) -> None:
        self._guardian = guardian
        self._event = event
        self._timers = timers
        timers.add(self)
        self._handle = guardian.scheduler.loop.call_later(seconds, self._fire)

    def cancel(self) -> None:
        """Take it back."""
        self._handle.cancel()
        self._timers.discard(self)

    def _fire(self) -> None:
        self._timers.discard(self)
        scheduler = self._guardian.scheduler
        scheduler.enter(self, scheduler.clock())
        self._guardian.signal(self._event)
        scheduler.run_ready()


class _Wiring:
    """See `wire`, whose arguments these are."""

    def __init__(
        self,
        spec: GraphSpec,
        operators: Mapping[str, Operator],
        common: Binding,
        scheduler: Scheduler,
        owner: Owner,
        timers: set[Timer],
    ) -> None:
        self.plan = plan_of(spec, operators)
        self.operators = operators
        self.common = common
        self.shared = {field: getattr(common, field) for field in _SHARED}
        self.scheduler = scheduler
        self.owner = owner
        self.timers = timers
        self.guardians: dict[str, Guardian] = {}
        self.threads: dict[str, NodeThreads] = {}
        self.keys: dict[str, Key] = {}
        self.gates: dict[str, Gate] = {}

    def wired(self) -> Wired:
        behaviours = {node: self._behaviour(node, plan) for node, plan in self.plan.nodes.items()}
        inline = {node for node, behaviour in behaviours.items() if behaviour.mode in ON_LOOP}
        queueing = cuts(self.plan.shape, inline, CUT_EVERY)
        for node, behaviour in behaviours.items():
            plan = self.plan.nodes[node]
            sized = plan.declared.policy.queue_bytes is not None  # whatever comes is measured
            guardian = self._guardian(node, plan, behaviour, cut=sized or node in queueing)
            guardian.inputs = plan.inputs
            if plan.giving is not None:
                guardian.endings.giving = plan.giving
            guardian.skips = plan.skips or (plan.leads_to_join and behaviour.routes)
            if node in self.gates:
                self.gates[node].behind(guardian)
            self.guardians[node] = guardian
        self._connect()
        return Wired(self.guardians, self.threads)

    # -- nodes

    def _behaviour(self, node: str, plan: NodePlan) -> Behaviour:
        """What the node does, as coroutines and calls on the loop, with what its policy asks of every call."""
        declared = plan.declared
        binding = Binding(
            node=node,
            policy=plan.policy,
            inputs=plan.sources,
            later=partial(self._later, node),
            threads=lambda: self._threads(node).submit,
            govern=partial(self._governed, node),
            dropped=partial(self._dropped, node),
            withheld=partial(self.owner.withheld, node),
            **self.shared,
        )
        behaviour = _bind(declared.operator, declared.args, self.operators, binding)
        if not behaviour.governed:
            behaviour = self._governed(node, behaviour)
        if declared.policy.effect == "speculative":
            gate = self.gates[node] = Gate(binding)
            behaviour = gate.before(behaviour)
        return behaviour

    def _governed(self, node: str, behaviour: Behaviour) -> Behaviour:
        """A behaviour whose plain functions run in the node's threads, with the state and the tries of its policy."""
        policy = self.plan.nodes[node].declared.policy
        threaded = behaviour.mode in ("thread", "thread_iterate")
        if threaded:
            behaviour = _threaded(behaviour, self._threads(node))
        elif policy.compensate is not None:
            self._threads(node)
        behaviour = keep(behaviour, node, policy, self._key(node), partial(self._threads, node), threaded=threaded)
        behaviour = govern(
            behaviour,
            node,
            policy,
            run=self.common.run,
            functions=self.common.functions,
            threads=self.threads.get(node),
            retried=partial(self._retried, node),
            random=self.common.random,
            alone=self.plan.nodes[node].alone,
        )
        return in_turn(behaviour, policy)

    def _threads(self, node: str) -> NodeThreads:
        if node not in self.threads:
            workers = self.plan.nodes[node].declared.policy.workers
            self.threads[node] = context_of(self.owner).run(NodeThreads, node, workers, self.scheduler.loop)
        return self.threads[node]

    def _key(self, node: str) -> Key | None:
        """What gives an event's key, where the node's state is partitioned."""
        policy = self.plan.nodes[node].declared.policy
        if policy.state != "partitioned" or policy.key is None:
            return None
        if node in self.keys:
            return self.keys[node]
        function = self.common.functions.get(policy.key)
        if function is None:
            raise ConfigError(
                f"node {node!r}: no function is called {policy.key!r}",
                code="AF205",
                hint="define it in a cell before, then run again",
            )
        self.keys[node] = Key(node, policy.key, function, whole=hints.read(function).event)
        return self.keys[node]

    def _retried(self, node: str) -> None:
        self.guardians[node].retries += 1

    def _dropped(self, node: str, kind: str) -> None:
        self.guardians[node].drops[kind] += 1

    def _later(self, node: str, seconds: float, event: Event) -> Callable[[], None]:
        return Timer(self.guardians[node], seconds, event, self.timers).cancel

    def _guardian(self, node: str, plan: NodePlan, behaviour: Behaviour, *, cut: bool) -> Guardian:
        policy, bound = plan.declared.policy, plan.bound
        if behaviour.mode in ON_LOOP:
            return InlineGuardian(node, behaviour, policy, self.scheduler, self.owner, bound, cut=cut)
        key = self._key(node)
        if key is not None:
            return PartitionedGuardian(node, behaviour, policy, self.scheduler, self.owner, bound, key=key)
        return WorkerGuardian(node, behaviour, policy, self.scheduler, self.owner, bound)

    # -- edges

    def _connect(self) -> None:
        cycles = self._cycles()
        ports: dict[str, dict[str, list[Receiver]]] = {node: {} for node in self.guardians}
        meetings: dict[str, Meeting] = {}
        for index, edge in self.plan.shape.edges.items():
            target = self.guardians[edge.target]
            if target.inputs > 1:
                self.guardians[edge.source].signs = True
            receiver: Receiver = target
            if edge.feedback is not None:
                receiver = FeedbackEdge(edge.source, target, edge.feedback, cycles[edge.target])
            elif (entrance := self.plan.nodes[edge.target].entrance) is not None:
                receiver = entrance(edge.source, target)
            if edge.target in self.gates and index in self.plan.silent:
                receiver = VerdictEdge(self.gates[edge.target], receiver)
            elif edge.feedback is None and ((plan := self.plan.nodes[edge.target]).meets or plan.alike):
                meeting = meetings.setdefault(edge.target, Meeting(target, plan.meets, plan.alike))
                receiver = Way(index, meeting, receiver)
            ports[edge.source].setdefault(edge.port or "", []).append(receiver)
        for node, gate in self.gates.items():
            if plain := ports[node].get(""):
                ports[node][""] = [gate.leading(plain)]
        for node, guardian in self.guardians.items():
            guardian.connect(ports[node])

    def _cycles(self) -> dict[str, Cycle]:
        """The loop of each node that stands in one."""
        found = {}
        for loop in self.plan.loops:
            cycle = Cycle(self.scheduler.loop)
            cycle.heads = set(loop.heads)
            for node in loop.nodes:
                guardian = self.guardians[node]
                guardian.cycle = found[node] = cycle
                cycle.nodes.append(guardian)
        return found


def _bind(operator: str, args: Mapping[str, Any], operators: Mapping[str, Operator], binding: Binding) -> Behaviour:
    known = operators.get(operator)
    if known is not None:
        return known.bind(args, binding)
    function = binding.functions.get(operator)
    if function is None:
        raise ConfigError(f"node {binding.node!r}: no operator or function is called {operator!r}", code="AF201")
    return operators["flat_map" if hints.read(function).yields else "map"].bind({"function": operator}, binding)


def _threaded(behaviour: Behaviour, threads: NodeThreads) -> Behaviour:
    """The behaviour with its calls, and its close after the last of them, in threads."""
    close = partial(threads.close, behaviour.close) if behaviour.close else None
    if behaviour.mode == "thread":
        return replace(behaviour, mode="await", call=partial(threads.submit, behaviour.call), close=close)
    return replace(behaviour, mode="stream", call=partial(_steps, threads, behaviour.call), close=close)


_OVER: Final = object()


async def _steps(
    threads: NodeThreads, call: Callable[..., Iterator[Event]], event: Event, **extras: Any
) -> AsyncGenerator[Event, None]:
    """The events that a generator gives, each step of it in a thread."""
    steps = await threads.submit(call, event, **extras)
    try:
        while (out := await threads.submit(next, steps, _OVER)) is not _OVER:
            yield out
    finally:
        close = getattr(steps, "close", None)
        if close is not None and not getattr(steps, "gi_running", False):
            threads.submit(lambda _: close(), None)
