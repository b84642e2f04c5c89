"""`segment`: gathers tokens into sentences or lines, and lets each go as soon as it is complete.

    parts = segment(by="sentence")

What is left at `finish` goes out as the last piece; what is left when the stream broke off is marked incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import TEXT, Event
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator

SIGNATURE = OperatorSignature(
    "segment",
    (Parameter("by", "choice", choices=("sentence", "line")),),
    takes=TEXT,
    gives=frozenset({"chunk"}),
    single=lambda _args: True,
)

MOST_HELD = 4_096
"""Characters that are held while no end of a sentence or line comes; then the piece is let go as it is."""

_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s)|(?<![。！？])[。！？]++[”’」』）]*+(?=[\s\S])|\n[ \t]*+\n"  # noqa: RUF001
)
"""Where a sentence may end: closing punctuation with white space behind it, full-width punctuation with anything
behind it, a blank line. Each run is matched once and from its start, so that the time grows with the text alone."""

_RUN = ".!?…\"'”’)]。！？」』） \t\n"  # noqa: RUF001
"""What an end may be made of: it is looked for from the start of such a run, as more of it may come."""

_NOT_AN_END = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|cf|vs|al|approx|Dr|Mr|Mrs|Ms|Prof|St|Fig|Eq|No|Sec|Jr|Sr)|\b[A-Z]|(?:^|\n)\s*\d{1,3})\.\Z"
)
"""An abbreviation, an initial, or the number of a list item before the point."""

_LOOK_BACK = 16


def segment(by: str | None = None) -> OperatorCall:
    """Gather tokens into pieces.

    Args:
        by: `"sentence"` (the default) or `"line"`.
    """
    return call("segment", by=by)


def sentence_end(text: str, start: int = 0) -> int | None:
    """Where the first sentence of `text` ends, None while that can't be told.

    Args:
        text: what has come so far.
        start: an offset before which there is no end.

    A point is only an end once the character behind it has come, so "3.14" and "e.g." are not split.
    """
    for match in _END.finditer(text, start):
        end = match.end()
        if not _NOT_AN_END.search(text[max(0, end - _LOOK_BACK) : end]):
            return end
    return None


def line_end(text: str, start: int = 0) -> int | None:
    """Where the first line of `text` ends, None while it has not."""
    index = text.find("\n", start)
    return None if index < 0 else index + 1


_SPACE = re.compile(r"\s*")


def _spans(text: str, start: int, find: Callable[[str, int], int | None]) -> Iterator[tuple[int, int, int]]:
    """Where each complete piece begins and ends, and where what follows it begins."""
    first = 0
    while True:
        window = text[first : first + MOST_HELD + 1]
        end = find(window, start)
        if end is None or end > MOST_HELD:
            if len(window) <= MOST_HELD:
                return
            end = MOST_HELD
        space = _SPACE.match(text, first + end)
        rest = space.end() if space else first + end
        yield first, first + end, rest
        first, start = rest, 0


class _Held:
    """The text of one lineage that waits for its end, with the facts of its stream."""

    __slots__ = ("meta", "number", "text")

    def __init__(self) -> None:
        self.text = ""
        self.meta: Mapping[str, Any] = {}
        self.number = 0


def bind(args: Mapping[str, Any], binding: Binding) -> Behaviour:
    """The behaviour of `segment`: keeps one text per lineage; reasoning and answer are never in one piece."""
    find = line_end if args.get("by") == "line" else sentence_end
    lineages: dict[str, _Held] = {}

    def piece(event: Event, held: _Held, text: str, meta: Mapping[str, Any]) -> Iterator[Event]:
        text = text.strip()
        if text:
            number = held.number
            held.number += 1
            yield Event("chunk", text, event.conversation, binding.node, number, event.time, event.lineage, meta)

    def gather(event: Event) -> Iterator[Event]:
        if event.kind not in TEXT:
            raise RunError(f"segment takes text, not {event.kind}", code="AF301")
        held = lineages.setdefault(event.lineage, _Held())
        if held.text and held.meta.get("phase") != event.phase:
            text, held.text = held.text, ""
            yield from piece(event, held, text, held.meta)
        before, held.meta = held.text, event.meta
        text = before + event.payload if before else event.payload.lstrip()
        rest = 0
        for first, end, rest in _spans(text, len(before.rstrip(_RUN)), find):  # noqa: B007 - the last one is used
            yield from piece(event, held, text[first:end], held.meta)
        held.text = text[rest:]

    def control(event: Event) -> Iterator[Event]:
        if event.kind in ("restart", "retract", "skip"):
            lineages.pop(event.lineage, None)
        else:
            for lineage in list(lineages) if event.kind in ("end", "flush") else [event.lineage]:
                held = lineages.pop(lineage, None)
                if held is not None:
                    whole = event.kind in ("finish", "flush")
                    meta = held.meta if whole else MappingProxyType({**held.meta, "complete": False})
                    of = Event("chunk", None, event.conversation, "", 0, event.time, lineage)
                    yield from piece(of, held, held.text, meta)
        if event.kind != "end":
            yield event

    return Behaviour("iterate", gather, control=control)


SEGMENT = Operator(SIGNATURE, bind)
