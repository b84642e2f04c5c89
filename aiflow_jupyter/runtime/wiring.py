"""From a graph to what runs it: every node gets its behaviour, its guardian, its edges, and its threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.guardian import Guardian, Owner
from aiflow_jupyter.runtime.inline import CUT_EVERY, InlineGuardian
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.threads import NodeThreads
from aiflow_jupyter.runtime.workers import WorkerGuardian

ON_LOOP = ("inline", "iterate")


def wire(
    spec: GraphSpec, operators: Mapping[str, Operator], common: Binding, scheduler: Scheduler, owner: Owner
) -> tuple[dict[str, Guardian], dict[str, NodeThreads]]:
    """Build the guardians of a graph, connected, in the order of its nodes.

    Args:
        spec: a graph that passed `graph.checks`.
        operators: the known operators.
        common: what all nodes are bound with; each gets it under its own name.
        scheduler: the scheduler of the loop that will run them.
        owner: what they report to.

    Returns:
        the guardians and, of those that have any, the threads, by node.

    Raises:
        AiflowError: a function or an argument turned out not to fit.
    """
    behaviours = {
        node: _bind(each.operator, each.args, operators, replace(common, node=node))
        for node, each in spec.nodes.items()
    }
    cuts = _cuts(spec, {node for node, behaviour in behaviours.items() if behaviour.mode in ON_LOOP})
    guardians: dict[str, Guardian] = {}
    threads: dict[str, NodeThreads] = {}
    for node, behaviour in behaviours.items():
        policy = spec.nodes[node].policy
        if behaviour.mode in ON_LOOP:
            guardians[node] = InlineGuardian(node, behaviour, policy, scheduler, owner, cut=node in cuts)
            continue
        if behaviour.mode == "thread":
            threads[node] = NodeThreads(node, policy.workers, scheduler.loop)
            behaviour = _threaded(behaviour, threads[node])  # noqa: PLW2901 - the same, as coroutines see it
        guardians[node] = WorkerGuardian(node, behaviour, policy, scheduler, owner)
    ports: dict[str, dict[str, list[Guardian]]] = {node: {} for node in guardians}
    for edge in spec.edges:
        ports[edge.source].setdefault(edge.port or "", []).append(guardians[edge.target])
        guardians[edge.target].inputs += 1
    for node, guardian in guardians.items():
        guardian.connect(ports[node])
    for node in spec.inputs():
        guardians[node].inputs += 1
    return guardians, threads


def _bind(operator: str, args: Mapping[str, Any], operators: Mapping[str, Operator], binding: Binding) -> Behaviour:
    known = operators.get(operator)
    if known is not None:
        return known.bind(args, binding)
    if operator in binding.functions:
        return operators["map"].bind({"function": operator}, binding)
    raise ConfigError(f"node {binding.node!r}: no operator or function is called {operator!r}", code="AF201")


def _threaded(behaviour: Behaviour, threads: NodeThreads) -> Behaviour:
    """The behaviour with its calls, and its close after the last of them, in threads."""
    close = behaviour.close and partial(threads.close, behaviour.close)
    return replace(behaviour, call=partial(threads.submit, behaviour.call), close=close)


def _cuts(spec: GraphSpec, inline: Collection[str]) -> set[str]:
    """The inline nodes that always queue, so that no way through the graph is a call of over `CUT_EVERY` nodes."""
    incoming = Counter(edge.target for edge in spec.edges)
    after: dict[str, list[str]] = {node: [] for node in spec.nodes}
    for edge in spec.edges:
        after[edge.source].append(edge.target)
    nested = dict.fromkeys(spec.nodes, 0)
    cuts = set()
    ready = [node for node in spec.nodes if not incoming[node]]
    while ready:
        node = ready.pop()
        if node not in inline:
            nested[node] = 0
        elif nested[node] >= CUT_EVERY - 1:
            nested[node] = 0
            cuts.add(node)
        for target in after[node]:
            nested[target] = max(nested[target], nested[node] + 1)
            incoming[target] -= 1
            if not incoming[target]:
                ready.append(target)
    return cuts
