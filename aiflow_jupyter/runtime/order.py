"""Order: the results of several workers leave in the order in which their events were taken.

Each event that is taken gets a ticket. Whoever holds the lowest ticket that is out emits; at most `reorder` finished
results wait for their turn without their worker, and past that a worker waits with its result. A ticket that gives
nothing after all is passed by.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.guardian import Guardian, Owner
from aiflow_jupyter.runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.workers import Worker


class OrderedGuardian(Guardian):
    """A guardian whose workers' results leave in turn; without order, or with one worker, all tickets are 0."""

    __slots__ = ("_gone", "_head", "_held", "_ordered", "_reorder", "_tickets", "_turns")

    def __init__(
        self,
        node: str,
        behaviour: Behaviour,
        policy: Policy,
        scheduler: Scheduler,
        owner: Owner,
        bound: int | None = None,
    ) -> None:
        super().__init__(node, behaviour, policy, scheduler, owner, bound)
        self._ordered = policy.order != "none" and policy.workers > 1
        self._reorder = policy.held_results
        self._tickets = 0
        self._head = 0
        self._gone: dict[int, int] = {}  # tickets that give nothing, from the first to the one after the last
        self._held: dict[int, list[Event]] = {}
        self._turns: dict[int, tuple[asyncio.Future[bool], list[Event] | None]] = {}

    def held(self) -> int:
        """Finished results without a worker."""
        return len(self._held)

    def close(self) -> None:
        """Stop, and discard what waits for its turn."""
        super().close()
        self._held.clear()

    async def _settle(self, ticket: int, results: list[Event], worker: Worker) -> None:
        """Emit a ticket's results when it is their turn; until then they wait, if they may without their worker."""
        if ticket != self._head:
            if len(self._held) < self._reorder:
                self._held[ticket] = results
                return
            turn: asyncio.Future[bool] = self.scheduler.loop.create_future()
            self._turns[ticket] = (turn, results)
            if await turn:
                return
        for out in results:
            await self._send(out, worker)
        await self._release(worker)

    async def _turn(self, ticket: int) -> None:
        """Wait until all earlier tickets have left."""
        if ticket != self._head:
            turn: asyncio.Future[bool] = self.scheduler.loop.create_future()
            self._turns[ticket] = (turn, None)
            await turn

    async def _release(self, worker: Worker) -> None:
        """Give the turn on: emit the held results that follow, then let the next waiting worker go."""
        self._head += 1
        if self._gone:
            self._head = self._gone.pop(self._head, self._head)
        while self._head in self._held:
            results = self._held.pop(self._head)
            self._take_in()
            for out in results:
                await self._send(out, worker)
            self._head += 1
            if self._gone:
                self._head = self._gone.pop(self._head, self._head)
        waiting = self._turns.pop(self._head, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(False)

    def _take_in(self) -> None:
        """A place among the held results is free: the lowest waiting result takes it, and its worker goes on."""
        ticket = min((t for t, (_, results) in self._turns.items() if results is not None), default=None)
        if ticket is not None:
            turn, results = self._turns.pop(ticket)
            if results is not None and not turn.done():
                self._held[ticket] = results
                turn.set_result(True)

    def _leave_out(self, ticket: int) -> None:
        """Have the turn pass a ticket by; those next to one another are one entry, so that there are few."""
        after = self._gone.pop(ticket + 1, ticket + 1)
        before = next((start for start, end in self._gone.items() if end == ticket), ticket)
        self._gone[before] = after

    async def _send(self, out: Event, worker: Worker) -> None:
        """Send one event on, and wait until every receiver has taken it."""
        raise NotImplementedError
