"""The way to a relay: addresses, its HTTP answers as errors, one connection, and when to try again.

Proxies come from the environment (`HTTPS_PROXY`, `NO_PROXY`) except on loopback, where none can lead; certificates
from `SSL_CERT_FILE`, `SSL_CERT_DIR` everywhere. Redirects are refused: a capability is for one relay.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NoReturn
from urllib.parse import SplitResult, urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidProxyStatus,
    InvalidStatus,
    ProxyError,
)

from aiflow_jupyter.environment import usable_environment
from aiflow_jupyter.relay.errors import (
    CapabilityRefused,
    ChannelFinished,
    Crowded,
    PlainRefused,
    RelayError,
    RelayLimit,
    RelayRefused,
    RelayUnreachable,
    WrongChannel,
)
from aiflow_jupyter.relay.frames import CHANNEL_BYTES, MAX_FRAME
from aiflow_jupyter.relay.joining import SUBPROTOCOL, Role
from aiflow_jupyter.relay.joining import loopback as loopback  # noqa: PLC0414  # hpc has it from here
from aiflow_jupyter.relay.reasons import trusted as trusted  # noqa: PLC0414  # as `loopback`
from aiflow_jupyter.relay.reasons import why
from aiflow_jupyter.relay.wire import Wire

FIRST_DELAY = 0.02
LAST_DELAY = 2.0
PING = 15.0  # seconds: below what proxies let a quiet line live

# What websockets makes of a connection that is lost within its handshake. The last three come of one that is lost
# before the request is written, as by a relay that is too full: it aborts what is gone, or was never there.
_LOST = (OSError, TimeoutError, InvalidMessage, EOFError, ConnectionClosed, AssertionError, AttributeError)

# websockets writes the headers of a request to its log at DEBUG, a capability among them. Outside the registry, so that
# nobody who turns every logger up turns this one up too.
_wire_log = logging.Logger(f"{__name__}.websocket", level=logging.INFO)  # noqa: LOG001
_wire_log.parent = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel of a relay, as its maker gets it. The capabilities are for one end each.

    Args:
        relay: the relay's address, `https://...`.
        id: 32 hexadecimal characters.
        producer: the producing end's capability.
        consumer: the consuming end's capability.
        not_after: when it expires, in seconds since 1970.
    """

    relay: str
    id: str
    producer: str = field(repr=False)
    consumer: str = field(repr=False)
    not_after: int


def join_token() -> str:
    """What one end of one process shows at every join, so that a reconnection is told from a third party."""
    return base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()


def address(relay: str, *, allow_plain: bool = False) -> SplitResult:
    """A relay's address, checked.

    Raises:
        RelayError: it is no `http(s)` or `ws(s)` address.
        PlainRefused: it has no TLS, is another machine, and that was not allowed.
    """
    try:
        parts = urlsplit(relay)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in {"http", "https", "ws", "wss"} or not host or parts.username or parts.query:
        raise RelayError("the relay's address is not of the form https://host[:port][/path]", code="AF904")
    if parts.scheme in {"http", "ws"} and not allow_plain and not loopback(host):
        raise PlainRefused(
            f"the relay {host} is to be reached without TLS",
            hint="use https://, or allow_plain=True where only you can read the line: the stream stays encrypted, "
            "but its capabilities could be copied",
        )
    secure = parts.scheme in {"https", "wss"}
    return parts._replace(scheme="https" if secure else "http", path=parts.path.rstrip("/"), fragment="")


def refuse(status: int, body: bytes, retry_after: str | None = None) -> NoReturn:
    """Raise what an HTTP answer other than success means.

    Raises:
        RelayError: always.
    """
    try:
        word = str(json.loads(body)["error"]["message"])[:200]
        code = str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError, RecursionError):
        word = code = ""
    said = f" ({word})" if word.isprintable() and word else ""
    if status in {401, 403} and not re.fullmatch("AF9[0-9]{2}", code):
        # A page of a proxy, a login or another program: a relay says by code what it refuses.
        raise (CapabilityRefused if status == 401 else WrongChannel)(
            f"HTTP {status}, and not in a relay's words{said}",
            hint="is that the relay's address, or does a proxy or a login stand in front of it?",
        )
    if status == 401:
        raise CapabilityRefused(
            f"the relay does not accept this key or capability{said}",
            hint="a capability expires at its channel's not_after; a key is made with `aiflow keys relay add NAME`",
        )
    if status == 403:
        raise WrongChannel(f"the capability is for another channel or role{said}", hint="use it where it was made for")
    if status == 409:
        raise Crowded(
            f"another process holds this end of the channel{said}",
            hint="the job was started twice, or the capability was copied: ask again, on a new channel",
        )
    if status == 410:
        raise ChannelFinished(f"the channel is finished or has expired{said}", hint="ask again, on a new channel")
    if status in {429, 503}:
        wait = float(retry_after) if retry_after and re.fullmatch("[0-9]{1,6}", retry_after) else 0.0
        when = f" in {wait:g} s" if wait else " later"
        error: RelayLimit | RelayUnreachable
        if status == 429:
            error = RelayLimit(f"the relay's limits are reached{said}", hint=f"try again{when}, or with fewer streams")
        else:
            error = RelayUnreachable(f"the relay can't take a stream now{said}", hint=f"try again{when}")
        error.retry_after = wait
        raise error
    raise RelayRefused(f"HTTP {status} instead of a relay's answer{said}", hint="is that a relay's address?")


