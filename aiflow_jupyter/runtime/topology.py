"""What a run has to know of its graph: its loops, what stands between a split and a join, and which nodes queue."""

from __future__ import annotations

from collections.abc import Collection

from aiflow_jupyter.graph.shape import Shape


def loops(shape: Shape) -> list[list[str]]:
    """The loops that feedback edges close, each with all nodes that can reach one another in it."""
    found: list[list[str]] = []
    taken = 0
    for index in shape.feedback:
        head = shape.edges[index].target
        if not taken & shape.bit[head]:
            part = shape.reached([head]) & shape.reached([head], backward=True)
            taken |= part
            found.append(shape.members(part))
    return found


def between(shape: Shape, joins: Collection[str]) -> tuple[set[str], set[str]]:
    """The nodes between a split and a join: what gives no result there has to say so.

    Args:
        shape: the graph.
        joins: the nodes that pair events.

    Returns:
        those that reach a join by some of its inputs only; and all that reach one: such a one is a split, too, if it
        routes, as an event of it then leaves by one of several ports.
    """
    partly: set[str] = set()
    leading: set[str] = set()
    for join in joins:
        reached: dict[str, set[int]] = {node: set() for node in shape.nodes}
        for node in reversed(shape.order):
            for index in shape.out[node]:
                target = shape.edges[index].target
                if target == join:
                    reached[node].add(index)
                elif index not in shape.closing:
                    reached[node] |= reached[target]
        every = max(len(edges) for edges in reached.values())
        leading |= {node for node, edges in reached.items() if edges}
        partly |= {node for node, edges in reached.items() if 0 < len(edges) < every}
    return partly, leading


def cuts(shape: Shape, inline: Collection[str], every: int) -> set[str]:
    """The inline nodes that always queue, so that no way through the graph is a call of over `every` nodes."""
    if len(inline) < every - 1:
        return set()
    nested = dict.fromkeys(shape.nodes, 0)
    found = set()
    for node in shape.order:
        if node not in inline:
            nested[node] = 0
        elif nested[node] >= every - 1:
            nested[node] = 0
            found.add(node)
        for index in shape.out[node]:
            target = shape.edges[index].target
            nested[target] = max(nested[target], nested[node] + 1)
    return found
