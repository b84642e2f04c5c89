"""`segment`: gathers tokens into sentences, clauses, lines or runs of tokens, and lets each go as soon as it is whole.

    parts = segment(by="sentence")
    bits  = segment(by="tokens", count=8)

How a text came in tokens makes no difference to its pieces, but for `by="tokens"`. What is left at `finish` goes out as
the last piece; what is left when the answer broke off is marked incomplete. Reasoning and answer are never in one
piece. A piece has no white space around it (a line keeps its indentation, a run of tokens is left as it is); what stood
before it is in `meta["gap"]`, so that `reduce("join")` puts the text together again.

A sentence ends at its punctuation with white space behind it, at that of Chinese and Japanese with anything behind it,
at a blank line, and before an item of a list. So "3.14", "v1.2.3" and URLs are whole, and known abbreviations, initials
and the numbers of lists end none. Where quotes, "..." or words such as "etc." leave it open, what follows decides: a
small letter goes on with the sentence. A clause ends at `,` `;` `:` and dashes too.

It keeps one unfinished piece of each open lineage: at most `hold` of them (64), of `MOST_HELD` characters each, and of
`hold_bytes` in all. What grows beyond is let go as it is, at its last space; so is the piece that has waited longest
where there are too many.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import TEXT, Event, Phase, descends, origin, text_bytes
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.numbering import Numbers
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator

MOST_HELD: Final = 4_096
"""Characters of one piece that are held while no end comes."""

MOST_LINEAGES: Final = 64
MOST_GAP: Final = 64
"""Characters of white space before a piece that are remembered."""

SIGNATURE = OperatorSignature(
    "segment",
    (
        Parameter("by", "choice", choices=("sentence", "clause", "line", "tokens")),
        Parameter("count", "integer", least=1),
    ),
    takes=TEXT,
    gives=frozenset({"chunk"}),
    single=lambda _args: True,
    results="many",
    holds=lambda _args: MOST_LINEAGES,
)


def segment(by: str | None = None, *, count: int | None = None) -> OperatorCall:
    """Gather tokens into pieces.

    Args:
        by: `"sentence"` (the default), `"clause"`, `"line"` or `"tokens"`.
        count: how many tokens a piece has, for `"tokens"`; 16 if it is left out.
    """
    return call("segment", by=by, count=count)


# -- where pieces end

_MARKS = r".!?…‽؟۔։।॥።"  # noqa: RUF001
_WIDE = r"。！？｡"  # noqa: RUF001
_CLOSING = r"\"'”’»›)\]}*_`」』）】"  # noqa: RUF001

_END = (
    rf"(?<![{_MARKS}])(?P<mark>[{_MARKS}]{{1,64}}+)(?![{_MARKS}])(?P<closing>[{_CLOSING}]{{0,16}}+)(?=\s)"
    rf"|(?<![{_WIDE}])[{_WIDE}]{{1,64}}+(?![{_WIDE}])[{_CLOSING}]{{0,16}}+(?=[\s\S])"
    r"|\n[ \t\r]{0,64}+\n"
    r"|\n(?=[ \t]{0,16}(?:[-*+•]|\d{1,3}[.)])[ \t])"
)
_CLAUSE_END = (
    rf"|[,;:][{_CLOSING}]{{0,16}}+(?=\s)|[—–](?=\s)"  # noqa: RUF001
    r"|[，；：、](?=[\s\S])(?:(?<!\d.)|(?!\d))"  # noqa: RUF001
)
_SENTENCE: Final = re.compile(_END)
_CLAUSE: Final = re.compile(_END + _CLAUSE_END)

REACH: Final = 160
"""No end, with what has to be seen behind it, is longer."""

_MADE_OF: Final = (
    ".!?…‽؟۔։।॥።。！？｡\"'”’»›)]}*_`」』）】,;:—–，；：、-+•0123456789"  # noqa: RUF001
    " \t\n\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""What an end is made of that can't be told yet: as more comes, it is looked for from the start of a run of these."""

MOST_WHITE: Final = 64
_AFTER: Final = re.compile(rf"(\s{{1,{MOST_WHITE}}}+)(\S?)")

_NEVER: Final = re.compile(
    r"\b(?:e\.g|i\.e|[cC]f|vs|viz|al|approx|[cC]a|Dr|Mrs?|Ms|Mx|Prof|St|[fF]igs?|[eE]qs?|[sS]ecs?|Ch|[vV]ol|[pP]p|[jJJ]r|Sr"
    r"|Sra|Inc|Ltd|Co|Corp|Dept|Gen|Gov|Sen|Rep|Rev|Lt|Col|Capt|Sgt|Mt|Jan|Feb|Aug|Sept|Oct|Nov|Dec"
    r"|z\.B|d\.h|u\.a|s\.o|bzw|vgl|Nr|Abb|Hr|Fr|Mme|Mlle|p\.ex)\.\Z"
)
"""Abbreviations that go on with the sentence."""

_MAYBE: Final = re.compile(r"\b(?:(?i:no|etc|usw)|[ap]\.m)\.\Z")
"""Words that may end one."""

