"""One life of the host: a daemon thread with an event loop, and the router, providers and runs that live on it.

A host that was stopped and is used again begins another life; nothing of one can touch the other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from aiflow_jupyter.errors import RunError
from aiflow_kernel.handle import STOP_TIMEOUT_S, Finished, RunHandle

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.run import Result, Run
    from aiflow_jupyter.runtime.scheduler import Scheduler
    from aiflow_jupyter.runtime.source import Provider

T = TypeVar("T")
Beside = Callable[["Run"], Awaitable[None]]
_log = logging.getLogger("aiflow")

LAUNCH_TIMEOUT_S = 5.0
MOST_FINISHED = 50
"""Finished runs that are remembered for `%aiflow runs`."""


class Life:
    """The loop thread and all that lives on it; made by `Host`, in any thread.

    Args:
        make_source: makes what answers.
    """

    def __init__(self, make_source: Callable[[], Provider]) -> None:
        from aiflow_jupyter.runtime.scheduler import Scheduler
        from aiflow_jupyter.runtime.watchdog import Watchdog

        self.source = make_source()
        self.loop = asyncio.new_event_loop()
        self.scheduler: Scheduler = Scheduler(self.loop)
        self._watchdog = Watchdog(self.scheduler)
        self._live: dict[str, RunHandle] = {}
        self._finished: deque[Finished] = deque(maxlen=MOST_FINISHED)
        self._thread = threading.Thread(target=self._serve, name="aiflow-host", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs; after a fork it does not, in the child."""
        return self._thread.is_alive()

    @property
    def here(self) -> bool:
        """Whether the caller is the loop's own thread, which must never wait for the loop."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def handles(self) -> list[RunHandle | Finished]:
        """The runs, oldest first; of those that are over only the last ones, and only their figures."""
        return [*self._finished, *self._live.values()]

    def find(self, run_id: str) -> RunHandle | None:
        """The live run of that identifier."""
        return self._live.get(run_id)

    def holder(self) -> str:
        """What keeps the loop from answering, in words."""
        node = getattr(self.scheduler.current, "node", None)
        if node is not None:
            return f"code of node {node!r} holds the event loop (an `async def` that blocks)"
        return "the event loop does not answer"

    # -- runs

    async def launch(
        self,
        make: Callable[[], Run],
        value: Any,
        to: str | None,
        leave_open: bool,
        beside: Beside | None,
        ready: concurrent.futures.Future[RunHandle],
    ) -> None:
        """Make a run, hand its handle out by `ready`, and see the run through."""
        if not ready.set_running_or_notify_cancel():
            return  # whoever wanted it has given up
        try:
            run = make()
        except BaseException as error:
            ready.set_exception(error)
            raise
        handle = RunHandle(self, run)
        self._live[run.id] = handle  # from here on it can be cancelled
        self._watchdog.start()
        ready.set_result(handle)
        view = asyncio.ensure_future(beside(run)) if beside else None
        try:
            result: Result | BaseException = await run.run(value, to=to, leave_open=leave_open)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the run
            result = error
        if view is not None:
            await _followed(view, run)
        del self._live[run.id]
        if not self._live:
            self._watchdog.stop()
        self._finished.append(Finished(handle.id, handle.name, handle.begun, run.status(), run.answers))
        with suppress(concurrent.futures.InvalidStateError):  # given up meanwhile
            if isinstance(result, asyncio.CancelledError):
                handle.outcome.cancel()
            elif isinstance(result, BaseException):
                handle.outcome.set_exception(result)
            else:
                handle.outcome.set_result(result)

    def started(
        self, ready: concurrent.futures.Future[RunHandle], launched: concurrent.futures.Future[None]
    ) -> RunHandle:
        """Wait for the handle of a run that was launched.

        Raises:
            AiflowError: the graph does not fit the functions, or the loop is held by somebody's code.
        """
        try:
            either: list[concurrent.futures.Future[Any]] = [ready, launched]
            concurrent.futures.wait(either, LAUNCH_TIMEOUT_S, concurrent.futures.FIRST_COMPLETED)
            if ready.done():
                return ready.result()
            if launched.done():
                launched.result()  # raises what kept it from starting
        except BaseException:
            ready.cancel()  # a run that nobody holds may not start later, nor go on
            launched.cancel()
            raise
        ready.cancel()
        launched.cancel()
        raise RunError(f"the run can't start: {self.holder()}", code="AF604", hint="restart the kernel")

    # -- the end

    def stop(self) -> None:
        """Cancel the runs, close the providers, and end the thread."""
        if not self.alive:
            return
        shut = self.submit(self._shut())
        if self.here:  # code of a run stops the host: the loop can't wait for itself
            shut.add_done_callback(lambda _: self.loop.call_soon(self.loop.stop))
            return
        with suppress(TimeoutError):  # code that holds the loop: the thread is a daemon and ends with the process
            shut.result(timeout=STOP_TIMEOUT_S)
        self._let_go()
        self.loop.call_soon_threadsafe(self.loop.stop)
        if shut.done():
            self._thread.join(timeout=1.0)

    def _let_go(self) -> None:
        """Let nobody wait for a run that this loop will not end."""
        for handle in list(self._live.values()):
            handle.outcome.cancel()

    async def _shut(self) -> None:
        live = list(self._live.values())
        await asyncio.gather(*(handle.run.cancel() for handle in live), return_exceptions=True)
        await asyncio.gather(*live, return_exceptions=True)  # their views, too
        await self.source.aclose()

    async def _last(self) -> None:
        """End what still runs in the background: a farewell on the relay, say."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)
        await self.loop.shutdown_asyncgens()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self._last())
        finally:
            self._watchdog.stop()
            self._let_go()
            self.loop.close()


async def _followed(view: asyncio.Future[None], run: Run) -> None:
    """Wait for a run's view; one that breaks takes nothing from the run's result."""
    await asyncio.wait({view})
    if not view.cancelled() and (broke := view.exception()) is not None:
        _log.warning("the view of run %s broke: %r", run.id, broke)
