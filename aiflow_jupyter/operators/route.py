"""`route`: sends each event out by the port that it belongs to.

    lane = route(by="phase")
    lane.answer    -> speech
    lane.reasoning -> notes

    kind = classify(patterns=(question="[?]$", greeting="(?i)^(hi|hello)"))
    lane = route(by="label")
    kind -> lane
    lane.question -> ask
    lane.else     -> notes

Events without a connected port leave by `else`, or are counted `unrouted` where that is not connected either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import DATA, Event
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.functions import user_function
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.returned import decision

_PORTS: Final[Mapping[str, tuple[str, ...]]] = {
    "phase": ("answer", "reasoning", "else"),
    "kind": (*sorted(DATA), "else"),
}


def _ports(args: Args) -> tuple[str, ...] | None:
    return _PORTS.get(args.get("by", ""))


SIGNATURE = OperatorSignature(
    "route",
    (Parameter("by", "choice_or_function", choices=("phase", "kind", "label"), required=True, plain=True),),
    ports=_ports,
    single=lambda _args: True,
)


def route(by: str | Callable[..., Any]) -> OperatorCall:
    """Send each event out by one of several ports.

    Args:
        by: `"phase"` (ports `answer`, `reasoning`), `"kind"` (a port for each data kind), `"label"` (a port for each
            label that a `classify` before it gives), or a cheap plain function that returns the port's name for a
            payload (or an `Event`); it runs on the loop. What has no port of its own leaves by `else`.
    """
    return call("route", by=by)


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `route`.

    Raises:
        ConfigError: no such function, or it is no plain one.
    """
    by = args["by"]
    if by == "phase":
        return Behaviour("inline", _by_phase, routes=True)
    if by == "kind":
        return Behaviour("inline", _by_kind, routes=True)
    if by == "label":
        return Behaviour("inline", _by_label, routes=True)
    user = user_function(by, binding)
    if user.awaits or user.yields:
        raise ConfigError(
            f"node {binding.node!r}: route calls {by!r} on the loop, so it has to be a plain function",
            code="AF303",
            hint="have a map before it look up what it needs",
        )

    def by_function(event: Event, **extras: Any) -> tuple[str, Event]:
        return _named(decision(by, user(event, extras)), event, f"{by!r} returned 'error'")

    return Behaviour("inline", by_function, routes=True, extras=user.extras)


def _by_phase(event: Event) -> tuple[str, Event]:
    return event.meta.get("phase") or "else", event


def _by_kind(event: Event) -> tuple[str, Event]:
    return event.kind, event


def _by_label(event: Event) -> tuple[str, Event]:
    return _named(event.meta.get("label"), event, "an event has the label 'error'")


def _named(port: Any, event: Event, said: str) -> tuple[str, Event]:
    name = "else" if port is None else str(port)
    if name == "error":
        raise RunError(
            f"{said}, which is the port of the node's own failures", code="AF303", hint="give the lane another name"
        )
    return name, event


ROUTE = Operator(SIGNATURE, bind)
