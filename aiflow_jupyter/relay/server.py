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
import base64
import binascii
import contextlib
import hashlib
import hmac
import ipaddress
import json
import logging
import math
import re
import secrets
import signal
import socket as sockets
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.relay import channels
from aiflow_jupyter.relay.capability import Capability, Role, Secret
from aiflow_jupyter.relay.channels import Channels
from aiflow_jupyter.relay.connection import Connection
from aiflow_jupyter.relay.ends import QUIET, Socket
from aiflow_jupyter.relay.keys import KeyStore, PersonalKey
from aiflow_jupyter.relay.limits import Limits, Network, RateWindow, source_of
from aiflow_jupyter.relay.metrics import Metrics
from aiflow_jupyter.relay.request import Head, Refusal, bad_request, json_response, text_response

log = logging.getLogger("aiflow_jupyter.relay")

SUBPROTOCOL = Subprotocol("aiflow-relay.1")
_JOIN_PATH = re.compile(r"/channels/([0-9a-f]{32})/(producer|consumer)")
_JOIN_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-real-ip")
_UNCOUNTED = {"draining", "full", "sockets", "handshakes"}


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
        if tls is None and not (behind_proxy or insecure or _is_loopback(host)):
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
        self.limits = limits or Limits()
        self.keys = keys
        self._host = host
        self._port = port
        self._secret = secret or Secret.fresh()
        self._tls = tls
        self._trusted: tuple[Network, ...] = networks
        self._metrics_token = metrics_token
        self._wall = wall
        self.draining = False
        self.metrics = Metrics(time.monotonic())
        self.channels = Channels(self.limits, secrets.token_bytes(16))
        self._connections: set[Connection] = set()
        self._handshakes: set[Connection] = set()
        self._sockets: dict[Socket, Connection] = {}
        self._per_source: Counter[str] = Counter()
        self._rates = RateWindow()
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._all_gone = asyncio.Event()

    # --- life ---

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address can't be had.
        """
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
            socket.hint(channels.GOING_AWAY)
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
            self._listener.close()
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

    def finish(self, channel: channels.Channel) -> None:
        """An end finished its channel."""
        if self.channels.finish(channel):
            self.metrics.channels_finished += 1
            log.info("event=finished channel=%s", channel.name)

    def note_refusal(self, refusal: Refusal, source: str | None) -> None:
        """Count a refusal, also against the address that provoked it."""
        self.metrics.refusals[refusal.reason] += 1
        log.info("event=refused status=%d reason=%s source=%s", refusal.status, refusal.reason, source or "-")
        if source is not None and refusal.reason not in _UNCOUNTED and refusal.status != HTTPStatus.TOO_MANY_REQUESTS:
            self._rates.count(("refused", source), time.monotonic())

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
            connection.answer(self._scrape(head, source))
        else:
            raise Refusal(HTTPStatus.NOT_FOUND, "AF960", "not-found", "There is nothing here; a relay has /channels.")

    def _ready(self) -> bytes:
        if self.draining:
            raise _draining()
        if self.channels.full() or len(self._connections) + len(self._sockets) >= self.limits.sockets:
            raise channels.full()
        return json_response(HTTPStatus.OK, {"status": "ready"})

    def _scrape(self, head: Head, source: str) -> bytes:
        if self._metrics_token is not None:
            given = (head.bearer() or "").encode("utf-8", "replace")
            allowed = hmac.compare_digest(given, self._metrics_token.encode())
        else:
            # A request that came through a proxy on this machine also comes from loopback.
            allowed = _is_loopback(source) and not any(name in head.headers for name in _PROXY_HEADERS)
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
        limits, now = self.limits, time.monotonic()
        if self.draining:
            raise _draining()
        self._take_source(source, now)
        key = self.keys.find(head.bearer() or "")
        if key is None:
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "AF950",
                "key",
                "The relay does not know this personal key; ask its operator for one (aiflow keys relay add NAME).",
                headers={"WWW-Authenticate": "Bearer"},
            )
        self._take(("open", key.id), limits.channels_per_minute, now, "channel-rate", "This key opens channels")
        not_after = self._not_after(body)
        channel = secrets.token_bytes(16)
        per_key = limits.channels_per_key if key.channels is None else key.channels
        made = self.channels.open(channel, key.id, not_after, now, per_key=per_key)
        self.metrics.channels_opened += 1
        log.info("event=open channel=%s key=%s", made.name, key.name)
        capabilities: dict[Role, str] = {
            role: self._secret.seal(Capability(role, channel, not_after, key.id)) for role in channels.OTHER
        }
        return json_response(HTTPStatus.CREATED, {"channel": channel.hex(), **capabilities, "not_after": not_after})

    def _not_after(self, body: bytes) -> int:
        try:
            wanted = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            raise bad_request("The body is not JSON.") from None
        now = self._wall()
        not_after = wanted.get("not_after") if isinstance(wanted, dict) else wanted
        if isinstance(wanted, dict) and not_after is None:
            return int(now + min(self.limits.lifetime, self.limits.max_lifetime))
        if isinstance(not_after, bool) or not isinstance(wanted, dict) or not isinstance(not_after, int | float):
            raise bad_request('The body is to be a JSON object such as {"not_after": 1767225600}.')
        if not math.isfinite(not_after) or not_after <= now:
            raise bad_request("not_after is not a time to come, in Unix seconds.")
        return int(min(not_after, now + self.limits.max_lifetime))

    def _join(self, connection: Connection, head: Head, channel_hex: str, role: Role, source: str) -> None:
        _need_method(head, "GET")
        if not head.upgrades():
            raise Refusal(
                HTTPStatus.UPGRADE_REQUIRED,
                "AF962",
                "upgrade",
                "This is the address of a WebSocket; connect with the subprotocol aiflow-relay.1.",
                headers={"Upgrade": "websocket"},
            )
        now = time.monotonic()
        if self.draining:
            raise _draining()
        self._take_source(source, now)
        capability, key = self._verify(head, channel_hex, role)
        self._take(
            ("channel", capability.channel),
            self.limits.joins_per_minute_channel,
            now,
            "join-rate",
            "This channel is joined",
        )
        per_key = self.limits.joins_per_minute if key.joins_per_minute is None else key.joins_per_minute
        self._take(("join", key.id), per_key, now, "join-rate-key", "This key's channels are joined")
        channel = self.channels.find(capability, now)
        token = _join_token(head)
        if not channel.admits(role, token):
            channel.warn()
            log.warning("event=third-party channel=%s role=%s source=%s", channel.name, role, source)
            raise Refusal(
                HTTPStatus.CONFLICT,
                "AF954",
                "third-party",
                f"Someone else is the {role} of this channel; both ends have been told. Open a new channel.",
            )
        websocket, response = self._upgrade(head)
        connection.transport.write(response)
        connection.upgraded()
        socket = Socket(self, connection.transport, websocket, channel, role)
        self._connections.discard(connection)
        self._sockets[socket] = connection
        connection.transport.set_protocol(socket)
        self.metrics.joins += 1
        log.info("event=join channel=%s role=%s source=%s", channel.name, role, source)
        channel.attach(role, token, socket)

    def _verify(self, head: Head, channel_hex: str, role: Role) -> tuple[Capability, PersonalKey]:
        capability = self._secret.open(head.bearer() or "")
        if capability is None:
            raise _unauthorized("capability", "AF951", "The capability is not one that this relay gave out.")
        if capability.not_after < self._wall():
            raise _unauthorized("expired", "AF952", "The capability has expired; open a new channel.")
        if capability.channel.hex() != channel_hex or capability.role != role:
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "AF953",
                "other-place",
                "The capability is for another channel or the other role; each end has its own.",
            )
        key = self.keys.by_id(capability.key_id)
        if key is None:
            raise _unauthorized("revoked", "AF951", "The key that opened this channel has been revoked.")
        return capability, key

    def _upgrade(self, head: Head) -> tuple[ServerProtocol, bytes]:
        """Accept the WebSocket handshake.

        Raises:
            Refusal: it is not one.
        """
        websocket = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=self.limits.message, logger=QUIET)
        headers = Headers([(name, value) for name, values in head.headers.items() for value in values])
        # The request was read strictly before; websockets reads it in its own right, as a client would have written it.
        websocket.receive_data(Request(head.path, headers).serialize().replace(b"HTTP/1.1", head.version.encode(), 1))
        (request,) = websocket.events_received() or (None,)
        if request is None:
            raise bad_request("This is not a WebSocket handshake.")
        response = websocket.accept(cast("Request", request))
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            raise Refusal(
                HTTPStatus(response.status_code),
                "AF963",
                "handshake",
                "This is not a WebSocket handshake of the subprotocol aiflow-relay.1.",
            )
        websocket.send_response(response)
        return websocket, b"".join(websocket.data_to_send())

    def _take_source(self, source: str, now: float) -> None:
        limits = self.limits
        if self._per_source[source] > limits.sockets_per_source:
            raise _too_many("sockets-per-source", "There are too many connections from your address", 5)
        wait = self._rates.wait(("refused", source), limits.refusals_per_minute_source, now)
        if wait > 0:
            raise _too_many("guessing", "Too many requests from your address were refused", wait)
        self._take(("source", source), limits.joins_per_minute_source, now, "source-rate", "Your address connects")

    def _take(self, name: object, limit: int, now: float, reason: str, what: str) -> None:
        wait = self._rates.wait(name, limit, now)
        self._rates.count(name, now)
        if wait > 0:
            raise _too_many(reason, f"{what} more than {limit} times a minute", wait)

    async def _sweep(self) -> None:
        limits = self.limits
        pause = min(5.0, limits.ping_interval / 4, limits.idle_timeout / 4, limits.stall_timeout / 4)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for socket in list(self._sockets):
                socket.check(now)
            for channel in self.channels.expire(self._wall()):
                for end in list(channel.ends.values()):
                    end.dismiss(channels.EXPIRED, "the channel expired before the other end came")


class SelfRelay:
    """A relay inside this process, with one key of its own: `async with SelfRelay() as relay:`.

    For a kernel that the cluster can reach. Channels, keys and the secret end with it.

    Args:
        host: address to listen on; see `RelayServer` for one that is not loopback.
        port: 0 for any free one.
        public_host: the name by which the other end reaches this machine; by default `host`, or this machine's name
            when `host` stands for every address.
        limits: of the relay.
        tls: context of a server that ends TLS itself.
        insecure: allow an address that is not loopback without TLS.

    Attributes:
        url: base URL for both ends.
        key: personal key.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        public_host: str | None = None,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
    ) -> None:
        keys = KeyStore()
        self.key = keys.add("self")
        self.server = RelayServer(keys, host=host, port=port, limits=limits, tls=tls, insecure=insecure)
        everywhere = host in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
        self._name = public_host or (sockets.gethostname() if everywhere else None)

    @property
    def url(self) -> str:
        """Base URL for both ends."""
        if self._name is None:
            return self.server.url
        scheme = self.server.url.partition(":")[0]
        return f"{scheme}://{self._name}:{self.server.port}"

    async def __aenter__(self) -> Self:
        await self.server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.close()


