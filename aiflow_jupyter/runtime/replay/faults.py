"""Faults by script: what a recorded answer suffers on its way, and what a node does wrong.

    faults = [Stall(at=1.0, seconds=2.0), Slow(node="speech", factor=3), Fail(node="clean", call=5)]

The same as JSON, for `aiflow trace replay --faults`: `[{"fault": "stall", "at": 1.0, "seconds": 2.0}, ...]`. Whatever
is random in them comes from a seed, so that one script is the same each time. Those of an answer change its trace
(`disturbed`); those of a node act on its calls (`service`).
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from aiflow_jupyter.graph.policy import MOST_SECONDS
from aiflow_jupyter.graph.problems import expected, nearest, shown
from aiflow_jupyter.runtime.replay.trace import Broken, Exchange, Trace, TraceError

MOST_FAULTS: Final = 10_000
MOST_SCRIPT: Final = 1_000_000
"""Characters of a script."""

Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
Place = Annotated[int, Field(ge=0)]


def _exception(name: str) -> str:
    found = getattr(builtins, name, None)
    try:
        usable = issubclass(found, Exception) and bool(found("why"))  # type: ignore[arg-type, misc]
    except TypeError:  # no class, or one that takes more than a message
        usable = False
    if not usable:
        raise ValueError(f"{name!r} is no exception of Python's own that takes a message")
    return name


class _Fault(BaseModel):
    """Raises a `TraceError`, with code AF745, for a value that it can't have."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    if not TYPE_CHECKING:  # for whoever checks types, the fields are the arguments

        def __init__(self, /, **given: Any) -> None:
            try:
                super().__init__(**given)
            except ValidationError as error:
                kind = type(self).model_fields["fault"].default
                takes = ", ".join(name for name in type(self).model_fields if name != "fault")
                raise TraceError(_wrong(kind, error, given), code="AF745", hint=f"a {kind} takes {takes}") from None


class _OfAnswer(_Fault):
    """A fault of answers; `request` says of which (from 0, in the order of the trace), None for all of them."""

    request: Place | None = None


class Stall(_OfAnswer):
    """Nothing comes: what was due `at` seconds after the request, or later, comes so many seconds later."""

    fault: Literal["stall"] = "stall"
    at: Seconds
    seconds: Seconds


class Burst(_OfAnswer):
    """What was due from `at` on, for so many seconds, comes at once at the end of that; None: with the last event."""

    fault: Literal["burst"] = "burst"
    at: Seconds = 0.0
    seconds: Seconds | None = None


class Cut(_OfAnswer):
    """The connection is lost: `at` seconds after the request, or after so many events."""

    fault: Literal["cut"] = "cut"
    at: Seconds | None = None
    events: Place | None = None

    @model_validator(mode="after")
    def _somewhere(self) -> Cut:
        if self.at is None and self.events is None:
            raise ValueError("needs at or events: where the line is cut")
        return self


class Slow(_Fault):
    """A node's calls take `factor` times as long; with `spread`, each its own time, log-normal, with that mean.

    Attributes:
        spread: the standard deviation of the time's logarithm; 0 for no spread.
    """

    fault: Literal["slow"] = "slow"
    node: str
    factor: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    spread: Annotated[float, Field(ge=0, le=5)] = 0.0


class Fail(_Fault):
    """A node raises at its n-th call (from 1), and so many times in a row; a retry is a call, too.

    Attributes:
        error: the exception's name, one of Python's own.
    """

    fault: Literal["fail"] = "fail"
    node: str
    call: Annotated[int, Field(ge=1)]
    times: Annotated[int, Field(ge=1)] = 1
    error: Annotated[str, AfterValidator(_exception)] = "RuntimeError"

    def raised(self) -> Exception:
        """What the call raises."""
        kind: type[Exception] = getattr(builtins, self.error)
        return kind(f"a fault of the script, at call {self.call} of {self.node!r}")


Fault = Stall | Burst | Cut | Slow | Fail
_KINDS: Final[Mapping[str, Callable[..., Fault]]] = {
    "stall": Stall,
    "burst": Burst,
    "cut": Cut,
    "slow": Slow,
    "fail": Fail,
}
F = TypeVar("F", bound=_Fault)


