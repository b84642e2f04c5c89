"""The guardian of coroutines, streams and threads: up to `workers` events at once, whose results leave in order.

See `guardian` for the contract. Workers are tasks that are started when first needed and then stay.
"""

from __future__ import annotations

import asyncio
from collections import deque

from aiflow_jupyter.events import CONTROL, Event
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.guardian import CONTROL_STAMP, RAISED, Guardian, Owner
from aiflow_jupyter.runtime.scheduler import Scheduler


class _Worker:
    """One worker of a `WorkerGuardian`: a task, and where it waits while its output is refused."""

    __slots__ = ("blocked_ns", "future", "loop", "pending")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.pending = 0
        self.blocked_ns = 0
        self.future: asyncio.Future[None] | None = None

    def resume(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    async def taken(self) -> None:
        """Wait until every receiver has taken the output."""
        self.future = self.loop.create_future()
        try:
            await self.future
        finally:
            self.future = None


class WorkerGuardian(Guardian):
    """Runs coroutines, streams or threads: up to `workers` events at once, results in order.

    Workers are tasks, started when first needed. One wake-up is under way at a time: a woken worker wakes the next
    while the queue still holds events.
    """

    __slots__ = (
        "_blocked",
        "_fenced",
        "_head",
        "_held",
        "_idle",
        "_in_service",
        "_loose",
        "_ordered",
        "_reorder",
        "_tasks",
        "_tickets",
        "_turns",
        "_waking",
    )

    def __init__(self, node: str, behaviour: Behaviour, policy: Policy, scheduler: Scheduler, owner: Owner) -> None:
        super().__init__(node, behaviour, policy, scheduler, owner)
        self._ordered = policy.order != "none" and policy.workers > 1
        self._loose = policy.order == "none" and policy.workers > 1
        self._fenced = False
        self._reorder = policy.held_results
        self._tickets = 0
        self._head = 0
        self._held: dict[int, list[Event]] = {}
        self._turns: dict[int, tuple[asyncio.Future[bool], list[Event] | None]] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_service = 0
        self._blocked = 0

    def active(self) -> int:
        """Events that a worker has taken and not yet settled."""
        return self._in_service

    def held(self) -> int:
        """Finished results without a worker."""
        return len(self._held)

    def blocked(self) -> bool:
        """Whether any worker waits for a receiver."""
        return self._blocked > 0

    def push(self, event: Event, now: int) -> bool:
        """Queue an event, and see that a worker looks at it."""
        if self.closed:
            return True
        if not self._admit(event, now):
            return False
        if not self._waking:
            self._wake()
        return True

    def signal(self, event: Event) -> None:
        """Queue a control event, and see that a worker looks at it."""
        if self.closed:
            return
        self.queue.append((event, CONTROL_STAMP))
        self.controls += 1
        if not self._waking:
            self._wake()

    def close(self) -> None:
        """Stop, and cancel the workers."""
        super().close()
        self._held.clear()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the workers, then release what the node holds open."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await super().wait_closed()

    def _wake(self) -> None:
        """Have one more worker look at the queue, if one is free."""
        if self._idle:
            self._waking = True
            self._idle.popleft().set_result(None)
        elif len(self._tasks) < self.workers:
            self._waking = True
            task = self.scheduler.loop.create_task(self._work(), name=f"aiflow:{self.node}")
            self._tasks.add(task)
            task.add_done_callback(self._worker_ended)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.owner.failed(self, Event("error", source=self.node), error)

    async def _work(self) -> None:
        scheduler = self.scheduler
        clock = scheduler.clock
        queue = self.queue
        worker = _Worker(scheduler.loop)
        scheduler.enter(worker, clock())
        streams = self.behaviour.mode == "stream"
        loose = self._loose
        while not self.closed:
            self._waking = False
            if not queue or (loose and self._at_fence()):
                if self.done and not queue:
                    return
                idle = scheduler.loop.create_future()
                self._idle.append(idle)
                await idle
                scheduler.enter(worker, clock())
                continue
            event, stamp = queue.popleft()
            ticket = self._tickets
            self._tickets += 1
            if stamp == CONTROL_STAMP:
                await self._control(ticket, event, worker)
                continue
            now = clock()
            self._in_service += 1
            try:
                self.wait_ns += now - stamp
                if not self.first_ns:
                    self.first_ns = now
                if self.waiters:
                    self._hand_over(now)
                    scheduler.run_ready()
                if queue and self.workers > 1:
                    self._wake()
                if streams:
                    await self._stream(ticket, event, worker)
                else:
                    await self._settle(ticket, await self._one(event), worker)
            finally:
                self._in_service -= 1
            if clock() >= scheduler.slice_end:
                await scheduler.yield_slice()
                scheduler.enter(worker, clock())

    def _at_fence(self) -> bool:
        """Without order: whether a control event is acting, or comes next while data before it is in service."""
        return self._fenced or (self.queue[0][1] == CONTROL_STAMP and self._in_service > 0)

    async def _control(self, ticket: int, event: Event, worker: _Worker) -> None:
        self.controls -= 1
        if self._ordered:
            if self.queue:
                self._wake()
            await self._turn(ticket)
        self._fenced = self._loose
        if self._due(event):
            for out in self._passing(event):
                await self._send(out, worker)
        self._fenced = False
        await self._release(worker)

    async def _one(self, event: Event) -> list[Event]:
        """Run a call that gives one result or none."""
        scheduler = self.scheduler
        start = scheduler.clock()
        scheduler.current = self
        try:
            out = await self.call(event)
        except (*RAISED, asyncio.CancelledError) as error:
            if _told_to_stop(error):
                raise
            return list(self._failure(event, error))
        finally:
            took = scheduler.clock() - start
            self.service_ns += took
            self.histogram[took.bit_length()] += 1
            self.processed += 1
        return [] if out is None else [out]

    async def _stream(self, ticket: int, event: Event, worker: _Worker) -> None:
        """Run a call that gives a stream; it emits as it comes once it is this event's turn."""
        scheduler = self.scheduler
        clock = scheduler.clock
        stream = self.call(event)
        mine = not self._ordered
        lineage = event.lineage
        blocked = worker.blocked_ns
        start = clock()
        try:
            scheduler.current = self
            async for out in stream:
                lineage = out.lineage
                if not mine:
                    await self._turn(ticket)
                    mine = True
                await self._send(out, worker)
                if clock() >= scheduler.slice_end:
                    await scheduler.yield_slice()
                scheduler.current = self
        except (*RAISED, asyncio.CancelledError) as error:
            if _told_to_stop(error):
                raise
            if not mine:
                await self._turn(ticket)
                mine = True
            for out in self._failure(event, error, lineage):
                await self._send(out, worker)
        finally:
            await stream.aclose()
            took = clock() - start - (worker.blocked_ns - blocked)
            self.service_ns += took
            self.histogram[took.bit_length()] += 1
            self.processed += 1
        if not mine:
            await self._turn(ticket)
        await self._release(worker)

    async def _settle(self, ticket: int, results: list[Event], worker: _Worker) -> None:
        """Emit a ticket's results when it is their turn; until then they wait, if they may without their worker."""
        if self._ordered and ticket != self._head:
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

    async def _release(self, worker: _Worker) -> None:
        """Give the turn on: emit the held results that follow, then let the next waiting worker go."""
        if not self._ordered:
            return
        self._head += 1
        while self._head in self._held:
            results = self._held.pop(self._head)
            self._take_in()
            for out in results:
                await self._send(out, worker)
            self._head += 1
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

    async def _send(self, out: Event, worker: _Worker) -> None:
        """Send one event on, and wait until every receiver has taken it."""
        if self.closed:
            return
        scheduler = self.scheduler
        now = scheduler.clock()
        scheduler.enter(worker, now)
        if out.kind in CONTROL:
            self._pass(out)
            self._report(out, now, worker)
        else:
            self._emit(out, now, worker)
        if worker.pending:
            self._blocked += 1
            try:
                scheduler.run_ready()
                if worker.pending:
                    await worker.taken()
            finally:
                self._blocked -= 1
                took = scheduler.clock() - now
                self.blocked_ns += took
                worker.blocked_ns += took
        scheduler.run_ready()

    def _finished(self) -> None:
        super()._finished()
        while self._idle:
            self._idle.popleft().set_result(None)


def _told_to_stop(error: BaseException) -> bool:
    """Whether this worker was cancelled, rather than the user's code raising the like by itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)
