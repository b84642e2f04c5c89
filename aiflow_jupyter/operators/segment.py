"""`segment`: gathers tokens into sentences or lines, and lets each go as soon as it is complete.

    parts = segment(by="sentence")

What is left at `finish` goes out as the last piece; what is left when the stream broke off is marked incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
)

MOST_HELD = 4_096
"""Characters that are held while no end of a sentence or line comes; then the piece is let go as it is."""

_END = re.compile(r"(?:[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*)|\n[ \t]*\n")
"""Where a sentence may end: closing punctuation with white space behind it, full-width punctuation, a blank line."""

_NOT_AN_END = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|cf|vs|al|approx|Dr|Mr|Mrs|Ms|Prof|St|Fig|Eq|No|Sec|Jr|Sr)|\b[A-Z]|(?:^|\n)\s*\d{1,3})\.\Z"
)
"""An abbreviation, an initial, or the number of a list item before the point."""


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
        if not _NOT_AN_END.search(text, 0, match.end()):
            return match.end()
    return None


def line_end(text: str, start: int = 0) -> int | None:
    """Where the first line of `text` ends, None while it has not."""
    index = text.find("\n", start)
    return None if index < 0 else index + 1


def bind(args: Mapping[str, Any], binding: Binding) -> Behaviour:
    """The behaviour of `segment`: keeps one text per lineage."""
    find = line_end if args.get("by") == "line" else sentence_end
    held: dict[str, str] = {}
    numbers: dict[str, int] = {}

    def piece(event: Event, text: str, meta: Mapping[str, Any]) -> Iterator[Event]:
        text = text.strip()
        if text:
            sequence = numbers.get(event.lineage, 0)
            numbers[event.lineage] = sequence + 1
            yield Event("chunk", text, event.conversation, binding.node, sequence, event.time, event.lineage, meta)

    def gather(event: Event) -> Iterator[Event]:
        if event.kind not in TEXT:
            raise RunError(f"segment takes text, not {event.kind}", code="AF301")
        before = held.get(event.lineage, "")
        text = before + event.payload
        # Only what the new piece can complete is searched: an end needs at most a few characters before it.
        start = max(0, len(before) - 16)
        while (end := find(text, start)) is not None or len(text) > MOST_HELD:
            cut = MOST_HELD if end is None else end
            yield from piece(event, text[:cut], event.meta)
            text = text[cut:].lstrip()
            held[event.lineage] = text
            start = 0
        held[event.lineage] = text

    def flush(event: Event) -> Iterator[Event]:
        lineages = list(held) if event.kind == "end" else [event.lineage]
        meta = MappingProxyType({"complete": False}) if event.kind != "finish" else MappingProxyType({})
        for lineage in lineages:
            text = held.pop(lineage, "")
            source = Event("chunk", None, event.conversation, "", 0, event.time, lineage)
            yield from piece(source, text, meta)
            numbers.pop(lineage, None)

    return Behaviour("iterate", gather, flush=flush)


SEGMENT = Operator(SIGNATURE, bind)
