"""The IPython extension: what `%load_ext aiflow_jupyter` does, and how it is undone.

A second load changes nothing. In a kernel the control channel is answered too; in a terminal there is none.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from aiflow_kernel.control import ControlRequests
from aiflow_kernel.host import current_host

_loaded: dict[int, tuple[Any, ControlRequests | None]] = {}


def load(shell: Any) -> None:
    """Register the magics (and the control handler) with an IPython shell."""
    from aiflow_jupyter.notebook.magics import AiflowMagics

    if id(shell) in _loaded:
        return
    host = current_host(pin=lambda coroutine: _pinned(shell, coroutine))
    magics = AiflowMagics(shell, host)
    shell.register_magics(magics)
    kernel = getattr(shell, "kernel", None)
    control = None
    if hasattr(kernel, "control_handlers"):
        control = ControlRequests(kernel, host)
        control.register()
    _loaded[id(shell)] = (magics, control)


def unload(shell: Any) -> None:
    """Undo `load`: magics, control handler, and the loop thread with all that runs on it."""
    loaded = _loaded.pop(id(shell), None)
    if loaded is None:
        return
    _, control = loaded
    if control is not None:
        control.unregister()
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("aiflow", None)
    shell.magics_manager.registry.pop("AiflowMagics", None)
    current_host().stop()


def _pinned(shell: Any, coroutine: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
    """Keep what a coroutine prints in the cell that submitted it.

    ipykernel 7.4 lets a thread's task name its cell; before, the task's copied context does the same, and calling
    `set_parent` from here would move the output of the user's other cells.
    """
    if not hasattr(shell, "set_thread_parent"):
        return coroutine
    parent = shell.get_parent()

    async def run() -> Any:
        token = shell.set_thread_parent(parent)
        try:
            return await coroutine
        finally:
            shell.reset_thread_parent(token)

    return run()
