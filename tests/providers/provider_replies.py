"""Providers whose server is a function or a recorded stream, and short words for what comes out of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import httpx

from aiflow_jupyter.events import Event
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.runtime.source import Request

WIRE = Path(__file__).parents[1] / "data" / "wire"
URL = "http://127.0.0.1:1/v1"


def recorded(name: str) -> bytes:
    """The body of a recorded stream, without the response's head."""
    raw = (WIRE / f"{name}.sse.txt").read_bytes()
    return raw[raw.index(b"data:") :]


def asked(**fields) -> Request:
    return Request(({"role": "user", "content": "Why is the sky blue?"},), tier="local", **fields)


def provider(answer: Callable[[httpx.Request], httpx.Response], **options) -> OpenAICompatible:
    return OpenAICompatible(URL, model="asked", transport=httpx.MockTransport(answer), **options)


def replying(parts: Iterable[bytes], breaks: Exception | None = None, **options) -> OpenAICompatible:
    """A provider whose server streams `parts` and then ends, or breaks."""

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part
        if breaks is not None:
            raise breaks

    return provider(
        lambda _: httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body()), **options
    )


async def all_of(source, request: Request | None = None, into: list[Event] | None = None) -> list[Event]:
    """All events of one answer; those before a failure are found in `into`."""
    events = [] if into is None else into
    async for event in source.stream(request or asked()):
        events.append(event)
    return events


def text(events: Iterable[Event], phase: str = "answer") -> str:
    return "".join(event.payload for event in events if event.kind == "token" and event.phase == phase)
