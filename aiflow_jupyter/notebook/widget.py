"""The live widget, kernel half: a snapshot in traits, frames as messages, and a Cancel that works in a blocked cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from aiflow_jupyter.errors import CommandError

STATIC = Path(__file__).parents[1] / "static"


class FlowWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """Draws one graph and its run.

    Args:
        graph: the graph as `frames.graph_of` gives it.
        on_hello: called when a view asks for a snapshot; may be called on any thread.
        on_cancel: called when a view's Cancel button is pressed, on any thread; must only ask, and say whether there
            was a run to ask.
    """

    _esm = STATIC / "widget.js"
    _css = STATIC / "widget.css"
    graph = traitlets.Dict().tag(sync=True)
    snapshot = traitlets.Dict().tag(sync=True)

    def __init__(self, graph: Any, snapshot: Any, on_hello: Callable[[], None], on_cancel: Callable[[], bool]) -> None:
        self._on_hello = on_hello
        self._on_cancel = on_cancel
        super().__init__(graph=graph, snapshot=snapshot)
        self.on_msg(self._receive)

    def open(self) -> None:
        """Open the comm, and have messages handled where the front end sent them.

        ipykernel 7.4 sends a comm's messages to the shell that last wrote to that comm; for a live widget that is the
        busy main shell, and Cancel would wait for the cell to end. The front end's own choice is a subshell.
        """
        super().open()
        if hasattr(self.comm, "_reply_subshell_for"):
            self.comm._reply_subshell_for = lambda _data, default: default  # noqa: SLF001

    def _receive(self, _widget: Any, content: Any, _buffers: Any) -> None:
        kind = content.get("kind") if isinstance(content, dict) else None
        if kind == "hello":
            self._on_hello()
        elif kind == "cancel" and self._on_cancel() and self.comm is not None:
            self.send({"kind": "ack", "action": "cancel"})


def built() -> bool:
    """Whether the widget's bundle is there."""
    return (STATIC / "widget.js").is_file()


def require_built() -> None:
    """Raise with what to do, if the bundle is missing."""
    if not built():
        raise CommandError(
            "the widget's JavaScript is not built", code="AF810", hint="run: make lab (or npm run build in js/)"
        )
