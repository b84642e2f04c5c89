"""Whose code a thread runs: a run can't be waited for by a part of itself."""

from __future__ import annotations

import contextvars
from typing import Final

OF_RUN: Final[contextvars.ContextVar[object | None]] = contextvars.ContextVar("OF_RUN", default=None)
"""The run whose node's function a thread is in; what the thread has a loop do is done in its context."""


def context_of(run: object) -> contextvars.Context:
    """The context for the threads of a run's nodes."""
    context = contextvars.copy_context()
    context.run(OF_RUN.set, run)
    return context
