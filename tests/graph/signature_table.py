"""A table of operators in the shape of the standard ones, with every trait that the checks look at."""

from __future__ import annotations

from types import GenericAlias

from aiflow_jupyter.events import DATA, TEXT
from aiflow_jupyter.graph.forms.language import read
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter

FUNCTION = Parameter("function", "function", required=True)
INLINE = Parameter("inline", "boolean")
VALUE = frozenset({"value"})
PORTS = {"phase": ("answer", "reasoning", "else"), "kind": (*sorted(DATA), "else")}


def inlined(args):
    return args.get("inline") is True


def always(_args):
    return True


TABLE = {
    each.name: each
    for each in (
        OperatorSignature(
            "generate",
            (Parameter("system", "text"), Parameter("temperature", "number", least=0), Parameter("tools", "functions")),
            takes=frozenset({"value", "chunk", "tool_result"}),
            gives=frozenset({"token", "tool_fragment"}),
            whole=True,
            results="many",
            restarts=True,
            accepts=(str, list),
        ),
        OperatorSignature("map", (FUNCTION, INLINE), single=inlined, results="some", returns="function"),
        OperatorSignature("filter", (FUNCTION, INLINE), single=inlined, results="some"),
        OperatorSignature("flat_map", (FUNCTION, INLINE), single=inlined, results="many", returns="function"),
        OperatorSignature(
            "classify",
            (Parameter("function", "function"), Parameter("patterns", "patterns")),
            alternatives=("function", "patterns"),
        ),
        OperatorSignature(
            "route",
            (Parameter("by", "choice_or_function", choices=("phase", "kind"), required=True, plain=True),),
            ports=lambda args: PORTS.get(args["by"]),
            single=always,
        ),
        OperatorSignature(
            "guard",
            (FUNCTION, Parameter("hold", "choice_or_integer", choices=("sentence",), least=1)),
            takes=TEXT,
            gives=TEXT,
            verdicts=True,
            holds=lambda _args: 16,
        ),
        OperatorSignature(
            "segment",
            (Parameter("by", "choice", choices=("sentence", "line")),),
            takes=TEXT,
            gives=frozenset({"chunk"}),
            single=always,
            results="many",
            holds=lambda _args: 64,
        ),
        OperatorSignature(
            "window",
            (Parameter("count", "integer", required=True, least=1),),
            gives=VALUE,
            results="gathered",
            holds=lambda args: args["count"],
            payload=lambda _args, given: GenericAlias(list, (given,)),
        ),
        OperatorSignature(
            "reduce",
            (Parameter("function", "choice_or_function", choices=("join", "count"), required=True, gets="list"),),
            gives=VALUE,
            results="gathered",
            returns="function",
            payload=lambda args, given: {"join": str, "count": int}.get(args["function"], given),
            holds=lambda _args: 64,
        ),
        OperatorSignature(
            "retrieve",
            (Parameter("index", "object", required=True), Parameter("k", "integer", least=1)),
            takes=frozenset({"value", "chunk"}),
            gives=frozenset({"retrieval"}),
            whole=True,
            results="many",
            accepts=(str,),
        ),
        OperatorSignature(
            "tools",
            (Parameter("functions", "functions", required=True, gets="arguments"),),
            takes=frozenset({"tool_fragment"}),
            gives=frozenset({"tool_result"}),
            results="many",
        ),
        OperatorSignature("delegate", (Parameter("flow", "flow", required=True),), results="many"),
        OperatorSignature(
            "merge", (Parameter("order", "choice", choices=("arrival", "source")),), holds=lambda _args: 4
        ),
        OperatorSignature(
            "join",
            (Parameter("limit", "integer", least=1),),
            gives=VALUE,
            pairs=True,
            holds=lambda args: args.get("limit", 0),
        ),
        OperatorSignature(
            "sink",
            (
                Parameter("function", "function"),
                Parameter("var", "text"),
                Parameter("jsonl", "text"),
                INLINE,
            ),
            gives=frozenset(),
            sink=True,
            alternatives=("function", "var", "jsonl"),
        ),
    )
}


def parsed(text):
    return read(text, "g", TABLE)
