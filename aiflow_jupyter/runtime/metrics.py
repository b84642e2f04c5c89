"""What is known of a run while it runs and afterwards: one status for the run, one for each node, one for each answer.

Guardians only count; everything here is read from their counters when somebody asks, so that nothing is paid per event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from aiflow_jupyter.events import Event, Finish, Usage
from aiflow_jupyter.graph.policy import Policy

RunState = Literal["ready", "running", "done", "failed", "cancelled"]
NodeState = Literal["idle", "running", "blocked", "done", "failed", "cancelled"]


class Decided(Protocol):
    """A decision about who answers; its `str` is for people."""

    def badge(self) -> str:
        """What a reader of the answer has to know of it."""

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain types."""


@dataclass(slots=True)
class Answer:
    """One answer of a model: who gave it, and when its tokens came (nanoseconds of the run's clock).

    `waiting` says what is being waited for: before the first token, or where the tokens have stopped; else it is empty.
    `batch` says that the answer came in one piece, and `remark` what its provider has to say of how it came. `decision`
    is who was to answer and why, None where nobody decided (a recording).
    """

    node: str
    lineage: str
    started: int
    first: int = 0
    last: int = 0
    pieces: int = 0
    tier: str = ""
    model: str = ""
    provider: str = ""
    waiting: str = ""
    finish: Finish | None = None
    batch: bool = False
    remark: str = ""
    decision: Decided | None = None

    def decide(self, decision: Decided) -> None:
        """Note who is to answer."""
        self.decision = decision

    def report(self, waiting: str) -> None:
        """Note what is being waited for."""
        self.waiting = waiting

    def note(self, event: Event) -> None:
        """Take in one event of the provider's stream."""
        if event.kind in ("token", "tool_fragment"):
            if not self.first:
                self.first = event.time
                meta = event.meta
                self.tier, self.model, self.provider = (
                    meta.get("tier", ""),
                    meta.get("model", ""),
                    meta.get("provider", ""),
                )
                self.waiting = ""
                self.batch, self.remark = bool(meta.get("batch")), meta.get("note", "")
            self.last = event.time
            self.pieces += 1
        elif event.kind == "finish":
            self.finish = event.payload
            self.remark = self.remark or event.meta.get("note", "")
        elif event.kind == "restart":
            self.first = self.last = self.pieces = 0

    @property
    def usage(self) -> Usage | None:
        """Tokens as the provider counted them, None where it did not say."""
        return self.finish.usage if self.finish else None

    @property
    def tokens(self) -> int:
        """Tokens of the answer: the provider's count, else the pieces that came."""
        counted = self.usage.completion_tokens if self.usage else None
        return self.pieces if counted is None else counted

    @property
    def ttft(self) -> float | None:
        """Seconds from the request to the provider's first delta."""
        return (self.first - self.started) / 1e9 if self.first else None

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first; None where they came in one piece, as that says nothing."""
        if self.batch or self.last <= self.first or self.tokens < 2:
            return None
        return (self.tokens - 1) / ((self.last - self.first) / 1e9)

    def badge(self) -> str:
        """Who answered and how fast, in one line: `local · smollm2-135m · first token 0.05 s · 98 tokens/s`."""
        name = f"{self.model} (demo model)" if self.provider == "embedded" else self.model
        parts = [self.tier, name]
        if self.ttft is not None:
            parts.append(f"first token {self.ttft:.2f} s")
        if self.batch:
            parts.append("in one piece")
        elif self.rate is not None:
            parts.append(f"{self.rate:.0f} tokens/s")
        if self.finish and self.finish.reason == "length":
            parts.append("cut at its token limit")
        if self.decision is not None:
            parts.append(self.decision.badge())
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node at one instant.

    Attributes:
        state: `idle`, `running`, `blocked` (its receiver is full), `done`, `failed`, `cancelled`.
        queue: the declared queue.
        bound: data events that it may own.
        depth: data events in its queue.
        peak: the highest depth so far.
        processed, emitted, dropped, errors, unrouted: events since the run began.
        wait_s, service_s, blocked_s: seconds in all that events waited in the queue, were served, and that results
            waited for the receiver.
        first_s: seconds from the run's start until the first event entered service (TTFPT), None before.
        p50_s, p95_s, p99_s: service time by percentile, from a histogram of powers of two (upper edges).
        owned, most: data events that it owns now, and the most that it has owned; never above `bound`.
        drops: dropped events by kind.
        conflated: events whose text was put behind another's in a full queue.
        retries: calls that were repeated.
        busy, blocked, idle: shares of its workers' time; they add up to 1.
        lag_s: mean seconds from an event's arrival at its source to its service here, None where the source does not
            stamp its events.
        held_loop_s: the longest that its code held the event loop, 0 where nobody noticed any.
    """

    node: str
    state: NodeState
    queue: int
    workers: int
    bound: int
    depth: int
    peak: int
    processed: int
    emitted: int
    dropped: int
    errors: int
    unrouted: int
    wait_s: float
    service_s: float
    blocked_s: float
    first_s: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    owned: int = 0
    most: int = 0
    drops: Mapping[str, int] = field(default_factory=dict)
    conflated: int = 0
    retries: int = 0
    busy: float = 0.0
    blocked: float = 0.0
    idle: float = 1.0
    lag_s: float | None = None
    held_loop_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A whole run at one instant; `rows()` suits `pandas.DataFrame(...)`.

    Attributes:
        ttft_s: seconds until the first token of the first answer that has one, None before.
        warnings: what whoever runs it should know, such as code that held the event loop; one text for a node.
    """

    run_id: str
    name: str
    state: RunState
    elapsed_s: float
    message: str
    nodes: tuple[NodeStatus, ...]
    ttft_s: float | None = None
    warnings: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """One dict per node, with the run's time to the first token beside the node's time to the first event."""
        return [asdict(node) | {"ttft_s": self.ttft_s} for node in self.nodes]


class Counted(Protocol):
    """What a guardian lets be read."""

    node: str
    policy: Policy
    workers: int
    bound: int
    peak: int
    most: int
    drops: Counter[str]
    conflated: int
    retries: int
    held_ns: int
    lag_ns: int | None
    processed: int
    emitted: int
    errors: int
    unrouted: int
    wait_ns: int
    first_ns: int
    histogram: list[int]
    closed: bool
    done: bool

    @property
    def depth(self) -> int:
        """Data events in the queue."""

    @property
    def dropped(self) -> int:
        """Events that overflow discarded."""

    def active(self) -> int:
        """Events in service."""

    def owned(self) -> int:
        """Data events that it owns."""

    def busy_for(self, now: int) -> int:
        """Nanoseconds of service so far."""

    def blocked_for(self, now: int) -> int:
        """Nanoseconds that outputs waited so far."""

    def blocked(self) -> bool:
        """Whether an output waits for its receiver."""


def percentile(histogram: Sequence[int], share: float) -> float | None:
    """Upper edge, in seconds, of the bucket that holds the given share of the counts; None without counts."""
    total = sum(histogram)
    if not total:
        return None
    seen = 0
    for bits, count in enumerate(histogram):
        seen += count
        if seen >= share * total:
            return (1 << bits) / 1e9
    return None


def _within(edge: float | None, service_ns: int) -> float | None:
    """A bucket's upper edge, but no more than all service together."""
    return None if edge is None else min(edge, service_ns / 1e9)


