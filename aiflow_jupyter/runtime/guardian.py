"""Guardians: each owns one node's queue, workers, order, overflow rule and counters.

Two kinds, one contract. An `InlineGuardian` (`inline.py`) runs a function on the loop: while its receiver keeps up, an
event goes down a chain of them as plain calls, and the queue holds events only while the node is busy or blocked. A
`WorkerGuardian` (`workers.py`) runs coroutines, streams of a provider, or functions in threads, with up to `workers` at
once.

    push(event)                 admitted?
        |          queue full     no  -> block: False, the sender parks   drop_*: one event is discarded
        |                                error: the event is a failure
        v         worker free                     receiver took it
      IDLE  ---------------------->  RUNNING  --------------------------->  IDLE
        ^                               |                                     ^
        |                               | receiver refused (its queue is full)|
        |                               v            hand_over: the receiver takes the parked output
        |                            BLOCKED  --------------------------------+
        +-- `end` came on every input and nothing is left:  DONE.   `close` (cancel, failure): CLOSED, emits nothing

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

from collections import deque
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Protocol

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event, Failure
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.scheduler import Scheduler

BUCKETS = 64
"""Service times are counted by the bit length of their nanoseconds: 64 buckets are enough for 292 years."""

CONTROL_STAMP = -1
"""Stands in the queue in place of the time of admission, for a control event."""


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

    inline = False
    """Whether `push` may run the node's function, and all that follows it, before it returns."""

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
        self.bound = policy.bound
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
        self.ports = {port: tuple(sorted(nodes, key=lambda g: g.inline)) for port, nodes in ports.items()}
        plain = self.ports.get("", ())
        self.single = plain[0] if len(plain) == 1 and not self.behaviour.routes else None

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
                self.queue.append((self._error_event(event, full), CONTROL_STAMP))
                self.controls += 1
            return False
        self.dropped += 1
        if self.overflow == "drop_newest":
            return False
        for index, (_, stamp) in enumerate(self.queue):
            if stamp != CONTROL_STAMP:
                del self.queue[index]
                break
        return True

    def _hand_over(self, now: int) -> None:
        """Give the slot that was just freed to the sender that has waited longest."""
        event, sender = self.waiters.popleft()
        self.queue.append((event, now))
        depth = len(self.queue) - self.controls
        self.peak = max(self.peak, depth)
        sender.pending -= 1
        if not sender.pending:
            sender.resume()

    # -- emission

    def _emit(self, out: Any, now: int, sender: Parked) -> None:
        """Send a data event on (with its port where the node routes); `sender.pending` then counts who refused it."""
        self.emitted += 1
        receiver = self.single
        if receiver is not None:
            if not receiver.push(out, now):
                receiver.park(out, sender)
            return
        if self.behaviour.routes:
            port, event = out
            nodes = self.ports.get(port) or self.ports.get("else", ())
        else:
            event, nodes = out, self.ports.get("", ())
        if not nodes:
            self.unrouted += 1
        clock = self.scheduler.clock
        for receiver in nodes:
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

    def _error_event(self, event: Event, error: BaseException, lineage: str | None = None) -> Event:
        return Event(
            "error",
            Failure(self.node, event.sequence, error),
            event.conversation,
            self.node,
            event.sequence,
            self.scheduler.clock(),
            event.lineage if lineage is None else lineage,
            _INCOMPLETE,
        )

    def _served(self, took: int) -> None:
        """Book one event's service: the nanoseconds that its call took, without what it waited for others."""
        self.service_ns += took
        self.histogram[took.bit_length()] += 1
        self.processed += 1

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
        control = self.behaviour.control
        if control is not None:
            try:
                yield from control(event)
                if event.kind != "end":
                    return
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is this node's failure, never the loop's
                self._failed(event, error)
                broken = self._error_event(event, error)
                if event.kind != "end":
                    event = broken
                else:
                    yield broken
        yield event

    def _failure(self, event: Event, error: BaseException, lineage: str | None = None) -> Iterator[Event]:
        """What leaves instead of a result, or after the part of it that has left, whose lineage may be its own."""
        self._failed(event, error)
        return self._passing(self._error_event(event, error, lineage))

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


_INCOMPLETE = MappingProxyType({"complete": False})
