"""Speculative nodes: what one gives is held until a verdict on its lineage arrives.

The verdict comes as `commit` or `retract` from a node such as `guard`, over an edge from its port `verdict`. It acts
when it is signalled, also while the node is in a call; only its passing on keeps its place in the queue. How far it
holds, and for which try of an answer, is in `verdicts.py`. Without a verdict by `timeout` seconds after the first
event of a lineage, or by the end, what is held is retracted: an event that nobody vouched for never leaves, and the run
says so.

    node --> Gate --> receivers        a lineage:   HELD --commit--> LEAVING, as the receivers take it
              ^                                      | `-retract, error, restart, end--> discarded
    guard.verdict (VerdictEdge)

The gate stands behind the node's order, so what it lets go keeps the order in which it would have left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import CONTROL, DATA, Event, descends
from aiflow_jupyter.graph.bounds import MOST_SPECULATIVE
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding
from aiflow_jupyter.runtime.cycle import FLUSH, Cycle
from aiflow_jupyter.runtime.endings import close
from aiflow_jupyter.runtime.verdicts import Verdicts

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.admission import Parked
    from aiflow_jupyter.runtime.emission import Receiver
    from aiflow_jupyter.runtime.guardian import Guardian


class Gate:
    """Holds what a speculative node gives, in front of all that its plain output leads to.

    Args:
        binding: the node's.

    Attributes:
        pending: receivers that have yet to take what it let go last.
    """

    inline = False

    def __init__(self, binding: Binding) -> None:
        self.node = binding.node
        self.pending = 0
        self._binding = binding
        self._guardian: Guardian
        self._most = binding.policy.hold or MOST_SPECULATIVE
        self._receivers: tuple[Receiver, ...] = ()
        self._verdicts = Verdicts()
        self._held: dict[str, list[Event]] = {}
        self._timers: dict[str, Callable[[], None]] = {}
        self._count = 0
        self._leaving: deque[tuple[Event, Parked | None]] = deque()
        self._draining = self._waiting = False
        self._unjudged = 0

    # -- its place

    def before(self, behaviour: Behaviour) -> Behaviour:
        """The node's behaviour, which says when a restart comes to its place."""
        inner = behaviour.control

        def control(event: Event) -> Iterator[Event]:
            if event.kind == "restart":
                self._verdicts.restarted(event.lineage)
            if inner is not None:
                yield from inner(event)
            elif event.kind != "end":
                yield event

        return replace(behaviour, control=control)

    def behind(self, guardian: Guardian) -> None:
        """Take its place at the node's guardian."""
        self._guardian = guardian
        own = guardian.holds
        guardian.gate = self
        guardian.keeps = True
        guardian.holds = self.count if own is None else lambda: own() + self._count

    def leading(self, receivers: list[Receiver]) -> Gate:
        """Itself, in front of these."""
        self._verdicts.ways = self._verdicts.ways or [self]
        self._receivers = tuple(sorted(receivers, key=lambda receiver: receiver.inline))
        return self

    @property
    def cycle(self) -> Cycle | None:
        """The loop that the node stands in."""
        return self._guardian.cycle

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way out."""
        return not self._leaving

    def count(self) -> int:
        """Data events that wait for a verdict, or for a receiver to take them."""
        return self._count

    # -- verdicts, when they are signalled

    def judge(self, event: Event) -> None:
        """Act on a control event that is signalled to the node, before its place in the queue comes."""
        kind, lineage = event.kind, event.lineage
        if kind == "restart" and self in self._verdicts.ways:
            self.restart(lineage, self)
        elif kind in ("commit", "retract"):
            own = event.source == self.node
            if not own and self in self._verdicts.ways and self._verdicts.outdated(lineage, self):
                return
            self._verdicts.note(lineage, good=kind == "commit")
            for each in self._below(lineage):
                if self._verdicts.of(each):
                    self._release(each)
                elif kind == "retract":
                    self._discard(each, unjudged=own)
            self._drain()

    def way(self, edge: VerdictEdge) -> None:
        """Verdicts come by an edge of their own."""
        self._verdicts.ways.append(edge)

    def restart(self, lineage: str, way: object) -> None:
        """The verdicts that follow by a way are on an answer that has begun anew."""
        self._verdicts.restarted(lineage, way)
        if self._verdicts.void(lineage):
            self._supersede(lineage)

    def outdated(self, verdict: Event, way: object) -> bool:
        """Whether a verdict is on an answer that has begun anew."""
        return self._verdicts.outdated(verdict.lineage, way)

    # -- what the node gives

    def push(self, event: Event, now: int) -> bool:
        """Hold or discard an event; False for one that may leave, with which `park` is called at once."""
        del now
        verdict = self._verdicts.of(event.lineage)
        if verdict:
            return False
        self._guardian.emitted -= 1
        if verdict is None:
            self._hold(event)
        elif not self._verdicts.void(event.lineage):
            self._binding.dropped(event.kind)
        return True

    def park(self, event: Event, sender: Parked) -> None:
        """Let an event out; its sender waits until it was taken."""
        self._out(event, sender)

    def signal(self, event: Event) -> None:
        """Take in a control event in its place among what the node gives."""
        kept = self._controlled(event)
        if kept is not None:
            self._out(kept, None)

    def tell(self, event: Event, sender: Parked) -> None:
        """The same, of what stands for an event that gave nothing."""
        kept = self._controlled(event)
        if kept is not None:
            self._out(kept, sender)

    def forget(self, sender: Guardian) -> None:
        """The node was stopped: discard what it gave."""
        for lineage in tuple(self._held):
            self._discard(lineage)
        for event, parked in self._leaving:
            if parked is None and event.kind in DATA:
                self._binding.dropped(event.kind)
        self._leaving.clear()
        self._count = self.pending = 0
        self._waiting = False
        for receiver in self._receivers:
            receiver.forget(sender)

    def _controlled(self, event: Event) -> Event | None:
        """What goes on of a control event; None where it waits with what is held."""
        kind, lineage = event.kind, event.lineage
        if kind == "finish":
            if lineage in self._held:
                self._held[lineage].append(event)
                return None
            if event.complete and self._verdicts.of(lineage) is False:
                return close(event, broken=False)
        elif kind == "error":
            for each in self._below(lineage):
                self._discard(each)
        elif kind == "restart":
            self._supersede(lineage)
        elif kind == "end":
            for each in tuple(self._held):
                self._discard(each, unjudged=True)
        return event

    # -- what is held

    def _hold(self, event: Event) -> None:
        lineage = event.lineage
        if self._count >= self._most:
            self._refuse(event)
            return
        events = self._held.setdefault(lineage, [])
        timeout = self._binding.policy.timeout
        if timeout is not None and not events:
            late = Event("retract", "no verdict came in time", event.conversation, self.node, 0, event.time, lineage)
            self._timers[lineage] = self._binding.later(timeout, late)
        events.append(event)
        self._count += 1
        self._guardian._note_kept()  # noqa: SLF001 - the gate is a part of it

    def _refuse(self, event: Event) -> None:
        """There is no room: the lineage has failed, and nothing of it leaves."""
        self._verdicts.note(event.lineage, good=False)
        self._binding.dropped(event.kind)
        for each in self._below(event.lineage):
            self._discard(each)
        error = RunError(
            f"node {self.node!r} holds {counted(self._most, 'event')} to wait for a verdict, which is the most it may",
            code="AF613",
            hint="raise hold=, or see that the verdict comes sooner",
        )
        self._guardian.refuse(event, error)

    def _below(self, lineage: str) -> list[str]:
        return [each for each in self._held if descends(each, lineage)]

    def _taken(self, lineage: str) -> list[Event]:
        """What was held of a lineage, which is held no more."""
        cancel = self._timers.pop(lineage, None)
        if cancel is not None:
            cancel()
        return self._held.pop(lineage, [])

    def _release(self, lineage: str) -> None:
        for event in self._taken(lineage):
            self._guardian.emitted += event.kind in DATA
            self._leaving.append((event, None))

    def _discard(self, lineage: str, *, unjudged: bool = False) -> None:
        """Discard what is held of a lineage; a close takes the place of its finish."""
        events = self._taken(lineage)
        for event in events:
            if event.kind in DATA:
                self._count -= 1
                self._binding.dropped(event.kind)
            else:
                self._leaving.append((close(event, broken=unjudged) if event.complete else event, None))
        if unjudged:
            self._unjudged += sum(event.kind in DATA for event in events)
            self._binding.withheld(
                f"node {self.node!r}: nobody has judged {self._unjudged:,} of the events it gave: they did not leave"
            )

    def _supersede(self, lineage: str) -> None:
        """Let go of what is held of an answer that has begun anew: nothing is lost."""
        for each in self._below(lineage):
            self._count -= sum(event.kind in DATA for event in self._taken(each))

    # -- what leaves

    def _out(self, event: Event, sender: Parked | None) -> None:
        """Send an event on, behind what is on its way."""
        self._drain()
        if not self._leaving:
            self._forward(event, sender or self)
            return
        if sender is not None:
            sender.pending += 1
        self._leaving.append((event, sender))

    def _forward(self, event: Event, sender: Parked) -> None:
        guardian, kind = self._guardian, event.kind
        inside = kind == "flush" and event.source == FLUSH
        for receiver in self._receivers:
            if kind not in CONTROL:
                if not receiver.push(event, guardian.scheduler.clock()):
                    receiver.park(event, sender)
            elif kind in ("error", "skip") and sender is not self:
                receiver.tell(event, sender)
            elif not inside or getattr(receiver, "cycle", None) is guardian.cycle:
                receiver.signal(event)

    def _drain(self) -> None:
        """Send on what is on its way, until a receiver refuses."""
        if self._draining or self._waiting:
            return
        guardian = self._guardian
        self._draining = True
        while self._leaving:
            self._forward(self._leaving[0][0], self)
            if self.pending:
                self._waiting = True
                if not guardian.owner.watching:
                    guardian.owner.watch()
                break
            self._through()
        self._draining = False
        if guardian.cycle is not None:
            guardian.cycle.settled()

    def _through(self) -> None:
        """All receivers have taken the first of what is on its way."""
        event, sender = self._leaving.popleft()
        if sender is None:
            self._count -= event.kind in DATA
            return
        sender.pending -= 1
        if not sender.pending:
            sender.resume()

    def resume(self) -> None:
        """Go on from the ready list, not from the stack of the receiver."""
        self._guardian.scheduler.ready.append(self)

    def proceed(self) -> None:
        """Go on after the last receiver took what it had refused."""
        if self._waiting and not self.pending:
            self._waiting = False
            self._through()
            self._drain()


class VerdictEdge:
    """An edge that brings a speculative node verdicts and no data, in front of where it leads to."""

    __slots__ = ("gate", "inline", "receiver")

    def __init__(self, gate: Gate, receiver: Receiver) -> None:
        self.gate = gate
        self.receiver = receiver
        self.inline = receiver.inline
        gate.way(self)

    def push(self, event: Event, now: int) -> bool:
        """See `Guardian.push`."""
        return self.receiver.push(event, now)

    def park(self, event: Event, sender: Parked) -> None:
        """See `Guardian.park`."""
        self.receiver.park(event, sender)

    def signal(self, event: Event) -> None:
        """See `Guardian.signal`; that an answer begins anew is told to the node by what comes with its data."""
        if event.kind == "restart":
            self.gate.restart(event.lineage, self)
        elif event.kind not in ("commit", "retract") or not self.gate.outdated(event, self):
            self.receiver.signal(event)

    def tell(self, event: Event, sender: Parked) -> None:
        """See `Guardian.tell`."""
        self.receiver.tell(event, sender)

    def forget(self, sender: Guardian) -> None:
        """Nothing comes by it that could be discarded."""
