"""Runs as cells hold them: what starts one, waiting that an interrupt gets through, and runs in the background."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aiflow_jupyter.errors import CommandError

if TYPE_CHECKING:
    from aiflow_jupyter.events import Event
    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.runtime.bottleneck import Bottleneck
    from aiflow_jupyter.runtime.metrics import Answer, RunStatus
    from aiflow_jupyter.runtime.run import Result, Run
    from aiflow_jupyter.runtime.source import Provider
    from aiflow_jupyter.tiers.conversation.store import Conversations

T = TypeVar("T")
STOP_TIMEOUT_S = 3.0
"""How long an interrupted cell waits for its run to stop; longer than a run waits for code that won't."""


Beside = Callable[["Run"], Awaitable[None]]


class Listed(Protocol):
    """A run as `%aiflow runs` lists it, live or over."""

    @property
    def id(self) -> str:
        """Its identifier."""

    @property
    def name(self) -> str:
        """Its graph's name."""

    @property
    def begun(self) -> float:
        """When it began, seconds since the epoch."""

    @property
    def answers(self) -> Sequence[Answer]:
        """The models' answers so far, in the order in which they were asked for."""

    def status(self) -> RunStatus:
        """The figures of now, or the last ones."""

    def done(self) -> bool:
        """Whether it is over."""


class Handle(Protocol):
    """A run held from the cell's thread; `aiflow_kernel.handle.RunHandle` is one."""

    id: str
    name: str
    begun: float

    @property
    def run(self) -> Run:
        """The run itself, which belongs to the host's loop."""

    def status(self) -> RunStatus:
        """The figures of now."""

    def done(self) -> bool:
        """Whether it is over."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over."""

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result."""

    def cancel(self, timeout: float = ...) -> bool:
        """Stop it, and wait until it has stopped."""

    def cancel_soon(self) -> bool:
        """Ask it to stop; False if it is over."""

    def offer(self, node: str, value: Any, timeout: float | None = None) -> None:
        """Put a value into a node's queue."""

    def close_inputs(self) -> None:
        """Nothing more is offered."""

    def drain(self) -> None:
        """Finish what was admitted, and wait for the end."""

    def stop(self, node: str) -> None:
        """Stop one node."""

    def pause(self) -> None:
        """Serve nothing until `resume`."""

    def resume(self) -> None:
        """Go on."""

    def bottleneck(self) -> Bottleneck | None:
        """The node that holds the others up."""

    def __await__(self) -> Generator[Any, None, Result]: ...

    def holder(self) -> str:
        """What keeps the loop from answering, in words."""


