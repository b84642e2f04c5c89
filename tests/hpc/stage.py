"""A fake model server that plays recorded streams of vLLM, and short words for asking through it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiflow_jupyter.hpc.executors import LocalExecutor
from aiflow_jupyter.hpc.provider import HpcProvider
from aiflow_jupyter.hpc.remote import RemoteStream, Timeouts
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.relay.crypto import WorkerKey
from aiflow_jupyter.relay.selfrelay import SelfRelay

WIRE = Path(__file__).parents[1] / "data" / "wire"
QUICK = Timeouts(
    submit=10, start=20, first_token=20, token=20, linger=3, relay=1.0, rest=10, lost=2.5, beat=0.5
)  # bounds of what should not happen, small where a test waits for it to happen
BODY = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}


def recorded(name: str) -> bytes:
    """The body of a recorded stream, without the response's head."""
    raw = (WIRE / f"{name}.sse.txt").read_bytes()
    return raw[raw.index(b"data:") :]


def payloads(name: str) -> list[str]:
    return [line[6:] for line in recorded(name).decode().splitlines() if line.startswith("data: ")]


def chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    data = {"object": "chat.completion.chunk", "model": "fake", "choices": [choice]}
    return f"data: {json.dumps(data)}\n\n".encode()


class FakeVllm:
    """Speaks HTTP as vLLM does, as far as a chat needs it.

    `parts` is what it streams, `gate` is waited for before each part after the first `free` ones; `status`, `kind` and
    `body` make it answer otherwise, `loading` is how often it first says 503, `cut` ends the connection before the last
    chunk.
    """

    def __init__(self, parts: list[bytes] | None = None):
        self.parts = [recorded("vllm")] if parts is None else parts
        self.gate: asyncio.Event = asyncio.Event()
        self.gate.set()
        self.free = 0
        self.status, self.kind, self.body = 200, "text/event-stream", b""
        self.models = b'{"object": "list", "data": [{"id": "first-model"}]}'
        self.loading = 0
        self.cut = False
        self.silent = False
        self.asked: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.running = 0
        self.stopped = asyncio.Event()  # a client left before the end
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_):
        assert self._server is not None
        self._server.close()
        self.gate.set()

    async def _serve(self, reader, writer):
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (
                        int(line.split(":")[1])
                        for line in head.splitlines()
                        if line.lower().startswith("content-length")
                    ),
                    0,
                )
                sent = await reader.readexactly(length)
                self.headers.append(head)
                await self._answer(head.split()[1], sent, reader, writer)
        writer.close()

    async def _answer(self, path, sent, reader, writer):
        if self.silent:
            await reader.read()
        elif self.loading:
            self.loading -= 1
            self._whole(writer, 503, "application/json", b'{"error": {"message": "Loading model"}}')
        elif path.endswith("/models") and self.status == 200:
            self._whole(writer, 200, "application/json", self.models)
        elif self.status != 200 or self.kind != "text/event-stream":
            self._whole(writer, self.status, self.kind, self.body)
        else:
            self.asked.append(json.loads(sent))
            await self._stream(reader, writer)

    def _whole(self, writer, status, kind, body):
        head = f"HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    async def _stream(self, reader, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self.running += 1
        left = asyncio.create_task(reader.read(1))  # a client that leaves
        try:
            for number, part in enumerate(self.parts):
                if number >= self.free and not self.gate.is_set():
                    opened = asyncio.create_task(self.gate.wait())
                    await asyncio.wait({left, opened}, return_when=asyncio.FIRST_COMPLETED)
                    opened.cancel()
                if left.done():
                    self.stopped.set()
                    raise ConnectionResetError
                writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                await writer.drain()
            if self.cut:
                raise ConnectionResetError
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            await asyncio.wait({left}, timeout=1)
            raise ConnectionResetError
        finally:
            self.running -= 1
            left.cancel()


class Stage:
    """Asks through a relay and a worker; `reports` is what was said meanwhile."""

    def __init__(self, vllm, relay, key, executor):
        self.vllm, self.relay, self.key, self.executor = vllm, relay, key, executor
        self.reports: list[str] = []

    def ask(self, body=None, **options) -> RemoteStream:
        options = {
            "relay": self.relay,
            "worker_key": self.key.public,
            "timeouts": QUICK,
            "report": self.reports.append,
            **options,
        }
        return RemoteStream(options.pop("executor", self.executor), body or BODY, **options)


def on_this_machine(url: str, key: Secret | None = None, **options) -> HpcProvider:
    """The whole tier here: a worker in a process, a fresh worker key, and a relay in this process if none is given."""
    own = WorkerKey.generate()
    options = {"relay": SelfRelay, "worker_key": own.public, "timeouts": QUICK, **options}
    return HpcProvider(lambda: LocalExecutor(own, url, key), **options)


async def all_of(remote: RemoteStream, into: list[str] | None = None) -> list[str]:
    """All items; those before a failure are found in `into`."""
    items = [] if into is None else into
    async for item in remote.items():
        items.append(item)
    return items
