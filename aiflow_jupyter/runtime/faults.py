"""Faults by script: what a recorded answer suffers on its way, and what a node does wrong.

    faults = [Stall(at=1.0, seconds=2.0), Slow(node="speech", factor=3), Fail(node="clean", call=5)]

The same as JSON: `[{"fault": "stall", "at": 1.0, "seconds": 2.0}, ...]`. Whatever is random in them comes from a seed,
so that one script is the same each time. Those of an answer change its trace (`disturbed`); those of a node act on its
calls (`service`).
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from aiflow_jupyter.graph.policy import MOST_SECONDS
from aiflow_jupyter.runtime.trace import Broken, Exchange, Trace, TraceError

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
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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
            raise ValueError("a cut needs at= or events=")
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
_SCRIPT: Final = TypeAdapter(
    Annotated[list[Annotated[Fault, Field(discriminator="fault")]], Field(max_length=MOST_FAULTS)]
)
F = TypeVar("F", bound=_Fault)


def read_faults(text: str) -> list[Fault]:
    """Read a script from its JSON form.

    Raises:
        TraceError: it is none; the message says which fault is wrong.
    """
    if len(text) > MOST_SCRIPT:
        raise TraceError(f"the script of faults has more than {MOST_SCRIPT:,} characters", code="AF745")
    try:
        return _SCRIPT.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise TraceError(
            f"the script of faults: {f'{where}: ' if where else ''}{first['msg']}",
            code="AF745",
            hint=f"as in {json.dumps([Stall(at=1.0, seconds=2.0).model_dump(exclude_none=True)])}",
        ) from None


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
