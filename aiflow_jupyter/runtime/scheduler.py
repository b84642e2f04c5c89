"""One scheduler per event loop: the clock, time slices, and the hand-over list of all its guardians.

Guardians hand events to each other by plain calls, so something must bound how long they hold the loop, and keep a
busy loop from starving the other threads of the process (in a notebook: the user's own).

- **Slice.** Whoever the loop resumes (a worker, a callback) calls `enter` and may then work until `slice_end`; past
  it a worker yields and an inline node queues. A slice is `SLICE` divided by the slices that were used up in the last
  turn of the loop, so that a quiet run beside many floods stays quick.
- **Ready list.** A node whose refused output was taken in by its receiver goes on from here, not from the receiver's
  stack, so a chain that unblocks does not recurse.
- **Breath.** Each turn of the loop releases the interpreter lock only for an instant; a thread that waits for the lock
  forces a switch after a whole interval (5 ms) without release, so a loop with shorter turns can starve it for
  seconds. While guardians are busy the loop sleeps `BREATH` seconds every `BREATH_EVERY`: the waiting thread gets the
  lock, and the user's switch interval stays as it was.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.guardian import Guardian

SLICE_NS = 1_000_000
MIN_SLICE_NS = 50_000
BREATH_EVERY_NS = 5_000_000
BREATH_S = 50e-6


class Resumable(Protocol):
    """A node that waits for its refused output to be taken in."""

    node: str

    def proceed(self) -> None:
        """Go on after the last refused output was taken in."""


class Scheduler:
    """What the guardians of one event loop share.

    Args:
        loop: the event loop that runs the guardians.
        clock: monotonic nanoseconds; pass a virtual one in tests.

    Attributes:
        current: the guardian whose call was started last in this turn of the loop, None when the turn is over: whoever
            finds the loop held, from another thread, can name it.
    """

    __slots__ = (
        "_armed",
        "_breath_at",
        "_calls",
        "_running",
        "_used",
        "clock",
        "current",
        "loop",
        "owner",
        "ready",
        "slice_end",
        "slice_ns",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.loop = loop
        self.clock = clock
        self.slice_end = 0
        self.slice_ns = SLICE_NS
        self.owner: object | None = None
        self.current: Guardian | None = None
        self.ready: deque[Resumable] = deque()
        self._calls: list[Callable[[], None]] = []
        self._armed = False
        self._running = False
        self._used = 0
        self._breath_at = clock() + BREATH_EVERY_NS

    def enter(self, owner: object, now: int) -> None:
        """Start a slice for `owner`, unless it is the one that has been running since the loop resumed it."""
        if self.owner is not owner:
            self.owner = owner
            self.slice_end = now + self.slice_ns
            if not self._armed:
                self._arm()

    def at_next_turn(self, call: Callable[[], None]) -> None:
        """Have something called when the loop has turned: much cheaper than a callback of the loop."""
        self._calls.append(call)
        if not self._armed:
            self._arm()

    def used_up(self) -> None:
        """Note that a slice ended with work left; the next turn's slices get shorter when many do."""
        self._used += 1
        self.owner = None

    async def yield_slice(self) -> None:
        """Let the loop turn once: called by a worker whose slice is over."""
        self.used_up()
        await asyncio.sleep(0)

    def run_ready(self) -> None:
        """Let every node go on whose refused output was taken in; safe to call from anywhere, nests harmlessly."""
        if self._running:
            return
        self._running = True
        ready = self.ready
        try:
            while ready:
                ready.popleft().proceed()
        finally:
            self._running = False

    def _arm(self) -> None:
        self._armed = True
        self.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._armed = False
        self.owner = self.current = None
        self.slice_ns = max(MIN_SLICE_NS, SLICE_NS // max(1, self._used))
        self._used = 0
        now = self.clock()
        if now >= self._breath_at:
            time.sleep(BREATH_S)
            self._breath_at = now + BREATH_EVERY_NS
        if self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                call()
