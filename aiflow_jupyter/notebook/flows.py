"""Running a graph: what that needs besides it (the graphs that it leads to, an input), and a `Flow` built in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.notebook.hosting import finish

if TYPE_CHECKING:
    from aiflow_jupyter.graph.builder import Flow
    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.notebook.hosting import Host
    from aiflow_jupyter.runtime.run import Result

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


def require_input(spec: GraphSpec, to: str | None, value: str | None) -> None:
    """See that a graph's input is known, and takes a value, before anything is shown of its run.

    Raises:
        CommandError: `to` is missing or is no input, or that takes no such value.
    """
    from aiflow_jupyter.operators import OPERATORS
    from aiflow_jupyter.runtime.injection import kind_of

    inputs = spec.inputs()
    if to is None and len(inputs) > 1:
        raise CommandError(
            f"the graph has several inputs: {', '.join(inputs)}", code="AF806", hint=f"say which: --to {inputs[0]}"
        )
    if to is not None and to not in inputs:
        raise CommandError(f"{to!r} is no input of the graph", code="AF806", hint=f"its inputs: {', '.join(inputs)}")
    if value is not None:
        kind_of(spec, to or inputs[0], value, OPERATORS)


def require_checked(spec: GraphSpec, functions: Any, flows: Any = None) -> None:
    """Raise with every problem of a graph that is not from cell text."""
    from aiflow_jupyter.graph.checks.checking import require
    from aiflow_jupyter.graph.parsed import Built
    from aiflow_jupyter.operators import SIGNATURES

    require(spec, SIGNATURES, functions, Built(spec), flows=flows)


def run_flow(host: Host, flow: Flow, value: Any, *, to: str | None = None) -> Result:
    """Run a flow built in Python and wait; see `aiflow_jupyter.run`."""
    from aiflow_jupyter.graph.builder import Flow

    if not isinstance(flow, Flow):
        raise CommandError(
            f"run takes a Flow, not {type(flow).__name__}", code="AF805", hint='flow = Flow("name"); ...'
        )
    spec = flow.spec
    flows, functions = delegated(spec, flow.functions, lambda _name: None)
    require_checked(spec, functions, flows)
    return finish(host.start(spec, value, functions=functions, flows=flows, to=to))
