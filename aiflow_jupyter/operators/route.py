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

from aiflow_jupyter.errors import ConfigError, RunError
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
        return Behaviour("inline", _by_phase, routes=True)
    if by == "kind":
        return Behaviour("inline", _by_kind, routes=True)
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

    def by_function(event: Event) -> tuple[str, Event]:
        port = str(function(event if whole else event.payload))
        if port == "error":
            raise RunError(
                f"{by!r} returned 'error', which is the port of the node's own failures",
                code="AF303",
                hint="give the lane another name",
            )
        return port, event

    return Behaviour("inline", by_function, routes=True)


def _by_phase(event: Event) -> tuple[str, Event]:
    return event.meta.get("phase") or "else", event


def _by_kind(event: Event) -> tuple[str, Event]:
    return event.kind, event


ROUTE = Operator(SIGNATURE, bind)
