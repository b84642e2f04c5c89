"""A relay: pairs the two ends of a channel and forwards their frames, which it can neither read nor keep.

```
POST /channels                      a personal key opens a channel and gets one capability for each end
GET  /channels/{channel}/{role}     a capability joins it, as a WebSocket
GET  /healthz, /readyz, /metrics    for whoever runs it
```

What a client may rely on is in `PROTOCOL.md`, how to run one in `DEPLOY.md`. All state is in memory and can be lost:
with a secret file the ends of a channel meet again after a restart as after any reconnect, and repair between
themselves what was in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import re
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, cast

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.relay import channels
from aiflow_jupyter.relay.admission import Admission, keys_unreadable, too_many
from aiflow_jupyter.relay.capability import Secret
from aiflow_jupyter.relay.channels import Channels
from aiflow_jupyter.relay.connection import Connection
from aiflow_jupyter.relay.ends import Socket, accept
from aiflow_jupyter.relay.frames import Hint
from aiflow_jupyter.relay.joining import SUBPROTOCOL, Role, loopback
from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.limits import Limits, Network, source_of
from aiflow_jupyter.relay.metrics import Metrics
from aiflow_jupyter.relay.request import Head, Refusal, json_response, text_response

log = logging.getLogger("aiflow_jupyter.relay")

_JOIN_PATH = re.compile(r"/channels/([0-9a-f]{32})/(producer|consumer)")
_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-real-ip")


class RelayServer:
    """A relay on one address, as an asynchronous context manager or by `start` and `close`.

    Args:
        keys: the personal keys that may open channels.
        host: address to listen on; without TLS only a loopback one unless the next arguments say otherwise.
        port: 0 for any free one.
        secret: seals the capabilities; without one a restart invalidates them.
        limits: of everything.
        tls: context of a server that ends TLS itself.
        behind_proxy: a reverse proxy ends TLS in front of it.
        insecure: serve strangers in clear text, knowing that capabilities can then be read on the way.
        trusted_proxies: networks whose `X-Forwarded-For` is believed; with `behind_proxy` loopback unless given.
        metrics_token: bearer token of `/metrics`; without one only loopback may read it.
        wall: Unix time in seconds, for expiry.

    Raises:
        ConfigError: such an address needs TLS.
    """

    def __init__(
        self,
        keys: KeyStore,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        secret: Secret | None = None,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        behind_proxy: bool = False,
        insecure: bool = False,
        trusted_proxies: Iterable[str] = (),
        metrics_token: str | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        if tls is None and not (behind_proxy or insecure or loopback(host)):
            raise ConfigError(
                f"a relay on {host} without TLS would show its capabilities to everyone on the way",
                code="AF973",
                hint="Give --tls-cert and --tls-key, or --behind-proxy if a proxy ends TLS, or --insecure.",
            )
        try:
            networks = tuple(ipaddress.ip_network(network) for network in trusted_proxies)
        except ValueError as error:
            raise ConfigError(f"not a network of trusted proxies: {error}", code="AF973") from None
        if behind_proxy and not networks:
            networks = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
        self.keys = keys
        self.limits = limits or Limits()
        self._host = host
        self._port = port
        self._tls = tls
        self._trusted: tuple[Network, ...] = networks
        self._metrics_token = metrics_token
        self._wall = wall
        self.draining = False
        self.metrics = Metrics(time.monotonic())
        self.channels = Channels(self.limits, secrets.token_bytes(16))
        self._admission = Admission(keys, secret or Secret.fresh(), self.channels, self.limits, wall)
        self._connections: set[Connection] = set()
        self._handshakes: set[Connection] = set()
        self._sockets: dict[Socket, Connection] = {}
        self._per_source: Counter[str] = Counter()
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._all_gone = asyncio.Event()

    # --- life ---

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address can't be had.
        """
        self.draining = False
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl": self._tls, "ssl_handshake_timeout": self.limits.handshake_timeout}
        try:
            self._listener = await loop.create_server(
                lambda: Connection(self), self._host, self._port, backlog=512, **options
            )
        except OSError as error:
            raise ConfigError(
                f"the relay can't listen on {self._host}:{self._port}: {error.strerror or error}",
                code="AF973",
                hint="Choose another --port, or stop what uses it.",
            ) from None
        self._port = self._listener.sockets[0].getsockname()[1]
        self._sweeper = loop.create_task(self._sweep())
        log.info("event=listening host=%s port=%d tls=%s", self._host, self._port, self._tls is not None)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port

    @property
    def url(self) -> str:
        """Base URL, by the address that it listens on."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls is not None else 'http'}://{host}:{self._port}"

    async def drain(self, grace: float | None = None) -> None:
        """Announce the end, give the streams `grace` seconds, and close.

        Args:
            grace: seconds; `Limits.drain` by default.
        """
        self.draining = True
        log.info("event=draining sockets=%d", len(self._sockets))
        for socket in list(self._sockets):
            socket.hint(Hint.LEAVING)
        if self._sockets:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.limits.drain if grace is None else grace):
                    await self._all_gone.wait()
        await self.close()

    async def close(self) -> None:
        """Stop listening and close every socket with 1001."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        for socket in list(self._sockets):
            socket.dismiss(1001, "the relay goes away; reconnect")
        if self._sockets:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.limits.close_timeout):
                    await self._all_gone.wait()
        await self.abort()

    async def abort(self) -> None:
        """Cut everything at once, as a crash would."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()  # first: what asyncio accepts while it is closed stays open for ever
        for connection in list(self._connections):
            connection.abort()
        for socket in list(self._sockets):
            socket.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None
        if self._listener is not None:
            await self._listener.wait_closed()
            self._listener = None
            log.info("event=closed")
        # The transports tell their protocols in the loop's next turn.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- what connections and sockets report ---

    def welcome(self, connection: Connection) -> None:
        """Count a new connection.

        Raises:
            Refusal: there are too many.
        """
        self._connections.add(connection)
        self._handshakes.add(connection)
        if len(self._connections) + len(self._sockets) > self.limits.sockets:
            raise _busy("sockets", "The relay has no room for another connection; try again later.")
        if len(self._handshakes) > self.limits.handshakes:
            raise _busy("handshakes", "Too many connections have not sent their request yet; try again.")

    def handshake_done(self, connection: Connection) -> None:
        """The request of a connection is whole."""
        self._handshakes.discard(connection)

    def leave(self, connection: Connection) -> None:
        """A connection is gone."""
        self._handshakes.discard(connection)
        self._connections.discard(connection)
        if connection.source is not None:
            self._per_source[connection.source] -= 1
            if self._per_source[connection.source] <= 0:
                del self._per_source[connection.source]

    def forget(self, socket: Socket) -> None:
        """A socket is gone."""
        connection = self._sockets.pop(socket, None)
        if connection is not None:
            self.leave(connection)
        if not self._sockets:
            self._all_gone.set()

    def finish(self, channel: channels.Channel, role: Role) -> None:
        """An end finished its channel."""
        if self.channels.finish(channel, role):
            self.metrics.channels_finished += 1
            log.info("event=finished channel=%s", channel.name)

    def note_refusal(self, refusal: Refusal, source: str | None) -> None:
        """Count and log a refusal."""
        self.metrics.refusals[refusal.reason] += 1
        log.info("event=refused status=%d reason=%s source=%s", refusal.status, refusal.reason, source or "-")

    # --- requests ---

    def answer(self, connection: Connection, head: Head, body: bytes) -> None:
        """Answer a request.

        Raises:
            Refusal: with the answer when it is an error.
        """
        peer = str((connection.transport.get_extra_info("peername") or ("",))[0])
        source = source_of(peer, head.get("x-forwarded-for"), self._trusted)
        connection.source = source
        self._per_source[source] += 1
        join = _JOIN_PATH.fullmatch(head.path)
        if join is not None:
            self._join(connection, head, join[1], cast("Role", join[2]), source)
        elif head.path == "/channels":
            _need_method(head, "POST")
            connection.answer(self._open(head, body, source))
        elif head.path == "/healthz":
            _need_method(head, "GET")
            connection.answer(json_response(HTTPStatus.OK, {"status": "alive"}))
        elif head.path == "/readyz":
            _need_method(head, "GET")
            connection.answer(self._ready())
        elif head.path == "/metrics":
            _need_method(head, "GET")
            connection.answer(self._scrape(head, peer))
        else:
            raise Refusal(HTTPStatus.NOT_FOUND, "AF960", "not-found", "There is nothing here; a relay has /channels.")

    def _ready(self) -> bytes:
        if self.draining:
            raise _draining()
        if self.channels.full() or len(self._connections) + len(self._sockets) >= self.limits.sockets:
            raise channels.full()
        if not self.keys.ready():
            raise keys_unreadable()
        return json_response(HTTPStatus.OK, {"status": "ready"})

    def _scrape(self, head: Head, peer: str) -> bytes:
        if self._metrics_token is not None:
            given = (head.bearer() or "").encode("utf-8", "replace")
            allowed = hmac.compare_digest(given, self._metrics_token.encode())
        else:
            # A request that came through a proxy on this machine also comes from loopback.
            allowed = loopback(peer) and not any(name in head.headers for name in _PROXY_HEADERS)
        if not allowed:
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "AF953",
                "metrics",
                "The metrics are for this machine, or need the metrics token that the relay was started with.",
            )
        text = self.metrics.text(
            now=time.monotonic(),
            channels=len(self.channels),
            sockets=len(self._connections) + len(self._sockets),
            attached=len(self._sockets),
            queued=sum(socket.transport.get_write_buffer_size() for socket in self._sockets),
            draining=self.draining,
        )
        return text_response(text)

    def _open(self, head: Head, body: bytes, source: str) -> bytes:
        if self.draining:
            raise _draining()
        self._room_for(source)
        channel, key, answer = self._admission.open(head, body, source)
        self.metrics.channels_opened += 1
        log.info("event=open channel=%s key=%s", channel.name, key.name)
        return json_response(HTTPStatus.CREATED, answer)

    def _join(self, connection: Connection, head: Head, channel_hex: str, role: Role, source: str) -> None:
        _need_method(head, "GET")
        if not head.upgrades():
            message = f"This is the address of a WebSocket; connect with the subprotocol {SUBPROTOCOL}."
            raise Refusal(HTTPStatus.UPGRADE_REQUIRED, "AF962", "upgrade", message, headers={"Upgrade": "websocket"})
        if self.draining:
            raise _draining()
        self._room_for(source)
        channel, token = self._admission.join(head, channel_hex, role, source)
        websocket, response = accept(head, self.limits.message)
        connection.transport.write(response)
        connection.upgraded()
        socket = Socket(self, connection.transport, websocket, channel, role)
        self._connections.discard(connection)
        self._sockets[socket] = connection
        connection.transport.set_protocol(socket)
        self.metrics.joins += 1
        log.info("event=join channel=%s role=%s source=%s", channel.name, role, source)
        channel.attach(role, token, socket)

    def _room_for(self, source: str) -> None:
        if self._per_source[source] > self.limits.sockets_per_source:
            raise too_many("sockets-per-source", "There are too many connections from your address", 5)

    async def _sweep(self) -> None:
        limits = self.limits
        intervals = (limits.ping_interval, limits.idle_timeout, limits.stall_timeout, limits.abandon_timeout)
        pause = min(channels.SWEEP, min(intervals) / 4)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for socket in list(self._sockets):
                socket.check(now)
            for channel in self.channels.expire(self._wall(), now):
                self.metrics.channels_abandoned += 1
                log.info("event=abandoned channel=%s", channel.name)


def _need_method(head: Head, method: str) -> None:
    if head.method != method:
        raise Refusal(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "AF961",
            "method",
            f"This address takes {method} only.",
            headers={"Allow": method},
        )


def _busy(reason: str, message: str) -> Refusal:
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "AF958", reason, message, retry_after=5)


def _draining() -> Refusal:
    message = "The relay goes away; try again in a moment, when it or another one is back."
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "AF957", "draining", message, retry_after=1)
