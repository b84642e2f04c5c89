"""An event loop on virtual time: when nothing is ready, time jumps to the next timer; with no timer it is a deadlock.

    def test_something():
        async def story(loop):
            run = Run(spec, operators, Scheduler(loop, loop.clock))
            await asyncio.sleep(3600)  # takes no time
        virtual.run(story)

`tick_ns` lets every reading of the clock take that long, so that slices of time run out by counting.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

START_NS = 1_000_000_000


class Deadlock(AssertionError):
    """The loop is idle, no timer is set, and the story has not ended: nothing can ever happen any more."""


class _Jump(selectors.DefaultSelector):
    """Waits by moving the loop's time."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            waiting = [repr(task) for task in asyncio.all_tasks(self.loop)]
            raise Deadlock("nothing is ready and no timer is set; waiting:\n" + "\n".join(waiting))
        if timeout > 0:
            self.loop.now_ns += max(1, math.ceil(timeout * 1e9))
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module.

    Attributes:
        now_ns: the virtual time.
        tick_ns: how long a reading of `clock` takes.
        broken: what went wrong in callbacks and forgotten tasks.
    """

    def __init__(self, tick_ns: int = 0) -> None:
        self.now_ns = START_NS
        self.tick_ns = tick_ns
        self.broken: list[str] = []
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)
        self.set_exception_handler(lambda _loop, context: self.broken.append(str(context)))

    def time(self) -> float:
        return self.now_ns / 1e9

    def clock(self) -> int:
        """The time in nanoseconds, for a `Scheduler`."""
        self.now_ns += self.tick_ns
        return self.now_ns


def run(story: Callable[[VirtualLoop], Awaitable[T]], *, tick_ns: int = 0) -> T:
    """Run a story to its end; fails on a deadlock, on an error in a callback, and when it leaves a task behind."""
    loop = VirtualLoop(tick_ns)
    try:
        asyncio.set_event_loop(loop)
        result = loop.run_until_complete(_told(story(loop)))
        left = [repr(task) for task in asyncio.all_tasks(loop)]
        assert not left, f"tasks were left behind: {left}"
        assert not loop.broken, f"errors in callbacks: {loop.broken}"
        return result
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.001))
        asyncio.set_event_loop(None)
        loop.close()


async def _told(story: Awaitable[T]) -> T:
    return await story
