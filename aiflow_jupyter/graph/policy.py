"""Policy: what a node's guardian enforces, as written in a graph.

The paper's tuple is P = (q, k, rho, sigma, o, c, r); each key here names one of them, or a part of one, in words.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from aiflow_jupyter.events import DataKind
from aiflow_jupyter.graph.names import Name

Rule = Literal["block", "drop_newest", "drop_oldest", "error", "conflate"]
Effect = Literal["pure", "idempotent", "non_idempotent", "speculative"]
State = Literal["stateless", "partitioned", "serialized", "transactional"]
Cancel = Literal["both", "upstream", "downstream", "none"]

MOST_QUEUE: Final = 1_000_000
MOST_WORKERS: Final = 1_024
MOST_BYTES: Final = 1 << 40
MOST_SECONDS: Final = 30 * 86_400.0
KEPT_KINDS: Final = frozenset({"tool_result"})
"""Data kinds that overflow never drops, whatever is declared."""

Rules = dict[Annotated[str, WithJsonSchema({"enum": [*get_args(DataKind), "else"]})], Rule]
Count = Annotated[int, Field(ge=1, le=MOST_QUEUE)]
Bytes = Annotated[int, Field(ge=1, le=MOST_BYTES)]
Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS, allow_inf_nan=False)]


def _listed(names: Any) -> Any:
    """One name alone stands for a list of it."""
    return [names] if isinstance(names, str) else names


def _checked_rules(overflow: Rule | Rules) -> Rule | Rules:
    if isinstance(overflow, dict):
        allowed = (*get_args(DataKind), "else")
        for kind, rule in overflow.items():
            if kind not in allowed:
                raise ValueError(f"{kind!r} is no kind of event; known: {', '.join(allowed)}")
            if kind in KEPT_KINDS and rule != "block":
                raise ValueError(f"{kind} events are never dropped")
    return overflow


class Policy(BaseModel):
    """The declared limits of one node.

    Attributes:
        queue: data events that may wait (q).
        queue_bytes: bytes that they may take together, as `sys.getsizeof` counts their payloads; a larger event is
            refused. None for no such limit.
        workers: events in service at once (k).
        reorder: finished results that may wait for their turn while their workers go on (rho); None for the
            default, 4 x `workers`, or 0 for one worker.
        order: `source` keeps the order of admission, `none` lets results leave as they finish.
        state: what the function's calls share (sigma): nothing; one state for each `key`, at most `keys` of them;
            one state, one call at a time; or one whose changes become visible together with the outputs or not at all.
        key: the function that gives an event's key, for `partitioned`.
        keys: the most keys that have a state.
        overflow: what happens to an event that finds the queue full (o); or by kind of event, `else` for the others.
            What is made of an answer that something was dropped from is marked as a part, and the run's result is not
            complete; `conflate` loses nothing.
        cancel: where the stop of this node goes on to (c): inputs that nobody else needs, outputs that nobody took.
        retry: calls in all for one event (r); 1 for no retry.
        backoff: seconds before the first retry; doubled for each further one, with jitter.
        retry_on: names of the exceptions that are tried again; empty for any.
        restart: retry also after the first output, told downstream by a `restart` event; at `generate` also where
            another tier begins an answer anew that broke off.
        effect: what a repeated call would do.
        compensate: the function that undoes a failed call, so that a `non_idempotent` node may be retried.
        hold: data events that a window, segment, reduce, join, guard, merge or speculative node may keep; None for the
            operator's own default.
        hold_bytes: bytes of text that it, or a conflated event, may keep.
        timeout: seconds for one event; for a speculative node, seconds to wait for the verdict on a lineage, from the
            first event of it that is held.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    queue: Count = 8
    queue_bytes: Bytes | None = None
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1
    reorder: Annotated[int, Field(ge=0, le=MOST_QUEUE)] | None = None
    order: Literal["source", "none"] = "source"
    state: State = "stateless"
    key: Name | None = None
    keys: Count = 1_024
    overflow: Annotated[Rule | Rules, AfterValidator(_checked_rules)] = "block"
    cancel: Cancel = "both"
    retry: Annotated[int, Field(ge=1, le=100)] = 1
    backoff: Seconds = 0.5
    retry_on: Annotated[list[Name], BeforeValidator(_listed), Field(max_length=20)] = Field(default_factory=list)
    restart: bool = False
    effect: Effect = "pure"
    compensate: Name | None = None
    hold: Count | None = None
    hold_bytes: Bytes = 65_536
    timeout: Seconds | None = None

    @property
    def held_results(self) -> int:
        """How many finished results may wait for their turn."""
        if self.order == "none" or self.workers == 1:
            return 0
        return 4 * self.workers if self.reorder is None else self.reorder

    @property
    def bound(self) -> int:
        """Data events that the node may own at any instant, without what its operator holds."""
        return self.queue + self.workers + self.held_results

    def rule(self, kind: str) -> Rule:
        """What happens to an event of that kind that finds the queue full."""
        if kind in KEPT_KINDS:
            return "block"
        if isinstance(self.overflow, str):
            return self.overflow
        return self.overflow.get(kind) or self.overflow.get("else", "block")
