"""What may be put into a node from outside, and as which kind of event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.events import DATA, TEXT, Kind
from aiflow_jupyter.graph.checks.types import INJECTED, PAYLOADS
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.behaviour import Operator

_ALSO: Final[Mapping[Any, Any]] = {float: (int, float), list: (list, tuple), dict: Mapping}
"""What is as good as a type that a graph names."""


def kind_of(spec: GraphSpec, node: str, value: Any, operators: Mapping[str, Operator]) -> Kind:
    """The kind of event that a value becomes at a node.

    Raises:
        CommandError: the node takes no such value; the message says what it takes.
    """
    declared = spec.inject.get(node)
    if declared is not None:
        expected = PAYLOADS.get(declared) or INJECTED.get(declared, Any)
        wrong_bool = isinstance(value, bool) and declared in ("int", "float")
        if expected is not Any and (not isinstance(value, _ALSO.get(expected, expected)) or wrong_bool):
            raise CommandError(f"node {node!r} takes {declared} from outside, not {type(value).__name__}", code="AF807")
        if declared in DATA:
            return cast("Kind", declared)
    known = operators.get(spec.nodes[node].operator)
    takes = known.signature.takes if known is not None else None
    if takes is None or "value" in takes:
        return "value"
    for kind in ("chunk", "token", "tool_result", "tool_call", "tool_fragment", "retrieval"):
        if kind in takes and isinstance(value, PAYLOADS[kind]):
            return cast("Kind", kind)
    wanted = " or ".join(sorted("text" if kind in TEXT else kind for kind in takes))
    raise CommandError(f"node {node!r} takes {wanted}, not {type(value).__name__}", code="AF807")
