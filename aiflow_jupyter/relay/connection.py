"""One HTTP connection: a request is read within its limits, handed to the relay, answered, and the connection closed.

A join hands the transport over to a `Socket`. After any other answer the connection lingers for a moment and reads to
nowhere, because closing a socket with unread bytes would reset it and could take the answer with it.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from aiflow_jupyter.relay.request import Head, Refusal, bad_request, head_too_large, parse_head

if TYPE_CHECKING:
    from aiflow_jupyter.relay.server import RelayServer

log = logging.getLogger("aiflow_jupyter.relay")

_LINGER_SECONDS = 1.0


class Connection(asyncio.Protocol):
    """A connection that has not become a channel's socket.

    Args:
        relay: answers the request.
    """

    transport: asyncio.Transport

    def __init__(self, relay: RelayServer) -> None:
        self._relay = relay
        self._buffer = bytearray()
        self._head: Head | None = None
        self._need = 0
        self._answered = False
        self._timer: asyncio.TimerHandle | None = None
        self.source: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or refuse it when there are too many."""
        self.transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._relay.limits.handshake_timeout, self._too_late)
        try:
            self._relay.welcome(self)
        except Refusal as refusal:
            self.refuse(refusal)

    def data_received(self, data: bytes) -> None:
        """Read on until the request is whole."""
        if self._answered:
            return
        self._buffer += data
        try:
            self._read()
        except Refusal as refusal:
            self.refuse(refusal)

    def eof_received(self) -> bool:
        """A client may close its side after the request; what is not a whole request by then never will be."""
        if not self._answered:
            self.refuse(bad_request("The connection ended within the request."))
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget the connection."""
        self._stop_timer()
        self._relay.leave(self)

    def answer(self, response: bytes) -> None:
        """Answer the request; the connection closes."""
        if self._answered or self.transport.is_closing():
            return
        self._answered = True
        self._buffer.clear()
        self._stop_timer()
        self.transport.write(response)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()

    def refuse(self, refusal: Refusal) -> None:
        """Answer with an error."""
        self._relay.note_refusal(refusal, self.source)
        self.answer(refusal.response())

    def upgraded(self) -> None:
        """The transport belongs to a socket now."""
        self._answered = True
        self._stop_timer()
        self._relay.handshake_done(self)

    def abort(self) -> None:
        """Cut the connection at once."""
        self.transport.abort()

    def _read(self) -> None:
        limits = self._relay.limits
        buffer = self._buffer
        if self._head is None:
            end = buffer.find(b"\r\n\r\n", 0, limits.head)
            if end < 0:
                self._plausible()
                if len(buffer) >= limits.head:
                    raise head_too_large()
                return
            head = parse_head(bytes(buffer[: end + 4]))
            del buffer[: end + 4]
            self._need = head.content_length()
            if self._need > limits.body:
                raise Refusal(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    "AF966",
                    "body-size",
                    f"The body is larger than {limits.body} bytes, which no request to a relay needs.",
                )
            self._head = head
        if len(buffer) > self._need:
            raise bad_request("There are bytes after the request.")
        if len(buffer) == self._need:
            self._relay.handshake_done(self)
            self._relay.answer(self, self._head, bytes(buffer))

    def _plausible(self) -> None:
        """Refuse at once what can't become a request, such as a TLS hello."""
        buffer = self._buffer
        if not buffer[:1].isalpha() or buffer.count(b"\n") != buffer.count(b"\r\n"):
            raise bad_request("This is not an HTTP/1.1 request; a relay's address starts with https:// or http://.")

    def _too_late(self) -> None:
        self.refuse(
            Refusal(
                HTTPStatus.REQUEST_TIMEOUT,
                "AF967",
                "handshake-timeout",
                f"The request was not complete after {self._relay.limits.handshake_timeout:g} s.",
            )
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
