"""What every provider owes its reader, as tables: streams in its own wire form, and how they may arrive.

A `Dialect` puts pieces of an answer into bytes as its servers do, and has a source that reads them from parts: the
provider itself but for its connection, so that a stream can be cut at every byte of it.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from provider_replies import URL, WIRE, asked, recorded

from aiflow_jupyter.errors import ProviderError
from aiflow_jupyter.events import Event
from aiflow_jupyter.hpc.modelserver import _cut
from aiflow_jupyter.hpc.sse import Events
from aiflow_jupyter.providers.chunks import Chunks
from aiflow_jupyter.providers.ollama import Ollama
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.providers.replay import Replay
from aiflow_jupyter.runtime.recorder import Recorder
from aiflow_jupyter.runtime.source import Request
from aiflow_jupyter.runtime.trace import read

Parts = Iterable[bytes]

# -- what an answer is made of, in no dialect


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Thought:
    text: str


@dataclass(frozen=True)
class Call:
    index: int
    name: str
    arguments: str  # the whole of it; a dialect that sends fragments cuts it in two


@dataclass(frozen=True)
class End:
    reason: str = "stop"


@dataclass(frozen=True)
class Failure:
    message: str


# -- OpenAI's event streams: that of this provider, of the embedded model, and of the cluster's model servers


def event(data: Any) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def chunk(delta: dict[str, Any], index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    return event({"model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more})


def in_events(pieces: Iterable[Any]) -> bytes:
    body = b""
    for piece in pieces:
        match piece:
            case bytes():
                body += piece
            case Text(text):
                body += chunk({"content": text})
            case Thought(text):
                body += chunk({"reasoning_content": text})
            case Call(index, name, arguments):
                half = len(arguments) // 2
                body += chunk({"tool_calls": [{"index": index, "id": f"c{index}", "function": {"name": name}}]})
                for part in (arguments[:half], arguments[half:]):
                    body += chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
            case End(reason):
                body += chunk({}, finish=reason)
                body += event({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}}) + event("[DONE]")
            case Failure(message):
                body += event({"error": {"message": message, "code": 500}}) + event("[DONE]")
    return body


class Direct(OpenAICompatible):
    """The provider, whose response is `parts`."""

    def __init__(self, parts: Parts, fails: Exception | None = None) -> None:
        super().__init__(URL, model="asked", name="there", clock=lambda: 0)
        self._parts, self._fails = parts, fails

    @asynccontextmanager
    async def _answered(self, request: Request) -> AsyncIterator[Any]:
        yield self

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        if self._fails is not None:
            raise self._fails


class OnTheCluster:
    """The parsers of the hpc provider and its worker, joined: between them is only what carries the data as it is."""

    def __init__(self, parts: Parts, fails: Exception | None = None) -> None:
        self._parts, self._fails = parts, fails

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        events, chunks = Events(), Chunks("there", "asked", "hpc", lambda: 0)
        for part in self._parts:
            for data in events.feed(part):
                for each in chunks.feed(data):
                    yield each
                if chunks.done:
                    break
        if self._fails is not None and not chunks.done:
            raise _cut("the connection was lost", came=True)
        for each in chunks.close():
            yield each


class Replayed:
    """What was recorded of another source."""

    def __init__(self, source: Any) -> None:
        self._source = source

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        file = io.StringIO()
        try:
            async for _ in Recorder(self._source, file, clock=lambda: 0).stream(request):
                pass
        except ProviderError:
            pass
        async for each in Replay(read(file.getvalue().encode()), None).stream(request):
            yield each


# -- Ollama's NDJSON


def in_lines(pieces: Iterable[Any]) -> bytes:
    body = b""
    for piece in pieces:
        said: dict[str, Any] = {"role": "assistant", "content": ""}
        end: dict[str, Any] = {"done": False}
        match piece:
            case bytes():
                body += piece
                continue
            case Failure(message):
                body += json.dumps({"error": message}).encode() + b"\n"
                continue
            case Text(text):
                said["content"] = text
            case Thought(text):
                said["thinking"] = text
            case Call(_, name, arguments):
                said["tool_calls"] = [{"function": {"name": name, "arguments": json.loads(arguments)}}]
            case End(reason):
                end = {"done": True, "done_reason": reason, "prompt_eval_count": 12, "eval_count": 3}
        line = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": said, **end}
        body += json.dumps(line, ensure_ascii=False).encode() + b"\n"
    return body


class Carried(httpx.AsyncBaseTransport):
    """A connection that carries `parts`."""

    def __init__(self, parts: Parts, fails: Exception | None = None) -> None:
        self._parts, self._fails = parts, fails

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=self._body(), headers={"content-type": "application/x-ndjson"})

    async def _body(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        if self._fails is not None:
            raise self._fails


def from_ollama(parts: Parts, fails: Exception | None = None) -> Ollama:
    return Ollama("http://127.0.0.1:1", "asked", name="there", transport=Carried(parts, fails), clock=lambda: 0)


# -- the dialects


@dataclass(frozen=True)
class Dialect:
    name: str
    recorded: tuple[str, ...]
    say: Callable[[Iterable[Any]], bytes]
    source: Callable[..., Any]
    load: Callable[[str], bytes]
    separator: bytes

    def __str__(self) -> str:
        return self.name


SSE = tuple(sorted(path.name.removesuffix(".sse.txt") for path in WIRE.glob("*.sse.txt")))
NDJSON = tuple(sorted(path.name.removesuffix(".ndjson.txt") for path in WIRE.glob("*.ndjson.txt")))


def lines_of(name: str) -> bytes:
    return (WIRE / f"{name}.ndjson.txt").read_bytes()


OPENAI = Dialect("openai", SSE, in_events, Direct, recorded, b"\n\n")
HPC = Dialect("hpc", SSE, in_events, OnTheCluster, recorded, b"\n\n")
OLLAMA = Dialect("ollama", NDJSON, in_lines, from_ollama, lines_of, b"\n")
REPLAY = Dialect("replay", SSE, in_events, lambda *parts: Replayed(Direct(*parts)), recorded, b"\n\n")
PARSED = (OPENAI, HPC, OLLAMA)


def thinned(body: bytes, separator: bytes) -> bytes:
    """A stream without those of its pieces that have the form of the ones before and behind them."""
    pieces = body.removesuffix(separator).split(separator)
    shapes = [_shape(piece) for piece in pieces]
    kept = [
        piece
        for number, piece in enumerate(pieces)
        if not 0 < number < len(pieces) - 1 or len({*shapes[number - 1 : number + 2]}) > 1
    ]
    return separator.join(kept) + separator


def _shape(piece: bytes) -> str:
    def form(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: form(each) for key, each in value.items()}
        return [form(each) for each in value[:1]] if isinstance(value, list) else bool(value)

    try:
        return repr(form(json.loads(piece.removeprefix(b"data: "))))
    except ValueError:
        return repr(piece)


# -- what came of it

Row = tuple[str, str | None, Any]


@dataclass(frozen=True)
class Outcome:
    """What a reader got: rows of (kind, phase, payload), and the failure's code, None for a whole answer."""

    rows: tuple[Row, ...]
    code: str | None = None
    said: str = ""

    @property
    def whole(self) -> bool:
        return self.code is None

    def text(self, phase: str) -> str:
        return "".join(payload for kind, shown, payload in self.rows if kind == "token" and shown == phase)

    @property
    def spoken(self) -> tuple[str, str, tuple[Any, ...]]:
        """Thought, answer, and fragments of calls."""
        fragments = tuple(payload for kind, _, payload in self.rows if kind == "tool_fragment")
        return self.text("reasoning"), self.text("answer"), fragments


async def outcome(source: Any, request: Request | None = None) -> Outcome:
    rows: list[Row] = []
    try:
        async for each in source.stream(request or asked()):
            rows.append((each.kind, each.phase, each.payload))
            assert each.sequence == len(rows) - 1
    except ProviderError as error:
        return Outcome(tuple(rows), error.code, error.message)
    assert [kind for kind, _, _ in rows].count("finish") == 1
    assert rows[-1][0] == "finish"
    return Outcome(tuple(rows))


def is_beginning(part: tuple[str, str, tuple[Any, ...]], whole: tuple[str, str, tuple[Any, ...]]) -> bool:
    return all(wanted[: len(came)] == came for came, wanted in zip(part, whole, strict=True))


def in_two(body: bytes) -> Iterator[list[bytes]]:
    for at in range(1, len(body)):
        yield [body[:at], body[at:]]


def byte_by_byte(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]
