"""The guardian of coroutines, streams and threads: up to `workers` events at once, whose results leave in order.

See `guardian` for the contract. Workers are tasks that are started when first needed and then stay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Any

from aiflow_jupyter.events import CONTROL, DATA, Event
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.admission import CONTROL_STAMP, skip
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.guardian import Owner
from aiflow_jupyter.runtime.order import OrderedGuardian
from aiflow_jupyter.runtime.scheduler import Scheduler


class Worker:
    """One worker of a `WorkerGuardian`: a task, and where it waits while its output is refused.

    Attributes:
        since: when what is in service now began, 0 for nothing.
        blocked_at: since when its output waits for a receiver, 0 where none does.
    """

    __slots__ = ("blocked_at", "future", "node", "pending", "since")

    def __init__(self, node: str) -> None:
        self.node = node
        self.since = self.blocked_at = 0
        self.pending = 0
        self.future: asyncio.Future[None] | None = None

    def resume(self) -> None:
        """Go on: every receiver has taken the output."""
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class WorkerGuardian(OrderedGuardian):
    """Runs coroutines, streams or threads: up to `workers` events at once, results in order.

    Workers are tasks, started when first needed. One wake-up is under way at a time: a woken worker wakes the next
    while the queue still holds events. `_spare` of them have nothing to do, or have not been started.

    What happens for every event stands in `_work` in one piece, and one reading of the clock is handed from step to
    step: each further call, coroutine or reading of the clock costs as much as a tenth of the whole hop.
    """

    __slots__ = (
        "_crew",
        "_fenced",
        "_idle",
        "_in_service",
        "_loose",
        "_refilling",
        "_spare",
        "_tasks",
        "_waking",
    )

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
        self._loose = policy.order == "none" and policy.workers > 1
        self._fenced = False
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waking = self._refilling = False
        self._spare = policy.workers
        self._tasks: set[asyncio.Task[None]] = set()
        self._crew: list[Worker] = []
        self._in_service = 0

    def active(self) -> int:
        """Events that a worker has taken and not yet settled."""
        return self._in_service

    def blocked(self) -> bool:
        """Whether any worker waits for a receiver."""
        return any(worker.blocked_at for worker in self._crew)

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is one of the workers."""
        return task in self._tasks

    def busy_for(self, now: int) -> int:
        """Also what is in service now."""
        return self.service_ns + sum(now - since for worker in self._crew if (since := worker.since))

    def blocked_for(self, now: int) -> int:
        """Also what is blocked now."""
        return self.blocked_ns + sum(now - at for worker in self._crew if (at := worker.blocked_at))

    def working(self) -> bool:
        """Whether a worker goes on by itself: it has something to do, and waits for no receiver and not for its turn.

        One that was just told to go on, or lets the loop turn, does.
        """
        if self._refilling:
            return True
        alive = sum(not task.done() for task in self._tasks)
        waits = self.behaviour.waits() if self.behaviour.waits is not None else 0
        return alive > len(self._idle) + len(self._turns) + sum(worker.pending > 0 for worker in self._crew) + waits

    def push(self, event: Event, now: int) -> bool:
        """Queue an event, and see that a worker looks at it."""
        if self.closed:
            return True
        queue = self.queue  # as `_admit` does it, where there is room
        depth = len(queue) - self.exempt
        if depth < self.limit and not self.waiters and not self.bytes_limit:
            queue.append((event, now))
            if depth >= self.peak:
                self.peak = depth + 1
        elif self.blocks or not self._admit(event, now):
            return False
        else:
            depth = len(queue) - self.exempt - 1
        owned = depth + 1 + self._in_service + len(self._held)
        if owned > self.most:
            self._note(owned)
        if self.keeps:
            self._note_kept()
        if self._spare and not self._waking:
            self._wake()
        return True

    def signal(self, event: Event) -> None:
        """Queue a control event, and see that a worker looks at it."""
        if self.closed:
            return
        if self.gate is not None:
            self.gate.judge(event)
        self._queue_control(event)
        self.start()

    def start(self) -> None:
        """See that a worker looks at what waits."""
        if not self._waking:
            self._wake()

    def resume_serving(self) -> None:
        """Serve again; one worker wakes the next while there is something to do."""
        self.paused = False
        if self.queue:
            self.start()

    def close(self) -> None:
        """Stop, and cancel the workers."""
        super().close()
        for task in self._tasks:
            task.cancel()

    def at_rest(self) -> bool:
        """Also no worker is left."""
        return all(task.done() for task in self._tasks) and super().at_rest()

    async def wait_closed(self) -> None:
        """Wait for the workers, then release what the node holds open."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await super().wait_closed()

    def _wake(self) -> None:
        """Have one more worker look at the queue, if one is free."""
        if self.paused:
            return
        if self._idle:
            self._waking = True
            self._spare -= 1
            self._idle.popleft().set_result(None)
        elif len(self._tasks) < self.workers:
            self._waking = True
            self._spare -= 1
            task = self.scheduler.loop.create_task(self._safely(), name=f"aiflow:{self.node}")
            self._tasks.add(task)
            task.add_done_callback(self._worker_ended)

    async def _safely(self) -> None:
        """Work; what would end the whole loop is this node's failure."""
        try:
            await self._work()
        except (SystemExit, KeyboardInterrupt) as error:
            self.owner.failed(self, Event("error", source=self.node), error)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.owner.failed(self, Event("error", source=self.node), error)

    async def _work(self) -> None:  # noqa: C901, PLR0912, PLR0915 - in one piece for its speed, see the class
        scheduler = self.scheduler
        clock = scheduler.clock
        queue = self.queue
        worker = Worker(self.node)
        self._crew.append(worker)
        streams = self.behaviour.mode == "stream"
        ordered = self._ordered
        loose = self._loose
        several = self.workers > 1
        routes = self.behaviour.routes  # a result is a port and an event then
        ticket = 0
        turned = True  # the loop has, since the last event was taken: a call that waits gives room to one at a time
        call = self.call
        now = clock()
        scheduler.enter(worker, now)
        self._waking = False
        while not self.closed:
            if not queue or self.paused or (loose and self._at_fence()):
                if self.done and not queue:
                    return
                if self.cycle is not None:
                    self.cycle.settled()
                await self._woken()
                now = clock()
                scheduler.enter(worker, now)
                continue
            event, stamp = queue.popleft()
            if ordered:
                ticket = self._tickets
                self._tickets = ticket + 1
            if stamp == CONTROL_STAMP:
                await self._control(ticket, event, worker)
                now = clock()
                continue
            if scheduler.owner is not worker:
                scheduler.enter(worker, now)
                turned = True
            self._in_service += 1
            try:
                if stamp < 0:
                    stamp = -stamp
                    self._took_fed(event, now)
                elif self.bytes_limit:
                    self._let_go(event)
                self.wait_ns += now - stamp
                if not self.first_ns:
                    self.first_ns = now
                if self.lag_ns is not None:
                    self.lag_ns += now - event.time
                if self.waiters:
                    few = len(queue) - self.exempt <= self.limit >> 2
                    if turned or few or len(self.waiters) > 1 or not self.blocks:
                        self._let_in(now)
                        if scheduler.ready:
                            scheduler.run_ready()
                            now = clock()
                    elif not self._refilling:
                        self._refilling = True
                        scheduler.at_next_turn(self._refill)
                turned = False
                if several and queue:
                    self._wake()
                if streams:
                    await self._stream(ticket, event, worker)
                    now = clock()
                else:
                    scheduler.current = self
                    worker.since = now
                    try:
                        out = await call(event)
                    except BaseException as error:  # whatever it is, it is this node's failure, never the loop's
                        worker.since = 0
                        self._served(clock() - now)
                        if told_to_stop(error, self._tasks):
                            raise
                        await self._failed_call(ticket, event, error, worker)
                    else:
                        worker.since = 0
                        start = now
                        now = clock()
                        took = now - start
                        self.service_ns += took
                        self.histogram[took.bit_length()] += 1
                        self.processed += 1
                        if ordered:
                            await self._settle(ticket, self._results(event, out), worker)
                        elif out is None:
                            if self.holds is not None:
                                self._note_kept()
                            if self.skips:
                                await self._send(skip(event, self.node), worker)
                        elif not self.closed:
                            if scheduler.owner is not worker:
                                scheduler.enter(worker, now)
                                turned = True
                            if not routes and out.kind in CONTROL:
                                await self._send(out, worker)
                            else:
                                self._emit(out, now, worker)
                                if scheduler.ready:
                                    scheduler.run_ready()
                                if worker.pending:
                                    await self._taken(worker, now)
                    now = clock()
            finally:
                self._in_service -= 1
            if now >= scheduler.slice_end:
                await scheduler.yield_slice()
                now = clock()
                scheduler.enter(worker, now)

    def _refill(self) -> None:
        """The loop has turned: whoever waits for room that there is gets it."""
        self._refilling = False
        now = self.scheduler.clock()
        self.scheduler.enter(self, now)
        self._let_in(now)
        self.scheduler.run_ready()

    def _results(self, event: Event, out: Event | None) -> list[Event]:
        if out is not None:
            return [out]
        return [skip(event, self.node)] if self.skips else []

    async def _woken(self) -> None:
        """Wait for something to do."""
        idle = self.scheduler.loop.create_future()
        self._idle.append(idle)
        self._spare += 1
        await idle
        self._waking = False

    def _at_fence(self) -> bool:
        """Without order: whether a control event is acting, or comes next while data before it is in service."""
        return self._fenced or (self.queue[0][1] == CONTROL_STAMP and self._in_service > 0)

    async def _control(self, ticket: int, event: Event, worker: Worker) -> None:
        self.exempt -= 1
        if self.waiters:
            self._let_in(self.scheduler.clock())
            self.scheduler.run_ready()
        if self._ordered:
            if self.queue:
                self._wake()
            await self._turn(ticket)
        self._fenced = self._loose
        due = self._due(event)
        if due is not None:
            for out in self._passing(due):
                if self.behaviour.recalls and out.kind in DATA:
                    await self._recall(out, worker)
                elif out.kind != "finish" or not out.complete or out.lineage not in self.endings.broken:
                    await self._send(out, worker)
        self._fenced = False
        if self._ordered:
            await self._release(worker)

    async def _recall(self, event: Event, worker: Worker) -> None:
        """Put what a control event let go through the call; its results take the control event's place in the order."""
        clock = self.scheduler.clock
        failure: BaseException | None = None
        took = 0
        async with aclosing(self._called(event)) as results:
            while True:
                start = worker.since = clock()
                try:
                    out = await anext(results, None)
                except BaseException as error:  # as in `_work`
                    if told_to_stop(error, self._tasks):
                        raise
                    failure, out = error, None
                finally:
                    took += clock() - start
                    worker.since = 0
                if out is None:
                    break
                await self._send(out, worker)
        self._served(took)
        if failure is not None:
            for out in self._failure(event, failure):
                await self._send(out, worker)

    async def _called(self, event: Event) -> AsyncGenerator[Event, None]:
        """The results of one call, as a stream whatever its mode."""
        if self.behaviour.mode != "stream":
            out = await self.call(event)
            if out is not None:
                yield out
            return
        async with aclosing(self.call(event)) as stream:
            async for out in stream:
                yield out

    async def _stream(self, ticket: int, event: Event, worker: Worker) -> None:  # noqa: C901 - in one piece, as `_work`
        """Run a call that gives a stream; it emits as it comes once it is this event's turn.

        Its service is the time until each of its outputs came; what those then wait for is not.
        """
        scheduler = self.scheduler
        clock = scheduler.clock
        scheduler.current = self
        stream = self.call(event)
        lineage = event.lineage
        failure: BaseException | None = None
        took = 0
        start = worker.since = clock()
        try:
            async for out in stream:
                took += (step := clock() - start)
                self.service_ns += step
                worker.since = 0
                lineage = out.lineage
                if ticket != self._head:  # both stay 0 where there is no order
                    await self._turn(ticket)
                await self._send(out, worker)
                start = clock()
                if start >= scheduler.slice_end:
                    await scheduler.yield_slice()
                    start = clock()
                scheduler.enter(worker, start)
                scheduler.current = self
                worker.since = start
        except BaseException as error:  # as in `_work`
            if told_to_stop(error, self._tasks):
                raise
            failure = error
        finally:
            if worker.since:
                took += (step := clock() - start)
                self.service_ns += step
                worker.since = 0
            await stream.aclose()
            self.histogram[took.bit_length()] += 1
            self.processed += 1
            if self.holds is not None:
                self._note_kept()
        await self._turn(ticket)
        if failure is not None:
            recalls = self.behaviour.recalls
            for out in self._failure(event, failure, lineage):
                await (self._recall if recalls and out.kind in DATA else self._send)(out, worker)
        if self._ordered:
            await self._release(worker)

    async def _failed_call(self, ticket: int, event: Event, error: BaseException, worker: Worker) -> None:
        """Send what leaves in place of a call's result, in its turn where there is order."""
        results = list(self._failure(event, error))
        if self._ordered:
            await self._settle(ticket, results, worker)
            return
        recalls = self.behaviour.recalls
        for out in results:
            await (self._recall if recalls and out.kind in DATA else self._send)(out, worker)

    async def _send(self, out: Event, worker: Worker) -> None:
        """Send one event on, and wait until every receiver has taken it."""
        if self.closed:
            return
        now = self.scheduler.clock()
        if self._put(out, now, worker):
            await self._taken(worker, now)

    def _put(self, out: Any, now: int, worker: Worker) -> bool:
        """Send one event on (with its port where the node routes); True when a receiver has yet to take it."""
        scheduler = self.scheduler
        if scheduler.owner is not worker:
            scheduler.enter(worker, now)
        if isinstance(out, Event) and out.kind in CONTROL:
            self._pass(out, worker)
            self._report(out, now, worker)
        else:
            self._emit(out, now, worker)
        if scheduler.ready:
            scheduler.run_ready()
        return worker.pending > 0

    async def _taken(self, worker: Worker, since: int) -> None:
        """Wait until every receiver has taken the output."""
        scheduler = self.scheduler
        if not self.owner.watching:
            self.owner.watch()
        worker.future = scheduler.loop.create_future()
        worker.blocked_at = since
        try:
            await worker.future
        finally:
            worker.future = None
            worker.blocked_at = 0
            self.blocked_ns += scheduler.clock() - since

    def _finished(self) -> None:
        super()._finished()
        while self._idle:
            self._idle.popleft().set_result(None)


def told_to_stop(error: BaseException, workers: Collection[asyncio.Task[None]]) -> bool:
    """Whether this worker was cancelled or thrown away, rather than the user's code raising the like by itself."""
    if not isinstance(error, GeneratorExit | asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # the loop is gone, and with it the worker
        return True
    if isinstance(error, GeneratorExit):
        return task not in workers
    return task is None or task.cancelling() > 0
