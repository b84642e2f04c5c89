"""How answers end at a node: which inputs have said their last word on one, and which answers broke off.

The last word on an answer is its `finish`. Where that goes no further, because a part of the answer failed on the way
or an operator keeps the finish for itself, a *close* takes its place: a `finish` that is not complete. It is for
guardians alone, no operator sees it. So every edge that an answer can come by brings just one last word on it, and

    with several inputs   the finish goes on once all inputs that the answering node leads to have given their last word
                          or have ended; where one of these was cut off before its word, what there is, is a part
    what broke off        is remembered until then, and no longer
    what overflow took    goes on with the last word, as its `lost`: what is let go because of that word is a part

The values that are put into a run have no finish, so none of them is remembered as broken; what overflow took of them
goes on with the `end`. Where a last word never comes (a node was stopped), or a failure comes after it (out of a loop),
at most `MOST_BROKEN` stay, and the oldest is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from types import MappingProxyType
from typing import Final

from aiflow_jupyter.events import DATA, Event, descends, origin
from aiflow_jupyter.graph.shape import Shape

MOST_BROKEN: Final = 4_096
"""Answers that broke off and are remembered at one node, until their last word."""

INCOMPLETE: Final = MappingProxyType({"complete": False})
LOST: Final = "lost"
"""In the meta of a last word: the lineages that overflow took something from."""
BY: Final = "by"
"""In the meta of a last word on its way to a node with several inputs: the node that it comes from."""


def close(word: Event, *, broken: bool) -> Event:
    """What takes the place of an answer's `finish`, for guardians.

    Args:
        word: the finish, or what else is told of the answer.
        broken: it broke off, rather than that an operator keeps its finish.
    """
    meta = {**INCOMPLETE, BY: word.meta[BY]} if BY in word.meta else INCOMPLETE
    return Event("finish", broken, word.conversation, word.source, word.sequence, word.time, word.lineage, meta)


def signed(word: Event, node: str) -> Event:
    """A last word that says which node it comes from."""
    own = word.derive(word.payload)
    own.meta = {**word.meta, BY: node}
    return own


def told(word: Event, lost: Iterable[str]) -> Event:
    """A last word that says which lineages overflow took something from."""
    telling = word.derive(word.payload)
    telling.meta = {**word.meta, LOST: frozenset(lost)}
    return telling


def parts(word: Event, leaving: Iterable[Event]) -> Iterable[Event]:
    """What leaves because of a control event; parts, where that says that overflow took something from it."""
    return _parts(word.meta[LOST], leaving) if LOST in word.meta else leaving


def _parts(lost: Collection[str], leaving: Iterable[Event]) -> Iterator[Event]:
    asked = {origin(lineage) for lineage in lost}
    for out in leaving:
        if out.kind in DATA and (out.lineage in lost or out.identity in asked):
            part = out.derive(out.payload)
            part.meta = {**out.meta, **INCOMPLETE}
            yield part
        else:
            yield out


def answering(lineage: str) -> str:
    """The node that gives an answer, by the answer's lineage; empty for what is none.

    >>> answering("0/0.ask+1"), answering("0")
    ('ask', '')
    """
    return lineage.rpartition("/")[2].partition(".")[2].partition("+")[0]


def _unknown(_node: str) -> tuple[str, ...]:
    return ()


class Endings:
    """What one node knows of the answers that come to their end.

    Attributes:
        broken: answers that broke off, until their last word.
        lost: lineages that overflow took something from, here or before, until their last word.
        giving: the inputs that a node's answers can come by, each by its node; none where that is not known.
    """

    __slots__ = ("_cut", "_over", "_partly", "broken", "giving", "lost")

    def __init__(self) -> None:
        self.broken: dict[str, None] = {}
        self.lost: dict[str, None] = {}
        self.giving: Callable[[str], tuple[str, ...]] = _unknown
        self._partly: dict[str, tuple[tuple[str, ...], Event]] = {}  # last words that have come by some inputs
        self._over: Counter[str] = Counter()  # inputs that have ended
        self._cut: set[str] = set()  # those of them that were cut off

    def broke(self, lineage: str) -> None:
        """An answer, or an event of it, failed here or before."""
        if lineage.isdecimal():  # an input of the run
            return
        self.broken[lineage] = None
        if len(self.broken) > MOST_BROKEN:
            del self.broken[next(iter(self.broken))]

    def lose(self, *lineages: str) -> None:
        """Overflow took something from these."""
        for lineage in lineages:
            self.lost[lineage] = None
            if len(self.lost) > MOST_BROKEN:
                del self.lost[next(iter(self.lost))]

    def anew(self, lineage: str) -> None:
        """An answer begins anew: what broke off or was lost of it before is void."""
        for known in (self.broken, self.lost):
            for each in [each for each in known if descends(each, lineage)]:
                del known[each]

    def passed(self, lineage: str) -> None:
        """The last word on an answer has gone on."""
        self.broken.pop(lineage, None)
        self.lost.pop(lineage, None)

    def take(self, word: Event, inputs: int) -> Event | None:
        """Take in the last word of one of the inputs; gives what goes on of all of them, None while others are to come.

        Args:
            word: a finish, or a close.
            inputs: how many inputs there are.
        """
        lineage = word.lineage
        if not word.complete and word.payload:
            self.broke(lineage)
        self.lose(*word.meta.get(LOST, ()))
        if inputs > 1:
            spoken, before = self._partly.pop(lineage, ((), word))
            spoken = (*spoken, word.meta.get(BY, ""))
            word = before if before.complete else word
            if self._waits(lineage, spoken, inputs):
                self._partly[lineage] = spoken, word
                return None
        return self._whole(word)

    def _whole(self, word: Event) -> Event:
        return close(word, broken=True) if word.lineage in self.broken else self.told(word)

    def _waits(self, lineage: str, spoken: tuple[str, ...], inputs: int) -> bool:
        """Whether an answer's last word is still to come by some input."""
        sources = self.giving(answering(lineage))
        missing = (len(sources) or inputs) - len(spoken)
        if missing > 0 and self._over:
            silent = self._over - Counter(spoken)
            silent = Counter({each: count for each, count in silent.items() if not sources or each in sources})
            missing -= silent.total()
            if missing <= 0 and not self._cut.isdisjoint(silent):
                self.lose(lineage)
        return missing > 0

    def over(self, end: Event) -> bool:
        """One of several inputs has ended: nothing is waited for by it; whether that may let something go on."""
        by = end.meta.get(BY, end.source)
        self._over[by] += 1
        if not end.complete:
            self._cut.add(by)
        return bool(self._partly)

    def freed(self, inputs: int) -> Iterator[Event]:
        """The last words that waited only for inputs that have ended."""
        for lineage, (spoken, word) in tuple(self._partly.items()):
            if not self._waits(lineage, spoken, inputs):
                del self._partly[lineage]
                yield self._whole(word)

    def told(self, word: Event) -> Event:
        """A last word that says what overflow took: of its answer, or at the end of all."""
        if word.kind == "end":
            return told(word, self.lost) if self.lost else word
        return told(word, [word.lineage]) if word.lineage in self.lost else word

    def left(self) -> list[Event]:
        """At the end: the finishes that came by some inputs, of answers that did not break off."""
        words = [word for _, word in self._partly.values() if word.complete and word.lineage not in self.broken]
        words = [self.told(word) for word in words]
        self._partly.clear()
        return words

    def clear(self) -> None:
        """Forget what is open."""
        self._partly.clear()


def giving(shape: Shape, sources: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Says by which of a node's inputs the answers of another node can come.

    Args:
        shape: the graph.
        sources: where the inputs come from.
    """

    @cache
    def by(node: str) -> tuple[str, ...]:
        reached = shape.reached([node]) if node in shape.bit else 0
        return tuple(source for source in sources if reached & shape.bit[source])

    return by
