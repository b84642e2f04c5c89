"""One end's WebSocket at the relay: whole messages go from its reads straight into its peer's writes.

A message in one frame is cut out and sent on here; everything else is the sans-I/O protocol's of `websockets`. There is
no task and no queue. All messages of one read become one write. What a peer can't take yet waits in its transport, and
from `Limits.buffer` bytes on the sender is not read, so a channel holds at most that and one read, whatever its ends
do.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from aiflow_jupyter.relay.channels import Channel
from aiflow_jupyter.relay.cutter import Cutter, header
from aiflow_jupyter.relay.frames import Hint, pack_hint
from aiflow_jupyter.relay.joining import SUBPROTOCOL, Close, Role
from aiflow_jupyter.relay.request import Head, Refusal, bad_request

if TYPE_CHECKING:
    from websockets.typing import BytesLike

    from aiflow_jupyter.relay.server import RelayServer

log = logging.getLogger("aiflow_jupyter.relay")

# At DEBUG websockets logs headers, and with them capabilities, and the content of frames. This logger is in no
# registry, so that no configuration of logging can turn that on.
QUIET = logging.Logger("aiflow_jupyter.relay.websockets", level=logging.ERROR)  # noqa: LOG001
QUIET.parent = log

_PEER_FULL = 1
_RATE = 2


def accept(head: Head, max_size: int) -> tuple[ServerProtocol, bytes]:
    """Accept a WebSocket handshake; returns the protocol and what to write.

    Args:
        head: the request.
        max_size: the largest message, in bytes.

    Raises:
        Refusal: it is not a handshake of this subprotocol.
    """
    websocket = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=max_size, logger=QUIET)
    headers = Headers([(name, value) for name, values in head.headers.items() for value in values])
    # websockets reads the request again, in its own way, but from the one meaning that was found in it.
    websocket.receive_data(Request(head.path, headers).serialize())
    events = websocket.events_received()
    if not events or head.version != "HTTP/1.1":
        raise bad_request("This is not a WebSocket handshake.")
    response = websocket.accept(cast("Request", events[0]))
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        message = f"This is not a WebSocket handshake of the subprotocol {SUBPROTOCOL}."
        raise Refusal(HTTPStatus(response.status_code), "AF963", "handshake", message)
    websocket.send_response(response)
    return websocket, b"".join(websocket.data_to_send())


class Socket(asyncio.Protocol):
    """A socket that is an end of a channel, from its upgrade to its loss.

    Args:
        relay: whose limits and counters hold.
        transport: of the connection; its protocol becomes this.
        websocket: the protocol, which has answered the handshake.
        channel: the channel that was joined.
        role: the end that was taken.
    """

    def __init__(
        self,
        relay: RelayServer,
        transport: asyncio.Transport,
        websocket: ServerProtocol,
        channel: Channel,
        role: Role,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.relay = relay
        self.transport = transport
        self.websocket = websocket
        self.channel = channel
        self.role = role
        self.peer: Socket | None = None
        self.full = False
        self.heard = self._pinged = self._loop.time()
        self._stalled_since = self._stalled_at = 0.0
        self._paused = 0
        self._paused_since = 0.0
        self._cutter = Cutter(relay.limits.message, masked=True)
        self._assembly: list[BytesLike] = []
        self._rate_timer: asyncio.TimerHandle | None = None
        self._closer: asyncio.TimerHandle | None = None
        limit = relay.limits.buffer
        transport.set_write_buffer_limits(high=limit, low=limit // 4)

    def hint(self, code: Hint) -> None:
        """Send a HINT frame."""
        if self.websocket.state is OPEN:
            frame = pack_hint(code)
            self.transport.write(header(len(frame)) + frame)

    def meet(self, peer: Socket | None) -> None:
        """Forward to `peer` from now on; with None drop."""
        self.peer = peer
        self._pause_reading(_PEER_FULL, paused=peer is not None and peer.full)

    def dismiss(self, code: int, reason: str) -> None:
        """Close the socket, in order if the other side takes part and by force if not."""
        if self.websocket.state is OPEN:
            self.websocket.send_close(code, reason)
            self._closed_by_relay(code)
            self._flush()
            self._leave()
        elif self._closer is None:
            self._close_soon()

    def abort(self) -> None:
        """Cut the connection at once."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Forward the messages of one read as one write."""
        websocket = self.websocket
        messages: list[BytesLike] = []
        for whole, piece in self._cutter.feed(data):
            if not whole:
                messages += self._read(piece)
            elif websocket.state is OPEN:
                messages.append(piece)
        size = self._forward(messages) if messages else 0
        now = self.heard = self._loop.time()
        # What is dropped costs the relay as much to read, so it counts.
        wait = self.channel.bucket.take(size, now)
        if wait > 0:
            self._wait(wait)
        if websocket.writes or websocket.state is not OPEN:
            self._flush()
            if websocket.state is not OPEN:
                self._leave()

    def _read(self, data: bytes) -> list[BytesLike]:
        """The messages in what is not the common frame; pings and closes are dealt with, and what is wrong."""
        websocket = self.websocket
        was_open = websocket.state is OPEN
        websocket.receive_data(data)
        found: list[BytesLike] = []
        for event in websocket.events_received():
            frame = cast("Frame", event)
            opcode = frame.opcode
            if not was_open:
                continue
            if opcode is Opcode.TEXT:
                self._fail(CloseCode.UNSUPPORTED_DATA, "this relay forwards binary messages only")
                was_open = False
            elif opcode is Opcode.BINARY or opcode is Opcode.CONT:
                whole = self._assemble(frame)
                if whole is not None:
                    found.append(whole)
                else:
                    was_open = websocket.state is OPEN
        return found

    def _forward(self, messages: list[BytesLike]) -> int:
        """Write messages to the peer, if there is one; returns their bytes."""
        metrics = self.relay.metrics
        out: list[BytesLike] = []
        size = 0
        for message in messages:
            length = len(message)
            size += length
            out += (header(length), message)
        if self.peer is None:
            metrics.dropped += len(messages)
        else:
            self.peer.transport.write(b"".join(out))
            metrics.frames += len(messages)
            metrics.bytes += size
        return size

    def _assemble(self, frame: Frame) -> bytes | None:
        """Collect the fragments of a message; websockets has already bounded their sum."""
        self._assembly.append(frame.data)
        if frame.fin:
            whole = b"".join(self._assembly)
            self._assembly.clear()
            return whole
        if len(self._assembly) > self.relay.limits.fragments:
            self._fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
        return None

    def eof_received(self) -> None:
        """The other side is gone; asyncio closes the transport."""
        self.websocket.receive_eof()
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget everything."""
        for timer in (self._rate_timer, self._closer):
            if timer is not None:
                timer.cancel()
        self._count_pause(self._loop.time())
        self._paused = 0
        self._leave()
        self.relay.forget(self)

    def pause_writing(self) -> None:
        """The transport is full: the peer is read no further."""
        self.full = True
        self._stalled_since = self._loop.time()
        self._stalled_at = self.transport.get_write_buffer_size()
        if self.peer is not None:
            self.peer._pause_reading(_PEER_FULL, paused=True)  # noqa: SLF001

    def resume_writing(self) -> None:
        """The transport has room again."""
        self.full = False
        if self.peer is not None:
            self.peer._pause_reading(_PEER_FULL, paused=False)  # noqa: SLF001

    def check(self, now: float) -> None:
        """Ping when it is time, and close what is dead or takes nothing."""
        limits = self.relay.limits
        if self.websocket.state is not OPEN:
            return
        if self.full:
            waiting = self.transport.get_write_buffer_size()
            if waiting < self._stalled_at:
                self._stalled_since = now
            self._stalled_at = waiting
            if now - self._stalled_since > limits.stall_timeout:
                self.dismiss(Close.STALLED, "took nothing for too long")
                return
        # A socket that is not read can't show that it lives, nor can one whose pong waits behind what it doesn't take.
        if self._paused or self.full:
            self.heard = now
        elif now - self.heard > limits.idle_timeout:
            self.dismiss(CloseCode.INTERNAL_ERROR, "no sign of life")
        elif now - self._pinged >= limits.ping_interval:
            self._pinged = now
            self.websocket.send_ping(b"")
            self._flush()

    def _pause_reading(self, reason: int, *, paused: bool) -> None:
        before = self._paused
        self._paused = before | reason if paused else before & ~reason
        if self._paused and not before:
            self._paused_since = self._loop.time()
            self.transport.pause_reading()
        elif before and not self._paused:
            now = self.heard = self._loop.time()
            self._paused = before
            self._count_pause(now)
            self._paused = 0
            self.transport.resume_reading()

    def _count_pause(self, now: float) -> None:
        if self._paused:
            self.relay.metrics.paused_seconds += now - self._paused_since

    def _wait(self, seconds: float) -> None:
        self._pause_reading(_RATE, paused=True)
        if self._rate_timer is not None:
            self._rate_timer.cancel()
        self._rate_timer = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._rate_timer = None
        self._pause_reading(_RATE, paused=False)

    def _fail(self, code: int, reason: str) -> None:
        if self.websocket.state is OPEN:
            self.websocket.fail(code, reason)

    def _flush(self) -> None:
        """Write what the protocol has to say: pongs, pings, closes."""
        for data in self.websocket.data_to_send():
            if not data:
                if self.transport.can_write_eof():
                    self.transport.write_eof()
                else:
                    self.transport.close()
            elif not self.full or self.websocket.state is not OPEN:
                self.transport.write(data)
            # Else it is a pong for someone who doesn't read: one more would only add to what they don't take.
        if self.websocket.state is not OPEN and self._closer is None:
            self._close_soon()

    def _close_soon(self) -> None:
        self._closer = self._loop.call_later(self.relay.limits.close_timeout, self.transport.abort)

    def _closed_by_relay(self, code: int) -> None:
        self.relay.metrics.closes[code] += 1

    def _leave(self) -> None:
        """Take note of how the socket ended, once, and give up the place in the channel."""
        channel = self.channel
        websocket = self.websocket
        if channel.ends.get(self.role) is not self:
            return
        received, sent = websocket.close_rcvd, websocket.close_sent
        if websocket.parser_exc is not None and sent is not None and received is None:
            self._closed_by_relay(sent.code)
        if received is not None and received.code == Close.FINISHED:
            self.relay.finish(channel, self.role)
        code = received.code if received is not None else sent.code if sent is not None else 1006
        log.info("event=leave channel=%s role=%s code=%d", channel.name, self.role, code)
        channel.detach(self.role, self, self._loop.time())
        self.meet(None)  # which also reads on: the answer to a close may wait behind what the peer did not take
