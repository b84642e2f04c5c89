"""Traces made by hand, and sources that answer by script."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aiflow_jupyter.events import Event, Finish, Usage
from aiflow_jupyter.runtime.replay.trace import Exchange, Recorded, Trace, hash_of
from aiflow_jupyter.runtime.source import Request

MS = 1_000_000
META = {"phase": "answer", "tier": "local", "model": "m", "provider": "p"}


def shape(tokens: int, ttft: int, last: int, *, number: int = 0, prompt: str = "", node: str = "ask") -> Exchange:
    """An answer of so many tokens, evenly spread from the first one to the last (nanoseconds after the request)."""
    step = (last - ttft) / max(1, tokens - 1)
    times = [ttft + round(i * step) for i in range(tokens)]
    events = [Recorded(at, "token", f"t{i} ", META) for i, at in enumerate(times)]
    events.append(Recorded(times[-1], "finish", Finish("stop", Usage(completion_tokens=tokens)), META))
    return Exchange(
        number, 0, hash_of([{"role": "user", "content": prompt}]), "local", None, node, events=tuple(events)
    )


def trace_of(*exchanges: Exchange) -> Trace:
    return Trace(exchanges, "g")


class Scripted:
    """Gives events, or raises what stands among them; calls what can be called."""

    def __init__(self, *script: Any) -> None:
        self.script = script
        self.closed = 0

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        try:
            for sequence, each in enumerate(self.script):
                if isinstance(each, BaseException):
                    raise each
                each.sequence = sequence
                yield each
        finally:
            self.closed += 1


def request(prompt: str = "Why?", **arguments: Any) -> Request:
    return Request(({"role": "user", "content": prompt},), **arguments)
