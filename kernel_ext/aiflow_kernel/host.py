"""The host: one daemon thread with one event loop, where a kernel's runs, router and providers live.

It starts when first needed, and what it needs is imported then, so that loading the extension stays quick. It is
stopped once, cleanly. Everything here may be called from any other thread; what
has to happen on the loop is handed over to it. Cells wait in slices, so that an interrupt gets through.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aiflow_jupyter.errors import RunCancelled, RunError

if TYPE_CHECKING:
    from aiflow_jupyter.events import Event
    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.runtime.metrics import RunStatus
    from aiflow_jupyter.runtime.run import Result, Run
    from aiflow_jupyter.runtime.scheduler import Scheduler
    from aiflow_jupyter.runtime.source import Provider

T = TypeVar("T")
_log = logging.getLogger("aiflow")


class Pin(Protocol):
    """Wraps a coroutine so that what it prints goes to the cell that submitted it."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> Coroutine[Any, Any, T]:
        """The coroutine to submit in place of this one."""


WAIT_SLICE_S = 0.1
STOP_TIMEOUT_S = 3.0
LAUNCH_TIMEOUT_S = 5.0
MOST_FINISHED = 50
"""Finished runs that are remembered for `%aiflow runs`."""


class RunHandle:
    """A run, held from another thread; `await handle` works too, from any loop."""

    def __init__(self, host: Host, run: Run, future: concurrent.futures.Future[Result]) -> None:
        self._host = host
        self._run = run
        self._future = future
        self.id = run.id
        self.name = run.spec.name
        self.begun = time.time()

    def status(self) -> RunStatus:
        """The figures of now."""
        return self._run.status()

    @property
    def run(self) -> Run:
        """The run itself; apart from `status()` it belongs to the host's loop."""
        return self._run

    def done(self) -> bool:
        """Whether the run is over."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over, at most `timeout` seconds; whether it is."""
        concurrent.futures.wait([self._future], timeout=timeout)
        return self._future.done()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result.

        Raises:
            TimeoutError: it is not over after `timeout` seconds.
            RunError, RunCancelled: how it ended.
        """
        if not self.wait(timeout):
            raise TimeoutError
        try:
            return self._future.result()
        except concurrent.futures.CancelledError:  # the host was stopped before the run had ended
            raise RunCancelled("the run was cancelled") from None

    def cancel(self, timeout: float = STOP_TIMEOUT_S) -> bool:
        """Stop the run and wait until it has stopped; False if it has not after `timeout` seconds."""
        self.cancel_soon()
        return self.wait(timeout)

    def cancel_soon(self) -> None:
        """Ask the run to stop, and return at once."""
        if not self._future.done():
            self._host.submit(self._run.cancel())

    def give_up(self) -> None:
        """Let go of whoever waits for the run, as its loop ends."""
        self._future.cancel()

    def holder(self) -> str:
        """What keeps the loop from answering, in words."""
        return self._host.holder()

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.wrap_future(self._future).__await__()

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.name}: {self._run.state}>"


class Host:
    """One loop thread with what runs on it.

    Args:
        make_source: makes what answers when the loop starts; None for the configured router.
        pin: wraps a coroutine so that what it prints goes to the cell that submitted it.
    """

    def __init__(
        self,
        make_source: Callable[[], Provider] | None = None,
        pin: Pin | None = None,
    ) -> None:
        self._make_source = make_source
        self.pin = pin
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduler: Scheduler | None = None
        self._source: Provider | None = None
        self._handles: dict[str, RunHandle] = {}

    @property
    def running(self) -> bool:
        """Whether the loop thread exists."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop; starts the loop if need be."""
        try:
            loop = self._ensure()
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(self.pin(coroutine) if self.pin else coroutine, loop)

    def start(
        self,
        spec: GraphSpec,
        value: Any,
        *,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        show: Callable[[Event], None] | None = None,
        to: str | None = None,
        beside: Callable[[Run], Awaitable[None]] | None = None,
        run_id: str | None = None,
    ) -> RunHandle:
        """Start a run of a checked graph.

        Args:
            spec: the graph.
            value: what goes to its input.
            functions: the user's functions by name.
            show: what `sink(display=true)` hands its events to.
            to: the input node, where there are several.
            beside: runs on the loop beside the run (a live view), from before its start; the handle's result waits
                for it, so that what it shows last is shown when the cell ends.
            run_id: the run's identifier, where it has to be known before.

        Raises:
            AiflowError: the graph does not fit the functions, or the loop is held by somebody's code.
        """
        ready: concurrent.futures.Future[Run] = concurrent.futures.Future()

        async def launch() -> Result:
            from aiflow_jupyter.operators import OPERATORS
            from aiflow_jupyter.runtime.run import Run

            if not ready.set_running_or_notify_cancel():
                raise asyncio.CancelledError  # whoever wanted it has given up
            try:
                assert self._scheduler is not None
                run = Run(
                    spec,
                    OPERATORS,
                    self._scheduler,
                    functions=functions,
                    source=self._source,
                    show=show,
                    run_id=run_id,
                )
            except BaseException as error:
                ready.set_exception(error)
                raise
            ready.set_result(run)
            view = asyncio.ensure_future(beside(run)) if beside else None
            try:
                return await run.run(value, to=to)
            finally:
                if run.state in ("ready", "running"):  # its input was refused: the view would wait for ever
                    await run.cancel()
                if view is not None:
                    await asyncio.wait({view})
                    if not view.cancelled() and (broke := view.exception()) is not None:
                        # A display that breaks takes nothing from the run's result.
                        _log.warning("the view of run %s broke: %r", run.id, broke)

        future = self.submit(launch())
        try:
            run = self._started(ready, future)
        except BaseException:
            ready.cancel()  # a run that nobody holds may not start later, nor go on
            future.cancel()
            raise
        handle = RunHandle(self, run, future)
        self._remember(handle)
        return handle

    def _started(self, ready: concurrent.futures.Future[Run], launched: concurrent.futures.Future[Result]) -> Run:
        either: list[concurrent.futures.Future[Any]] = [ready, launched]
        concurrent.futures.wait(either, LAUNCH_TIMEOUT_S, concurrent.futures.FIRST_COMPLETED)
        if ready.done():
            return ready.result()
        if launched.done():
            launched.result()  # raises what kept it from starting
        raise RunError(f"the run can't start: {self.holder()}", code="AF604", hint="restart the kernel")

    def holder(self) -> str:
        """What keeps the loop from answering, in words."""
        node = getattr(self._scheduler.current, "node", None) if self._scheduler else None
        if node is not None:
            return f"code of node {node!r} holds the event loop (an `async def` that blocks)"
        return "the event loop does not answer"

    # -- runs

    def handles(self) -> list[RunHandle]:
        """The runs of this kernel, oldest first; finished ones are forgotten after a while."""
        return list(self._handles.values())

    def find(self, run_id: str) -> RunHandle | None:
        """The run of that identifier."""
        return self._handles.get(run_id)

    def _remember(self, handle: RunHandle) -> None:
        with self._lock:
            self._handles[handle.id] = handle
            finished = [h for h in self._handles.values() if h.done()]
            for old in finished[: max(0, len(finished) - MOST_FINISHED)]:
                del self._handles[old.id]

    # -- the thread

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is not None and self.running:
                return self._loop
            from aiflow_jupyter.runtime.scheduler import Scheduler
            from aiflow_jupyter.tiers.router import default_router

            source = (self._make_source or default_router)()
            loop = asyncio.new_event_loop()
            self._source, self._scheduler, self._loop = source, Scheduler(loop), loop
            self._thread = threading.Thread(target=_serve, args=(loop,), name="aiflow-host", daemon=True)
            self._thread.start()
            return loop

    def stop(self) -> None:
        """Cancel the runs, close the providers and end the thread; the host may be used again afterwards."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None or not thread.is_alive():
            return
        shut = asyncio.run_coroutine_threadsafe(self._shut(), loop)
        with suppress(TimeoutError):  # code that holds the loop: the thread is a daemon and ends with the process
            shut.result(timeout=STOP_TIMEOUT_S)
        for handle in self.handles():
            handle.give_up()
        loop.call_soon_threadsafe(loop.stop)
        if shut.done() and threading.current_thread() is not thread:
            thread.join(timeout=1.0)

    async def _shut(self) -> None:
        live = [handle for handle in self.handles() if not handle.done()]
        await asyncio.gather(*(handle.run.cancel() for handle in live), return_exceptions=True)
        await asyncio.gather(*live, return_exceptions=True)  # their views, too
        if self._source is not None:
            await self._source.aclose()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


_hosts: list[Host] = []
_hosts_lock = threading.Lock()


def current_host(pin: Pin | None = None) -> Host:
    """The one host of this process, made when first asked for."""
    with _hosts_lock:
        if not _hosts:
            _hosts.append(Host())
        host = _hosts[0]
        if pin is not None:  # the shell may come after the first question
            host.pin = pin
        return host
