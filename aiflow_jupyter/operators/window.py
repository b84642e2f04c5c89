"""`window`: gathers events into lists, by number, by time, or by whichever comes first.

    tens = window(count=10)
    live = window(seconds=0.5)
    both = window(count=100, seconds=2)

A window holds payloads of one answer and one phase; what comes from the run's inputs, or was reduced to one of them,
is one stream of its own. What is left at `finish` and at the end goes out as a shorter list; what is left when the
answer broke off is marked incomplete. A window has the lineage of its first event, and its number as sequence.

It keeps at most `hold` events (by default four times `count`, or 1,024 where time alone counts) and `hold_bytes` of
text in all. At the bound the window that has waited longest goes out as it is: nothing is lost, a list is shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import GenericAlias
from typing import Final

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.events import Event, descends, origin, text_bytes
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.numbering import Numbers
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator

MOST_TIMED: Final = 1_024
OPEN_AT_ONCE: Final = 4


def _holds(args: Args) -> int:
    count = args.get("count")
    return OPEN_AT_ONCE * count if isinstance(count, int) else MOST_TIMED


SIGNATURE = OperatorSignature(
    "window",
    (Parameter("count", "integer", least=1), Parameter("seconds", "number", least=0)),
    gives=frozenset({"value"}),
    single=lambda _args: True,
    results="gathered",
    lineage="first",
    holds=_holds,
    payload=lambda _args, given: GenericAlias(list, (given,)),
)


def window(count: int | None = None, *, seconds: float | None = None) -> OperatorCall:
    """Gather events into lists of their payloads; give one of the two, or both.

    Args:
        count: the events of one list.
        seconds: how long a list waits, from its first event on.
    """
    return call("window", count=count, seconds=seconds)


class _Window:
    """What was gathered of one stream since its last window went out."""

    __slots__ = ("bytes", "cancel", "events", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.events: list[Event] = []
        self.bytes = 0
        self.cancel: Callable[[], None] | None = None


def _stream(lineage: str) -> str:
    """An answer is a stream of its own; the run's inputs are one."""
    return "" if origin(lineage) is None else lineage


class _Windows:
    """See the module; keeps the open windows in the order in which they were begun."""

    def __init__(self, args: Args, binding: Binding) -> None:
        self._count: int | None = args.get("count")
        self._seconds: float | None = args.get("seconds")
        self._hold = binding.policy.hold or _holds(args)
        self._hold_bytes = binding.policy.hold_bytes
        self._binding = binding
        self._open: dict[str, _Window] = {}
        self._kept = self._bytes = 0
        self._numbers = Numbers()

    def gather(self, event: Event) -> Iterator[Event]:
        """Take in an event; gives the windows that are full now."""
        stream = _stream(event.lineage)
        size = text_bytes(event.payload) if isinstance(event.payload, str) else 0
        held = self._open.get(stream)
        if held is not None and held.events[-1].phase != event.phase:
            yield self._close(stream)
        while self._open and (self._kept >= self._hold or self._bytes + size > self._hold_bytes):
            yield self._close(next(iter(self._open)))
        held = self._open.get(stream) or self._begin(stream)
        held.events.append(event)
        held.bytes += size
        self._kept += 1
        self._bytes += size
        if len(held.events) == self._count:
            yield self._close(stream)

    def _begin(self, stream: str) -> _Window:
        held = self._open[stream] = _Window(self._numbers.take(stream))
        if self._seconds is not None:
            node = self._binding.node
            due = Event("flush", source=node, sequence=held.number, lineage=stream)
            held.cancel = self._binding.later(self._seconds, due)
        return held

    def _close(self, stream: str, *, complete: bool = True) -> Event:
        """Let a window go."""
        held = self._take(stream)
        first, last = held.events[0], held.events[-1]
        meta = {key: value for key, value in last.meta.items() if key != "gap"}
        if not complete or not all(event.complete for event in held.events):
            meta["complete"] = False
        payload = [event.payload for event in held.events]
        return Event(
            "value", payload, last.conversation, self._binding.node, held.number, last.time, first.lineage, meta
        )

    def _take(self, stream: str) -> _Window:
        held = self._open.pop(stream)
        self._kept -= len(held.events)
        self._bytes -= held.bytes
        if held.cancel is not None:
            held.cancel()
        return held

    def control(self, event: Event) -> Iterator[Event]:
        """Let go, or discard, what a control event is about."""
        kind, lineage = event.kind, event.lineage
        if kind == "flush" and event.source == self._binding.node:
            held = self._open.get(lineage)
            if held is not None and held.number == event.sequence:
                yield self._close(lineage)
            return
        if kind == "skip" and lineage and lineage in self._numbers:
            return  # it is about one event of an answer, and windows have numbers of their own
        if kind in ("restart", "retract"):
            self._discard(lineage)
        else:
            yield from [self._close(stream, complete=whole) for stream, whole in self._due(event)]
        if kind in ("finish", "restart"):
            self._numbers.forget(lineage)
        if kind != "end":
            yield event

    def _due(self, event: Event) -> list[tuple[str, bool]]:
        """The streams whose windows a control event lets go, and whether these are whole."""
        kind, lineage = event.kind, event.lineage
        if kind == "end" or (kind == "flush" and not lineage):
            return [(stream, kind == "flush" or (not stream and event.complete)) for stream in self._open]
        stream = _stream(lineage)
        held = self._open.get(stream)
        if held is None or kind not in ("finish", "error", "flush"):
            return []
        return [(stream, kind != "error")] if any(each.lineage == lineage for each in held.events) else []

    def _discard(self, lineage: str) -> None:
        """Take out what came of a lineage that is void."""
        for stream in list(self._open):
            void = [held for held in self._open[stream].events if descends(held.lineage, lineage)]
            if not void:
                continue
            held = self._open[stream]
            if len(void) == len(held.events):
                self._take(stream)
                continue
            held.events = [event for event in held.events if not descends(event.lineage, lineage)]
            size = sum(text_bytes(event.payload) for event in void if isinstance(event.payload, str))
            held.bytes -= size
            self._kept -= len(void)
            self._bytes -= size

    def holds(self) -> int:
        """Events that wait."""
        return self._kept


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `window`.

    Raises:
        ConfigError: neither `count` nor `seconds` is given.
    """
    if args.get("count") is None and args.get("seconds") is None:
        raise ConfigError(
            f"node {binding.node!r}: window needs count= or seconds=", code="AF204", hint="window(count=10)"
        )
    windows = _Windows(args, binding)
    return Behaviour("iterate", windows.gather, control=windows.control, holds=windows.holds)


WINDOW = Operator(SIGNATURE, bind)
