"""Guardians: each owns one node's queue, workers, order, overflow rule and counters.

Three kinds, one contract. An `InlineGuardian` (`inline.py`) runs a function on the loop: while its receiver keeps up,
an event goes down a chain of them as plain calls, and the queue holds events only while the node is busy or blocked. A
`WorkerGuardian` (`workers.py`) runs coroutines, streams of a provider, or functions in threads, with up to `workers` at
once. A `PartitionedGuardian` (`partitioned.py`) is one that besides serves the events of one key one at a time.

The parts of one, each on the one before: the queue and its rules (`admission.py`), the ports (`emission.py`), what all
kinds share (here), and where there are workers the order of their results (`order.py`).

    push(event)                 admitted?
        |          queue full     no  -> the rule of its kind (`admission.py`): block (the sender parks), drop, merge
        v         worker free                     receiver took it
      IDLE  ---------------------->  RUNNING  --------------------------->  IDLE
        ^  |                            |                                     ^
        |  `- pause: events wait       | receiver refused (its queue is full)|
        |      until resume             v            hand_over: the receiver takes the parked output
        |                            BLOCKED  --------------------------------+
        +-- `end` came on every input, nothing is left, its loop is quiet:  DONE
            `close` (cancel, failure, stop):  CLOSED, emits nothing

Order: a worker that takes an event takes a ticket. The results leave in the order of the tickets: the holder of the
lowest one emits; at most `reorder` finished results wait for their turn while their workers go on, and past that a
worker waits with its result. An event that gave nothing, failed or was filtered is a result too, so there are no gaps.

Control events are never refused and never dropped; they keep their place among the data, also under `order=none`:
there one acts once all that was taken before it is through, and nothing is taken until it has.

What comes back over a feedback edge (`edges.py`) waits in a queue of its own and is served first. A node in a loop
ends once everything in the loop is quiet (`cycle.py`).

An event that fails leaves as a `Failure` by the port `error`, and as an `error` event by all others.

Bound: a node owns at most `queue` events waiting, `workers` in service, `reorder` finished ones, what its operator may
`hold`, and the `limit` of each feedback edge into it. `owned()` says how many it owns now, `bound` how many it may,
`most` how many it has owned at most; every admission checks it.

The paper is arXiv 2608.00558, algorithm 1; where it is silent the rules are this project's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiflow_jupyter.errors import RunError, where_raised
from aiflow_jupyter.events import Event, Failure
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.runtime.admission import MOST_CONTROLS, Parked
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.edges import Fed
from aiflow_jupyter.runtime.emission import Emission
from aiflow_jupyter.runtime.endings import INCOMPLETE, LOST, close, parts
from aiflow_jupyter.runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.speculation import Gate

BUCKETS: Final = 64
"""Service times are counted by the bit length of their nanoseconds: 64 buckets are enough for 292 years."""


class Owner(Protocol):
    """What a guardian reports to: its run."""

    @property
    def watching(self) -> bool:
        """Whether somebody already looks for a deadlock, so that `watch` need not be called."""

    def failed(self, guardian: Guardian, event: Event, error: BaseException) -> None:
        """A node without an `error` port raised."""

    def ended(self, guardian: Guardian) -> None:
        """A node took `end` on all its inputs and is empty."""

    def watch(self) -> None:
        """A node is blocked."""

    def withheld(self, node: str, text: str) -> None:
        """A node kept a part of what was asked for from leaving."""

    def warn(self, node: str, text: str) -> None:
        """What whoever runs a node should know, in place of what was said of it before; called from any thread."""


class Guardian(Emission):
    """What all kinds share: the edges, control events, failures, the counters.

    Args:
        node: the node's name.
        behaviour: what it does with an event.
        policy: what it may hold and how.
        scheduler: the loop's scheduler.
        owner: the run.
        bound: data events that it may own.

    Attributes:
        gate: holds what it gives until a verdict, where it is speculative.
        most: the most data events that it has owned.
        held_ns: the longest that its code held the event loop, where somebody watched.
        lag_ns: what has passed between an event's arrival at its source and its service here, in all; None where the
            source does not stamp its events.
    """

    inline = False
    """Whether `push` may run the node's function, and all that follows it, before it returns."""

    __slots__ = (
        "blocked_ns",
        "bound",
        "call",
        "closed",
        "done",
        "ends",
        "errors",
        "first_ns",
        "gate",
        "held_ns",
        "histogram",
        "holds",
        "inputs",
        "keeps",
        "lag_ns",
        "most",
        "owner",
        "partial",
        "paused",
        "processed",
        "retries",
        "service_ns",
        "wait_ns",
        "workers",
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
        super().__init__(node, behaviour, policy, scheduler)
        self.call = behaviour.call
        self.holds = behaviour.holds
        self.keeps = behaviour.holds is not None  # it may own more than what waits and is in service
        self.gate: Gate | None = None
        self.owner = owner
        self.workers = policy.workers
        self.bound = policy.bound if bound is None else bound
        self.ends = 0
        self.inputs = 0
        self.closed = self.done = self.paused = False
        self.partial = False  # an input was cut off
        self.processed = self.errors = self.retries = 0
        self.most = self.wait_ns = self.service_ns = self.blocked_ns = self.first_ns = 0
        self.lag_ns: int | None = None
        self.held_ns = 0
        self.histogram = [0] * BUCKETS

    # -- state, for people and for the bound

    def active(self) -> int:
        """Data events in service now, blocked ones included."""
        raise NotImplementedError

    def held(self) -> int:
        """Finished results that wait for their turn now."""
        return 0

    def blocked(self) -> bool:
        """Whether an output waits for its receiver now."""
        raise NotImplementedError

    def working(self) -> bool:
        """Whether something goes on here by itself: code of the node that runs or is about to, a thread, a stream."""
        raise NotImplementedError

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is a worker of this node's."""
        del task
        return False

    def busy_for(self, now: int) -> int:
        """Nanoseconds of service so far, in all workers."""
        del now
        return self.service_ns

    def blocked_for(self, now: int) -> int:
        """Nanoseconds that outputs waited for their receivers so far, in all workers."""
        raise NotImplementedError

    def owned(self) -> int:
        """Data events that this node owns now; never more than `bound`."""
        kept = self.holds() if self.holds is not None else 0
        return self.depth + self.fed + self.active() + self.held() + kept

    def quiet(self) -> bool:
        """Whether nothing is here that could still give something, but what the operator holds."""
        if self.closed:
            return True
        idle = self.gate is None or self.gate.idle
        still = not self.queue and not self.waiters and not self.active() and not self.held() and not self.working()
        return idle and still

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

    def tell(self, event: Event, sender: Parked) -> None:
        """Take in what stands for an event that gave nothing; the sender waits where very many of them do."""
        if self.exempt >= MOST_CONTROLS and not self.closed:
            self.park(event, sender)
        else:
            self.signal(event)

    def feed(self, event: Fed, now: int) -> None:
        """Take in what came back over a feedback edge: it is served before all that waits."""
        self.queue.insert(self.fed, (event, -now))
        self.fed += 1
        self.exempt += 1
        if event.edge.waiting >= event.edge.feedback.limit:
            self.limit = 0
        self.keeps = True
        self._note_kept()
        self.start()

    def start(self) -> None:
        """See that what waits is served, if it may be."""
        raise NotImplementedError

    def refuse(self, event: Event, error: BaseException) -> None:
        """An event that can't be admitted is a failure of this node, in its place in the order."""
        self._failed(event, error)
        if not self.closed:
            self._queue_control(self._error_event(event, error))
            self.start()

    def _took_fed(self, event: Event, now: int) -> None:
        """Book that an event of a feedback edge was taken from the queue."""
        self.exempt -= 1
        self.fed -= 1
        self._came_round(event, now)

    def _came_round(self, event: Event, now: int) -> None:
        """Book that an event of a feedback edge waits no more."""
        assert isinstance(event, Fed)
        event.edge.waiting -= 1
        if not self.limit and event.edge.waiting < event.edge.feedback.limit:
            self.limit = self.policy.queue
            self._let_in(now)

    def _note(self, owned: int) -> None:
        """Note the most that was owned; more than was declared is a defect, and stops the run."""
        self.most = owned
        if owned > self.bound:
            error = RunError(
                f"node {self.node!r} owns {counted(owned, 'event')}; it declared at most {self.bound}",
                code="AF691",
                hint="this is a defect of aiflow-jupyter, please report it",
            )
            self.owner.failed(self, Event("error", source=self.node), error)

    def _let_in(self, now: int) -> None:
        super()._let_in(now)
        if self.keeps or self.depth + self.workers + self.held() > self.most:  # else it has owned as many before
            self._note_kept()

    def _note_kept(self) -> None:
        """Note what is owned with what the operator and the feedback edges keep."""
        owned = self.owned()
        if owned > self.most:
            self._note(owned)

    # -- failures and service

    def _failed(self, event: Event, error: BaseException) -> None:
        self.errors += 1
        if self.ports.get("error"):
            _lightened(error)
        else:
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
            INCOMPLETE,
        )

    def _served(self, took: int) -> None:
        """Book one event's service: the nanoseconds that its call took, without what it waited for others."""
        self.service_ns += took
        self.histogram[took.bit_length()] += 1
        self.processed += 1

    # -- control

    def _due(self, event: Event) -> Event | None:
        """What acts now for a control event; None for nothing.

        With several inputs `end` waits for the last of them, and `finish` for those that give to its answer
        (`endings.py`). The end of a loop's head waits for the loop.
        """
        if event.kind == "end":
            self.ends += 1
            self.partial = self.partial or not event.complete
            self.endings.lose(*event.meta.get(LOST, ()))
            if self.ends < self.inputs:
                return event if self.endings.over(event) else None
            if self.cycle is not None and self.node in self.cycle.heads and self.ends == self.inputs:
                self.cycle.defer(self)
                return None
        elif event.kind == "finish":
            return self.endings.take(event, self.inputs)
        return event

    def release(self) -> None:
        """Let the end that was put aside for the loop pass."""
        self.signal(Event("end", source=self.node))

    def _passing(self, event: Event) -> Iterator[Event]:
        """What leaves because of a control event: what the operator held back, and the event itself."""
        if event.kind == "end" and self.ends < self.inputs:
            for finish in self.endings.freed(self.inputs):
                yield from self._passing(finish)
            return
        if event.kind == "end":
            waiting = self.endings.left()
            if self.partial:  # what did not finish by every input may lack what the one that was cut off had to give
                waiting = []
                event = Event("end", source=self.node, meta=INCOMPLETE)
            for finish in waiting:
                yield from self._passing(finish)
            event = self.endings.told(event)
        elif event.kind == "finish" and self.behaviour.control is not None:
            yield from self._last_word(event)
            return
        yield from self._controlled(event)

    def _last_word(self, finish: Event) -> Iterator[Event]:
        """What leaves because of a finish, which itself may be what is to go no further, or not yet."""
        if not finish.complete:
            yield finish
            return
        self.unsaid = finish.lineage
        yield from self._controlled(finish)
        if self.unsaid:
            yield close(finish, broken=finish.lineage in self.endings.broken)

    def _controlled(self, event: Event) -> Iterator[Event]:
        """What the operator makes of a control event."""
        control = self.behaviour.control
        if control is not None:
            try:
                yield from parts(event, control(event))
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

    def pause(self) -> None:
        """Serve nothing from now on; what is in service goes on."""
        self.paused = True

    def resume_serving(self) -> None:
        """Serve again."""
        self.paused = False
        self.start()

    def dismiss(self, *, discard: bool) -> None:
        """Stop this node alone, and tell those after it that nothing more comes.

        Args:
            discard: what it gave and nobody took is discarded.
        """
        waiting = list(self.waiters)
        self.close()
        if discard:
            for receiver in {receiver for receivers in self.ports.values() for receiver in receivers}:
                receiver.forget(self)
        for _, sender in waiting:
            sender.pending -= 1
            if not sender.pending:
                sender.resume()
        self._pass_end()
        if self.cycle is not None:
            self.cycle.settled()

    def _pass_end(self) -> None:
        end = Event("end", source=self.node, meta=INCOMPLETE)
        for receivers in self.ports.values():
            for receiver in receivers:
                receiver.signal(end)

    def forget(self, sender: Guardian) -> None:
        """Discard what a node that was stopped gave, as far as it can be told: all that waits where it alone gives.

        What came of it before is a part, so no finish follows.
        """
        for event, giver in self.waiters:
            if giver.node == sender.node:
                self.endings.broke(event.lineage)
        self.waiters = type(self.waiters)(each for each in self.waiters if each[1].node != sender.node)
        if self.inputs == 1:
            data = [entry for entry in self.queue if entry[1] >= 0]
            for event, stamp in data:
                self.queue.remove((event, stamp))
                self.endings.broke(event.lineage)
                if self.bytes_limit:
                    self._let_go(event)
        self._let_in(self.scheduler.clock())

    def close(self) -> None:
        """Stop at once: nothing is admitted, served or emitted any more."""
        self.closed = True
        self.queue.clear()
        self.waiters.clear()
        self._sizes.clear()
        self.exempt = self.fed = self.bytes = 0
        self.endings.clear()

    def at_rest(self) -> bool:
        """Whether `wait_closed` has nothing to wait for, and nothing to release."""
        return self.behaviour.close is None

    async def wait_closed(self) -> None:
        """Wait until no asynchronous code of this node runs any more, then release what the node holds open."""
        close = self.behaviour.close
        if close is not None:
            result = close()
            if result is not None:
                await result


def _lightened(error: BaseException) -> None:
    """Let go of what the frames of a failure hold, which may wait in a queue; where it was raised becomes a note."""
    where = where_raised(error)
    if where and where not in getattr(error, "__notes__", ()):  # one error may be that of many events
        error.add_note(where)
    for each in (error, error.__cause__, error.__context__):
        if each is not None:
            each.__traceback__ = None
