"""What is known of a run while it runs and afterwards: one status for the run, one for each node, one for each answer.

Guardians only count; everything here is read from their counters when somebody asks, so that nothing is paid per event.
A run's result keeps a snapshot of the counters, and the figures are worked out of it only if somebody reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from aiflow_jupyter.events import Event, Finish, Usage
from aiflow_jupyter.graph.policy import Policy

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.guardian import Guardian

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

    `named` is what its provider calls the model beside its name, as `demo model`; mostly empty.
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
    named: str = ""
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
                self.named, self.waiting = meta.get("badge", ""), ""
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
        name = f"{self.model} ({self.named})" if self.named else self.model
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
        paused: it serves nothing now.
    """

    run_id: str
    name: str
    state: RunState
    elapsed_s: float
    message: str
    nodes: tuple[NodeStatus, ...]
    ttft_s: float | None = None
    warnings: tuple[str, ...] = ()
    paused: bool = False

    @property
    def word(self) -> str:
        """Its state for people."""
        return "paused" if self.paused and self.state == "running" else self.state

    def rows(self) -> list[dict[str, Any]]:
        """One dict per node, with the run's time to the first token beside the node's time to the first event."""
        return [asdict(node) | {"ttft_s": self.ttft_s} for node in self.nodes]

    def __str__(self) -> str:
        """A short table, one row for each node; `rows()` has every figure."""
        ttft = "" if self.ttft_s is None else f", first token {self.ttft_s:.2f} s"
        table: list[tuple[str, ...]] = [
            ("node", "state", "events", "queue", "peak", "dropped", "errors", "busy", "blocked")
        ]
        for node in self.nodes:
            counts = (f"{count:,}" for count in (node.peak, node.dropped, node.errors))
            shares = (f"{share:.0%}" for share in (node.busy, node.blocked))
            queue = f"{node.depth}/{node.queue}"
            table.append((node.node, node.state, f"{node.processed:,}", queue, *counts, *shares))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        rows = [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        said = [*filter(None, [self.message]), *(f"warning: {warning}" for warning in self.warnings)]
        return "\n".join([f"{self.name}: {self.word}, {self.elapsed_s:.1f} s{ttft}", *rows, *said])

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))


class Counts(NamedTuple):
    """One node's counters at one instant; see `NodeStatus`. Times are in nanoseconds."""

    node: str
    state: NodeState
    policy: Policy
    workers: int
    bound: int
    depth: int
    peak: int
    processed: int
    emitted: int
    errors: int
    unrouted: int
    wait_ns: int
    service_ns: int
    blocked_ns: int
    first_ns: int
    histogram: tuple[int, ...]
    owned: int
    most: int
    drops: dict[str, int]
    conflated: int
    retries: int
    lag_ns: int | None
    held_ns: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one instant, as it was counted: nothing is worked out yet.

    Attributes:
        started: when the run began, nanoseconds of its clock; 0 before.
        now: the clock, or when the run ended.
        nodes: the counters of its nodes.
    """

    run_id: str
    name: str
    state: RunState
    started: int
    now: int
    message: str
    nodes: tuple[Counts, ...]
    first_token: int
    warnings: tuple[str, ...]
    paused: bool

    def status(self) -> RunStatus:
        """The figures."""
        started, now = self.started, self.now
        return RunStatus(
            self.run_id,
            self.name,
            self.state,
            (now - started) / 1e9 if started else 0.0,
            self.message,
            tuple(_node_status(counts, started, now) for counts in self.nodes),
            (self.first_token - started) / 1e9 if self.first_token and started else None,
            self.warnings,
            self.paused,
        )


def counts_of(guardians: Iterable[Guardian], run: RunState, now: int, failed: str | None) -> tuple[Counts, ...]:
    """Read the counters of some guardians; safe from any thread, as every figure is read on its own.

    Args:
        guardians: the nodes.
        run: the run's state.
        now: the clock, or when the run ended.
        failed: the node that failed the run.
    """
    return tuple(
        Counts(
            guardian.node,
            _state(guardian, run, failed),
            guardian.policy,
            guardian.workers,
            guardian.bound,
            guardian.depth,
            guardian.peak,
            guardian.processed,
            guardian.emitted,
            guardian.errors,
            guardian.unrouted,
            guardian.wait_ns,
            guardian.busy_for(now),
            guardian.blocked_for(now),
            guardian.first_ns,
            tuple(guardian.histogram),
            guardian.owned(),
            guardian.most,
            dict(guardian.drops),
            guardian.conflated,
            guardian.retries,
            guardian.lag_ns,
            guardian.held_ns,
        )
        for guardian in guardians
    )


def _state(guardian: Guardian, run: RunState, failed: str | None) -> NodeState:
    if guardian.node == failed:
        return "failed"
    if guardian.done:
        return "done"
    if guardian.closed or run in ("failed", "cancelled"):
        return "cancelled"
    if guardian.blocked():
        return "blocked"
    return "running" if guardian.active() else "idle"


def percentiles(histogram: Sequence[int], *shares: float) -> tuple[float | None, ...]:
    """For each share the upper edge, in seconds, of the bucket that holds it of all counts; None without any."""
    seen = list(accumulate(histogram))
    total = seen[-1]
    return tuple((1 << bisect_left(seen, share * total)) / 1e9 if total else None for share in shares)


def _within(edge: float | None, service_ns: int) -> float | None:
    """A bucket's upper edge, but no more than all service together."""
    return None if edge is None else min(edge, service_ns / 1e9)


def _node_status(counts: Counts, started: int, now: int) -> NodeStatus:
    service, first = counts.service_ns, counts.first_ns
    time = counts.workers * (now - started) if started else 0
    busy = min(1.0, service / time) if time > 0 else 0.0
    blocked = min(1.0 - busy, counts.blocked_ns / time) if time > 0 else 0.0
    p50, p95, p99 = (_within(edge, service) for edge in percentiles(counts.histogram, 0.50, 0.95, 0.99))
    return NodeStatus(
        node=counts.node,
        state=counts.state,
        queue=counts.policy.queue,
        workers=counts.workers,
        bound=counts.bound,
        depth=max(0, counts.depth),
        peak=counts.peak,
        processed=counts.processed,
        emitted=counts.emitted,
        dropped=sum(counts.drops.values()),
        errors=counts.errors,
        unrouted=counts.unrouted,
        wait_s=counts.wait_ns / 1e9,
        service_s=service / 1e9,
        blocked_s=counts.blocked_ns / 1e9,
        first_s=(first - started) / 1e9 if first else None,
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        owned=counts.owned,
        most=counts.most,
        drops=counts.drops,
        conflated=counts.conflated,
        retries=counts.retries,
        busy=busy,
        blocked=blocked,
        idle=1.0 - busy - blocked,
        lag_s=None if counts.lag_ns is None or not first else counts.lag_ns / 1e9 / max(counts.processed, 1),
        held_loop_s=counts.held_ns / 1e9,
    )
