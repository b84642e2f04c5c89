"""Bounds: how much a graph may hold at any instant, known before it runs.

The paper's proposition 1, with the terms that it leaves out: for each node the queue, the events in service, finished
results that wait for their turn, what the operator holds, and what may wait on the feedback edges that lead to it.
What a provider, a socket, a user's own code or an event's payload takes is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiflow_jupyter.graph.shape import Shape, Weights
from aiflow_jupyter.graph.signatures import OperatorSignature, Signatures
from aiflow_jupyter.graph.spec import GraphSpec, NodeSpec

MOST_SPECULATIVE: Final = 256
"""Outputs of a speculative node that wait for a verdict, unless the policy's `hold` says otherwise."""

MOST_TOGETHER: Final = 64
"""Outputs that one transactional call may give, unless the policy's `hold` says otherwise."""


@dataclass(frozen=True, slots=True)
class NodeBound:
    """What one node may own at any instant.

    Attributes:
        node: its name.
        queue: events that wait.
        workers: events in service.
        reorder: finished results that wait for their turn.
        hold: events that the operator keeps.
        feedback: events on the feedback edges that lead to it.
        keys: states that are kept, for `state=partitioned`; 0 else.
        bytes: what the queue and the held text may take, where `queue_bytes` is declared; None where it is not.
    """

    node: str
    queue: int
    workers: int
    reorder: int
    hold: int
    feedback: int
    keys: int
    bytes: int | None

    @property
    def events(self) -> int:
        """Data events in all."""
        return self.queue + self.workers + self.reorder + self.hold + self.feedback


@dataclass(frozen=True, slots=True)
class GraphBound:
    """What a graph may own at any instant.

    Attributes:
        nodes: the bound of each node, in the order of the graph.
    """

    nodes: tuple[NodeBound, ...]

    @property
    def events(self) -> int:
        """Data events in all."""
        return sum(node.events for node in self.nodes)

    @property
    def keys(self) -> int:
        """States in all."""
        return sum(node.keys for node in self.nodes)

    @property
    def bytes(self) -> int | None:
        """Bytes in all, where every node declares `queue_bytes`."""
        sizes = [node.bytes for node in self.nodes if node.bytes is not None]
        return sum(sizes) if len(sizes) == len(self.nodes) else None


def bounds(spec: GraphSpec, signatures: Signatures, shape: Shape | None = None) -> GraphBound:
    """The bounds of a graph that passed its checks.

    Args:
        spec: the graph.
        signatures: the known operators; they say what each holds.
        shape: of the graph, where it is known already.
    """
    shape = shape or Shape(spec)
    signature = _lookup(spec, signatures)
    skews = skews_of(spec, shape, signature)
    feedback = dict.fromkeys(spec.nodes, 0)
    for edge in shape.edges.values():
        if edge.feedback is not None:
            feedback[edge.target] += edge.feedback.limit
    found = []
    for node, each in spec.nodes.items():
        policy = each.policy
        hold = held(each, signature(node), skews.get(node, 0))
        size = None
        if policy.queue_bytes is not None:
            size = policy.queue_bytes + (policy.hold_bytes if hold or policy.rule("token") == "conflate" else 0)
        keys = policy.keys if policy.state == "partitioned" else 0
        row = NodeBound(node, policy.queue, policy.workers, policy.held_results, hold, feedback[node], keys, size)
        found.append(row)
    return GraphBound(tuple(found))


def held(node: NodeSpec, signature: OperatorSignature | None, skew: int = 0) -> int:
    """The events that a node may keep: its operator, and its guardian for the sake of its policy.

    Args:
        node: the node.
        signature: its operator's; None for a function.
        skew: for a join, how far its branches may be apart.
    """
    policy = node.policy
    own = signature.holds(node.args) if signature is not None else 0
    if signature is not None and signature.pairs:
        own = max(own, skew)
    kept = (policy.hold or own) if own else 0
    if policy.effect == "speculative":
        kept += policy.hold or MOST_SPECULATIVE
    if policy.state == "transactional" and (signature is None or signature.results in ("many", "gathered")):
        kept += policy.hold or MOST_TOGETHER
    return kept


Lookup = Callable[[str], OperatorSignature | None]
"""Gives the signature of a node's operator; None where there is none, or it can't be asked."""


def _lookup(spec: GraphSpec, signatures: Signatures) -> Lookup:
    def signature(node: str) -> OperatorSignature | None:
        found = signatures.get(spec.nodes[node].operator)
        return found and found.given(spec.nodes[node].args)

    return signature


def skews_of(spec: GraphSpec, shape: Shape, signature: Lookup) -> dict[str, int]:
    """The skew of every node that pairs: how many events one branch can be ahead of another.

    While the slow branch is full, the split waits; so the fast one is ahead by what the slow one can own between the
    split and the node, and by the one event that the split has in hand.

    Returns:
        the events that may wait for their last partner, of all branches but one; 1 for each where these are bare edges.
    """
    joins = [node for node in spec.nodes if (known := signature(node)) is not None and known.pairs]
    weights = owned(spec, shape, signature) if joins else None
    return {node: _skew(shape, node, weights) for node in joins} if weights else {}


def owned(spec: GraphSpec, shape: Shape, signature: Lookup) -> Weights:
    """What each node can own; a join inside a branch by what it says itself."""
    return Weights(shape, {node: each.policy.bound + held(each, signature(node)) for node, each in spec.nodes.items()})


def _skew(shape: Shape, join: str, weights: Weights) -> int:
    branches = shape.branches(join)
    ahead = 1 + max((weights.sum(branch) for branch in branches), default=0)
    return ahead * max(1, len(branches) - 1)
