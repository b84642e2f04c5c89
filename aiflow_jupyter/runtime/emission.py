"""Emission: where what a node gives goes, by its ports; a guardian is one.

A data event goes to every receiver of its port, and waits for those that refuse it (`admission.py`). A control event
goes by every port, in its place among the data, and is never refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.admission import Admission, Parked, skip
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.cycle import FLUSH, Cycle
from aiflow_jupyter.runtime.endings import Endings, answering, close, signed
from aiflow_jupyter.runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.guardian import Guardian


class Receiver(Protocol):
    """Where an edge leads: a guardian, or one of the edges of `edges.py` before it."""

    inline: bool

    def push(self, event: Event, now: int) -> bool:
        """Take in a data event; False when it has to be parked."""

    def park(self, event: Event, sender: Parked) -> None:
        """Remember a sender whose event was refused."""

    def signal(self, event: Event) -> None:
        """Take in a control event."""

    def tell(self, event: Event, sender: Parked) -> None:
        """Take in what stands for an event that gave nothing."""

    def forget(self, sender: Guardian) -> None:
        """Discard what a node that was stopped gave."""


class Emission(Admission):
    """A node's queue, and its ports.

    Args:
        node: the node's name.
        behaviour: what it does with an event.
        policy: what it may hold and how.
        scheduler: the loop's scheduler.

    Attributes:
        ports: who receives, by port; `""` is the plain output.
        single: the one receiver of a node that has one and does not route: the usual case, and the quickest.
        cycle: the loop that the node stands in.
        endings: what is known of answers that come to their end.
        signs: some receiver has several inputs, and has to know which of them a last word comes by.
        unsaid: the answer whose finish acts here and has not gone on.
        emitted, unrouted: data events that left, and those of them that had nobody to go to.
    """

    __slots__ = (
        "behaviour",
        "cycle",
        "emitted",
        "endings",
        "ports",
        "scheduler",
        "signs",
        "single",
        "unrouted",
        "unsaid",
    )

    def __init__(self, node: str, behaviour: Behaviour, policy: Policy, scheduler: Scheduler) -> None:
        super().__init__(node, policy)
        self.behaviour = behaviour
        self.scheduler = scheduler
        self.ports: dict[str, tuple[Receiver, ...]] = {}
        self.single: Receiver | None = None
        self.cycle: Cycle | None = None
        self.endings = Endings()
        self.signs = False
        self.unsaid = ""
        self.emitted = self.unrouted = 0

    def _lose(self, event: Event) -> None:
        super()._lose(event)
        self.endings.lose(event.lineage)

    def connect(self, ports: dict[str, list[Receiver]]) -> None:
        """Set the edges out of this node: receivers by port, `""` for the plain output.

        Receivers with workers come first, so that inline ones do not delay them.
        """
        self.ports = {port: tuple(sorted(nodes, key=lambda r: r.inline)) for port, nodes in ports.items()}
        plain = self.ports.get("", ())
        self.single = plain[0] if len(plain) == 1 and not self.behaviour.routes else None

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
            if self.skips:
                self._skip_others(nodes, event)
        else:
            event, nodes = out, self.ports.get("", ())
        if not nodes:
            self.unrouted += 1
            return
        clock = self.scheduler.clock
        for receiver in nodes:
            if not receiver.push(event, now):
                receiver.park(event, sender)
            now = clock()

    def _skip_others(self, taken: tuple[Receiver, ...], event: Event) -> None:
        """Tell the ports that an event does not leave by that it has no result there."""
        told = skip(event, self.node)
        for port, nodes in self.ports.items():
            if port != "error" and nodes is not taken:
                for node in nodes:
                    node.signal(told)

    def _pass(self, event: Event, sender: Parked | None = None) -> None:  # noqa: C901 - a list of cases
        """Send a control event on by every port; by the port `error` a failure leaves as data (`_report`)."""
        kind = event.kind
        inside = kind == "flush" and event.source == FLUSH
        many = kind in ("error", "skip")
        if self.signs and kind in ("finish", "end"):
            event = signed(event, self.node)
        for port, nodes in self.ports.items():
            if not (kind == "error" and port == "error"):
                for node in nodes:
                    if many and sender is not None:
                        node.tell(event, sender)
                    elif not inside or getattr(node, "cycle", None) is self.cycle:
                        node.signal(event)
        if kind == "error":
            self.endings.broke(event.lineage)
            if event.source == self.node == answering(event.lineage):  # nobody else says a last word on it
                self._pass(close(event, broken=True))
        elif kind == "restart":
            self.endings.anew(event.lineage)
        elif kind == "finish":
            self._said(event.lineage)
        elif kind == "end":
            self._finished()

    def _said(self, lineage: str) -> None:
        """The last word on an answer has gone on."""
        self.endings.passed(lineage)
        if lineage == self.unsaid:
            self.unsaid = ""

    def _report(self, event: Event, now: int, sender: Parked) -> None:
        """Send what an `error` event of this node tells to whoever handles its failures."""
        if event.kind != "error" or event.source != self.node:
            return
        failure = event.derive(event.payload, "value")
        for receiver in self.ports.get("error", ()):
            if not receiver.push(failure, now):
                receiver.park(failure, sender)

    def _finished(self) -> None:
        """The node's end has gone on."""
        raise NotImplementedError
