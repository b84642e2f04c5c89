"""A watchdog for the event loop: names the node whose code holds it.

A thread asks the loop for a sign of life every 50 ms. When none comes for `LIMIT_S`, and the loop's thread stood in the
code of one node in the middle and at the end of that, the node's run is warned: it is an `async def` that blocks, or a
slow function with `inline=true`. The warning is there before the loop goes on, so also where the run ends with that.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import Final

from aiflow_jupyter.errors import PACKAGE
from aiflow_jupyter.runtime.guardian import Guardian
from aiflow_jupyter.runtime.scheduler import Scheduler

PING_S: Final = 0.05
LIMIT_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Held:
    """The loop was held.

    Attributes:
        node: whose code held it.
        seconds: for how long.
        where: function and line of the user's code, empty where it is not known.
    """

    node: str
    seconds: float
    where: str

    def __str__(self) -> str:
        at = f" in {self.where}" if self.where else ""
        return (
            f"node {self.node!r} held the event loop for {self.seconds:.1f} s{at}, and with it every run: "
            "make it a plain `def` without inline=true, which runs in threads, or await what it waits for"
        )


class Watchdog:
    """Watches the loop of a scheduler from a daemon thread, between `start` and `stop`.

    Args:
        scheduler: whose loop.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._stopped: threading.Event | None = None

    def start(self) -> None:
        """Watch from now on; called on the loop's thread."""
        if self._stopped is None:
            self._stopped = threading.Event()
            watch = (self._stopped, threading.get_ident())
            threading.Thread(target=self._watch, args=watch, name="aiflow-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None

    def _watch(self, stopped: threading.Event, thread: int) -> None:
        answered = threading.Event()
        loop = self._scheduler.loop
        while not stopped.wait(PING_S):
            answered.clear()
            asked = time.monotonic()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop is closed
                return
            if answered.wait(LIMIT_S / 2):
                continue
            before, _ = _holder(thread)
            if answered.wait(LIMIT_S / 2):
                continue
            guardian, where = _holder(thread)
            free = False
            while not (free or stopped.is_set()):
                if guardian is not None and guardian is before:
                    _warn(guardian, time.monotonic() - asked, where)
                free = answered.wait(PING_S)


def _warn(guardian: Guardian, seconds: float, where: str) -> None:
    """Tell a node's run, from this thread: each of the two is one assignment."""
    if seconds * 1e9 > guardian.held_ns:
        guardian.held_ns = int(seconds * 1e9)
        guardian.owner.warn(guardian.node, str(Held(guardian.node, seconds, where)))


def _holder(thread: int) -> tuple[Guardian | None, str]:
    """Whose code a thread is in, and where: the innermost function that is neither of this library nor Python's own."""
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way
    where = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            guardian = frame.f_locals.get("self")
            if isinstance(guardian, Guardian):
                return guardian, where
        elif not where and not name.startswith((sys.prefix, sys.base_prefix, "<frozen")):
            where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
        frame = frame.f_back
    return None, ""