class Host(Protocol):
    """What starts runs; `aiflow_kernel.host.Host` is one."""

    @property
    def conversations(self) -> Conversations:
        """The conversations of this process."""

    def start(
        self,
        spec: GraphSpec,
        value: Any,
        *,
        functions: Mapping[str, Callable[..., Any]] | None = ...,
        flows: Mapping[str, GraphSpec] | None = ...,
        show: Callable[[Event], None] | None = ...,
        to: str | None = ...,
        leave_open: bool = ...,
        beside: Beside | None = ...,
        run_id: str | None = ...,
        wrap: Callable[[Provider], Provider] | None = ...,
        conversation: str = ...,
    ) -> Handle:
        """Start a run of a checked graph."""

    @property
    def source(self) -> Provider:
        """What answers; made, with the loop, if need be."""

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop."""

    def handles(self) -> Sequence[Listed]:
        """The runs of this process, oldest first."""

    def find(self, run_id: str) -> Handle | None:
        """The live run of that identifier."""


class Background:
    """A run that goes on while other cells run: what `-b` gives; `await` works on it too.

    Args:
        handle: the run.
        value: makes the cell's value out of the run's result.
        text: the text that has come so far.
    """

    def __init__(self, handle: Handle, value: Callable[[Result], Any], text: Callable[[], str]) -> None:
        self._handle = handle
        self._value = value
        self._text = text
        self.id = handle.id
        self.name = handle.name

    @property
    def text(self) -> str:
        """What has come so far of the text that is shown under the cell."""
        return self._text()

    def done(self) -> bool:
        """Whether it is over."""
        return self._handle.done()

    def status(self) -> RunStatus:
        """The figures of now."""
        return self._handle.status()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for what the cell would have given in the foreground.

        Args:
            timeout: seconds to wait, None for as long as it takes.

        Raises:
            TimeoutError: it is not over yet.
            AiflowError: how it failed, or that it was cancelled.
        """
        with self._waiting():
            if timeout is None:
                return self._value(finish(self._handle, stop=False))
            return self._value(self._handle.result(timeout))

    def cancel(self) -> bool:
        """Stop it; whether it has stopped."""
        with self._waiting("it was told to stop"):
            return self._handle.cancel()

    def offer(self, node: str, value: Any, timeout: float | None = None) -> None:
        """Put a value into a node's queue, waiting while it is full; see `RunHandle.offer`."""
        with self._waiting(full=node):
            self._handle.offer(node, value, timeout)

    def close_inputs(self) -> None:
        """Nothing more is offered: it ends when what it was given is through."""
        with self._waiting():
            self._handle.close_inputs()

    def drain(self) -> None:
        """Take nothing more in, finish what was admitted, and wait for the end."""
        with self._waiting():
            self._handle.drain()

    def stop(self, node: str) -> None:
        """Stop one node; its policy says what else stops with it."""
        with self._waiting():
            self._handle.stop(node)

    def pause(self) -> None:
        """Serve nothing until `resume`; queues fill up to their bounds."""
        self._handle.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._handle.resume()

    def bottleneck(self) -> Bottleneck | None:
        """The node that holds the others up, and what would help; None while none does."""
        return self._handle.bottleneck()

    @contextmanager
    def _waiting(self, so: str = "it goes on", full: str = "") -> Iterator[None]:
        """An interrupt ends the waiting alone, a timeout says what was waited for; both in one line.

        Args:
            so: what becomes of the run after an interrupt.
            full: the node whose queue is waited for, empty for none.
        """
        try:
            yield
        except TimeoutError:
            status = self.status()
            found = (f"; the queue of {full!r} holds {n.depth} of {n.queue}" for n in status.nodes if n.node == full)
            queue = next(found, "")
            raise Late(f"run {self.name!r} is {status.word}: not in time{queue}") from None
        except KeyboardInterrupt:
            raise Interrupted(f"run {self.name!r} is not waited for any longer; {so}") from None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._value((yield from self._handle.__await__()))

    def __repr__(self) -> str:
        state = self.status().word
        gives = "result() gives it" if state == "done" else "result() says why"
        next_step = gives if self.done() else "result() waits for it"
        return f"<run {self.id} of {self.name} in the background: {state}; {next_step}>"


def wait_for(future: Future[T], limit: float = math.inf) -> T:
    """What a coroutine on the host's loop gives, waiting in slices, so that an interrupt gets through.

    Args:
        future: the coroutine; cancelled where it is not waited for to its end.
        limit: seconds to wait.

    Raises:
        CommandError: nothing came in that time.
    """
    until = time.monotonic() + limit
    try:
        while not wait([future], min(limit, 0.1)).done:
            if time.monotonic() >= until:
                raise CommandError(
                    f"the tiers gave no answer in {limit:g} s: the loop is busy", code="AF812", hint="%aiflow runs"
                )
    finally:
        future.cancel()
    return future.result()


def finish(handle: Handle, *, stop: bool = True) -> Result:
    """Wait for a run in slices, so that an interrupt gets through.

    Args:
        handle: the run.
        stop: whether an interrupt stops the run, or only the waiting.
    """
    try:
        while not handle.wait(0.1):
            pass
    except KeyboardInterrupt:
        if not stop:
            raise
        try:
            stopped = handle.cancel(STOP_TIMEOUT_S)
        except KeyboardInterrupt:  # once more
            message = f"run {handle.name!r} was told to stop, and is not waited for any longer: %aiflow runs shows it"
            raise Interrupted(message) from None
        raise interrupted(handle, stopped=stopped) from None
    return handle.result()


class Interrupted(KeyboardInterrupt):
    """A cell that was interrupted: one line instead of a traceback."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self.message}"]


class Late(TimeoutError):
    """What was waited for did not come in time: one line instead of a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"TimeoutError: {self}"]


# Front ends and nbclient know an interrupted cell by this name.
Interrupted.__name__ = "KeyboardInterrupt"


def one_line(interrupt: KeyboardInterrupt) -> Interrupted:
    """An interrupt as one line, wherever it came in between."""
    return interrupt if isinstance(interrupt, Interrupted) else Interrupted("stopped")


def interrupted(handle: Handle, *, stopped: bool) -> Interrupted:
    """What an interrupted cell raises, naming code that can't be stopped."""
    if not stopped:
        return Interrupted(f"run {handle.name!r} was told to stop, but {handle.holder()}")
    still = handle.run.still_running
    left = f"; node {', '.join(map(repr, still))} is still in a call of yours, which can't be stopped" if still else ""
    return Interrupted(f"run {handle.name!r} was stopped{left}")
