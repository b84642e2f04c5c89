"""Where ways meet: what one of them alone says of an answer or an event, and what all have to.

Restarts: an answer that begins anew says so by every way that it comes by, on each in its time.

Where several edges lead into one node, the first of them that brings a `restart` speaks for all. What came before is
void, and so is what the others bring until each of them has told of the answer's beginning as often. So a node hears
of each restart once, and nothing that is void comes behind it.

    by the fast way   old                 restart  new  new
    by the slow way        old                               old  restart  new  new
    the node takes    old  old            restart  new  new                new  new

Skips: an event that has no result by one way may have one by another, such as behind a `route`. So on the way to a join
a `skip` goes on once it has come by all the ways that the event can come by.

Control events go round no loop, so a feedback edge is no such way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from aiflow_jupyter.events import Event, above, descends
from aiflow_jupyter.graph.shape import Shape
from aiflow_jupyter.runtime.endings import answering

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.admission import Parked
    from aiflow_jupyter.runtime.cycle import Cycle
    from aiflow_jupyter.runtime.emission import Receiver
    from aiflow_jupyter.runtime.guardian import Guardian

MOST_BEGUN: Final = 4_096
"""Answers that began anew and have not yet done so by every way, at one node; beyond, the oldest is forgotten."""

MOST_SKIPPED: Final = 4_096
"""Events without a result by some way that are remembered at one node: as a rule they have one by another."""

Meets = Callable[[str], Collection[int]]
"""Says by which edges into a node (by their index) what another node gives can come."""

Alike = Mapping[int, int]
"""By how many of a node's edges, itself included, the events of an edge can come."""


class Meeting:
    """Where the ways of an answer meet: a node with several inputs.

    Args:
        guardian: the node's.
        meets: by which of its edges a node's answers come.
        alike: where skips have to meet, by how many edges the events of each come.
    """

    __slots__ = ("_skipped", "alike", "begun", "guardian", "meets")

    def __init__(self, guardian: Guardian, meets: Meets | None, alike: Alike | None = None) -> None:
        self.guardian = guardian
        self.meets = meets
        self.alike = alike or {}
        self._skipped: dict[tuple[str, int], set[int]] = {}  # by which edges an identity has no result, until by all
        self.begun: dict[str, dict[int, int]] = {}  # how often each edge told that a lineage began anew, until all did

    def behind(self, lineage: str, edge: int) -> bool:
        """Whether what comes by an edge now is of an answer that has begun anew."""
        return any(self._lags(each, edge) for each in above(lineage))

    def _lags(self, lineage: str, edge: int) -> bool:
        told = self.begun.get(lineage)
        return told is not None and edge in told and told[edge] < max(told.values())

    def restarted(self, event: Event, edge: int) -> bool:
        """An edge tells of a restart; whether it is the first to do so."""
        lineage = event.lineage
        if any(self._lags(each, edge) for each in above(lineage) if each != lineage):
            return False
        edges = self.meets(answering(lineage) or event.source) if self.meets is not None else ()
        told = self.begun.setdefault(lineage, dict.fromkeys(edges, 0))
        newest = max(told.values(), default=0)
        told[edge] = told.get(edge, 0) + 1
        first = told[edge] > newest
        if first:
            for each in [each for each in self.begun if each != lineage and descends(each, lineage)]:
                del self.begun[each]
            self._skipped = {each: by for each, by in self._skipped.items() if not descends(each[0], lineage)}
        if min(told.values()) == max(told.values()):
            del self.begun[lineage]
        elif len(self.begun) > MOST_BEGUN:
            del self.begun[next(iter(self.begun))]
        return first

    def skipped(self, event: Event, edge: int) -> bool:
        """An edge tells that an event has no result; whether none has come, or will, by any."""
        most = self.alike.get(edge, 1)
        if most == 1:
            return True
        by = self._skipped.setdefault(event.identity, set())
        by.add(edge)
        if len(by) == most:
            del self._skipped[event.identity]
            return True
        if len(self._skipped) > MOST_SKIPPED:
            del self._skipped[next(iter(self._skipped))]
        return False


class Way:
    """An edge into a node where ways meet, in front of where it leads to."""

    __slots__ = ("edge", "inline", "meeting", "receiver")

    def __init__(self, edge: int, meeting: Meeting, receiver: Receiver) -> None:
        self.edge = edge
        self.meeting = meeting
        self.receiver = receiver
        self.inline = receiver.inline

    @property
    def cycle(self) -> Cycle | None:
        """The loop that the node stands in."""
        return self.meeting.guardian.cycle

    def push(self, event: Event, now: int) -> bool:
        """See `Guardian.push`; what is void is taken, and goes no further."""
        if self.meeting.begun and self.meeting.behind(event.lineage, self.edge):
            self.meeting.guardian.drops[event.kind] += 1
            return True
        return self.receiver.push(event, now)

    def park(self, event: Event, sender: Parked) -> None:
        """See `Guardian.park`."""
        self.receiver.park(event, sender)

    def signal(self, event: Event) -> None:
        """See `Guardian.signal`."""
        meeting = self.meeting
        if event.kind == "restart":
            if not meeting.restarted(event, self.edge):
                return
            if meeting.guardian.waiters:
                meeting.guardian.annul(event)
        elif not self._goes_on(event):
            return
        self.receiver.signal(event)

    def tell(self, event: Event, sender: Parked) -> None:
        """See `Guardian.tell`."""
        if self._goes_on(event):
            self.receiver.tell(event, sender)

    def _goes_on(self, event: Event) -> bool:
        """Whether a control event other than a restart is not void, and speaks for all."""
        meeting = self.meeting
        if meeting.begun and meeting.behind(event.lineage, self.edge):
            return False
        return event.kind != "skip" or meeting.skipped(event, self.edge)

    def forget(self, sender: Guardian) -> None:
        """See `Guardian.forget`."""
        self.receiver.forget(sender)


def meets(shape: Shape, edges: Collection[int], restarting: int) -> Meets | None:
    """Says by which edges into a node the answers of another come; None where none that restarts comes by several.

    Args:
        shape: the graph.
        edges: the edges into the node that bring data, feedback apart, by their index.
        restarting: the nodes whose answers may begin anew.
    """
    sides = {index: shape.ancestors[shape.edges[index].source] for index in edges}
    once = twice = 0
    for side in sides.values():
        twice |= once & side
        once |= side
    if not twice & restarting:
        return None

    @cache
    def by(node: str) -> tuple[int, ...]:
        bit = shape.bit.get(node, -1)
        return tuple(index for index, side in sides.items() if side & bit)

    return by


def alike(shape: Shape, edges: Collection[int], keeping: int, gathering: int) -> Alike | None:
    """By how many of a node's edges the events of each can come: those that lead back to one split.

    None where each has its own.

    Args:
        shape: the graph.
        edges: as above.
        keeping: the nodes whose results have the identity of what they were given.
        gathering: those whose results have that of what was asked before.
    """
    sides = {}
    for index in edges:
        source = shape.edges[index].source
        side = (
            shape.reached([source], backward=True, past=keeping) if keeping & shape.bit[source] else shape.bit[source]
        )
        for node in shape.members(side & gathering):
            side |= shape.ancestors[node]
        sides[index] = side
    found = {index: sum(side & other > 0 for other in sides.values()) for index, side in sides.items()}
    return found if any(count > 1 for count in found.values()) else None
