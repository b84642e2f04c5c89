"""A run as the other threads of a kernel hold it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiflow_jupyter.errors import RunCancelled, RunError

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.bottleneck import Bottleneck
    from aiflow_jupyter.runtime.metrics import Answer, RunStatus
    from aiflow_jupyter.runtime.run import Result, Run
    from aiflow_kernel.life import Life

STOP_TIMEOUT_S = 3.0


class RunHandle:
    """A run, held from another thread; `await handle` works too, from any loop.

    Args:
        life: the loop that the run belongs to.
        run: the run.
    """

    def __init__(self, life: Life, run: Run) -> None:
        self._life = life
        self._run = run
        self.outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self.id = run.id
        self.name = run.spec.name
        self.begun = time.time()

    def status(self) -> RunStatus:
        """The figures of now."""
        return self._run.status()

    @property
    def answers(self) -> list[Answer]:
        """The models' answers so far."""
        return self._run.answers

    @property
    def run(self) -> Run:
        """The run itself; apart from `status()` it belongs to the host's loop."""
        return self._run

    def done(self) -> bool:
        """Whether the run is over."""
        return self.outcome.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over, at most `timeout` seconds; whether it is."""
        concurrent.futures.wait([self.outcome], timeout=timeout)
        return self.outcome.done()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result.

        Raises:
            TimeoutError: it is not over after `timeout` seconds.
            RunError, RunCancelled: how it ended.
        """
        if not self.wait(timeout):
            raise TimeoutError
        try:
            return self.outcome.result()
        except concurrent.futures.CancelledError:  # the host was stopped before the run had ended
            raise RunCancelled("the run was cancelled") from None

    def cancel(self, timeout: float = STOP_TIMEOUT_S) -> bool:
        """Stop the run and wait until it has stopped; False if it has not after `timeout` seconds."""
        self.cancel_soon()
        return self.wait(timeout)

    def offer(self, node: str, value: Any, timeout: float | None = None) -> None:
        """Put a value into a node's queue; waits while it is full, at most `timeout` seconds of the loop's.

        Raises:
            CommandError: no such node, or it takes no such value.
            RunError: the run takes nothing in any more.
            TimeoutError: the queue stayed full; the value is not taken in.
        """
        self._do(self._in_time(node, value, timeout))

    async def _in_time(self, node: str, value: Any, seconds: float | None) -> None:
        """Whether it was in time is said on the loop, where the value is either in or is not."""
        async with asyncio.timeout(seconds):
            await self._run.offer(node, value)

    def close_inputs(self) -> None:
        """Nothing more is offered: the run ends when what it was given is through."""
        self._do(self._run.close_inputs())

    def drain(self) -> None:
        """Take nothing more in, finish what was admitted, and wait for the end."""
        self._do(self._run.cancel(drain=True))

    def stop(self, node: str) -> None:
        """Stop one node; its policy says what else stops with it."""
        self._do(self._run.stop(node))

    def pause(self) -> None:
        """Serve nothing until `resume`."""
        self._soon(self._run.pause)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._soon(self._run.resume)

    def bottleneck(self) -> Bottleneck | None:
        """The node that holds the others up, and what would help; None while none does."""
        return self._run.bottleneck()

    @property
    def still_running(self) -> list[str]:
        """Nodes whose code runs on although nobody waits for it: threads that can't be killed."""
        return self._run.still_running

    def _soon(self, what: Callable[[], None]) -> None:
        if not self._life.alive:
            raise RunError("the run is over: its host was stopped", code="AF605")
        self._life.loop.call_soon_threadsafe(what)

    def _do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Have the loop do something, and wait for it."""
        if self._life.here:
            coroutine.close()
            raise RunError("code on the event loop can't wait for its own loop", code="AF604")
        if not self._life.alive:
            coroutine.close()
            raise RunError("the run is over: its host was stopped", code="AF605")
        future = self._life.submit(coroutine)
        try:
            future.result()
        except BaseException:  # an interrupt too: what was not taken in then is not taken in later
            future.cancel()
            raise

    def cancel_soon(self) -> bool:
        """Ask the run to stop, and return at once; False if it is over."""
        if self.done() and self._run.state not in ("ready", "running"):
            return False
        self._life.submit(self._run.cancel())
        return True

    def holder(self) -> str:
        """What keeps the loop from answering, in words."""
        return self._life.holder()

    def __await__(self) -> Generator[Any, None, Result]:
        # Whoever gives up waiting stops waiting, and nothing else.
        return asyncio.shield(asyncio.wrap_future(self.outcome)).__await__()

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.name}: {self._run.state}>"


@dataclass(frozen=True, slots=True)
class Finished:
    """What is remembered of a run that is over, without what it collected."""

    id: str
    name: str
    begun: float
    last: RunStatus
    answers: list[Answer]

    def status(self) -> RunStatus:
        """The last figures."""
        return self.last

    def done(self) -> bool:
        """It is over."""
        return True