async def run(server: RelayServer, started: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal closes at once.

    Args:
        server: not started.
        started: called when it listens.
    """
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[None] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        # An event loop of Windows has no signal handlers; there Ctrl-C cancels this task instead.
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, signals.put_nowait, None)
    await server.start()
    started()
    try:
        await signals.get()
        drain, again = loop.create_task(server.drain()), loop.create_task(signals.get())
        await asyncio.wait((drain, again), return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        drain.cancel()
    finally:
        await server.close()


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's TLS context (1.2 and later) from PEM files.

    Raises:
        ConfigError: they can't be read or don't belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate {certificate} or its key {key} can't be used: {error}", code="AF973"
        ) from None
    return context


def _join_token(head: Head) -> bytes:
    """The hash of the join token."""
    text = head.get("aiflow-join") or ""
    raw = b""
    if _JOIN_TOKEN.fullmatch(text):
        with contextlib.suppress(binascii.Error):
            raw = base64.b64decode(text + "=", altchars=b"-_", validate=True)
    if len(raw) != 32:
        raise bad_request("Aiflow-Join is to be 32 random bytes of this end, in base64url without padding.")
    return hashlib.sha256(raw).digest()


def _need_method(head: Head, method: str) -> None:
    if head.method != method:
        raise Refusal(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "AF961",
            "method",
            f"This address takes {method} only.",
            headers={"Allow": method},
        )


def _unauthorized(reason: str, code: str, message: str) -> Refusal:
    return Refusal(HTTPStatus.UNAUTHORIZED, code, reason, message, headers={"WWW-Authenticate": "Bearer"})


def _too_many(reason: str, what: str, wait: float) -> Refusal:
    seconds = max(1, math.ceil(wait))
    return Refusal(
        HTTPStatus.TOO_MANY_REQUESTS, "AF956", reason, f"{what}; try again in {seconds} s.", retry_after=wait
    )


def _busy(reason: str, message: str) -> Refusal:
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "AF958", reason, message, retry_after=5)


def _draining() -> Refusal:
    message = "The relay goes away; try again in a moment, when it or another one is back."
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "AF957", "draining", message, retry_after=1)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_network(host, strict=False).is_loopback
    except ValueError:
        return False
