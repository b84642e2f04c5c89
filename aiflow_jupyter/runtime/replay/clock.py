"""An event loop on virtual time: when nothing is ready, time jumps to the next timer.

A run on it takes no time to wait, and twice the same steps to the nanosecond: its loop is the only one there is, so no
thread may take part. Where nothing is ready and no timer is set, nothing can ever happen any more: a `Standstill`.

    async def story(loop):
        run = Run(spec, operators, VirtualScheduler(loop), source=Replay(trace, clock=loop.clock))
        return await run.run("Why?")

    result = simulate(story)
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.runtime.scheduler import Scheduler

T = TypeVar("T")

START_NS: Final = 1_000_000_000
"""What a virtual clock shows at first: 0 stands for "never" in a run's figures."""


class Standstill(RunError):
    """The loop is idle, no timer is set, and what runs on it has not ended."""

    code = "AF614"


class _Jump(selectors.DefaultSelector):
    """Waits by moving the loop's time."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            waiting = [repr(task) for task in asyncio.all_tasks(self.loop)]
            raise Standstill("nothing is ready and no timer is set; waiting:\n" + "\n".join(waiting))
        if timeout > 0:  # a difference of two floats: the nearest nanosecond is what was meant
            self.loop.now_ns += max(1, round(timeout * 1e9))
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module.

    Args:
        tick_ns: how long a reading of `clock` takes.

    Attributes:
        now_ns: the virtual time.
        broken: what went wrong in callbacks and forgotten tasks.
    """

    def __init__(self, tick_ns: int = 0) -> None:
        self.now_ns = START_NS
        self.tick_ns = tick_ns
        self.broken: list[str] = []
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 0.5e-9  # so that a timer is never early by a nanosecond
        self.set_exception_handler(lambda _loop, context: self.broken.append(str(context)))

    def time(self) -> float:
        """The virtual time in seconds."""
        return self.now_ns / 1e9

    def clock(self) -> int:
        """The virtual time in nanoseconds, for a `Scheduler`."""
        self.now_ns += self.tick_ns
        return self.now_ns

    def hold(self, seconds: float) -> None:
        """Let time pass in the midst of a call, as code does that holds the loop."""
        self.now_ns += round(seconds * 1e9)


class VirtualScheduler(Scheduler):
    """The scheduler of a virtual loop: it never sleeps for the sake of other threads."""

    __slots__ = ()

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop, loop.clock)
        self._breath_at = sys.maxsize


def simulate(story: Callable[[VirtualLoop], Awaitable[T]]) -> T:
    """Run a story on a virtual loop to its end.

    Raises:
        Standstill: it can't go on.
    """
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(_told(story(loop)))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.001))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _told(story: Awaitable[T]) -> T:
    return await story


def apart(job: Callable[[], T]) -> T:
    """Do a job that runs a loop of its own: here, or in a thread where this one's loop is running (as in a notebook).

    Raises:
        BaseException: whatever the job raises.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return job()
    done: list[T] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            done.append(job())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            raised.append(error)

    thread = threading.Thread(target=work, name="aiflow-replay", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return done[0]
