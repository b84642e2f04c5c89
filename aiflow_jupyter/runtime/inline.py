"""The guardian of a function that runs on the loop: an event goes down a chain of these as plain calls.

See `guardian` for the contract. A node that finds itself past the end of a time slice queues and goes on in a slice of
its own, so that a flood holds the loop for a slice at most; every `CUT_EVERY`th node in a row does so always.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiflow_jupyter.events import CONTROL, Event
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.admission import CONTROL_STAMP, skip
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.guardian import Guardian, Owner
from aiflow_jupyter.runtime.scheduler import Scheduler

CUT_EVERY: Final = 32
"""Every so many inline nodes in a row one always queues, so that a long chain does not use up the stack."""


class InlineGuardian(Guardian):
    """Runs a function on the loop, one event at a time.

    `busy` from the moment an event is taken until its last output was taken in and the queue is empty; also while it
    is paused, so that nothing is served in passing.
    """

    inline = True

    __slots__ = ("_blocked_at", "_rest", "_scheduled", "_serving", "_took", "busy", "cut", "iterates", "pending")

    def __init__(
        self,
        node: str,
        behaviour: Behaviour,
        policy: Policy,
        scheduler: Scheduler,
        owner: Owner,
        bound: int | None = None,
        *,
        cut: bool = False,
    ) -> None:
        super().__init__(node, behaviour, policy, scheduler, owner, bound)
        self.iterates = behaviour.mode == "iterate"
        self.cut = cut
        self.busy = False
        self.pending = 0
        self._rest: Iterator[Event] | None = None
        self._blocked_at = 0
        self._serving = False
        self._scheduled = False
        self._took = 0

    def active(self) -> int:
        """One while an event is in hand: busy, and not merely about to serve or paused."""
        waits = (self.paused or self._scheduled) and self._rest is None and not self.pending
        return 1 if self.busy and not self.closed and not waits else 0

    def blocked(self) -> bool:
        """Whether the last output waits for a receiver."""
        return self.pending > 0

    def blocked_for(self, now: int) -> int:
        """Also what is blocked now."""
        return self.blocked_ns + (now - self._blocked_at if self.pending else 0)

    def working(self) -> bool:
        """Whether a call is under way, or is to go on."""
        return self.busy and not self.pending and not self.paused

    def push(self, event: Event, now: int) -> bool:  # noqa: C901, PLR0912 - in one piece for its speed
        """Serve an event at once where the node is idle, else queue it."""
        if self.closed:
            return True
        if self.busy or self.cut or self.queue or now >= self.scheduler.slice_end:
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
            if depth + self.busy >= self.most:
                self._note(depth + 1 + self.busy)
            if self.keeps:
                self._note_kept()
            if not self.busy and queue:
                self.start()
            return True
        self.busy = True
        try:
            if self._serve(event, now):
                if self.queue:
                    self._drain(self.scheduler.clock())
                else:
                    self.busy = self.paused
                    if self.cycle is not None:
                        self.cycle.settled()
        except BaseException as error:  # noqa: BLE001 - nothing else would end the run
            self._escaped(error)
        return True

    def _escaped(self, error: BaseException) -> None:
        """What was raised outside the function, by what the user put into an event: the node would stay busy."""
        self.owner.failed(self, Event("error", source=self.node), error)

    def signal(self, event: Event) -> None:
        """Let a control event act at once where the node is idle, else queue it."""
        if self.closed:
            return
        if self.gate is not None:
            self.gate.judge(event)
        if self.busy or self.queue or self.cut:
            self._queue_control(event)
            self.start()
            return
        self.busy = True
        try:
            if self._control(event):
                self._drain(self.scheduler.clock())
        except BaseException as error:  # noqa: BLE001 - as in `push`
            self._escaped(error)

    def start(self) -> None:
        """Serve what waits in a slice of its own."""
        if not self.busy:
            self.busy = True
            self._soon()

    def pause(self) -> None:
        """Serve nothing from now on: an idle node seems busy, a busy one stays so."""
        super().pause()
        self.busy = True

    def resume_serving(self) -> None:
        """Serve again what has come meanwhile."""
        self.paused = False
        if not self.pending:
            self._soon()

    def close(self) -> None:
        """Stop, and let go of the outputs that are left."""
        super().close()
        self._rest = None

    def proceed(self) -> None:
        """Go on after the parked output was taken in, or after those that were let in here."""
        if self.closed or self.pending:  # let in by one receiver, and then refused by another
            return
        now = self.scheduler.clock()
        if self._blocked_at:
            self.blocked_ns += now - self._blocked_at
            self._blocked_at = 0
        self._go_on(now)

    def _go_on(self, now: int) -> None:
        try:
            if self._rest is not None:
                self._pump()
                now = self.scheduler.clock()
            if not self.pending and self._rest is None:
                self._drain(now)
        except BaseException as error:  # noqa: BLE001 - as in `push`
            self._escaped(error)

    def resume(self) -> None:
        """Go on from the ready list, not from the stack of the receiver."""
        self.scheduler.ready.append(self)

    def _serve(self, event: Event, start: int) -> bool:  # noqa: C901, PLR0911, PLR0912 - in one piece for its speed
        """Call the function; True when nothing of it is left to be done."""
        scheduler = self.scheduler
        scheduler.current = self
        if not self.first_ns:
            self.first_ns = start
            self.most = self.most or 1
        if self.lag_ns is not None:
            self.lag_ns += start - event.time
        if self.iterates:
            self._rest = self._iterate(event)
            self._serving = True
            self._took = 0
            self._pump()
            return not self.pending and self._rest is None
        try:
            out = self.call(event)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is this node's failure, never the loop's
            self._served(scheduler.clock() - start)
            self._rest = self._failure(event, error)
            self._pump()
            return not self.pending and self._rest is None
        now = scheduler.clock()
        took = now - start
        self.service_ns += took
        self.histogram[took.bit_length()] += 1
        self.processed += 1
        if self.closed:
            return False
        if out is not None:
            receiver = self.single
            if receiver is None:
                self._emit(out, now, self)
            else:  # as `_emit` does it
                self.emitted += 1
                if receiver.push(out, now):
                    return True
                receiver.park(out, self)
            if self.pending:
                self._block(now)
                return False
            return True
        if self.holds is not None:
            self._note_kept()
        if self.skips:
            self._pass(skip(event, self.node), self)
            if self.pending:
                self._block(now)
                return False
        return True

    def _block(self, now: int) -> None:
        self._blocked_at = now
        if not self.owner.watching:
            self.owner.watch()

    def _iterate(self, event: Event) -> Iterator[Event]:
        steps: Iterator[Event] = iter(())
        try:
            steps = iter(self.call(event))
            out = next(steps, None)
        except BaseException as error:  # noqa: BLE001 - as above; a GeneratorExit of the user's too
            yield from self._failure(event, error)
            return
        while out is not None:
            yield out
            try:
                out = next(steps, None)
            except BaseException as error:  # noqa: BLE001 - as above
                yield from self._failure(event, error)
                return

    def _pump(self) -> None:
        """Emit what is left of one event's outputs, one by one, until it is empty or blocked, or the slice is over."""
        rest = self._rest
        assert rest is not None
        scheduler = self.scheduler
        clock = scheduler.clock
        start = clock()
        while not self.closed:
            scheduler.current = self
            out = next(rest, None)
            now = clock()
            self._took += now - start
            if out is None or self.closed:
                self._rest = None
                if self._serving:
                    self._serving = False
                    self._served(self._took)
                if self.holds is not None:
                    self._note_kept()
                return
            if out.kind in CONTROL:
                self._pass(out, self)
                self._report(out, now, self)
            else:
                self._emit(out, now, self)
            if self.pending:
                self._block(now)
                return
            start = clock()
            if start >= scheduler.slice_end:
                self._later_on()
                return

    def _control(self, event: Event) -> bool:
        """Let a control event act; True when nothing of it is left to be done."""
        due = self._due(event)
        if due is not None:
            self._rest = self._passing(due)
            self._pump()
        return not self.pending and self._rest is None

    def _drain(self, now: int) -> None:  # noqa: C901, PLR0912 - in one piece for its speed
        """Serve what is queued, until it is empty, blocked, or the slice is over; `now` was read just before.

        See `admission` for when those that wait are let in; once nothing more is served here, it is at once.
        """
        scheduler = self.scheduler
        clock = scheduler.clock
        queue = self.queue
        few = self.limit >> 2
        while queue and not self.paused:
            event, stamp = queue.popleft()
            if stamp == CONTROL_STAMP:
                self.exempt -= 1
                if self.waiters:
                    self._let_in(clock())
                through = self._control(event)
            else:
                if stamp < 0:
                    stamp = -stamp
                    self._took_fed(event, now)
                elif self.bytes_limit:
                    self._let_go(event)
                self.wait_ns += now - stamp
                if self.waiters and (len(queue) - self.exempt <= few or len(self.waiters) > 1 or not self.blocks):
                    self._let_in(now)
                through = self._serve(event, now)
            now = clock()
            if not through:
                break
            if now >= scheduler.slice_end and queue:
                self._later_on()
                break
            if self.waiters and scheduler.ready:  # who was let in goes on before the next is
                scheduler.ready.append(self)
                break
        else:
            self.busy = self.paused
            if self.cycle is not None:
                self.cycle.settled()
        if self.waiters:
            self._let_in(now)

    def _later_on(self) -> None:
        """The slice is over: let the loop turn, then go on."""
        self.scheduler.used_up()
        self._soon()

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.scheduler.loop.call_soon(self._later)

    def _later(self) -> None:
        """Serve what is left and what is queued in a slice of its own."""
        self._scheduled = False
        if self.closed or self.pending:
            return
        scheduler = self.scheduler
        now = scheduler.clock()
        scheduler.enter(self, now)
        self._go_on(now)
        scheduler.run_ready()