async def create_channel(
    relay: str,
    key: str,
    not_after: int | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    allow_plain: bool = False,
    timeout: float = 10.0,  # noqa: ASYNC109  # of each HTTP step; httpx ends it cleanly
) -> Channel:
    """Open a channel for one stream.

    Args:
        relay: the relay's address.
        key: the personal relay key.
        not_after: when the channel expires, in seconds since 1970; the relay's default is a day.
        tls: certificates to trust in place of the system's.
        allow_plain: go without TLS to another machine.
        timeout: seconds for each step of the request.

    Raises:
        RelayError: why there is none, and what to do.
    """
    import httpx  # noqa: PLC0415  # a worker joins channels and opens none: it starts without this

    if not re.fullmatch("[!-~]{1,4096}", key):
        raise CapabilityRefused("that is no relay key", hint="copy it as `aiflow keys relay add NAME` showed it")
    parts = address(relay, allow_plain=allow_plain)
    base = parts.geturl()
    body = {} if not_after is None else {"not_after": not_after}
    near = loopback(parts.hostname or "")
    try:
        verify = tls or (trusted() if parts.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        with usable_environment():
            made = httpx.AsyncClient(verify=verify, trust_env=not near, timeout=timeout)
        async with made as client:
            response = await client.post(f"{base}/channels", json=body, headers={"Authorization": f"Bearer {key}"})
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise RelayUnreachable(
            f"the relay {parts.netloc} could not be reached ({why(error)})", hint="is the address right?"
        ) from None
    if response.status_code != 201:
        refuse(response.status_code, response.content, response.headers.get("Retry-After"))
    try:
        answer = response.json()
        channel = Channel(
            base, answer["channel"], str(answer["producer"]), str(answer["consumer"]), int(answer["not_after"])
        )
        whole = len(bytes.fromhex(channel.id)) == CHANNEL_BYTES
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise RelayRefused("the answer is not that of a relay", hint="is that a relay's address?")
    return channel


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Link:
    """Connects one end of one process to its channel, as often as needed.

    Args:
        relay: the relay's address.
        channel: the channel's id, hexadecimal.
        role: which end this is.
        capability: the end's capability.
        tls: certificates to trust in place of the system's.
        allow_plain: go without TLS to another machine.
    """

    def __init__(
        self,
        relay: str,
        channel: str,
        role: Role,
        capability: str,
        *,
        tls: ssl.SSLContext | None = None,
        allow_plain: bool = False,
    ) -> None:
        if not re.fullmatch("[!-~]{1,4096}", capability) or not re.fullmatch("[0-9a-f]{32}", channel):
            raise CapabilityRefused("that is no channel id, or no capability", hint="copy both as the relay gave them")
        parts = address(relay, allow_plain=allow_plain)
        secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.place = parts.netloc
        self._uri = parts._replace(
            scheme="wss" if secure else "ws", path=f"{parts.path}/channels/{channel}/{role}"
        ).geturl()
        self._proxy: Literal[True] | None = None if loopback(self.host) else True
        self._tls = (tls or trusted()) if secure else None
        self._headers = {"Authorization": f"Bearer {capability}", "Aiflow-Join": join_token()}

    def __repr__(self) -> str:
        return f"<Link {self.host}>"

    async def connect(self) -> Wire:
        """A new connection; asyncio sets TCP_NODELAY on it, without which tokens would wait for acknowledgements.

        Raises:
            RelayUnreachable: not now; a later attempt may succeed.
            RelayError: the relay refused.
        """
        try:
            connection = await _Connect(
                self._uri,
                subprotocols=[SUBPROTOCOL],
                compression=None,  # ciphertext does not shrink
                additional_headers=self._headers,
                proxy=self._proxy,
                open_timeout=10,
                ping_interval=PING,
                ping_timeout=PING * 2,
                close_timeout=2,
                max_size=MAX_FRAME,
                logger=_wire_log,
                ssl=self._tls,
                create_connection=Wire,
            )
        except InvalidStatus as error:
            response = error.response
            refuse(response.status_code, bytes(response.body or b""), response.headers.get("Retry-After"))
        except ssl.SSLCertVerificationError:
            raise RelayRefused(
                f"the certificate of {self.place} is not trusted here",
                hint="SSL_CERT_FILE names a file with further certificates",
            ) from None
        except (InvalidProxyStatus, ProxyError) as error:
            raise RelayUnreachable(
                f"the proxy does not lead to {self.host} ({type(error).__name__})", hint="look at HTTPS_PROXY, NO_PROXY"
            ) from None
        except _LOST as error:
            raise RelayUnreachable(f"the relay {self.place} could not be reached ({why(error)})") from None
        except InvalidHandshake as error:
            raise RelayRefused(
                f"{self.host} does not speak WebSocket as a relay does ({type(error).__name__})"
            ) from None
        if connection.subprotocol != SUBPROTOCOL:
            await connection.close()
            raise RelayRefused(f"{self.host} does not speak {SUBPROTOCOL}", hint="install the same release there")
        assert isinstance(connection, Wire)
        return connection


def delays(rng: random.Random) -> Iterator[float]:
    """Seconds before each further attempt: full jitter, so that a restarted relay is not run over by all at once."""
    ceiling = FIRST_DELAY
    while True:
        yield rng.uniform(0, ceiling)
        ceiling = min(2 * ceiling, LAST_DELAY)
