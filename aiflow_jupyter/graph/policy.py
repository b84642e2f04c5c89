"""Policy: what a node's guardian enforces, as written in a graph.

The paper's tuple is P = (q, k, rho, sigma, o, c, r); each key here names one of them in words.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Overflow = Literal["block", "drop_newest", "drop_oldest", "error"]
Effect = Literal["pure", "idempotent", "non_idempotent"]

MOST_QUEUE = 1_000_000
MOST_WORKERS = 1_024


class Policy(BaseModel):
    """The declared limits of one node.

    Attributes:
        queue: data events that may wait (q).
        workers: events in service at once (k).
        reorder: finished results that may wait for their turn while their workers go on (rho); None for the
            default, 4 x `workers`, or 0 for one worker.
        order: `source` keeps the order of admission, `none` lets results leave as they finish.
        overflow: what happens to an event that finds the queue full (o).
        effect: what a repeated call would do. Nothing is ever retried in this version, so all three are kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    queue: Annotated[int, Field(ge=1, le=MOST_QUEUE)] = 8
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1
    reorder: Annotated[int, Field(ge=0, le=MOST_QUEUE)] | None = None
    order: Literal["source", "none"] = "source"
    overflow: Overflow = "block"
    effect: Effect = "pure"

    @property
    def held_results(self) -> int:
        """How many finished results may wait for their turn."""
        if self.order == "none" or self.workers == 1:
            return 0
        return 4 * self.workers if self.reorder is None else self.reorder

    @property
    def bound(self) -> int:
        """Data events that the node may own at any instant."""
        return self.queue + self.workers + self.held_results
