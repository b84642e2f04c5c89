"""Guardians: each owns one node's queue, workers, order, overflow rule and counters.

Two kinds, one contract. An `InlineGuardian` runs a function on the loop: while its receiver keeps up, an event goes
down a chain of them as plain calls, and the queue holds events only while the node is busy or blocked. A
`WorkerGuardian` runs coroutines, streams of a provider, or functions in threads, with up to `workers` at once.

    push(event)                 admitted?
        |          queue full     no  -> block: False, the sender parks   drop_*: one event is discarded
        |                                error: the event is a failure
        v         worker free                     receiver took it
      IDLE  ---------------------->  RUNNING  --------------------------->  IDLE
        ^                               |                                     ^
        |                               | receiver refused (its queue is full)|
        |                               v            hand_over: the receiver takes the parked output
        |                            BLOCKED  --------------------------------+
        +-- `end` came on every input and nothing is left:  DONE.   `close` (cancel, failure): CLOSED, nothing is emitted

Order: a worker that takes an event takes a ticket. The results leave in the order of the tickets: the holder of the
lowest one emits; at most `reorder` finished results wait for their turn while their workers go on, and past that a
worker waits with its result. An event that gave nothing, failed or was filtered is a result too, so there are no gaps.

Control events are never refused and never dropped; `finish`, `end` and `error` keep their place among the data, also
under `order=none`: there one acts once all that was taken before it is through, and nothing is taken until it has.

An event that fails leaves as a `Failure` by the port `error`, and as an `error` event by all others.

Bound: a node owns at most `queue` events waiting, `workers` in service, and `reorder` finished ones. `owned()` says
how many it owns now, `bound` how many it may.

The paper is arXiv 2608.00558, algorithm 1; where it is silent the rules are this project's own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from types import MappingProxyType
from typing import Protocol

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import CONTROL, Event, Failure
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.scheduler import Scheduler

CUT_EVERY = 32
"""Every so many inline nodes in a row one always queues, so that a long chain does not use up the stack."""

BUCKETS = 64
"""Service times are counted by the bit length of their nanoseconds: 64 buckets are enough for 292 years."""

_CONTROL_STAMP = -1

_RAISED = (Exception, SystemExit)
"""What a user's code may raise and a node's failure is made of; `exit()` in a cell's function ends no loop."""


class Owner(Protocol):
    """What a guardian reports to: its run."""

    def failed(self, guardian: Guardian, event: Event, error: BaseException) -> None:
        """A node without an `error` port raised."""

    def ended(self, guardian: Guardian) -> None:
        """A node took `end` on all its inputs and is empty."""


class Parked(Protocol):
    """Whoever waits for a refused event to be taken in: `pending` receivers still have to take it."""

    pending: int

    def resume(self) -> None:
        """The last receiver took it."""


