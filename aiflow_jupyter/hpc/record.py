"""What a worker has sent so far, as far as a result by the control plane could still need it."""

from __future__ import annotations

import json
import secrets
from collections import deque
from typing import Any, Final

from aiflow_jupyter.errors import AiflowError, ProviderError
from aiflow_jupyter.hpc.task import ANSWER
from aiflow_jupyter.relay.frames import MAX_MESSAGE, Status

_WRAPPING: Final = 16  # bytes around one packed item, at most


class Record:
    """The last items of a stream, as many as fit into a result, and how the stream ended.

    A stream keeps far less than that unacknowledged, so what was forgotten the consumer has; only an answer that goes
    by the control plane alone can be too large.

    Args:
        limit: bytes of the items together.

    Attributes:
        worker: names this process's stream: a job that was started twice sends two streams.
        items: the items that are kept.
        first: the number of the first of them.
        end: the stream's status and message.
        error: code and fixed words of what went wrong, for the part of the result that is in clear.
    """

    def __init__(self, limit: int = ANSWER) -> None:
        self.worker = secrets.token_hex(8)
        self.items: deque[Any] = deque()
        self.first = 0
        self.end: tuple[Status, str] = (Status.OK, "")
        self.error: tuple[str, str] | None = None
        self._limit = limit
        self._bytes = 0

    @property
    def truncated(self) -> bool:
        """Items were forgotten."""
        return self.first > 0

    def add(self, item: Any) -> None:
        """Keep one more item, and forget the oldest ones that no longer fit."""
        self.items.append(item)
        self._bytes += _size(item)
        while self._bytes > self._limit and self.items:
            self._bytes -= _size(self.items.popleft())
            self.first += 1

    def fail(self, error: AiflowError) -> None:
        """The stream ends with this error. Its words may quote the model server, so they travel sealed."""
        message: dict[str, Any] = {"code": error.code, "message": error.message, "hint": error.hint}
        if isinstance(error, ProviderError):
            message |= {"unread": error.unread, "of_request": error.of_request}
        text = json.dumps(message)
        if len(text) > MAX_MESSAGE:
            text = json.dumps({**message, "message": error.message[:200]})
        self.end = (Status.ERROR, text)
        self.error = (error.code, "the model server did not give the whole answer")


def _size(item: Any) -> int:
    return (len(item.encode()) if isinstance(item, str) else 100) + _WRAPPING
