"""The same table over real sockets: httpx and Ollama's client, the embedded model's way, and the cluster's relay."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from conformance import (
    EVENTS,
    FAILED,
    FORMS,
    HPC,
    OLLAMA,
    OPENAI,
    THOUGHT,
    Failure,
    Outcome,
    Text,
    Thought,
    is_beginning,
    outcome,
    thinned,
)
from stage import on_this_machine

from aiflow_jupyter.hpc.sse import LONGEST as LONGEST_OF_HPC
from aiflow_jupyter.providers.embedded import EmbeddedModel
from aiflow_jupyter.providers.lines import LONGEST
from aiflow_jupyter.providers.models import Model
from aiflow_jupyter.providers.ollama import Ollama
from aiflow_jupyter.providers.openai import OpenAICompatible

DIALECTS = {"openai": OPENAI, "embedded": OPENAI, "hpc": HPC, "ollama": OLLAMA}


class Server:
    """Answers each chat with `parts`, a write each, and ends as `ends` says: whole, cut, or reset."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.ends = "whole"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if "/chat" not in head.splitlines()[0]:  # what is asked beside the answers
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                writer.close()
                return
            size = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-len"))
            await reader.readexactly(size)
            kind = "application/x-ndjson" if "/api/chat" in head else "text/event-stream"
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in self.parts:
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()
                await asyncio.sleep(0)
            if self.ends == "whole":
                writer.write(b"0\r\n\r\n")
            elif self.ends == "reset":
                await asyncio.sleep(0.05)  # a reset may take what is on its way with it
                writer.transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
        writer.close()


@pytest.fixture
async def server():
    async with Server() as started:
        yield started


@pytest.fixture(params=DIALECTS)
async def wired(request, server):
    """A provider's name and dialect, and what asks it once with a stream that the server sends in parts."""
    async with AsyncExitStack() as stack:
        match request.param:
            case "openai":
                source = OpenAICompatible(f"{server.url}/v1", model="m")
            case "ollama":
                source = Ollama(server.url, "m")
            case "embedded":
                engine = SimpleNamespace(
                    url=server.url, key=None, alive=True, start=lambda: None, end=lambda: None, gone=lambda _: False
                )
                source = EmbeddedModel(Model("m", Path("m.gguf"), 0, "test"), starter=lambda *_, **__: engine)
            case "hpc":
                source = on_this_machine(server.url, model="m")
        stack.push_async_callback(source.aclose)

        async def ask(parts, ends="whole") -> Outcome:
            server.parts, server.ends = list(parts), ends
            async with asyncio.timeout(120):
                return await outcome(source)

        yield SimpleNamespace(name=request.param, dialect=DIALECTS[request.param], ask=ask)


def by(size: int, body: bytes) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


async def test_every_form_arrives_in_pieces_of_any_size(wired):
    forms = [(said(wired.dialect), wanted(wired.dialect)) for said, wanted in FORMS.values()]
    forms += [] if wired.dialect is OLLAMA else EVENTS.values()
    for said, wanted in forms:
        body = wired.dialect.say(said)
        if wired.dialect is not HPC:  # a relay is no quick way, and what is cut ends in the worker
            assert await wired.ask([body]) == Outcome(wanted)
            assert await wired.ask(by(1, body)) == Outcome(wanted)
        assert await wired.ask(by(7, b"\xef\xbb\xbf" + body.replace(b"\n", b"\r\n"))) == Outcome(wanted)


async def test_every_recorded_stream_arrives_as_the_parser_reads_it(wired):
    for name in wired.dialect.recorded:
        body = wired.dialect.load(name)
        came, read = await wired.ask(by(100, body)), await outcome(wired.dialect.source([body]))
        assert (came.code, came.spoken) == (read.code, read.spoken)
        assert came.code == ("AF707" if name in FAILED else None)


@pytest.mark.parametrize("ends", ["whole", "cut", "reset"])
async def test_a_stream_that_ends_early_is_its_part_and_a_coded_error(wired, ends):
    name = "ollama_thinking" if wired.dialect is OLLAMA else "reasoning_llama"
    body = thinned(wired.dialect.load(name), wired.dialect.separator)
    pieces = body.split(wired.dialect.separator)
    whole = await wired.ask([body])
    for many in range(len(pieces) - 3):  # the last ones are the finish and what comes behind it
        part = wired.dialect.separator.join([*pieces[:many], pieces[many][:-1]])
        came = await wired.ask(by(50, part), ends)
        assert came.code == "AF702", many
        assert is_beginning(came.spoken, whole.spoken)
        read = await outcome(wired.dialect.source([part]))
        assert came.spoken == read.spoken


async def test_an_error_object_ends_the_answer_with_what_came(wired):
    body = wired.dialect.say([Thought("a"), Text("b"), Failure("out of memory")])
    for parts in ([body], by(1, body)):
        came = await wired.ask(parts)
        assert (came.code, came.spoken) == ("AF707", ("a", "b", ()))
        assert "out of memory" in came.said


async def test_a_thought_between_tags_is_told_from_the_answer(wired):
    end = wired.dialect.say(FORMS["an answer of nothing"][0](wired.dialect))
    body = wired.dialect.say([Text(each) for each in THOUGHT]) + end
    came = await wired.ask(by(33, body))
    assert came.whole
    assert came.text("reasoning") == "Hm, 1 < 2 </thin is none ü.\n"
    assert came.text("answer") == "It is <think> blue."


async def test_a_line_of_ten_megabytes_is_an_error_after_what_came(wired):
    longest = LONGEST_OF_HPC if wired.name == "hpc" else LONGEST
    line = wired.dialect.say([Text("x" * (longest + 200_000))])
    came = await wired.ask([wired.dialect.say([Text("a")]), *by(65_536, line)])
    assert came.code == "AF708"
    assert f"more than {longest:,} bytes" in came.said
    assert came.text("answer") == "a"
