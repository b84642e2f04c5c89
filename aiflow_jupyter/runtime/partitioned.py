"""The guardian of a node with partitioned state: events of one key are served one at a time, in their order.

A worker that takes an event whose key is in service lays it aside and takes the next; whoever has served that key then
serves what was laid aside for it. What is laid aside still counts as waiting, and tickets are given as events leave the
queue, so the bound and the order are those of every `WorkerGuardian`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.admission import CONTROL_STAMP
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.guardian import Owner
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.workers import Worker, WorkerGuardian, told_to_stop


class _Taken(NamedTuple):
    """An event that left the queue with its ticket."""

    ticket: int
    event: Event
    stamp: int
    key: Hashable


_NO_KEY: Final = object()


class PartitionedGuardian(WorkerGuardian):
    """See the module.

    Args:
        key: gives an event's key; whatever it raises is a failure of the event.
    """

    __slots__ = ("_key", "_laid", "_waiting")

    def __init__(
        self,
        node: str,
        behaviour: Behaviour,
        policy: Policy,
        scheduler: Scheduler,
        owner: Owner,
        bound: int | None = None,
        *,
        key: Callable[[Event], Hashable],
    ) -> None:
        super().__init__(node, behaviour, policy, scheduler, owner, bound)
        self._key = key
        self._laid: dict[Hashable, deque[_Taken]] = {}
        self._waiting = 0

    def quiet(self) -> bool:
        """Also nothing is laid aside."""
        return not self._waiting and super().quiet()

    def close(self) -> None:
        """Also forget what was laid aside."""
        super().close()
        self._laid.clear()
        self._waiting = 0

    def _at_fence(self) -> bool:
        return super()._at_fence() or (self.queue[0][1] == CONTROL_STAMP and self._waiting > 0)

    async def _work(self) -> None:
        scheduler = self.scheduler
        worker = Worker(self.node)
        self._crew.append(worker)
        scheduler.enter(worker, scheduler.clock())
        self._waking = False
        while not self.closed:
            if not self.queue or self.paused or (self._loose and self._at_fence()):
                if self.done and not self.queue:
                    return
                if self.cycle is not None:
                    self.cycle.settled()
                await self._woken()
                scheduler.enter(worker, scheduler.clock())
                continue
            event, stamp = self.queue.popleft()
            ticket = self._tickets if self._ordered else 0
            self._tickets += self._ordered
            if stamp == CONTROL_STAMP:
                await self._control(ticket, event, worker)
                continue
            taken: _Taken | None = self._take(ticket, event, stamp)
            while taken is not None and not self.closed:
                await self._serve(taken, worker)
                taken = self._next(taken.key)
                now = scheduler.clock()
                if now >= scheduler.slice_end:
                    await scheduler.yield_slice()
                scheduler.enter(worker, scheduler.clock())

    def _take(self, ticket: int, event: Event, stamp: int) -> _Taken | None:
        """Take an event whose key is free; None after laying it aside."""
        now = self.scheduler.clock()
        if stamp < 0:
            self._took_fed(event, now)
            stamp = -stamp
        elif self.bytes_limit:
            self._let_go(event)
        try:
            key = self._key(event)
            laid = self._laid.get(key)
        except Exception:  # noqa: BLE001 - the call meets it again, as a failure in its place
            key, laid = _NO_KEY, None
        taken = _Taken(ticket, event, stamp, key)
        if laid is not None:
            laid.append(taken)
            self._waiting += 1
            self.exempt -= 1
            return None
        if key is not _NO_KEY:
            self._laid[key] = deque()
        return taken

    def _next(self, key: Hashable) -> _Taken | None:
        """The next event of a key that was just served; None frees the key."""
        laid = self._laid.get(key)
        if laid:
            self._waiting -= 1
            self.exempt += 1
            return laid.popleft()
        self._laid.pop(key, None)
        return None

    async def _serve(self, taken: _Taken, worker: Worker) -> None:
        """Serve one event whose key is free."""
        scheduler = self.scheduler
        event = taken.event
        self._in_service += 1
        try:
            now = scheduler.clock()
            self.wait_ns += now - taken.stamp
            self.first_ns = self.first_ns or now
            if self.waiters:
                self._let_in(now)
                scheduler.run_ready()
            if self.queue:
                self._wake()
            if self.behaviour.mode == "stream":
                await self._stream(taken.ticket, event, worker)
                return
            scheduler.current = self
            start = worker.since = scheduler.clock()
            try:
                if taken.key is _NO_KEY:
                    self._key(event)
                out = await self.call(event)
                results = self._results(event, out)
            except BaseException as error:
                if told_to_stop(error):
                    raise
                results = list(self._failure(event, error))
            finally:
                worker.since = 0
                self._served(scheduler.clock() - start)
            if self._ordered:
                await self._settle(taken.ticket, results, worker)
            else:
                for out in results:
                    await self._send(out, worker)
        finally:
            self._in_service -= 1
