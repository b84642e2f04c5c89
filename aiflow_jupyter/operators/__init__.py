"""The standard operators, and the table that the checks and the runtime are handed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from aiflow_jupyter.graph.signatures import Signatures
from aiflow_jupyter.operators.classify import CLASSIFY, classify
from aiflow_jupyter.operators.delegate import DELEGATE, delegate
from aiflow_jupyter.operators.functions import FILTER, FLAT_MAP, MAP, filter, flat_map, map  # noqa: A004 - the operators' names
from aiflow_jupyter.operators.generate import GENERATE, generate
from aiflow_jupyter.operators.guard import GUARD, guard
from aiflow_jupyter.operators.join import JOIN, join
from aiflow_jupyter.operators.merge import MERGE, merge
from aiflow_jupyter.operators.prompt import PROMPT, prompt
from aiflow_jupyter.operators.reduce import REDUCE, reduce
from aiflow_jupyter.operators.retrieve import RETRIEVE, retrieve
from aiflow_jupyter.operators.route import ROUTE, route
from aiflow_jupyter.operators.segment import SEGMENT, segment
from aiflow_jupyter.operators.sink import SINK, sink
from aiflow_jupyter.operators.tools import TOOLS, tools
from aiflow_jupyter.operators.window import WINDOW, window
from aiflow_jupyter.runtime.behaviour import Operator

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        operator.signature.name: operator
        for operator in (
            GENERATE,
            PROMPT,
            MAP,
            FILTER,
            FLAT_MAP,
            CLASSIFY,
            ROUTE,
            SEGMENT,
            WINDOW,
            REDUCE,
            TOOLS,
            RETRIEVE,
            GUARD,
            JOIN,
            MERGE,
            DELEGATE,
            SINK,
        )
    }
)
SIGNATURES: Signatures = MappingProxyType({name: operator.signature for name, operator in OPERATORS.items()})

__all__ = [
    "OPERATORS",
    "SIGNATURES",
    "classify",
    "delegate",
    "filter",
    "flat_map",
    "generate",
    "guard",
    "join",
    "map",
    "merge",
    "prompt",
    "reduce",
    "retrieve",
    "route",
    "segment",
    "sink",
    "tools",
    "window",
]
