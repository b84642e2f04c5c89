"""The virtual loop of `runtime.replay.clock` for tests: a story also fails when it leaves anything behind.

    def test_something():
        async def story(loop):
            run = Run(spec, operators, Scheduler(loop, loop.clock))
            await asyncio.sleep(3600)  # takes no time
        virtual.run(story)

`tick_ns` lets every reading of the clock take that long, so that slices of time run out by counting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiflow_jupyter.runtime.replay.clock import START_NS, VirtualLoop

__all__ = ["START_NS", "VirtualLoop", "run"]

T = TypeVar("T")


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
