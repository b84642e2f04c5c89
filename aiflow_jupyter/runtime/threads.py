"""Threads for plain functions: a node's own, started when first needed, and daemons.

`concurrent.futures` joins its threads when the interpreter ends, so one user function that hangs would keep a kernel
from shutting down. These are daemon threads: a function that does not return delays nobody but its own node.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

from aiflow_jupyter.errors import words

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
        self._calls: set[asyncio.Future[Any]] = set()
        self._freed: asyncio.Event | None = None
        self._alive = 0
        self._closed = False
        self._last: Callable[[], Any] | None = None
        self._ended = loop.create_future()

    def submit(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> asyncio.Future[Any]:
        """Call a function in a thread; the future is cancelled without stopping the thread."""
        future = self._loop.create_future()
        if len(self._threads) < self._workers:
            thread = threading.Thread(target=self._run, name=f"aiflow:{self._node}", daemon=True)
            self._threads.append(thread)
            with self._lock:
                self._alive += 1
            thread.start()
        self._calls.add(future)
        context = self._context.copy()
        self._tasks.put((lambda: context.run(function, *arguments, **named), future))
        return future

    async def free(self) -> None:
        """Wait for a thread that is in no call; one whose result nobody waits for any more is in one all the same."""
        while len(self._calls) >= self._workers:
            self._freed = self._freed or asyncio.Event()
            await self._freed.wait()

    async def returned(self) -> None:
        """Wait until no call goes on that nobody waits for any more."""
        while self.abandoned:
            self._freed = self._freed or asyncio.Event()
            await self._freed.wait()

    @property
    def abandoned(self) -> int:
        """How many calls go on although nobody waits for them any more."""
        return sum(future.cancelled() for future in self._calls)

    def _returned(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._calls.discard(future)
        if self._freed is not None:
            self._freed.set()
            self._freed = None
        _settle(future, result, error)

    @property
    def running(self) -> int:
        """How many calls are in a thread right now."""
        return self._running

    def close(self, last: Callable[[], Any] | None = None) -> asyncio.Future[None]:
        """Let the threads end; one that is in a call ends after it.

        Args:
            last: called by the thread that ends last, so that it meets none of the calls and holds no loop up.

        Returns:
            done when all threads have ended.
        """
        with self._lock:
            self._closed = True
            self._last = last or self._last
            alive = self._alive
        for _ in self._threads:
            self._tasks.put(None)
        if not alive and not self._ended.done():
            self._ended.set_result(None)
        return self._ended

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            with self._lock:
                self._alive -= 1
                through = not self._alive
            if through:
                self._end()

    def _end(self) -> None:
        error: BaseException | None = None
        try:
            if self._last is not None:
                self._last()
        except Exception as raised:  # noqa: BLE001 - handed to the loop
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_settle, self._ended, None, error)

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            call, future = task
            with self._lock:  # after `close` a call is either counted as running or never starts
                if self._closed:
                    continue
                ended = future.cancelled()
                self._running += not ended
            if ended:
                if not self._hand_back(future, None, None):
                    return
                continue
            try:
                result, error = call(), None
            except BaseException as raised:  # noqa: BLE001 - handed to the loop, SystemExit of the user's code too
                result, error = None, raised
            finally:
                with self._lock:
                    self._running -= 1
            if self._closed or not self._hand_back(future, result, error):
                return

    def _hand_back(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> bool:
        """Tell the loop that a call has returned; False where the loop is closed, so that nobody waits any more."""
        try:
            self._loop.call_soon_threadsafe(self._returned, future, result, error)
        except RuntimeError:
            return False
        return True


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:
        future.set_exception(RuntimeError(f"the function raised {type(error).__name__}: {words(error)}"))