_LIST_NUMBER: Final = re.compile(r"[\s>*_#]{0,8}(?:\d{1,3}|[a-zA-Z])\.")
_LOOK_BACK: Final = 16

Find = Callable[[str, int], int | None]


def _end(ends: re.Pattern[str], text: str, start: int) -> int | None:
    """Where the first piece of a text ends; None while that can't be told.

    Args:
        ends: where it may end.
        text: what has come so far.
        start: an offset before which there is no end.
    """
    for match in ends.finditer(text, start):
        mark = match["mark"]
        if mark is None:
            return match.end()
        at, goes_on = match.end("mark"), bool(match["closing"]) or (len(mark) > 1 and set(mark) == {"."}) or mark == "…"
        if mark == ".":
            if _inside(text, at):
                continue
            goes_on = goes_on or bool(_MAYBE.search(text, max(0, at - _LOOK_BACK), at))
        if goes_on:
            after = _AFTER.match(text, match.end())
            assert after is not None
            white, next_ = after.groups()
            if "\n" not in white:
                if not next_ and len(white) < MOST_WHITE:
                    return None
                if next_.islower() or (next_.isdigit() and mark == "." and not match["closing"]):
                    continue
        return match.end()
    return None


def _inside(text: str, at: int) -> bool:
    """Whether the point before an offset ends no sentence: an abbreviation, an initial, the number of a list's item."""
    back = max(0, at - _LOOK_BACK)
    if at >= 2 and text[at - 2].isupper() and (at == 2 or not text[at - 3].isalnum()):
        return True
    if _NEVER.search(text, back, at):
        return True
    line = text.rfind("\n", back, at) + 1
    return (line > 0 or back == 0) and _LIST_NUMBER.fullmatch(text, line, at) is not None


def sentence_end(text: str, start: int = 0) -> int | None:
    """Where the first sentence of a text ends, not before `start`; None while that can't be told."""
    return _end(_SENTENCE, text, start)


def clause_end(text: str, start: int = 0) -> int | None:
    """Where the first clause of a text ends, not before `start`; None while that can't be told."""
    return _end(_CLAUSE, text, start)


def line_end(text: str, start: int = 0) -> int | None:
    """Where the first line of a text ends, not before `start`; None while it has not."""
    index = text.find("\n", start)
    return None if index < 0 else index + 1


# -- one text and its pieces

Piece = tuple[str, str]
"""The white space before it, and the piece."""


class Cutter(Protocol):
    """Cuts one text into pieces.

    Attributes:
        text: what waits for its end.
    """

    text: str

    def feed(self, more: str) -> Iterator[Piece]:
        """Take in more of the text; gives the pieces that are whole now."""

    def rest(self) -> Iterator[Piece]:
        """Let go what waits."""


