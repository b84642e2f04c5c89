"""The graphs that a graph delegates to, with all that their nodes name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiflow_jupyter.graph.spec import GraphSpec

Found = tuple["GraphSpec", Mapping[str, Any]]
"""A graph, and the functions and objects that it may name."""


def delegated(
    spec: GraphSpec, functions: Mapping[str, Any], find: Callable[[str], Found | None]
) -> tuple[dict[str, GraphSpec], dict[str, Any]]:
    """The graphs that a graph leads to, by whatever way, and all functions and objects; what is not found is left out.

    Args:
        spec: the graph.
        functions: what it may name; a `Flow` among it is a graph, too.
        find: gives a graph by its name.
    """
    from aiflow_jupyter.graph.builder import Flow

    flows: dict[str, GraphSpec] = {}
    everything = dict(functions)
    waiting = [spec]
    while waiting:
        for node in waiting.pop().nodes.values():
            name = node.args.get("flow")
            if node.operator != "delegate" or not isinstance(name, str) or name in flows:
                continue
            found, value = find(name), everything.get(name)
            if found is None and isinstance(value, Flow):
                found = value.spec, value.functions
            if found is not None:
                flows[name] = found[0]
                everything = {**found[1], **everything}
                waiting.append(found[0])
    return flows, everything
