"""The guardian of a node with partitioned state: events of one key are served one at a time, in their order.

A worker that takes an event whose key is in service lays it aside and takes the next; whoever has served that key then
serves what was laid aside for it. What is laid aside still waits: it counts toward the queue and its bytes or the
feedback edge it came by, it is dropped before what is in the queue, and is not served during a pause. Tickets are given
as events leave the queue, so the bound and the order are those of every `WorkerGuardian`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

from aiflow_jupyter.events import DATA, Event
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.admission import CONTROL_STAMP, skip
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.guardian import Guardian, Owner
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.state import Key
from aiflow_jupyter.runtime.workers import Worker, WorkerGuardian, told_to_stop


class _Taken(NamedTuple):
    """An event that left the queue with its ticket."""

    ticket: int
    event: Event
    stamp: int
    key: Hashable

    @property
    def waits(self) -> bool:
        """It came by an ordinary edge, and was not dropped."""
        return self.stamp >= 0 and self.event.kind in DATA


class _Unknown(NamedTuple):
    """Stands for the key of an event that has none, and says why."""

    error: BaseException


class PartitionedGuardian(WorkerGuardian):
    """See the module.

    Args:
        key: gives an event's key, once; whatever it raises is a failure of the event.
    """

    __slots__ = ("_fed_aside", "_key", "_laid", "_resumed", "_waiting")

    def __init__(
        self,
        node: str,
        behaviour: Behaviour,
        policy: Policy,
        scheduler: Scheduler,
        owner: Owner,
        bound: int | None = None,
        *,
        key: Key,
    ) -> None:
        super().__init__(node, behaviour, policy, scheduler, owner, bound)
        self._key = key
        self._laid: dict[Hashable, deque[_Taken]] = {}
        self._waiting = 0
        self._fed_aside = 0
        self._resumed: asyncio.Event | None = None

    def owned(self) -> int:
        """Also what came back over a feedback edge and was laid aside."""
        return super().owned() + self._fed_aside

    def quiet(self) -> bool:
        """Also nothing is laid aside."""
        return not self._waiting and super().quiet()

    def close(self) -> None:
        """Also forget what was laid aside."""
        super().close()
        self._laid.clear()
        self._waiting = self._fed_aside = 0

    def pause(self) -> None:
        """Serve nothing from now on, what was laid aside neither."""
        super().pause()
        self._resumed = asyncio.Event()

    def resume_serving(self) -> None:
        """Serve again."""
        if self._resumed is not None:
            self._resumed.set()
        super().resume_serving()

    def forget(self, sender: Guardian) -> None:
        """Also what was laid aside."""
        if self.inputs == 1:
            for laid in self._laid.values():
                for taken in [each for each in laid if each.waits]:
                    self.endings.broke(taken.event.lineage)
                    self._take_out(taken, laid)
        super().forget(sender)

    def _at_fence(self) -> bool:
        return super()._at_fence() or (self.queue[0][1] == CONTROL_STAMP and self._waiting > 0)

    def _returning(self) -> bool:
        """Whether nothing new is taken: what came round before it is laid aside."""
        return self._fed_aside > 0 and self.queue[0][1] >= 0

    async def _work(self) -> None:
        scheduler = self.scheduler
        worker = Worker(self.node)
        self._crew.append(worker)
        scheduler.enter(worker, scheduler.clock())
        self._waking = False
        while not self.closed:
            if not self.queue or self.paused or (self._loose and self._at_fence()) or self._returning():
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
                if self.paused and self._resumed is not None:
                    await self._resumed.wait()
                if scheduler.clock() >= scheduler.slice_end:
                    await scheduler.yield_slice()
                if self._head in self._gone:  # the next in turn was dropped meanwhile
                    self._head -= 1
                    await self._release(worker)
                scheduler.enter(worker, scheduler.clock())
                taken = self._next(taken.key)

    def _take(self, ticket: int, event: Event, stamp: int) -> _Taken | None:
        """Take an event whose key is free; None after laying it aside."""
        self.exempt -= stamp < 0
        self.fed -= stamp < 0
        try:
            key = self._key(event)
            laid = self._laid.get(key)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is a failure of the event, in its place
            key, laid = _Unknown(error), None
        taken = _Taken(ticket, event, stamp, key)
        if laid is not None:
            laid.append(taken)
            self._waiting += 1
            self.exempt -= stamp >= 0
            self._fed_aside += stamp < 0
            return None
        if not isinstance(key, _Unknown):
            self._laid[key] = deque()
        self._book(taken)
        return taken

    def _book(self, taken: _Taken) -> None:
        """Book that an event waits no more."""
        if taken.stamp < 0:
            self._came_round(taken.event, self.scheduler.clock())
        elif self.bytes_limit:
            self._let_go(taken.event)

    def _next(self, key: Hashable) -> _Taken | None:
        """The next event of a key that was just served; None frees the key."""
        laid = None if isinstance(key, _Unknown) else self._laid.get(key)
        if not laid:
            if laid is not None:
                del self._laid[key]
            return None
        taken = laid.popleft()
        self._waiting -= 1
        if taken.event.kind in DATA:
            self.exempt += taken.stamp >= 0
            self._fed_aside -= taken.stamp < 0
            self._book(taken)
        return taken

    def _began(self, taken: _Taken, now: int) -> None:
        """Book that an event enters service."""
        self.wait_ns += now - abs(taken.stamp)
        self.first_ns = self.first_ns or now
        if self.lag_ns is not None:
            self.lag_ns += now - taken.event.time

    def _drop_oldest(self) -> bool:
        """What was laid aside came before all that is in the queue."""
        aside = [
            (taken, laid)
            for laid in self._laid.values()
            for taken in laid
            if taken.waits and self.policy.rule(taken.event.kind).startswith("drop")
        ]
        if not aside:
            return super()._drop_oldest()
        taken, laid = min(aside, key=lambda each: each[0].stamp)
        self._lose(taken.event)
        self._take_out(taken, laid)
        return True

    def _take_out(self, taken: _Taken, laid: deque[_Taken]) -> None:
        """Discard what was laid aside; its ticket gives nothing, or the word that it does."""
        self.exempt += 1
        self._book(taken)
        place = next(index for index, each in enumerate(laid) if each is taken)
        if self.skips:
            laid[place] = taken._replace(event=skip(taken.event, self.node))
            return
        del laid[place]
        self._waiting -= 1
        if self._ordered:
            self._leave_out(taken.ticket)

    async def _serve(self, taken: _Taken, worker: Worker) -> None:
        """Serve one event whose key is free."""
        scheduler = self.scheduler
        event = taken.event
        if event.kind not in DATA:
            await (self._settle(taken.ticket, [event], worker) if self._ordered else self._send(event, worker))
            return
        self._in_service += 1
        try:
            now = scheduler.clock()
            self._began(taken, now)
            if self.waiters:
                self._let_in(now)
                scheduler.run_ready()
            if self.queue:
                self._wake()
            if isinstance(taken.key, _Unknown):
                self._served(0)
                await self._failed_call(taken.ticket, event, taken.key.error, worker)
                return
            self._key.serving[id(event)] = taken.key
            if self.behaviour.mode == "stream":
                await self._stream(taken.ticket, event, worker)
                return
            scheduler.current = self
            start = worker.since = scheduler.clock()
            try:
                out = await self.call(event)
                results = self._results(event, out)
            except BaseException as error:
                if told_to_stop(error, self._tasks):
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
            self._key.serving.pop(id(event), None)