class ByEnd:
    """Cuts where a piece ends.

    Args:
        find: finds the end of the first piece.
        most: the most characters of a piece.
        indented: the white space before a piece belongs to it.
    """

    __slots__ = ("_find", "_gap", "_indented", "_most", "text")

    def __init__(self, find: Find, most: int = MOST_HELD, *, indented: bool = False) -> None:
        self._find = find
        self._most = most
        self._indented = indented
        self._gap = ""
        self.text = ""

    def feed(self, more: str) -> Iterator[Piece]:
        """Take in more of the text; gives the pieces that are whole now."""
        before = self.text
        text = before + more
        first = 0 if before else self._skip(text, 0)
        tail = before[-REACH:]
        start = len(before) - len(tail) + len(tail.rstrip(_MADE_OF))
        self.text = ""
        while True:
            window = text[first : first + self._most + 1]
            end = self._find(window, start)
            if end is None or end > self._most:
                if len(window) <= self._most:
                    break
                end = max(window.rfind(" ", self._most // 2, self._most) + 1, 0) or self._most
            yield from self._piece(window[:end])
            first = self._skip(text, first + end)
            start = 0
        self.text = text[first:]

    def rest(self) -> Iterator[Piece]:
        """Let go what waits."""
        text, self.text = self.text, ""
        yield from self._piece(text)

    def _skip(self, text: str, at: int) -> int:
        """Take the white space at an offset for that before the next piece."""
        if self._indented:
            return at
        white = _WHITE.match(text, at)
        assert white is not None
        self._note(white[0])
        return white.end()

    def _note(self, white: str) -> None:
        if len(self._gap) < MOST_GAP:
            self._gap = (self._gap + white)[:MOST_GAP]

    def _piece(self, raw: str) -> Iterator[Piece]:
        piece = raw.rstrip()
        if piece:
            yield self._gap, piece
            self._gap = ""
        self._note(raw[len(piece) :])


_WHITE: Final = re.compile(r"\s*")


class ByCount:
    """Cuts after so many tokens, or so many characters; leaves the text as it is."""

    __slots__ = ("_count", "_most", "_tokens", "text")

    def __init__(self, count: int, most: int = MOST_HELD) -> None:
        self._count = count
        self._most = most
        self._tokens = 0
        self.text = ""

    def feed(self, more: str) -> Iterator[Piece]:
        """Take in one more token; gives the pieces that are whole now."""
        text = self.text + more
        self._tokens += 1
        while len(text) > self._most:
            yield "", text[: self._most]
            text = text[self._most :]
        self.text = text
        if self._tokens >= self._count:
            yield from self.rest()

    def rest(self) -> Iterator[Piece]:
        """Let go what waits."""
        text, self.text = self.text, ""
        self._tokens = 0
        if text:
            yield "", text


# -- the operator


class _Open:
    """What waits of one lineage, with the facts of its stream."""

    __slots__ = ("bytes", "complete", "cutter", "last", "phase")

    def __init__(self, cutter: Cutter, phase: Phase | None) -> None:
        self.cutter = cutter
        self.phase = phase
        self.complete = True
        self.bytes = 0
        self.last: Event | None = None


class _Segmenter:
    """See the module; keeps the lineages in the order in which text of theirs came last."""

    def __init__(self, args: Args, binding: Binding) -> None:
        self._by = args.get("by", "sentence")
        self._count = args.get("count", 16)
        self._node = binding.node
        self._hold = binding.policy.hold or MOST_LINEAGES
        self._hold_bytes = binding.policy.hold_bytes
        self._most = max(1, min(MOST_HELD, self._hold_bytes // 4))
        self._open: dict[str, _Open] = {}
        self._bytes = 0
        self._numbers = Numbers()

    def _cutter(self) -> Cutter:
        if self._by == "tokens":
            return ByCount(self._count, self._most)
        if self._by == "line":
            return ByEnd(line_end, self._most, indented=True)
        return ByEnd(clause_end if self._by == "clause" else sentence_end, self._most)

    def gather(self, event: Event) -> Iterator[Event]:
        """Take in a token; gives the pieces that are whole now."""
        if event.kind not in TEXT or not isinstance(event.payload, str):
            raise RunError(
                f"segment takes text, not {event.kind}",
                code="AF301",
                hint='let text alone through: lane = route(by="kind"), lane.token -> ...',
            )
        held = self._open.pop(event.lineage, None)
        if held is not None and held.phase != event.phase:
            yield from self._close(held)
            held = None
        while held is None and len(self._open) >= self._hold:
            yield from self._close(self._open.pop(next(iter(self._open))))
        held = held or _Open(self._cutter(), event.phase)
        self._open[event.lineage] = held
        held.last = event
        held.complete = held.complete and event.complete
        for gap, text in held.cutter.feed(event.meta.get("gap", "") + event.payload):
            yield self._piece(event, gap, text, complete=held.complete)
            held.complete = event.complete
        size = text_bytes(held.cutter.text)
        self._bytes += size - held.bytes
        held.bytes = size
        if self._bytes > self._hold_bytes:
            for each in list(self._open.values()):
                yield from self._close(each)
                if self._bytes <= self._hold_bytes:
                    break

    def _close(self, held: _Open, *, complete: bool = True) -> Iterator[Event]:
        """Let go what waits of a lineage."""
        self._bytes -= held.bytes
        held.bytes = 0
        assert held.last is not None
        for gap, text in held.cutter.rest():
            yield self._piece(held.last, gap, text, complete=complete and held.complete)

    def _piece(self, event: Event, gap: str, text: str, *, complete: bool) -> Event:
        meta = event.meta
        if gap or not complete or "gap" in meta:
            meta = {**meta, "gap": gap}
            if not complete:
                meta["complete"] = False
        number = self._numbers.take(event.lineage)
        return Event("chunk", text, event.conversation, self._node, number, event.time, event.lineage, meta)

    def control(self, event: Event) -> Iterator[Event]:
        """Let go, or discard, what a control event is about."""
        kind, lineage = event.kind, event.lineage
        if kind in ("restart", "retract"):
            for each in [each for each in self._open if descends(each, lineage)]:
                self._bytes -= self._open.pop(each).bytes
            if kind == "restart":
                self._numbers.forget(lineage)
        elif kind == "skip" and (lineage in self._open or lineage in self._numbers):
            return  # it is about a token, and pieces have numbers of their own
        elif kind in ("end", "finish", "error", "flush"):
            everything = kind == "end" or (kind == "flush" and not lineage)
            for each in list(self._open) if everything else [lineage]:
                whole = kind in ("finish", "flush") or (kind == "end" and event.complete and origin(each) is None)
                held = self._open.get(each) if kind == "flush" else self._open.pop(each, None)
                if held is not None:
                    yield from self._close(held, complete=whole)
            if kind == "finish":
                self._numbers.forget(lineage)
        if kind != "end":
            yield event

    def holds(self) -> int:
        """Pieces that wait."""
        return sum(1 for held in self._open.values() if held.cutter.text)


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `segment`.

    Raises:
        ConfigError: there is a `count` that nothing is counted by.
    """
    if "count" in args and args.get("by") != "tokens":
        raise ConfigError(
            f"node {binding.node!r}: count= has no effect here", code="AF204", hint='write by="tokens", or leave it out'
        )
    segmenter = _Segmenter(args, binding)
    return Behaviour("iterate", segmenter.gather, control=segmenter.control, holds=segmenter.holds)


SEGMENT = Operator(SIGNATURE, bind)
