"""Numbers for the outputs of an operator that gives several events for one: unique per lineage, in bounded memory."""

from __future__ import annotations

import threading
from typing import Final, TypeVar

from aiflow_jupyter.events import Event

MOST_LINEAGES: Final = 4_096
"""Lineages of which something is remembered; an input's lineage has no `finish` at which to forget it."""

T = TypeVar("T")


class Recent(dict[str, T]):
    """What is known of the lineages seen last; the one longest unused is forgotten when there are over `most`."""

    most = MOST_LINEAGES

    def note(self, lineage: str, value: T) -> tuple[str, T] | None:
        """Remember a value, and give back what was forgotten for it."""
        self.pop(lineage, None)
        self[lineage] = value
        if len(self) <= self.most:
            return None
        oldest = next(iter(self))
        return oldest, self.pop(oldest)

    def add(self: Recent[bool], lineage: str) -> None:
        """Remember a lineage itself."""
        self.note(lineage, True)  # noqa: FBT003 - a set of what was seen last


class Numbers:
    """Gives the numbers 0, 1, 2, ... for each lineage; from several threads.

    A lineage that was forgotten because there were too many goes on above all forgotten ones, so that no number is
    given twice.

    Args:
        workers: how many take numbers at once.
    """

    def __init__(self, workers: int = 1) -> None:
        self._one_by_one = workers == 1
        self._next: Recent[int] = Recent()
        self._floor = 0
        self._alone = threading.Lock()

    def take(self, lineage: str) -> int:
        """The next number of a lineage."""
        with self._alone:
            number = self._next.get(lineage, self._floor)
            forgotten = self._next.note(lineage, number + 1)
            if forgotten is not None:
                self._floor = max(self._floor, forgotten[1])
            return number

    def forget(self, lineage: str) -> None:
        """A lineage is complete, or begins anew."""
        with self._alone:
            self._next.pop(lineage, None)

    def heed(self, event: Event) -> None:
        """Number anew what is complete or begins anew; but not where other workers may be ahead of a restart."""
        if event.kind == "finish" or (event.kind == "restart" and self._one_by_one):
            self.forget(event.lineage)

    def __contains__(self, lineage: str) -> bool:
        return lineage in self._next
