"""The plan of a graph: what its wiring takes from the spec and its operators' signatures alone, worked out once.

What depends on the user's functions is no part of it: a notebook may define them anew between two runs.

A plan is kept as long as its spec lives, and used again for that very spec only, while all that it was made from is as
it was: nodes, edges, arguments and signatures are compared before each use, mostly by identity.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final

from aiflow_jupyter.graph.bounds import bounds
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.shape import Shape
from aiflow_jupyter.graph.signatures import VERDICT, OperatorSignature
from aiflow_jupyter.graph.spec import EdgeSpec, GraphSpec, NodeSpec
from aiflow_jupyter.runtime.behaviour import Operator
from aiflow_jupyter.runtime.edges import Entrance, TellingEntrance
from aiflow_jupyter.runtime.endings import giving
from aiflow_jupyter.runtime.meeting import Alike, Meets, alike, meets


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What is known of a node before its function is.

    Attributes:
        declared: the node of the spec.
        policy: what its operator is bound with: a join that declares no `hold` gets the one that its branches ask for.
        sources: the nodes that lead to it, in the order of the edges, feedback apart.
        inputs: how many times `end` comes to it: by each of these edges, or once from the run.
        giving: where there are several, by how many of them a node's answers can come.
        bound: data events that it may own.
        meets: where what may begin anew comes by several, by which of them a node's answers can come.
        alike: where several lead to it, and it leads to a join, by how many of them the events of each can come.
        entrance: what stands before it on each of these edges, where it tells its inputs apart.
        alone: where it may restart, what it leads to gets all that is made of the run's inputs from it.
        skips: it stands between a split and a join, so that what gives nothing there has to say so.
        leads_to_join: so that this is so, too, where it routes.
    """

    declared: NodeSpec
    policy: Policy
    sources: tuple[str, ...]
    inputs: int
    giving: Callable[[str], tuple[str, ...]] | None
    bound: int
    meets: Meets | None
    alike: Alike | None
    entrance: type[Entrance] | None
    alone: bool
    skips: bool
    leads_to_join: bool


@dataclass(frozen=True, slots=True)
class Loop:
    """Nodes that can all reach one another, and those of them that a feedback edge leads to."""

    nodes: tuple[str, ...]
    heads: frozenset[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a graph before its functions are.

    Attributes:
        nodes: by name, in the order of the graph.
        shape: of the graph.
        silent: the edges by which verdicts alone go, and no data, by their index.
        loops: those that feedback edges close.
    """

    nodes: Mapping[str, NodePlan]
    shape: Shape
    silent: frozenset[int]
    loops: tuple[Loop, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A plan, and what it was made from, apart from what it could change with."""

    spec: weakref.ref[GraphSpec]
    nodes: dict[str, NodeSpec]
    edges: list[EdgeSpec]
    args: list[str]
    signatures: list[OperatorSignature | None]
    plan: Plan

    def fits(self, spec: GraphSpec, signatures: list[OperatorSignature | None]) -> bool:
        """Whether the plan is still that of the spec, whose lists and mappings may have been changed in place."""
        return (
            self.spec() is spec
            and self.nodes == spec.nodes
            and list(self.nodes) == list(spec.nodes)
            and self.edges == spec.edges
            and self.signatures == signatures
            and self.args == _args(spec)
        )


_KEPT: Final[dict[int, _Kept]] = {}
"""By the identity of the spec, which takes its entry along when it goes."""


def plan_of(spec: GraphSpec, operators: Mapping[str, Operator]) -> Plan:
    """The plan of a graph that passed its checks.

    Args:
        spec: the graph.
        operators: the known operators.
    """
    key = id(spec)
    known = (operators.get(node.operator) for node in spec.nodes.values())
    signatures = [None if operator is None else operator.signature for operator in known]
    kept = _KEPT.get(key)
    if kept is None or not kept.fits(spec, signatures):
        made = _made(spec, operators, dict(zip(spec.nodes, signatures, strict=True)))
        reference = weakref.ref(spec, lambda _: _KEPT.pop(key, None))
        kept = _KEPT[key] = _Kept(reference, dict(spec.nodes), list(spec.edges), _args(spec), signatures, made)
    return kept.plan


def _args(spec: GraphSpec) -> list[str]:
    """All arguments as they are now; in words, as 3 and 3.0 are equal."""
    return [repr(node.args) for node in spec.nodes.values()]


def _made(
    spec: GraphSpec, operators: Mapping[str, Operator], signatures: Mapping[str, OperatorSignature | None]
) -> Plan:
    shape = Shape(spec)
    bound = {each.node: each for each in bounds(spec, {n: o.signature for n, o in operators.items()}, shape).nodes}
    joins = [node for node, signature in signatures.items() if signature is not None and signature.pairs]
    between = shape.between(joins)
    leading = reduce(or_, (shape.ancestors[join] & ~shape.bit[join] for join in joins), 0)
    gathers = (node for node, signature in signatures.items() if signature and signature.results == "gathered")
    gathering = reduce(or_, (shape.bit[node] for node in gathers), 0)
    keeps = (node for node, signature in signatures.items() if not signature or signature.results in ("one", "some"))
    keeping = reduce(or_, (shape.bit[node] for node in keeps), 0)
    may = (node for node, signature in signatures.items() if _restarts(signature, spec.nodes[node].policy))
    restarting = reduce(or_, (shape.bit[node] for node in may), 0)
    silent = frozenset(
        index
        for index, edge in shape.edges.items()
        if (giver := signatures[edge.source]) is not None and giver.verdicts and edge.port == VERDICT
    )
    nodes = {}
    for node, declared in spec.nodes.items():
        signature = signatures[node]
        policy = declared.policy
        if signature is not None and signature.pairs and policy.hold is None:
            policy = policy.model_copy(update={"hold": bound[node].hold})
        sources = tuple(shape.edges[index].source for index in shape.into[node])
        bringing = [index for index in shape.into[node] if index not in silent]
        says = signature is None or signature.results in ("one", "some")
        nodes[node] = NodePlan(
            declared,
            policy,
            sources,
            len(sources) or 1,
            giving(shape, sources) if len(sources) > 1 else None,
            bound[node].events,
            meets(shape, bringing, restarting),
            alike(shape, bringing, keeping, gathering) if leading & shape.bit[node] else None,
            _entrance(signature, declared),
            not policy.restart or _alone(shape, node, [*spec.inputs(), *spec.inject]),
            says and bool(between & shape.bit[node]),
            says and bool(leading & shape.bit[node]),
        )
    closed = [
        Loop(tuple(part), frozenset(shape.edges[index].target for index in shape.feedback) & frozenset(part))
        for part in map(shape.members, shape.loops)
    ]
    return Plan(nodes, shape, silent, tuple(closed))


def _alone(shape: Shape, node: str, inputs: Iterable[str]) -> bool:
    """Whether nothing leads from the inputs of a graph past a node to what that leads to."""
    past = shape.reached((each for each in inputs if each != node), past=~shape.bit[node])
    return not past & shape.reached([node]) & ~shape.bit[node]


def _restarts(signature: OperatorSignature | None, policy: Policy) -> bool:
    """Whether what a node gives may begin anew: its own, or that of the graph that it runs."""
    return policy.restart or (signature is not None and (signature.restarts or signature.opaque))


def _entrance(signature: OperatorSignature | None, declared: NodeSpec) -> type[Entrance] | None:
    if signature is None:
        return None
    if signature.pairs:
        return Entrance
    return TellingEntrance if signature.tells_inputs(declared.args) else None
