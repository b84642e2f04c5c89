"""The host: where a kernel's runs, router and providers live, on one loop thread.

It starts when first needed, and what it needs is imported then, so that loading the extension stays quick. It is
stopped once, cleanly, and may be used again. Everything here may be called from any other thread; what has to happen
on the loop is handed over to it.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aiflow_jupyter.errors import RunError
from aiflow_kernel.life import Beside, Life

if TYPE_CHECKING:
    from aiflow_jupyter.events import Event
    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.runtime.run import Run
    from aiflow_jupyter.runtime.source import Provider
    from aiflow_jupyter.tiers.conversation.store import Conversations
    from aiflow_kernel.handle import Finished, RunHandle

T = TypeVar("T")


class Pin(Protocol):
    """Wraps a coroutine so that what it prints goes to the cell that submitted it."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> Coroutine[Any, Any, T]:
        """The coroutine to submit in place of this one."""


class Host:
    """The loop thread of a process, and what runs on it.

    Args:
        make_source: makes what answers when the loop starts; None for the configured router.
        pin: wraps a coroutine so that what it prints goes to the cell that submitted it.
    """

    def __init__(self, make_source: Callable[[], Provider] | None = None, pin: Pin | None = None) -> None:
        self._make_source = make_source
        self.pin = pin
        self._lock = threading.Lock()
        self._life: Life | None = None
        self._conversations: Conversations | None = None

    @property
    def running(self) -> bool:
        """Whether the loop thread exists."""
        return self._life is not None and self._life.alive

    @property
    def conversations(self) -> Conversations:
        """The conversations of this process, made when first asked for."""
        with self._lock:
            if self._conversations is None:
                from aiflow_jupyter.tiers.conversation.store import Conversations

                self._conversations = Conversations()
            return self._conversations

    @property
    def life(self) -> Life:
        """The loop and what lives on it; started if need be.

        Raises:
            ConfigError: what answers can't be made.
        """
        with self._lock:
            if self._life is None or not self._life.alive:
                self._life = Life(self._make_source or _configured)
            return self._life

    @property
    def source(self) -> Provider:
        """What answers; made, with the loop, if need be."""
        return self.life.source

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop; starts the loop if need be."""
        try:
            life = self.life
        except BaseException:
            coroutine.close()
            raise
        return life.submit(self.pin(coroutine) if self.pin else coroutine)

    def start(
        self,
        spec: GraphSpec,
        value: Any,
        *,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        flows: Mapping[str, GraphSpec] | None = None,
        show: Callable[[Event], None] | None = None,
        to: str | None = None,
        leave_open: bool = False,
        beside: Beside | None = None,
        run_id: str | None = None,
        wrap: Callable[[Provider], Provider] | None = None,
        conversation: str = "",
    ) -> RunHandle:
        """Start a run of a checked graph.

        Args:
            spec: the graph.
            value: what goes to its input.
            functions: the user's functions by name.
            flows: other graphs by name, for `delegate`.
            show: what `sink(display=true)` hands its events to.
            to: the input node, where there are several.
            leave_open: more will be offered by the handle, until its `close_inputs`.
            beside: runs on the loop beside the run (a live view), from before its start; the handle's result waits
                for it, so that what it shows last is shown when the cell ends.
            run_id: the run's identifier, where it has to be known before.
            wrap: makes what answers this run out of what would: to record it, or to answer from a trace. What it makes
                is closed, by its `close`, when the run is over.
            conversation: the name of the conversation that the value is a turn of, empty for none.

        Raises:
            AiflowError: the graph does not fit the functions, or the loop is held by somebody's code.
        """
        life = self.life
        if life.here:
            raise RunError(
                "code on the event loop can't wait for a run of its own",
                code="AF604",
                hint="call it from a plain `def`, which runs in a thread; not from an `async def` or an inline one",
            )

        source = life.source if wrap is None else wrap(life.source)

        def make() -> Run:
            from aiflow_jupyter.operators import OPERATORS
            from aiflow_jupyter.runtime.run import Run

            return Run(
                spec,
                OPERATORS,
                life.scheduler,
                functions=functions,
                flows=flows,
                source=source,
                show=show,
                run_id=run_id,
                conversation=conversation,
            )

        ready: concurrent.futures.Future[RunHandle] = concurrent.futures.Future()
        launch = life.launch(make, value, to, leave_open, beside, ready)
        handle = life.started(ready, life.submit(self.pin(launch) if self.pin else launch))
        close = getattr(source, "close", None)
        if wrap is not None and close is not None:
            handle.outcome.add_done_callback(lambda _: close())
        return handle

    def handles(self) -> list[RunHandle | Finished]:
        """The runs of this kernel, oldest first; finished ones are forgotten after a while."""
        return self._life.handles() if self._life is not None else []

    def find(self, run_id: str) -> RunHandle | None:
        """The live run of that identifier."""
        return self._life.find(run_id) if self._life is not None else None

    def stop(self) -> None:
        """Cancel the runs, close the providers and end the thread; the host may be used again afterwards."""
        with self._lock:
            life, self._life = self._life, None
        if life is not None:
            life.stop()


_hosts: list[Host] = []
_hosts_lock = threading.Lock()


def _configured() -> Provider:
    """What answers as the settings say, booked to this kernel's notebook."""
    from aiflow_jupyter.notebook.naming import notebook_name
    from aiflow_jupyter.tiers.configured import ConfiguredRouter

    return ConfiguredRouter(notebook=notebook_name())


def current_host(pin: Pin | None = None) -> Host:
    """The one host of this process, made when first asked for."""
    with _hosts_lock:
        if not _hosts:
            _hosts.append(Host())
        host = _hosts[0]
        if pin is not None:  # the shell may come after the first question
            host.pin = pin
        return host
