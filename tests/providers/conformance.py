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
from aiflow_jupyter.events import Event, Finish, ToolFragment, Usage
from aiflow_jupyter.hpc.modelserver import _cut
from aiflow_jupyter.hpc.sse import Events
from aiflow_jupyter.providers.chunks import Chunks
from aiflow_jupyter.providers.ollama import Ollama
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.providers.replay import Replay
from aiflow_jupyter.runtime.replay.reading import read
from aiflow_jupyter.runtime.replay.recorder import Recorder
from aiflow_jupyter.runtime.source import Request

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
        if request.url.path != "/api/chat":
            return httpx.Response(404)
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


# -- the table of forms: what is said, and what a reader is to get

FAILED = ("vllm_midstream_error", "ollama_midstream_error")
"""Recorded streams that ended with their server's failure."""
USED = Usage(12, 3)
CHARACTERS = "Zürich 🌍 日本\u2028a\x85b\u2029c"
THOUGHT = "<think>\nHm, 1 < 2 </thin is none ü.\n</think>\n\nIt is <think> blue."


def finish(reason="stop"):
    return ("usage", None, USED), ("finish", None, Finish(reason, USED))


def tokens(*pairs):
    return tuple(("token", phase, text) for phase, text in pairs)


def fragments(dialect, *calls):
    """Calls as the dialect sends them: whole, or name and arguments apart."""
    rows = []
    for index, name, arguments in calls:
        half = len(arguments) // 2
        rows += (
            [ToolFragment(index, None, name, arguments)]
            if dialect is OLLAMA
            else [
                ToolFragment(index, f"c{index}", name, ""),
                ToolFragment(index, None, None, arguments[:half]),
                ToolFragment(index, None, None, arguments[half:]),
            ]
        )
    return tuple(("tool_fragment", None, row) for row in rows)


CALLS = (0, "weather", '{"city": "Łódź"}'), (1, "weather", '{"city": "🌍"}')
FORMS = {
    "characters of several bytes": (
        lambda _: [Text(CHARACTERS), Text("é"), End()],
        lambda _: (*tokens(("answer", CHARACTERS), ("answer", "é")), *finish()),
    ),
    "empty pieces": (
        lambda _: [Text(""), Text("a"), Text(""), Thought(""), Text("b"), Text(""), End("length")],
        lambda _: (*tokens(("answer", "a"), ("answer", "b")), *finish("length")),
    ),
    "a thought and an answer": (
        lambda _: [Thought("Hm "), Thought("ü."), Text("<think>"), Text(" is a tag."), End()],
        lambda _: (
            *tokens(("reasoning", "Hm "), ("reasoning", "ü."), ("answer", "<think>"), ("answer", " is a tag.")),
            *finish(),
        ),
    ),
    "calls": (
        lambda _: [Text("Let me see."), *(Call(*call) for call in CALLS), End("tool_calls")],
        lambda dialect: (
            *tokens(("answer", "Let me see.")),
            *fragments(dialect, *CALLS),
            *finish("tool_calls"),
        ),
    ),
    "an answer of nothing": (lambda _: [End()], lambda _: finish()),
}
EVENTS = {
    "fragments by index, interleaved": (
        [
            chunk({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{"}}]}),
            chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]}),
            chunk(
                {
                    "tool_calls": [
                        {"index": 0, "function": {"arguments": "{}"}},
                        {"index": 1, "function": {"arguments": "}"}},
                    ]
                }
            ),
            End("tool_calls"),
        ],
        (
            *(
                ("tool_fragment", None, fragment)
                for fragment in (
                    ToolFragment(1, "b", "g", "{"),
                    ToolFragment(0, "a", "f", ""),
                    ToolFragment(0, None, None, "{}"),
                    ToolFragment(1, None, None, "}"),
                )
            ),
            *finish("tool_calls"),
        ),
    ),
    "a refusal": (
        [chunk({"refusal": "I can't "}), chunk({"refusal": "help.", "content": None}), End("content_filter")],
        (*tokens(("answer", "I can't "), ("answer", "help.")), *finish("content_filter")),
    ),
    "both spellings of a thought": (
        [
            chunk({"reasoning": "a"}),
            chunk({"reasoning_content": "b"}),
            chunk({"reasoning": "c", "reasoning_content": "c"}),
            Text("d"),
            End(),
        ],
        (*tokens(("reasoning", "a"), ("reasoning", "b"), ("reasoning", "c"), ("answer", "d")), *finish()),
    ),
    "several choices": (
        [
            event({"choices": [{"index": 1, "delta": {"content": "B"}}, {"index": 0, "delta": {"content": "A"}}]}),
            chunk({}, index=1, finish="length"),
            chunk({"content": "a"}),
            End(),
        ],
        (*tokens(("answer", "A"), ("answer", "a")), *finish()),
    ),
    "comments, other fields, and blank data": (
        [
            b": OPENROUTER PROCESSING\n\n",
            b"event: message\nid: 7\nretry: 5\n",
            Text("a"),
            b":\n\n",
            b"data:\n\n",
            End(),
        ],
        (*tokens(("answer", "a")), *finish()),
    ),
    "one piece on several lines": (
        [b'data: {"choices": [{"index": 0,\ndata: "delta": {"content":\ndata:"a"}}]}\n\n', End()],
        (*tokens(("answer", "a")), *finish()),
    ),
    "usage all along, and null": (
        [
            event({"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": None}),
            chunk({"content": "b"}, usage={"prompt_tokens": 12, "completion_tokens": 1}),
            End(),
        ],
        (*tokens(("answer", "a"), ("answer", "b")), *finish()),
    ),
    "a finish on the last piece, then usage without choices": (
        [
            chunk({"content": "a"}, finish="stop"),
            event({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}}),
            event("[DONE]"),
        ],
        (*tokens(("answer", "a")), *finish()),
    ),
    "null where nothing is said": (
        [
            chunk({"role": "assistant", "content": None, "tool_calls": None, "refusal": None, "reasoning": None}),
            event({"choices": [{"index": 0, "delta": None}]}),
            event({"choices": None}),
            Text("a"),
            End(),
        ],
        (*tokens(("answer", "a")), *finish()),
    ),
}
