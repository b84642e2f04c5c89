"""The control channel: a request reaches the kernel while a cell blocks the shell.

The JupyterLab extension sends `aiflow_request` with `{"action": "cancel", "run_id": ...}`; the reply,
`aiflow_request_reply`, says whether that run was running. ipykernel serves the control channel on a thread of its own,
so a handler here only asks the host and returns.
"""

from __future__ import annotations

from typing import Any

from aiflow_kernel.host import Host

REQUEST = "aiflow_request"


class ControlRequests:
    """Answers `aiflow_request` messages of one kernel."""

    def __init__(self, kernel: Any, host: Host) -> None:
        self._kernel = kernel
        self._host = host

    def register(self) -> None:
        """Start answering."""
        self._kernel.control_handlers[REQUEST] = self._handle

    def unregister(self) -> None:
        """Stop answering."""
        self._kernel.control_handlers.pop(REQUEST, None)

    def _handle(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        reply = self.answer(parent.get("content"))
        self._kernel.session.send(stream, f"{REQUEST}_reply", reply, parent, ident)

    def answer(self, content: Any) -> dict[str, Any]:
        """What to reply to a request's content; anything that is not understood is an error reply."""
        if not isinstance(content, dict) or content.get("action") != "cancel":
            return {"status": "error", "ename": "UnknownAction", "evalue": "known actions: cancel", "traceback": []}
        handle = self._host.find(str(content.get("run_id")))
        return {"status": "ok", "cancelled": handle is not None and handle.cancel_soon()}
