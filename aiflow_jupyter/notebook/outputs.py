"""Where a cell's output goes: a front end's display, updated in place, or a terminal that only goes forward."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol
from uuid import uuid4

from aiflow_jupyter.errors import encodable


class Output(Protocol):
    """One place under a cell."""

    def show(self, bundle: Mapping[str, Any]) -> None:
        """Show a MIME bundle, in place of the one before."""


class DisplayOutput:
    """An output of a front end; may be updated from any thread, as the display's identifier says where it is.

    Args:
        publisher: the shell's display publisher.
    """

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._id = uuid4().hex
        self._shown = False

    def show(self, bundle: Mapping[str, Any]) -> None:
        """Publish or update; see `Output`."""
        data = {mime: encodable(value) if isinstance(value, str) else value for mime, value in bundle.items()}
        self._publisher.publish(data, {}, transient={"display_id": self._id}, update=self._shown)
        self._shown = True


class TerminalOutput:
    """A terminal: text is written once, and what was added to it is written after it."""

    def __init__(self) -> None:
        self._written = ""

    def show(self, bundle: Mapping[str, Any]) -> None:
        """Write what is new in `text/plain`; see `Output`."""
        text = str(bundle.get("text/plain", ""))
        new = text[len(self._written) :] if text.startswith(self._written) else f"\n{text}"
        self._written = text
        coding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(encodable(new).encode(coding, "replace").decode(coding))
        sys.stdout.flush()


def output_of(shell: Any) -> Output:
    """A fresh output of the shell's running cell."""
    return DisplayOutput(shell.display_pub) if is_kernel(shell) else TerminalOutput()


def is_kernel(shell: Any) -> bool:
    """Whether the shell belongs to a kernel, which has a front end, and not to a terminal."""
    return getattr(shell, "kernel", None) is not None
