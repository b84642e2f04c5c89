"""Which nodes that run on the loop queue all the same."""

from __future__ import annotations

from collections.abc import Collection

from aiflow_jupyter.graph.shape import Shape


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
