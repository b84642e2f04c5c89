"""What `reduce` keeps of each answer: which events count, how much may be kept, and when its result leaves.

An answer goes by its lineage without the turn (`0/0.ask` and `0/0.ask+1` are one). Only what ranks highest counts: the
last turn, and in it the answer rather than what was thought before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event, Finish, descends, origin
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.operators.numbering import Recent
from aiflow_jupyter.runtime.behaviour import Binding


class Gathered:
    """What came of one answer. What `add` is given makes its `value`.

    Attributes:
        rank: the turn, and whether it is the answer rather than what was thought: what ranks lower is left out.
        last: the last event that counts, None before the first.
        complete: none of it was a part.
        finished: a finish came, after which only the next turn could.
        bytes, events: what is kept.
    """

    __slots__ = ("bytes", "complete", "events", "finished", "last", "rank", "value")

    def __init__(self, rank: tuple[int, bool], *, complete: bool) -> None:
        self.rank = rank
        self.complete = complete
        self.last: Event | None = None
        self.finished = False
        self.value: Any = None
        self.bytes = self.events = 0


_TURN: Final = re.compile(r"\+(\d+)\Z")


def answer_of(lineage: str) -> tuple[str, int]:
    """The lineage of an answer without the turn, and the turn: a model that calls tools goes on in another turn.

    >>> answer_of("0/0.ask+2")
    ('0/0.ask', 2)
    """
    turn = _TURN.search(lineage)
    return (lineage[: turn.start()], int(turn[1])) if turn else (lineage, 0)


class Answers:
    """Gathers by answer; what to do with each event is `add`, what comes of it in the end is `result`."""

    def __init__(self, binding: Binding, most: int) -> None:
        self._node = binding.node
        self._hold = binding.policy.hold or most
        self._hold_bytes = binding.policy.hold_bytes
        self._open: dict[str, Gathered] = {}
        self._past: Recent[str] = Recent()  # answers of which a part has gone: broken, let go, retracted
        self._above: Recent[str] = Recent()  # answers that were asked on about: their own finish is not for here
        self._events = self._bytes = 0

    empty: Any = None

    def add(self, gathered: Gathered, _event: Event, /) -> None:
        """Take in one event that counts."""
        raise NotImplementedError

    def result(self, gathered: Gathered) -> Any:
        """What an answer comes to."""
        return gathered.value

    def take(self, event: Event) -> Gathered | None:
        """What an event is to be added to; None where it does not count."""
        answer, turn = answer_of(event.lineage)
        rank = turn, event.phase != "reasoning"
        past = self._past.get(answer)
        if past == "retracted":
            return None
        gathered = self._open.get(answer)
        if gathered is None or gathered.rank < rank:
            self._drop(answer)
            self._keep(event, 1, 0)
            gathered = self._open[answer] = Gathered(rank, complete=past is None)
            self._book(gathered, 1, 0)
            if (asked := origin(answer)) is not None and origin(asked[0]) is not None:
                self._above.note(asked[0], answer)
        elif gathered.rank > rank:
            return None
        return gathered

    def count(self, gathered: Gathered, event: Event) -> None:
        """Note that an event was added."""
        gathered.last = event
        gathered.finished = False
        gathered.complete = gathered.complete and event.complete

    def _keep(self, event: Event, events: int, size: int) -> None:
        """See that there is room.

        Raises:
            RunError: there is none.
        """
        if self._events + events > self._hold:
            what, bound = counted(self._hold, "event"), "hold"
        elif self._bytes + size > self._hold_bytes:
            what, bound = f"{self._hold_bytes:,} bytes of text", "hold_bytes"
        else:
            return
        raise RunError(
            f"node {self._node!r}: reduce may keep {what}, and event {event.sequence} is more",
            code="AF612",
            hint=self._advice(event, bound),
        )

    def _advice(self, event: Event, bound: str) -> str:
        if bound == "hold" and origin(answer_of(event.lineage)[0]) is None:
            return (
                "what is put into a run is gathered by itself, value by value, until the inputs are closed: "
                "window(count=...) gathers several, or give the node a larger hold"
            )
        return f"give the node a larger {bound}, or a function of two parameters, which keeps one value"

    def _book(self, gathered: Gathered, events: int, size: int) -> None:
        gathered.events += events
        gathered.bytes += size
        self._events += events
        self._bytes += size

    def grow(self, gathered: Gathered, event: Event, size: int) -> None:
        """Keep one more event, or the bytes of its text."""
        events = 0 if gathered.last is None else 1
        self._keep(event, events, size)
        self._book(gathered, events, size)

    def _drop(self, answer: str) -> Gathered | None:
        gathered = self._open.pop(answer, None)
        if gathered is not None:
            self._book(gathered, -gathered.events, -gathered.bytes)
        return gathered

    # -- what leaves

    def control(self, event: Event) -> Iterator[Event]:
        """Let go, or discard, what a control event is about."""
        kind = event.kind
        answer, _ = answer_of(event.lineage)
        if kind == "finish":
            yield from self._finish(event, answer)
            return
        if kind == "skip" and answer in self._open:
            return  # it is about a part of what is one here
        if kind in ("restart", "retract"):
            yield event
            yield from self._void(event)
            return
        if kind == "error":
            yield from self._broken(event, answer)
        elif kind in ("flush", "end"):
            for each in [answer] if event.lineage else list(self._open):
                yield from self._let_go(each, end=kind == "end", cut=not event.complete)
        if kind != "end":
            yield event

    def _finish(self, event: Event, answer: str) -> Iterator[Event]:
        gathered = self._open.get(answer)
        if gathered is None and answer in self._above and answer not in self._past:
            del self._above[answer]
            yield event
            return
        if isinstance(event.payload, Finish) and event.payload.reason == "tool_calls":
            if gathered is not None:
                gathered.finished = True
            return
        self._drop(answer)
        past = self._past.pop(answer, None)
        if gathered is not None and gathered.last is not None:
            yield self._made(answer, gathered, gathered.last, complete=gathered.complete)
        elif past is None and self.empty is not None:
            yield self._made(answer, Gathered((0, True), complete=True), event, complete=True)
        elif past is None:
            yield from self._skip(answer, event)

    def _broken(self, event: Event, answer: str) -> Iterator[Event]:
        """An answer broke off: what came of it goes out as a part."""
        gathered = self._drop(answer)
        if gathered is not None and gathered.last is not None:
            yield self._made(answer, gathered, gathered.last, complete=False)
        elif answer not in self._past and answer not in self._above:
            yield from self._skip(answer, event)
        self._past.note(answer, "broken")

    def _let_go(self, answer: str, *, end: bool, cut: bool) -> Iterator[Event]:
        gathered = self._drop(answer)
        if gathered is None or gathered.last is None:
            return
        whole = end and not cut and (gathered.finished or origin(answer) is None)
        if not end:
            self._past.note(answer, "let go")
        yield self._made(answer, gathered, gathered.last, complete=whole and gathered.complete)

    def _void(self, event: Event) -> Iterator[Event]:
        """Discard what came of a lineage; one that is retracted has no result."""
        answer, _ = answer_of(event.lineage)
        for each in {answer: None, **{each: None for each in self._open if descends(each, event.lineage)}}:
            self._drop(each)
            if event.kind == "restart":
                self._past.pop(each, None)
            elif self._past.get(each) != "retracted":
                self._past.note(each, "retracted")
                yield from self._skip(each, event)

    def _made(self, answer: str, gathered: Gathered, last: Event, *, complete: bool) -> Event:
        meta = {key: value for key, value in last.meta.items() if key not in ("gap", "complete")}
        if not complete:
            meta["complete"] = False
        lineage, sequence = _asked(answer, last)
        value = self.result(gathered) if gathered.last is not None else self.empty
        return Event("value", value, last.conversation, self._node, sequence, last.time, lineage, meta)

    def _skip(self, answer: str, event: Event) -> Iterator[Event]:
        asked = origin(answer)
        if asked is not None:
            yield Event("skip", None, event.conversation, self._node, asked[1], event.time, asked[0])

    def holds(self) -> int:
        """Events that are kept."""
        return self._events


def _asked(answer: str, last: Event) -> tuple[str, int]:
    """The identity of what was asked; an input's number is its lineage and its sequence."""
    return origin(answer) or (answer, int(answer) if answer.isdecimal() else last.sequence)
