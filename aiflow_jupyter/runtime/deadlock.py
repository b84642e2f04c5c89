"""An exact detector of deadlock: nothing goes on and nothing will, and yet something waits.

The checks of a graph prove it free of deadlock or warn; this is for what they could only warn of. A run is looked at
`FIRST_S` after a node was blocked, and again at growing intervals as long as one is. It is stuck when no node has code
that runs or is about to, no thread, stream or timer is pending, nobody may offer anything from outside, and an output
waits for its receiver. Then nothing can change any more, so the finding is certain whenever it is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.guardian import Guardian

FIRST_S: Final = 0.1
LONGEST_S: Final = 2.0


class Detector:
    """Watches one run.

    Args:
        loop: the run's loop.
        guardians: the run's nodes.
        pending: whether something outside the nodes may still change anything: a timer, an open input, a pause.
        found: told once, in words, who waits for whom.

    Attributes:
        watching: a look is due.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guardians: Collection[Guardian],
        pending: Callable[[], bool],
        found: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._guardians = guardians
        self._pending = pending
        self._found = found
        self._timer: asyncio.TimerHandle | None = None
        self._interval = FIRST_S
        self.watching = False

    def watch(self) -> None:
        """A node is blocked: look at it after a while."""
        if not self.watching:
            self.watching = True
            self._interval = FIRST_S
            self._timer = self._loop.call_later(FIRST_S, self._look)

    def stop(self) -> None:
        """The run is over."""
        self.watching = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        blocked = [guardian for guardian in self._guardians if guardian.blocked()]
        if not blocked:
            self.watching = False
            return
        if self._pending() or any(guardian.working() for guardian in self._guardians):
            self._interval = min(2 * self._interval, LONGEST_S)
            self._timer = self._loop.call_later(self._interval, self._look)
            return
        self._found(self._words(blocked))

    def _words(self, blocked: Collection[Guardian]) -> str:
        """Who waits for whom: the loop of waiting nodes where there is one."""
        waits: dict[str, str] = {}
        for guardian in self._guardians:
            for _, sender in guardian.waiters:
                waits.setdefault(sender.node, guardian.node)
        for start in waits:
            way = [start]
            while (after := waits.get(way[-1])) is not None:
                if after in way:
                    return " waits for ".join([*way[way.index(after) :], after])
                way.append(after)
        return "; ".join(f"{node} waits for {after}" for node, after in waits.items()) or ", ".join(
            guardian.node for guardian in blocked
        )