def read_faults(text: str) -> list[Fault]:
    """Read a script from its JSON form.

    Raises:
        TraceError: it is none; the message says which fault is wrong.
    """
    if len(text) > MOST_SCRIPT:
        raise TraceError(f"the script of faults has more than {MOST_SCRIPT:,} characters", code="AF745", hint=_EXAMPLE)
    try:
        script = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise TraceError(
            f"the script of faults is no JSON ({place}: {error.msg})", code="AF745", hint=_EXAMPLE
        ) from None
    except (ValueError, RecursionError):
        raise TraceError("the script of faults is no JSON that can be read", code="AF745", hint=_EXAMPLE) from None
    if not isinstance(script, list) or len(script) > MOST_FAULTS:
        what = f"has more than {MOST_FAULTS:,} faults" if isinstance(script, list) else "is no JSON array"
        raise TraceError(f"the script of faults {what}", code="AF745", hint=_EXAMPLE)
    return [_fault(number, each) for number, each in enumerate(script)]


_EXAMPLE: Final = 'as in [{"fault": "stall", "at": 1.0, "seconds": 2.0}]'


def _fault(number: int, given: Any) -> Fault:
    """A fault of a script, by its number there (from 0)."""
    if not isinstance(given, dict) or "fault" not in given:
        refused = TraceError(" does not say which fault it is", code="AF745", hint=_EXAMPLE)
    elif not isinstance(given["fault"], str) or given["fault"] not in _KINDS:
        hint = nearest(str(given["fault"]), _KINDS)
        refused = TraceError(f".fault is {shown(given['fault'])}, which is none", code="AF745", hint=hint)
    else:
        try:
            return _KINDS[given["fault"]](**given)
        except TraceError as error:
            refused = TraceError(f".{error.message}", code="AF745", hint=error.hint)
    refused.message = f"the script of faults: {number}{refused.message}"
    refused.hint = f"this is fault {number + 1}; {refused.hint}"
    raise refused from None


def _wrong(kind: str, error: ValidationError, given: Mapping[str, Any]) -> str:
    """The first of pydantic's findings about a fault, in words."""
    first = min(error.errors(include_url=False), key=lambda item: item["type"] == "missing")  # a slip may stand for it
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"{kind} has no {shown(name)}"
    if first["type"] == "missing":
        return f"{kind}.{name} is missing"
    said, allowed = first["msg"].removeprefix("Value error, "), expected(first)
    if not name:
        return f"{kind} {said}"
    return f"{kind}.{name} is {shown(given[name])}, not {allowed}" if allowed else f"{kind}.{name}: {said}"


def of_kind(faults: Iterable[Fault], kind: type[F], node: str) -> list[F]:
    """The faults of one kind at one node."""
    return [fault for fault in faults if isinstance(fault, kind) and getattr(fault, "node", "") == node]


def disturbed(trace: Trace, faults: Iterable[Fault]) -> Trace:
    """The trace as the faults of its answers make it; each acts on what those before it left."""
    exchanges = list(trace.exchanges)
    for fault in faults:
        if isinstance(fault, _OfAnswer):
            if fault.request is not None and fault.request >= len(exchanges):
                raise TraceError(
                    f"a fault is of request {fault.request}, and the trace has {len(exchanges)}",
                    code="AF745",
                    hint="requests count from 0",
                )
            exchanges = [_hit(each, fault) if fault.request in (None, each.number) else each for each in exchanges]
    return replace(trace, exchanges=tuple(exchanges))


def _hit(exchange: Exchange, fault: _OfAnswer) -> Exchange:
    if isinstance(fault, Stall):
        since, late = exchange.at + _ns(fault.at), _ns(fault.seconds)
        return _moved(exchange, lambda at: at + late if at >= since else at)
    if isinstance(fault, Burst):
        since = exchange.at + _ns(fault.at)
        until = exchange.at + exchange.duration_ns if fault.seconds is None else since + _ns(fault.seconds)
        return _moved(exchange, lambda at: until if since <= at < until else at)
    assert isinstance(fault, Cut)
    return _cut(exchange, fault)


def _moved(exchange: Exchange, later: Callable[[int], int]) -> Exchange:
    """The answer with its times changed, in their order."""
    events = tuple(replace(event, at=later(event.at)) for event in exchange.events)
    broken = exchange.broken and replace(exchange.broken, at=later(exchange.broken.at))
    return replace(exchange, events=events, broken=broken)


def _cut(exchange: Exchange, fault: Cut) -> Exchange:
    events, broken = exchange.events, exchange.broken
    when = None if fault.at is None else exchange.at + _ns(fault.at)
    kept = events if when is None else tuple(event for event in events if event.at <= when)
    if fault.events is not None and len(kept) > fault.events:
        kept = kept[: fault.events]
        when = kept[-1].at if kept else exchange.at
    if kept == events and (broken is None or when is None or broken.at <= when):
        return exchange  # it had ended by then
    assert when is not None
    lost = ("StreamCut", "AF702", "the connection was lost, by a fault of the script", "")
    return replace(exchange, events=kept, broken=Broken(when, "error", lost))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
