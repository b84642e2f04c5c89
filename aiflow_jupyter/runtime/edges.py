"""Edges that do more than hand on: into a node that tells its inputs apart, and back into a loop.

An ordinary edge is nothing at run time: a guardian pushes into the next one. These two stand in the next one's place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.graph.spec import Feedback

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.admission import Parked
    from aiflow_jupyter.runtime.cycle import Cycle
    from aiflow_jupyter.runtime.guardian import Guardian


THROUGH = "through"
"""The payload of a flush that says that an input gives nothing more: of its lineage, or (with none) at all."""


class Entrance:
    """An edge into a `join` or an ordered `merge`: what arrives bears the name of the node that it came from.

    A flush in that name says when the input has ended.
    """

    __slots__ = ("guardian", "inline", "name")

    def __init__(self, name: str, guardian: Guardian) -> None:
        self.name = name
        self.guardian = guardian
        self.inline = guardian.inline

    @property
    def cycle(self) -> Cycle | None:
        """The loop that the node stands in."""
        return self.guardian.cycle

    def push(self, event: Event, now: int) -> bool:
        """See `Guardian.push`."""
        return self.guardian.push(self._named(event), now)

    def park(self, event: Event, sender: Parked) -> None:
        """See `Guardian.park`."""
        self.guardian.park(self._named(event), sender)

    def signal(self, event: Event) -> None:
        """See `Guardian.signal`."""
        if event.kind == "end":
            self._through(event)
        self.guardian.signal(event if event.kind == "flush" else self._named(event))

    def _through(self, event: Event) -> None:
        through = event.derive(THROUGH, "flush")
        through.source = self.name
        self.guardian.signal(through)

    def tell(self, event: Event, sender: Parked) -> None:
        """See `Guardian.tell`."""
        self.guardian.tell(self._named(event), sender)

    def forget(self, sender: Guardian) -> None:
        """See `Guardian.forget`."""
        self.guardian.forget(sender)

    def _named(self, event: Event) -> Event:
        named = event.derive(event.payload)
        named.source = self.name
        return named


class TellingEntrance(Entrance):
    """An edge into an ordered `merge`: a flush in the input's name says, too, when it is through with a lineage."""

    __slots__ = ()

    def signal(self, event: Event) -> None:
        """See `Guardian.signal`."""
        goes_on = isinstance(event.payload, Finish) and event.payload.reason == "tool_calls"
        if event.kind == "finish" and not goes_on:
            self._through(event)
        super().signal(event)


class Fed(Event):
    """An event that came back over a feedback edge."""

    __slots__ = ("edge",)

    def __init__(self, event: Event, edge: FeedbackEdge, hops: int) -> None:
        meta: dict[str, Any] = {**event.meta, "hops": hops}
        super().__init__(
            event.kind,
            event.payload,
            event.conversation,
            event.source,
            event.sequence,
            event.time,
            event.lineage,
            meta,
        )
        self.edge = edge


class FeedbackEdge:
    """An edge that closes a loop: it never blocks, its events are served first, and control events end at it.

    Attributes:
        waiting: events on it that its target has not taken yet; while they are `limit`, the target takes nothing new.
    """

    __slots__ = ("cycle", "feedback", "guardian", "source", "waiting")
    inline = False

    def __init__(self, source: str, guardian: Guardian, feedback: Feedback, cycle: Cycle) -> None:
        self.source = source
        self.guardian = guardian
        self.feedback = feedback
        self.cycle = cycle
        self.waiting = 0

    def push(self, event: Event, now: int) -> bool:
        """Take an event back; one too many, or one that went round too often, is a failure of the target."""
        guardian = self.guardian
        if guardian.closed:
            return True
        self.cycle.crossed += 1
        hops = event.meta.get("hops", 0) + 1
        edge = f"feedback edge {self.source} -> {guardian.node}"
        if hops > self.feedback.hops:
            guardian.refuse(
                event,
                RunError(
                    f"{edge}: an event of lineage {event.lineage!r} came by {counted(hops, 'time')}; "
                    f"hops={self.feedback.hops}",
                    code="AF606",
                    hint="let the loop end sooner, or raise hops",
                ),
            )
        elif self.waiting >= self.feedback.limit:
            guardian.refuse(
                event,
                RunError(
                    f"{edge}: it holds {counted(self.waiting, 'event')}, which is its limit",
                    code="AF607",
                    hint="raise limit, or give the loop's nodes smaller queues",
                ),
            )
        else:
            self.waiting += 1
            guardian.feed(Fed(event, self, hops), now)
        return True

    def park(self, event: Event, sender: Parked) -> None:
        """It never refuses."""
        raise NotImplementedError

    def signal(self, event: Event) -> None:
        """Control events go round no loop."""

    def tell(self, event: Event, sender: Parked) -> None:
        """Control events go round no loop."""

    def forget(self, sender: Guardian) -> None:
        """What went round stays."""