class Guardian:
    """What both kinds share: the queue and its rules, the edges, the counters.

    Args:
        node: the node's name.
        behaviour: what it does with an event.
        policy: what it may hold and how.
        scheduler: the loop's scheduler.
        owner: the run.
    """

    __slots__ = (
        "behaviour",
        "blocked_ns",
        "bound",
        "broken",
        "call",
        "closed",
        "controls",
        "done",
        "dropped",
        "emitted",
        "ends",
        "errors",
        "finishes",
        "first_ns",
        "histogram",
        "inputs",
        "limit",
        "node",
        "overflow",
        "owner",
        "peak",
        "policy",
        "ports",
        "processed",
        "queue",
        "scheduler",
        "service_ns",
        "single",
        "unrouted",
        "wait_ns",
        "waiters",
        "workers",
    )

    def __init__(self, node: str, behaviour: Behaviour, policy: Policy, scheduler: Scheduler, owner: Owner) -> None:
        self.node = node
        self.behaviour = behaviour
        self.call = behaviour.call
        self.policy = policy
        self.scheduler = scheduler
        self.owner = owner
        self.limit = policy.queue
        self.overflow = policy.overflow
        self.workers = policy.workers
        self.bound = policy.queue + policy.workers + policy.held_results
        self.inputs = 0
        self.ports: dict[str, tuple[Guardian, ...]] = {}
        self.single: Guardian | None = None
        self.queue: deque[tuple[Event, int]] = deque()
        self.waiters: deque[tuple[Event, Parked]] = deque()
        self.controls = 0
        self.ends = 0
        self.finishes: dict[str, tuple[int, Event]] = {}
        self.broken: set[str] = set()
        self.closed = False
        self.done = False
        self.processed = self.emitted = self.dropped = self.errors = self.unrouted = 0
        self.peak = self.wait_ns = self.service_ns = self.blocked_ns = self.first_ns = 0
        self.histogram = [0] * BUCKETS

    # -- wiring

    def connect(self, ports: dict[str, list[Guardian]]) -> None:
        """Set the edges out of this node: receivers by port, `""` for the plain output.

        Receivers with workers come first, so that inline ones do not delay them.
        """
        self.ports = {
            port: tuple(sorted(nodes, key=lambda g: isinstance(g, InlineGuardian))) for port, nodes in ports.items()
        }
        plain = self.ports.get("", ())
        self.single = plain[0] if len(plain) == 1 and self.behaviour.port is None else None

    # -- state, for people and for the bound

    @property
    def depth(self) -> int:
        """Data events that wait in the queue now."""
        return len(self.queue) - self.controls

    def active(self) -> int:
        """Events in service now, blocked ones included."""
        raise NotImplementedError

    def held(self) -> int:
        """Finished results that wait for their turn now."""
        return 0

    def blocked(self) -> bool:
        """Whether an output waits for its receiver now."""
        raise NotImplementedError

    def owned(self) -> int:
        """Data events that this node owns now; never more than `bound`."""
        return self.depth + self.active() + self.held()

    # -- admission

    def push(self, event: Event, now: int) -> bool:
        """Take in a data event; False when the queue is full and the sender has to park it.

        Args:
            event: a data event.
            now: the clock, read by the sender just before.
        """
        raise NotImplementedError

    def signal(self, event: Event) -> None:
        """Take in a control event; never refused."""
        raise NotImplementedError

    def park(self, event: Event, sender: Parked) -> None:
        """Remember a sender whose event was refused; it is taken in first come, first served."""
        sender.pending += 1
        self.waiters.append((event, sender))

    def _admit(self, event: Event, now: int) -> bool:
        queue = self.queue
        depth = len(queue) - self.controls
        if depth >= self.limit or self.waiters:
            if self.overflow == "block":
                return False
            if not self._overflow(event):
                return True
            depth -= 1
        queue.append((event, now))
        if depth >= self.peak:
            self.peak = depth + 1
        return True

    def _overflow(self, event: Event) -> bool:
        """Apply a rule that does not block to a full queue; True when there is room for `event` now."""
        if self.overflow == "error":
            full = RunError(
                f"node {self.node!r}: its queue of {self.limit} is full and its policy is overflow=error",
                code="AF602",
                hint="give it a larger queue or more workers, or use overflow=block",
            )
            self._failed(event, full)
            if not self.closed:
                self.queue.append((self._error_event(event, full), _CONTROL_STAMP))
                self.controls += 1
            return False
        self.dropped += 1
        if self.overflow == "drop_newest":
            return False
        for index, (_, stamp) in enumerate(self.queue):
            if stamp != _CONTROL_STAMP:
                del self.queue[index]
                break
        return True

    def _hand_over(self, now: int) -> None:
        """Give the slot that was just freed to the sender that has waited longest."""
        event, sender = self.waiters.popleft()
        self.queue.append((event, now))
        depth = len(self.queue) - self.controls
        if depth > self.peak:
            self.peak = depth
        sender.pending -= 1
        if not sender.pending:
            sender.resume()

    # -- emission

    def _receivers(self, event: Event) -> tuple[Guardian, ...]:
        port = self.behaviour.port
        if port is None:
            nodes = self.ports.get("", ())
        else:
            name = port(event)
            nodes = self.ports.get(name) or self.ports.get("else", ())
        if not nodes:
            self.unrouted += 1
        return nodes

    def _emit(self, event: Event, now: int, sender: Parked) -> None:
        """Send a data event on; afterwards `sender.pending` says how many receivers refused it."""
        self.emitted += 1
        receiver = self.single
        if receiver is not None:
            if not receiver.push(event, now):
                receiver.park(event, sender)
            return
        clock = self.scheduler.clock
        for receiver in self._receivers(event):
            if not receiver.push(event, now):
                receiver.park(event, sender)
            now = clock()

    def _pass(self, event: Event) -> None:
        """Send a control event on by every port; by the port `error` a failure leaves as data (`_report`)."""
        failure = event.kind == "error"
        for port, nodes in self.ports.items():
            if not (failure and port == "error"):
                for node in nodes:
                    node.signal(event)
        if event.kind == "error":
            self.broken.add(event.lineage)
        elif event.kind == "end":
            self._finished()

    def _report(self, event: Event, now: int, sender: Parked) -> None:
        """Send what an `error` event of this node tells to whoever handles its failures."""
        if event.kind != "error" or event.source != self.node:
            return
        failure = event.derive(event.payload, "value")
        for receiver in self.ports.get("error", ()):
            if not receiver.push(failure, now):
                receiver.park(failure, sender)

    def _failed(self, event: Event, error: BaseException) -> None:
        self.errors += 1
        if not self.ports.get("error"):
            self.owner.failed(self, event, error)

    def _error_event(self, event: Event, error: BaseException) -> Event:
        return Event(
            "error",
            Failure(self.node, event.sequence, error),
            event.conversation,
            self.node,
            event.sequence,
            self.scheduler.clock(),
            event.lineage,
            _INCOMPLETE,
        )

    # -- control

    def _due(self, event: Event) -> bool:
        """Whether a control event acts now.

        With several inputs `finish` and `end` wait for the last of them, or `finish` for the end where some give none;
        an answer that broke off never finishes.
        """
        if event.kind == "end":
            self.ends += 1
            return self.ends >= self.inputs
        if event.kind == "finish":
            if self.behaviour.answers or event.lineage in self.broken:
                return False
            if self.inputs > 1:
                count = self.finishes.pop(event.lineage, (0, event))[0] + 1
                if count < self.inputs:
                    self.finishes[event.lineage] = (count, event)
                    return False
        return True

    def _passing(self, event: Event) -> Iterator[Event]:
        """What leaves because of a control event: what the operator held back, then the event itself."""
        if event.kind == "end":
            waiting = [finish for _, finish in self.finishes.values() if finish.lineage not in self.broken]
            self.finishes.clear()
            for finish in waiting:
                yield from self._passing(finish)
        flush = self.behaviour.flush
        if flush is not None:
            try:
                yield from flush(event)
            except _RAISED as error:
                self._failed(event, error)
                broken = self._error_event(event, error)
                if event.kind != "end":
                    event = broken
                else:
                    yield broken
        yield event

    def _failure(self, event: Event, error: BaseException) -> Iterator[Event]:
        """What leaves instead of a result."""
        self._failed(event, error)
        return self._passing(self._error_event(event, error))

    def _finished(self) -> None:
        self.done = True
        self.owner.ended(self)

    # -- the end

    def close(self) -> None:
        """Stop at once: nothing is admitted, served or emitted any more."""
        self.closed = True
        self.queue.clear()
        self.waiters.clear()
        self.controls = 0
        self.finishes.clear()

    async def wait_closed(self) -> None:
        """Wait until no asynchronous code of this node runs any more, then release what the node holds open."""
        close = self.behaviour.close
        if close is not None:
            result = close()
            if result is not None:
                await result


