"""A watchdog for the event loop: names the node whose code holds it.

A thread asks the loop for a sign of life every 50 ms. When none comes for `LIMIT_S`, it reads which guardian's call was
started last and where the loop's thread stands, and the node is told on once the loop answers again: an `async def`
that blocks, or a slow function with `inline=true`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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
        told: called on the loop with each finding, after the loop was free again.
    """

    def __init__(self, scheduler: Scheduler, told: Callable[[Held], None]) -> None:
        self._scheduler = scheduler
        self._told = told
        self._thread_id = 0
        self._answered = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from now on; called on the loop's thread."""
        if self._thread is None:
            self._thread_id = threading.get_ident()
            self._stopped.clear()
            self._thread = threading.Thread(target=self._watch, name="aiflow-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        self._thread = None

    def _watch(self) -> None:
        stopped = self._stopped
        while not stopped.wait(PING_S):
            self._answered.clear()
            asked = time.monotonic()
            try:
                self._scheduler.loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:  # the loop is closed
                return
            if self._answered.wait(LIMIT_S):
                continue
            guardian = self._scheduler.current
            where = _where(sys._current_frames().get(self._thread_id))  # noqa: SLF001 - there is no other way
            while not self._answered.wait(PING_S):
                if stopped.is_set():
                    return
            self._tell(guardian, time.monotonic() - asked, where)

    def _tell(self, guardian: Guardian | None, seconds: float, where: str) -> None:
        if guardian is None:
            return

        def tell() -> None:
            guardian.held_ns = max(guardian.held_ns, int(seconds * 1e9))
            self._told(Held(guardian.node, seconds, where))

        try:
            self._scheduler.loop.call_soon_threadsafe(tell)
        except RuntimeError:
            return


def _where(frame: FrameType | None) -> str:
    """The innermost function that is the user's: outside this library and the standard library."""
    inner = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if "aiflow_jupyter" in name:
            return inner
        if not name.startswith((sys.prefix, sys.base_prefix)) and not inner:
            inner = f"{frame.f_code.co_name}, line {frame.f_lineno}"
        frame = frame.f_back
    return inner
