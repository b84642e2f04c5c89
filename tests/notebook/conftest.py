"""A shell with the magics, over a provider that says what a test tells it to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from aiflow_kernel import extension, host
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from aiflow_jupyter.events import Event, Finish, Usage
from aiflow_jupyter.runtime.source import Request


@dataclass
class Provider:
    """Answers each request with `pieces`: texts, `(phase, text)`, `(phase, text, facts)`, or what is called with it.

    None waits for ever.
    """

    pieces: list[Any] = field(default_factory=lambda: ["Hello", " world"])
    requests: list[Request] = field(default_factory=list)
    open: int = 0
    closed: int = 0

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        self.requests.append(request)
        self.open += 1
        try:
            for number, piece in enumerate(self.pieces):
                if piece is None:
                    await asyncio.Event().wait()
                if isinstance(piece, BaseException):
                    raise piece
                if callable(piece):
                    piece(request)
                    continue
                phase, text, *facts = ("answer", piece) if isinstance(piece, str) else piece
                meta = {"phase": phase, "tier": request.tier, "model": "scripted", "provider": "test"}
                meta |= facts[0] if facts else {}
                yield Event("token", text, sequence=number, time=time.perf_counter_ns(), meta=meta)
                await asyncio.sleep(0)
            yield Event("finish", Finish("stop", Usage(completion_tokens=len(self.pieces))), sequence=len(self.pieces))
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def the_host(provider, monkeypatch) -> Iterator[host.Host]:
    """The host of this process, answering from `provider`."""
    made = host.Host(lambda: provider)
    monkeypatch.setattr(host, "_hosts", [made])
    yield made
    made.stop()


@pytest.fixture
def shell(the_host, monkeypatch, tmp_path) -> Iterator[Any]:
    """A terminal's shell with the extension loaded; `shell.ran(cell)` runs a cell as typed."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    config = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    shell.ran = lambda cell: shell.run_cell(cell, store_history=True)
    assert shell.ran("%load_ext aiflow_jupyter").success
    yield shell
    extension.unload(shell)
    InteractiveShell.clear_instance()


@pytest.fixture
def published() -> Any:
    """A display publisher that keeps what it was given."""
    kept: list[SimpleNamespace] = []

    def publish(data: Any, _metadata: Any, *, transient: Any, update: bool) -> None:
        kept.append(SimpleNamespace(data=data, id=transient["display_id"], update=update))

    return SimpleNamespace(publish=publish, kept=kept)
