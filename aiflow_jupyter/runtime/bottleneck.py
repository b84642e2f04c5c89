"""The culprit: the first busy node below blocked ones.

Bounding a queue moves the waiting upstream, so the full queues stand before the slow node and the blocked nodes above
it. The node to look at is the one whose senders wait while it does not wait itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.metrics import NodeStatus, RunStatus

NOTABLE: Final = 0.05
"""The share of its time that a node has to be blocked for anybody to look for the reason."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Which node holds the others up.

    Attributes:
        node: its name.
        busy: the share of its workers' time that it was in service.
        holds_up: the nodes that wait for it, with the share of their time that they were blocked.
        advice: what would help, most promising first.
    """

    node: str
    busy: float
    holds_up: Mapping[str, float]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        held = ", ".join(f"{node} is blocked {share:.0%} of the time" for node, share in self.holds_up.items())
        return f"{self.node} is the bottleneck: busy {self.busy:.0%}; {held}. {'; or '.join(self.advice)}."


def bottleneck(status: RunStatus, spec: GraphSpec, inline: Mapping[str, bool]) -> Bottleneck | None:
    """Find it in a run's figures; None where no node is held up.

    Args:
        status: the figures.
        spec: the graph.
        inline: whether a node's code runs on the loop.
    """
    nodes = {node.node: node for node in status.nodes}
    found: tuple[bool, float, str] | None = None
    for name, node in nodes.items():
        pressure = max((nodes[edge.source].blocked for edge in spec.edges if edge.target == name), default=0.0)
        excess = pressure - node.blocked
        full = node.peak >= node.queue  # else nobody has ever waited for it, but for one beside it
        if excess >= NOTABLE and node.busy > 0 and full:
            # One that is itself blocked is only where the waiting has got to.
            found = max(found or (False, 0.0, ""), (node.blocked < NOTABLE, excess * node.busy, name))
    if found is None:
        return None
    node = nodes[found[2]]
    held = {
        edge.source: nodes[edge.source].blocked
        for edge in spec.edges
        if edge.target == node.node and nodes[edge.source].blocked >= NOTABLE
    }
    return Bottleneck(node.node, node.busy, held, _advice(node, spec, inline=inline[node.node]))


def _advice(node: NodeStatus, spec: GraphSpec, *, inline: bool) -> tuple[str, ...]:
    declared = spec.nodes[node.node]
    policy = declared.policy
    each = f"{node.service_s / node.processed * 1000:.3g} ms an event" if node.processed else "long for an event"
    advice = []
    if inline:
        advice.append(f"it takes {each} on the event loop, one at a time: make it quicker, or let it run in threads")
    elif policy.state in ("serialized", "transactional"):
        advice.append(f"it takes {each}, one at a time because of state={policy.state}: partition its state by a key")
    else:
        advice.append(f"it takes {each}: workers={2 * policy.workers} would serve twice as many at once")
    if policy.overflow == "block":
        advice.append("where only the newest counts, overflow=drop_oldest keeps the others going")
    return tuple(advice)
