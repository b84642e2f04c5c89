"""How a loop of nodes ends: when all its inputs have ended and nothing goes round any more.

A head of the loop (a node that a feedback edge leads to) that took `end` on all its other inputs puts the end aside.
Once every node of the loop is quiet, the heads let the loop go of what its operators hold, by a `flush` that stays
within it; if that sent nothing round again, the end passes on.

    RUNNING --a head has all its ends--> ENDING --all quiet--> flush --something came round--> ENDING
                                                                 `----nothing did, all quiet--> the end passes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiflow_jupyter.events import Event

if TYPE_CHECKING:
    import asyncio

    from aiflow_jupyter.runtime.guardian import Guardian

FLUSH = "loop"
"""The source of a flush that stays within a loop."""


class Cycle:
    """The nodes of one loop (a strongly connected part of the graph).

    Attributes:
        crossed: events that came back over its feedback edges so far.
        heads: the nodes that its feedback edges lead to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.nodes: list[Guardian] = []
        self.heads: set[str] = set()
        self.crossed = 0
        self._loop = loop
        self._ending: list[Guardian] = []
        self._flushed: dict[str, int] = {}
        self._looking = False

    def defer(self, head: Guardian) -> None:
        """A head has all its ends; it will be told when they may pass."""
        self._ending.append(head)
        self.settled()

    def settled(self) -> None:
        """A node has nothing to do for now."""
        if self._ending and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        self._ending = [head for head in self._ending if not head.closed]
        if not self._ending or not all(node.quiet() for node in self.nodes):
            return  # whoever is busy says when it has settled
        head = self._ending[0]
        scheduler = head.scheduler
        scheduler.enter(self, scheduler.clock())
        if self._flushed.get(head.node) != self.crossed:
            self._flushed[head.node] = self.crossed
            head.signal(Event("flush", source=FLUSH))
        else:
            self._ending.pop(0)
            head.release()
        scheduler.run_ready()
