"""Admission: what may wait at a node, and what happens to an event that finds no room.

The queue holds data events up to `queue` (and `queue_bytes`), and besides, without counting, control events and what
came back over a feedback edge. An event that finds no room is treated by the rule of its kind:

    block        the sender parks with it, and is taken in first come, first served
    drop_newest  it is discarded                      drop_oldest  the oldest that may be dropped is discarded for it
    error        it is a failure of the node          conflate     its text is put behind that of the last one waiting

A lone sender that waits is let in when a quarter of the queue is left, so that it goes on for most of a queue at a time
and not for one event: to park and go on costs as much as two hops. With several, or where anything but `block` may
happen, each place goes at once to whoever waits longest. Nobody waits for room that there is once the node has stopped
serving, or the loop has turned.

An event that can't be measured or compared is a failure of the node. One that grows while it waits counts as it came.
Control events and tool results are never dropped. What is made of an answer that overflow took something from is a part
(`endings.py`); what is conflated loses nothing. What is dropped between a split and a join leaves a `skip` in its
place, so that its partner does not wait for it.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from typing import Any, Final, Protocol, cast

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import CONTROL, TEXT, Event, descends, text_bytes
from aiflow_jupyter.graph.policy import Policy

CONTROL_STAMP: Final = -1
"""Stands in the queue in place of the time of admission, for a control event; what came back over a feedback edge
has its time negated, which is below this."""


class Parked(Protocol):
    """Whoever waits for a refused event to be taken in: `pending` receivers still have to take it."""

    node: str
    pending: int

    def resume(self) -> None:
        """The last receiver took it."""


class _Gone:
    """Stands for a node that was stopped: its end waits behind what it gave."""

    __slots__ = ("node", "pending")

    def __init__(self, node: str) -> None:
        self.node = node
        self.pending = 1

    def resume(self) -> None:
        """Nobody waits."""


MOST_CONTROLS: Final = 1_024
"""Control events in a queue from which on whoever makes more of them, one for each event that fails or is dropped, has
to wait: they take no place among the data, but they are not without bound."""


def size_of(payload: Any) -> int:
    """Bytes that a payload takes: those of an array, else of the object itself, not of what it refers to."""
    size = getattr(payload, "nbytes", None)
    return size if isinstance(size, int) else sys.getsizeof(payload)


class Admission:
    """A node's queue with its rules; a guardian is one.

    Attributes:
        blocks: whatever finds no room waits, and no bytes are counted: the usual case, and the quickest.
        queue: what waits, each with the time of its admission.
        exempt: how many in the queue do not count toward `limit`.
        fed: how many of these, at the head, came over feedback edges.
        limit: data events that may wait; 0 while the node's loop is full.
        waiters: refused events with their senders.
        drops: dropped events by kind.
        lost: how many of them overflow dropped.
        conflated: events whose text was put behind another's.
        peak: the most data events that waited.
        skips: the node stands between a split and a join, so that what gives nothing has to say so.
    """

    __slots__ = (
        "_sizes",
        "blocks",
        "bytes",
        "bytes_limit",
        "conflated",
        "drops",
        "exempt",
        "fed",
        "limit",
        "lost",
        "node",
        "peak",
        "policy",
        "queue",
        "skips",
        "waiters",
    )

    def __init__(self, node: str, policy: Policy) -> None:
        self.node = node
        self.policy = policy
        self.limit = policy.queue
        self.bytes_limit = policy.queue_bytes or 0
        self.blocks = policy.overflow == "block" and not self.bytes_limit
        self.bytes = 0
        self._sizes: dict[int, int] = {}  # of what waits, by the event's id
        self.queue: deque[tuple[Event, int]] = deque()
        self.waiters: deque[tuple[Event, Parked]] = deque()
        self.exempt = self.fed = 0
        self.drops: Counter[str] = Counter()
        self.conflated = self.lost = self.peak = 0
        self.skips = False

    @property
    def depth(self) -> int:
        """Data events that wait in the queue now, without those of feedback edges."""
        return len(self.queue) - self.exempt

    @property
    def dropped(self) -> int:
        """Events that overflow, or the operator, discarded."""
        return sum(self.drops.values())

    def park(self, event: Event, sender: Parked) -> None:
        """Remember a sender whose event was refused; it is taken in first come, first served."""
        sender.pending += 1
        self.waiters.append((event, sender))

    def withdraw(self, sender: Parked) -> None:
        """Forget a sender that does not wait any more; its event is not taken in."""
        self.waiters = deque(each for each in self.waiters if each[1] is not sender)

    def annul(self, restart: Event) -> None:
        """Discard what waits of a lineage that begins anew: whoever tells of that first has nothing waiting here."""
        waiting, self.waiters = self.waiters, deque()
        for event, sender in waiting:
            if not descends(event.lineage, restart.lineage):
                self.waiters.append((event, sender))
                continue
            if event.kind not in CONTROL:
                self.drops[event.kind] += 1
            sender.pending -= 1
            if not sender.pending:
                sender.resume()

    def take_back(self, event: Event, now: int) -> bool:
        """Take an event out of the queue whose sender has given up; False where it waits no more."""
        for index, (each, _) in enumerate(self.queue):
            if each is event:
                del self.queue[index]
                if self.bytes_limit:
                    self._let_go(event)
                self._let_in(now)
                return True
        return False

    def _admit(self, event: Event, now: int) -> bool:
        queue = self.queue
        depth = len(queue) - self.exempt
        if depth >= self.limit or self.waiters or self.bytes_limit:
            room = self._room(event, now)
            if room is not True:
                return room is None
            depth = len(queue) - self.exempt
        queue.append((event, now))
        if depth >= self.peak:
            self.peak = depth + 1
        return True

    def _room(self, event: Event, now: int) -> bool | None:  # noqa: C901, PLR0911 - a table of rules
        """Whether there is room for an event, by its rule: True, or False when it has to wait, None when it is gone."""
        size = 0
        if self.bytes_limit:
            measured = self._measured(event)
            if measured is None:
                return None
            size = measured
        while self.waiters or not self._fits(size):
            rule = self.policy.rule(event.kind)
            if rule == "block" or self.exempt >= MOST_CONTROLS:
                return False
            if rule == "conflate":
                return None if self._conflate(event, size) else False
            if rule == "error":
                self.refuse(
                    event,
                    RunError(
                        f"node {self.node!r}: its queue of {self.policy.queue} is full and its policy is "
                        "overflow=error",
                        code="AF602",
                        hint="give it a larger queue or more workers, or use overflow=block",
                    ),
                )
                return None
            if rule == "drop_newest":
                self._lose(event)
                if self.skips:
                    self._queue_control(skip(event, self.node))
                return None
            if not self._drop_oldest():
                return False
            self._let_in(now)
        if self.bytes_limit:
            self._hold(event, size)
        return True

    def _measured(self, event: Event) -> int | None:
        """Bytes of an event's payload; None where it can never be admitted, and was refused."""
        try:
            size = size_of(event.payload)
        except BaseException as error:  # noqa: BLE001 - the user's `__sizeof__` may raise anything
            self.refuse(event, error)
            return None
        if size <= self.bytes_limit:
            return size
        self.refuse(
            event,
            RunError(
                f"node {self.node!r}: an event of {size:,} bytes is larger than its queue_bytes={self.bytes_limit}",
                code="AF608",
                hint="give the node a larger queue_bytes, or cut the event before it",
            ),
        )
        return None

    def _fits(self, size: int) -> bool:
        return len(self.queue) - self.exempt < self.limit and self.bytes + size <= (self.bytes_limit or sys.maxsize)

    def _drop_oldest(self) -> bool:
        """Discard the oldest event that may be; False where there is none."""
        for index, (event, stamp) in enumerate(self.queue):
            if stamp >= 0 and self.policy.rule(event.kind).startswith("drop"):
                self._lose(event)
                if self.bytes_limit:
                    self._let_go(event)
                if self.skips:
                    self.queue[index] = (skip(event, self.node), CONTROL_STAMP)
                    self.exempt += 1
                else:
                    del self.queue[index]
                return True
        return False

    def _conflate(self, event: Event, size: int) -> bool:
        """Put the event's text behind that of the last one in the queue, if they belong together; or refuse it."""
        if not self.queue or self.waiters:
            return False
        last, stamp = self.queue[-1]
        try:
            together = stamp >= 0 and self._together(last, event, size)
        except BaseException as error:  # noqa: BLE001 - what the user put into them may raise anything
            self.refuse(event, error)
            return True
        if together:
            merged = last.derive(last.payload + _behind(event))
            if self.bytes_limit:
                self._let_go(last)
                self._hold(merged, size_of(merged.payload))
            self.queue[-1] = (merged, stamp)
            self.conflated += 1
            if self.skips:
                self._queue_control(skip(event, self.node))
        return together

    def _together(self, last: Event, event: Event, size: int) -> bool:
        return (
            event.kind in TEXT
            and (last.kind, last.lineage, last.source) == (event.kind, event.lineage, event.source)
            and {**last.meta, "gap": ""} == {**event.meta, "gap": ""}
            and text_bytes(last.payload) + text_bytes(_behind(event)) <= self.policy.hold_bytes
            and (not self.bytes_limit or self.bytes + size <= self.bytes_limit)
        )

    def _let_in(self, now: int) -> None:  # noqa: C901, PLR0912 - one loop, in one piece
        """Give the room that there is to the senders that have waited longest."""
        waiters, queue = self.waiters, self.queue
        while waiters:
            event, sender = waiters[0]
            if event.kind in CONTROL:
                if event.kind != "end":
                    if self.exempt >= MOST_CONTROLS:
                        return
                    sender.pending -= 1
                    if not sender.pending:
                        sender.resume()
                waiters.popleft()
                queue.append((event, CONTROL_STAMP))
                self.exempt += 1
                continue
            depth = len(queue) - self.exempt
            if depth >= self.limit:
                return
            if self.bytes_limit:
                size = self._measured(event)
                if size is None:
                    if waiters:  # the run goes on
                        waiters.popleft()
                        sender.pending -= 1
                        if not sender.pending:
                            sender.resume()
                    continue
                if self.bytes + size > self.bytes_limit:
                    return
                self._hold(event, size)
            waiters.popleft()
            queue.append((event, now))
            if depth >= self.peak:
                self.peak = depth + 1
            sender.pending -= 1
            if not sender.pending:
                sender.resume()

    def _hold(self, event: Event, size: int) -> None:
        """Book that an event enters a queue that counts bytes."""
        self.bytes += size
        self._sizes[id(event)] = self._sizes.get(id(event), 0) + size

    def _let_go(self, event: Event) -> None:
        """Book that an event was taken from a queue that counts bytes, by what it took when it came."""
        self.bytes -= self._sizes.pop(id(event), 0)

    def _queue_control(self, event: Event) -> None:
        if event.kind in ("end", "flush") and any(sender.node == event.source for _, sender in self.waiters):
            self.waiters.append((event, _Gone(event.source)))  # of a node that was stopped: behind what it gave
            return
        self.queue.append((event, CONTROL_STAMP))
        self.exempt += 1

    def _lose(self, event: Event) -> None:
        """Book that overflow discards an event."""
        self.lost += 1
        self.drops[event.kind] += 1

    def refuse(self, event: Event, error: BaseException) -> None:
        """An event that can't be admitted is a failure of this node."""
        raise NotImplementedError


def _behind(event: Event) -> str:
    """A text as it stands behind another."""
    return cast("str", event.meta.get("gap", "") + event.payload)


def skip(event: Event, node: str) -> Event:
    """What says that an event has no result at `node`."""
    return Event("skip", None, event.conversation, node, event.sequence, event.time, event.lineage)