def node_status(guardian: Counted, run: RunState, started: int, now: int, failed: str | None) -> NodeStatus:
    """Read one guardian's counters; safe from any thread, as every figure is read on its own.

    Args:
        guardian: the node.
        run: the run's state.
        started: when the run began, nanoseconds of its clock; 0 before.
        now: the clock, or when the run ended.
        failed: the node that failed the run.
    """
    if guardian.node == failed:
        state: NodeState = "failed"
    elif guardian.done:
        state = "done"
    elif guardian.closed or run in ("failed", "cancelled"):
        state = "cancelled"
    elif guardian.blocked():
        state = "blocked"
    else:
        state = "running" if guardian.active() else "idle"
    histogram = list(guardian.histogram)
    service, waiting = guardian.busy_for(now), guardian.blocked_for(now)
    time = guardian.workers * (now - started) if started else 0
    busy = min(1.0, service / time) if time > 0 else 0.0
    blocked = min(1.0 - busy, waiting / time) if time > 0 else 0.0
    served = max(guardian.processed, 1)
    return NodeStatus(
        node=guardian.node,
        state=state,
        queue=guardian.policy.queue,
        workers=guardian.workers,
        bound=guardian.bound,
        depth=max(0, guardian.depth),
        peak=guardian.peak,
        processed=guardian.processed,
        emitted=guardian.emitted,
        dropped=guardian.dropped,
        errors=guardian.errors,
        unrouted=guardian.unrouted,
        wait_s=guardian.wait_ns / 1e9,
        service_s=service / 1e9,
        blocked_s=waiting / 1e9,
        first_s=(guardian.first_ns - started) / 1e9 if guardian.first_ns else None,
        p50_s=_within(percentile(histogram, 0.50), service),
        p95_s=_within(percentile(histogram, 0.95), service),
        p99_s=_within(percentile(histogram, 0.99), service),
        owned=guardian.owned(),
        most=guardian.most,
        drops=dict(guardian.drops),
        conflated=guardian.conflated,
        retries=guardian.retries,
        busy=busy,
        blocked=blocked,
        idle=1.0 - busy - blocked,
        lag_s=None if guardian.lag_ns is None or not guardian.first_ns else guardian.lag_ns / 1e9 / served,
        held_loop_s=guardian.held_ns / 1e9,
    )
