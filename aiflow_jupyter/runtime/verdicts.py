"""Verdicts on lineages: what was said, how far it holds, and on which try of an answer that has begun anew.

A verdict holds for its lineage and all answers below it; a retraction is final. When an answer begins anew (`restart`),
the verdicts and the data learn of it by different ways: a verdict is for what came after as many restarts as it did,
what is behind them is void, and what is ahead waits for its own verdict.
"""

from __future__ import annotations

from typing import Final

from aiflow_jupyter.events import above, descends

MOST_VERDICTS: Final = 1_024
"""Verdicts that are remembered for what is made after them; answers that began anew, and not yet for all."""


class Verdicts:
    """What was said of lineages; what is not sure counts as not said.

    Attributes:
        ways: by which verdicts come, each of which learns by itself that an answer has begun anew.
    """

    def __init__(self) -> None:
        self.ways: list[object] = []
        self._said: dict[str, bool] = {}
        self._forgotten: set[int] = set()  # at which depths of lineage a retract was forgotten
        self._ahead: dict[str, dict[object, int]] = {}  # by how many restarts each way is ahead of the data, or behind

    def note(self, lineage: str, *, good: bool) -> None:
        """A verdict came; a retraction stays one."""
        if self._said.get(lineage) is False:
            return
        self._said.pop(lineage, None)
        self._said[lineage] = good
        if len(self._said) > MOST_VERDICTS:
            oldest = next(iter(self._said))
            if not self._said.pop(oldest):
                self._forgotten.add(oldest.count("/"))

    def of(self, lineage: str) -> bool | None:
        """Whether what has a lineage may leave; None where nobody has said so for sure."""
        found: bool | None = None
        for each in above(lineage):
            verdict = self._said.get(each)
            if verdict is False or self._newest(each) > 0:
                return False
            if verdict and found is None and self._sure(each, lineage):
                found = True
        return found

    def _sure(self, judged: str, lineage: str) -> bool:
        """Whether no retraction between the two can have been forgotten."""
        own, deepest = judged.count("/"), lineage.count("/")
        return all(depth == own or depth > deepest for depth in self._forgotten)

    def void(self, lineage: str) -> bool:
        """Whether what the node gives now is of an answer that has begun anew."""
        return any(self._newest(each) > 0 for each in above(lineage))

    def outdated(self, lineage: str, way: object) -> bool:
        """Whether a verdict that comes by a way now is on an answer that has begun anew."""
        return any(self._ahead[each][way] < self._newest(each) for each in above(lineage) if each in self._ahead)

    def _newest(self, lineage: str) -> int:
        """By how many restarts of a lineage the data is behind whoever knows of the most."""
        ahead = self._ahead.get(lineage)
        return max(0, *ahead.values()) if ahead else 0

    def restarted(self, lineage: str, way: object = None) -> None:
        """An answer begins anew, for what comes by a way; or (None) for what the node gives."""
        ahead = self._ahead.setdefault(lineage, dict.fromkeys(self.ways, 0))
        newest = self._newest(lineage)
        if way is not None:
            ahead[way] += 1
            first = ahead[way] > newest
        else:
            self._ahead[lineage] = ahead = {each: count - 1 for each, count in ahead.items()}
            first = not newest
        if first:
            self._said = {each: good for each, good in self._said.items() if not descends(each, lineage)}
        if not any(ahead.values()):
            del self._ahead[lineage]
        elif len(self._ahead) > MOST_VERDICTS:  # none will come any more that is sure to be on the answer as it is now
            oldest = next(iter(self._ahead))
            del self._ahead[oldest]
            self.note(oldest, good=False)