class InlineGuardian(Guardian):
    """Runs a function on the loop, one event at a time.

    `busy` from the moment an event is taken until its last output was taken in and the queue is empty.
    """

    __slots__ = ("_blocked_at", "_rest", "busy", "cut", "iterates", "pending")

    def __init__(
        self, node: str, behaviour: Behaviour, policy: Policy, scheduler: Scheduler, owner: Owner, *, cut: bool = False
    ) -> None:
        super().__init__(node, behaviour, policy, scheduler, owner)
        self.iterates = behaviour.mode == "iterate"
        self.cut = cut
        self.busy = False
        self.pending = 0
        self._rest: Iterator[Event] | None = None
        self._blocked_at = 0

    def active(self) -> int:
        """One from the first event until the queue is empty."""
        return 1 if self.busy else 0

    def blocked(self) -> bool:
        """Whether the last output waits for a receiver."""
        return self.pending > 0

    def push(self, event: Event, now: int) -> bool:
        """Serve an event at once where the node is idle, else queue it."""
        if self.closed:
            return True
        if self.busy or self.cut or self.queue or now >= self.scheduler.slice_end:
            if not self._admit(event, now):
                return False
            if not self.busy and self.queue:
                self.busy = True
                self.scheduler.loop.call_soon(self._later)
            return True
        self.busy = True
        self._serve(event, now)
        if not self.pending and self._rest is None:
            if self.queue:
                self._drain()
            else:
                self.busy = False
        return True

    def signal(self, event: Event) -> None:
        """Let a control event act at once where the node is idle, else queue it."""
        if self.closed:
            return
        if self.busy or self.queue or self.cut:
            self.queue.append((event, _CONTROL_STAMP))
            self.controls += 1
            if not self.busy:
                self.busy = True
                self.scheduler.loop.call_soon(self._later)
            return
        self.busy = True
        self._control(event)
        if not self.pending and self._rest is None:
            self._drain()

    def close(self) -> None:
        """Stop, and let go of the outputs that are left."""
        super().close()
        self._rest = None

    def proceed(self) -> None:
        """Go on after the parked output was taken in."""
        if self.closed:
            return
        self.blocked_ns += self.scheduler.clock() - self._blocked_at
        self._go_on()

    def _go_on(self) -> None:
        if self._rest is not None:
            self._pump()
        if not self.pending and self._rest is None:
            self._drain()

    def resume(self) -> None:
        """Go on from the ready list, not from the stack of the receiver."""
        self.scheduler.ready.append(self)

    def _serve(self, event: Event, start: int) -> None:
        scheduler = self.scheduler
        scheduler.current = self
        if not self.first_ns:
            self.first_ns = start
        if self.iterates:
            self._rest = self._iterate(event)
            self._pump()
            return
        try:
            out = self.call(event)
        except _RAISED as error:
            self.processed += 1
            self._rest = self._failure(event, error)
            self._pump()
            return
        now = scheduler.clock()
        took = now - start
        self.service_ns += took
        self.histogram[took.bit_length()] += 1
        self.processed += 1
        if out is not None and not self.closed:
            self._emit(out, now, self)
            if self.pending:
                self._blocked_at = now

    def _iterate(self, event: Event) -> Iterator[Event]:
        try:
            yield from self.call(event)
        except _RAISED as error:
            yield from self._failure(event, error)
        self.processed += 1

    def _pump(self) -> None:
        """Emit what is left of one event's outputs, one by one, until it is empty or blocked, or the slice is over."""
        rest = self._rest
        assert rest is not None
        scheduler = self.scheduler
        clock = scheduler.clock
        start = clock()
        while not self.closed:
            out = next(rest, None)
            now = clock()
            self.service_ns += now - start
            self.histogram[(now - start).bit_length()] += 1
            if out is None:
                self._rest = None
                return
            if self.closed:
                return
            if out.kind in CONTROL:
                self._pass(out)
                self._report(out, now, self)
            else:
                self._emit(out, now, self)
            if self.pending:
                self._blocked_at = now
                return
            start = clock()
            if start >= scheduler.slice_end:
                self._later_on()
                return

    def _control(self, event: Event) -> None:
        if self._due(event):
            self._rest = self._passing(event)
            self._pump()

    def _drain(self) -> None:
        """Serve what is queued, until it is empty, blocked, or the slice is over."""
        scheduler = self.scheduler
        clock = scheduler.clock
        queue = self.queue
        while queue:
            event, stamp = queue.popleft()
            if stamp == _CONTROL_STAMP:
                self.controls -= 1
                self._control(event)
            else:
                now = clock()
                self.wait_ns += now - stamp
                if self.waiters:
                    self._hand_over(now)
                self._serve(event, now)
            if self.pending or self.closed:
                return
            if self._rest is not None:
                return
            if queue and clock() >= scheduler.slice_end:
                self._later_on()
                return
        self.busy = False

    def _later_on(self) -> None:
        """The slice is over: let the loop turn, then go on."""
        self.scheduler.used_up()
        self.scheduler.loop.call_soon(self._later)

    def _later(self) -> None:
        """Serve what is left and what is queued in a slice of its own."""
        if self.closed:
            return
        scheduler = self.scheduler
        scheduler.enter(self, scheduler.clock())
        self._go_on()
        scheduler.run_ready()


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
        self.queue.append((event, _CONTROL_STAMP))
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
            if stamp == _CONTROL_STAMP:
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
        return self._fenced or (self.queue[0][1] == _CONTROL_STAMP and self._in_service > 0)

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
        except (*_RAISED, asyncio.CancelledError) as error:
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
        blocked = worker.blocked_ns
        start = clock()
        try:
            scheduler.current = self
            async for out in stream:
                if not mine:
                    await self._turn(ticket)
                    mine = True
                await self._send(out, worker)
                if clock() >= scheduler.slice_end:
                    await scheduler.yield_slice()
                scheduler.current = self
        except (*_RAISED, asyncio.CancelledError) as error:
            if _told_to_stop(error):
                raise
            if not mine:
                await self._turn(ticket)
                mine = True
            for out in self._failure(event, error):
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


_INCOMPLETE = MappingProxyType({"complete": False})
