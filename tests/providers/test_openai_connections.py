"""Connections, against real sockets: closed when the reader stops, not reused on the loopback, proxies."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, asynccontextmanager

import pytest
from provider_replies import all_of, asked, recorded, text

from aiflow_jupyter.providers.openai import OpenAICompatible

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    await reader.readexactly(length)
    return head


@asynccontextmanager
async def serving(handler):
    async def handled(reader, writer):
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handled, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


def elsewhere(url: str) -> OpenAICompatible:
    """A provider that treats a server of this machine as it would one of another."""
    source = OpenAICompatible(url, model="m")
    source.loopback = False
    return source


class Endless:
    """A server that streams for ever and notes when its reader has gone."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self, reader, writer):
        await request_of(reader)
        writer.write(HEAD)
        ended = asyncio.ensure_future(reader.read())
        try:
            while not ended.done():
                writer.write(chunked(PIECE))
                await writer.drain()
                await asyncio.wait([ended], timeout=0.01)
        finally:
            self.gone.set()


async def test_closing_the_iterator_closes_the_connection():
    server = Endless()
    async with serving(server) as url:
        async with aclosing(OpenAICompatible(url, model="m").stream(asked())) as events:
            async for event in events:
                if event.sequence == 3:
                    break
        await asyncio.wait_for(server.gone.wait(), 2)


async def test_cancelling_the_reader_closes_the_connection():
    server = Endless()
    async with serving(server) as url:
        task = asyncio.create_task(all_of(OpenAICompatible(url, model="m")))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 2)


class Promising:
    """A server that promises to keep its connection and closes it after each answer, as llama.cpp's does."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0

    async def __call__(self, reader, writer):
        self.connections += 1
        await request_of(reader)
        self.requests += 1
        writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"))
        writer.write(chunked(recorded("llama_server")) + b"0\r\n\r\n")
        await writer.drain()


@pytest.mark.parametrize("place", [elsewhere, lambda url: OpenAICompatible(url, model="m")])
async def test_server_that_breaks_its_promise_to_keep_a_connection_costs_no_answer(place):
    server = Promising()
    async with serving(server) as url:
        source = place(url)
        for _ in range(6):
            assert text(await all_of(source)).startswith("Hello")
        await source.aclose()
    assert server.connections == server.requests == 6


@pytest.mark.parametrize(("loopback", "expected"), [(False, 1), (True, 3)])
async def test_connection_that_a_server_keeps_is_used_again_but_not_on_the_loopback(loopback, expected):
    connections = []

    async def keeping(reader, writer):
        connections.append(writer)
        while True:
            await request_of(reader)
            body = recorded("llama_server").removesuffix(b"data: [DONE]\n\n")
            writer.write(HEAD + chunked(body) + b"0\r\n\r\n")
            await writer.drain()

    async with serving(keeping) as url:
        source = OpenAICompatible(url, model="m") if loopback else elsewhere(url)
        for _ in range(3):
            await all_of(source)
        await source.aclose()
    assert len(connections) == expected


async def test_loopback_ignores_proxies_and_others_honour_them(monkeypatch):
    seen = []

    async def proxy(reader, writer):
        seen.append((await request_of(reader)).split(b"\r\n")[0])
        writer.write(HEAD + chunked(recorded("vllm")) + b"0\r\n\r\n")
        await writer.drain()

    async with serving(proxy) as way, serving(Promising()) as url:
        for variable in PROXIES:
            monkeypatch.setenv(variable, way.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert text(await all_of(OpenAICompatible(url, model="m"))).startswith("Hello")
        assert seen == []
        assert text(await all_of(OpenAICompatible("http://models.example.org/v1", model="m"))).startswith("I'm")
        assert seen == [b"POST http://models.example.org/v1/chat/completions HTTP/1.1"]


async def test_streams_side_by_side_do_not_wait_for_each_other():
    started = []
    release = asyncio.Event()  # nobody is answered before all have begun

    async def slow(reader, writer):
        await request_of(reader)
        started.append(writer)
        if len(started) == 30:
            release.set()
        writer.write(HEAD + chunked(PIECE))
        await release.wait()
        end = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode()
        writer.write(chunked(b"data: " + end + b"\n\n") + b"0\r\n\r\n")
        await writer.drain()

    async with serving(slow) as url:
        source = OpenAICompatible(url, model="m")
        tasks = [asyncio.create_task(all_of(source)) for _ in range(30)]
        answers = await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert [text(events) for events in answers] == ["a"] * 30


def test_one_provider_serves_several_loops_and_forgets_those_that_ended():
    source = elsewhere("http://127.0.0.1:1/v1")

    async def one():
        async with serving(Promising()) as url:
            source._address = type(source._address)(url)
            return text(await all_of(source))

    assert asyncio.run(one()) == asyncio.run(one())
    assert len(source._clients) == 1
