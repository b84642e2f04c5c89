"""`route`: sends each event out by the port that it belongs to.

    lane = route(by="phase")
    lane.answer    -> speech
    lane.reasoning -> notes

Events without a connected port leave by `else`, or are counted `unrouted` where that is not connected either.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter
from aiflow_jupyter.operators.functions import calls, wants_event
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator


def _ports(args: Mapping[str, Any]) -> tuple[str, ...] | None:
    return ("answer", "reasoning", "else") if args.get("by") == "phase" else None


SIGNATURE = OperatorSignature(
    "route",
    (Parameter("by", "choice_or_function", choices=("phase", "kind"), required=True),),
    ports=_ports,
    single=lambda _args: True,
)


def route(by: str | Callable[..., str]) -> OperatorCall:
    """Send each event out by one of several ports.

    Args:
        by: `"phase"` (ports `answer`, `reasoning`), `"kind"` (a port per kind of event), or a cheap plain function
            that returns the port's name for a payload; it runs on the loop.
    """
    return call("route", by=by)


def bind(args: Mapping[str, Any], binding: Binding) -> Behaviour:
    """The behaviour of `route`."""
    by = args["by"]
    if by == "phase":
        return Behaviour("inline", _same, port=_phase)
    if by == "kind":
        return Behaviour("inline", _same, port=_kind)
    function = binding.functions.get(by)
    if function is None:
        raise ConfigError(
            f"node {binding.node!r}: no function is called {by!r}",
            code="AF205",
            hint="define it in a cell before, then run again",
        )
    if any(calls(function, kind) for kind in (inspect.iscoroutinefunction, inspect.isgeneratorfunction)):
        raise ConfigError(
            f"node {binding.node!r}: route calls {by!r} on the loop, so it has to be a plain function",
            code="AF303",
            hint="have a map before it look up what it needs",
        )
    whole = wants_event(function)
    chosen: dict[str, str] = {}

    def choose(event: Event) -> Event:
        # Called inside the guarded call, so that a failing function is the node's failure; `port` then only reads.
        chosen["port"] = str(function(event if whole else event.payload))
        return event

    return Behaviour("inline", choose, port=lambda _event: chosen["port"])


def _same(event: Event) -> Event:
    return event


def _phase(event: Event) -> str:
    return event.meta.get("phase") or "else"


def _kind(event: Event) -> str:
    return event.kind


ROUTE = Operator(SIGNATURE, bind)
