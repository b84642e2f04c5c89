"""A relay on loopback, and ends that speak to it by what `PROTOCOL.md` promises, with none of the relay's own code."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.limits import Limits
from aiflow_jupyter.relay.server import RelayServer

PATIENCE = 30.0
ALONE, PRESENT, ATTACHED, THIRD_PARTY, GOING_AWAY = (bytes((1, 0, *bytes(8), code)) for code in range(5))


def join_token() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")


async def until(true: Callable[[], Any]) -> None:
    """Wait for a condition; the time is only there so that a broken relay fails a test and doesn't hang it."""
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.005)


class Client:
    """Whoever uses the relay."""

    def __init__(self, relay: RelayServer, key: str) -> None:
        self.relay = relay
        self.key = key
        self._open: list[ClientConnection] = []

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as http:
            return await http.request(method, self.relay.url + path, **options)

    async def post(self, key: str | None = None, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key if key is None else key}", **options.pop("headers", {})}
        return await self.request("POST", "/channels", headers=headers, **{"json": {}, **options})

    async def open(self, **body: Any) -> dict[str, Any]:
        answer = await self.post(json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def headers(self, channel: dict[str, Any], role: str, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {channel[role]}", "Aiflow-Join": token}

    async def join(
        self, channel: dict[str, Any], role: str, token: str | None = None, **options: Any
    ) -> ClientConnection:
        path = options.pop("path", f"/channels/{channel['channel']}/{role}")
        end = await connect(
            self.relay.url.replace("http", "ws", 1) + path,
            **{
                "subprotocols": ["aiflow-relay.1"],
                "additional_headers": self.headers(channel, role, token or join_token()),
                "compression": None,
                "proxy": None,
                "ping_interval": None,
                **options,
            },
        )
        self._open.append(end)
        return end

    async def refused(
        self, channel: dict[str, Any], role: str, token: str | None = None, **options: Any
    ) -> tuple[int, str]:
        """Try to join; the status and the code of the refusal, which has a sentence and no secret."""
        with pytest.raises(InvalidStatus) as caught:
            await self.join(channel, role, token, **options)
        response = caught.value.response
        error = json.loads(bytes(response.body))["error"]
        assert error["message"].endswith(".")
        assert channel["channel"] not in error["message"]
        return response.status_code, error["code"]

    async def pair(self, channel: dict[str, Any] | None = None) -> tuple[ClientConnection, ClientConnection]:
        """Both ends, attached, their first hints read."""
        channel = channel or await self.open()
        producer = await self.join(channel, "producer")
        assert await receive(producer) == ALONE
        consumer = await self.join(channel, "consumer")
        assert await receive(consumer) == PRESENT
        assert await receive(producer) == ATTACHED
        return producer, consumer

    def handshake(self, channel: dict[str, Any], role: str, token: str | None = None) -> bytes:
        rows = [
            f"GET /channels/{channel['channel']}/{role} HTTP/1.1",
            "Host: relay",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Protocol: aiflow-relay.1",
            *(f"{name}: {value}" for name, value in self.headers(channel, role, token or join_token()).items()),
        ]
        return "\r\n".join(rows).encode() + b"\r\n\r\n"

    async def raw(
        self, payload: bytes, *, buffer: int | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection that has written `payload`, with a receive buffer of its own size."""
        plain = socket.socket()
        if buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        plain.settimeout(0)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", self.relay.port))
        # A limit of 1 makes the stream stop reading the socket as soon as anything is in it.
        reader, writer = await asyncio.open_connection(sock=plain, limit=2**20 if buffer is None else 1)
        writer.write(payload)
        with suppress(ConnectionError):
            await writer.drain()
        return reader, writer

    async def exchange(self, payload: bytes) -> tuple[int, bytes]:
        """Write bytes; the status of the answer and its body, after which the relay has closed."""
        reader, writer = await self.raw(payload)
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), body

    async def close(self) -> None:
        for end in self._open:
            end.transport.abort()
        for end in self._open:
            await end.wait_closed()


async def receive(end: ClientConnection) -> bytes:
    async with asyncio.timeout(PATIENCE):
        message = await end.recv()
    assert isinstance(message, bytes)
    return message


async def closed(end: ClientConnection) -> int | None:
    """Read to the end of a connection; the code it was closed with."""
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionClosed):
            while True:
                await end.recv()
    return end.close_code


Serve = Callable[..., Awaitable[Client]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a relay; keyword arguments are its limits, and `keys`, `secret` and so on its own."""
    clients: list[Client] = []
    own = {"keys", "secret", "port", "metrics_token", "trusted_proxies", "behind_proxy", "wall", "tls", "host"}

    async def start(**options: Any) -> Client:
        arguments = {name: options.pop(name) for name in own & options.keys()}
        keys = arguments.pop("keys", None) or KeyStore()
        relay = RelayServer(keys, limits=Limits(**options), **arguments)
        await relay.start()
        key = "" if any(known.name == "tester" for known in keys.names()) else keys.add("tester")
        clients.append(Client(relay, key))
        return clients[-1]

    yield start
    for client in clients:
        await client.close()
        await client.relay.abort()


class Tools:
    """What the tests of this directory share."""

    ALONE, PRESENT, ATTACHED, THIRD_PARTY, GOING_AWAY = ALONE, PRESENT, ATTACHED, THIRD_PARTY, GOING_AWAY
    closed = staticmethod(closed)
    join_token = staticmethod(join_token)
    receive = staticmethod(receive)
    until = staticmethod(until)


@pytest.fixture
def tools() -> type[Tools]:
    return Tools
