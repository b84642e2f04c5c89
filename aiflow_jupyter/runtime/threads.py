"""Threads for plain functions: a node's own, started when first needed, and daemons.

`concurrent.futures` joins its threads when the interpreter ends, so one user function that hangs would keep a kernel
from shutting down. These are daemon threads: a function that does not return delays nobody but its own node.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

_Task = tuple[Callable[[], Any], asyncio.Future[Any]]


class NodeThreads:
    """Runs a node's calls in at most `workers` threads.

    Args:
        node: names the threads.
        workers: how many may run at once.
        loop: the loop that waits for the results.
    """

    def __init__(self, node: str, workers: int, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._workers = workers
        self._loop = loop
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._running = 0
        self._closed = False

    def submit(self, function: Callable[[Any], Any], argument: Any) -> asyncio.Future[Any]:
        """Call `function(argument)` in a thread; the future is cancelled without stopping the thread."""
        future = self._loop.create_future()
        if len(self._threads) < self._workers:
            thread = threading.Thread(target=self._run, name=f"aiflow:{self._node}", daemon=True)
            self._threads.append(thread)
            thread.start()
        context = self._context.copy()
        self._tasks.put((lambda: context.run(function, argument), future))
        return future

    @property
    def running(self) -> int:
        """How many calls are in a thread right now."""
        return self._running

    def close(self) -> None:
        """Let the threads end; one that is in a call ends after it."""
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            call, future = task
            with self._lock:  # after `close` a call is either counted as running or never starts
                if self._closed or future.cancelled():
                    continue
                self._running += 1
            try:
                result, error = call(), None
            except BaseException as raised:  # noqa: BLE001 - handed to the loop, SystemExit of the user's code too
                result, error = None, raised
            finally:
                with self._lock:
                    self._running -= 1
            if self._closed:
                return
            try:
                self._loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:
        future.set_exception(RuntimeError(f"the function raised {type(error).__name__}: {error}"))
