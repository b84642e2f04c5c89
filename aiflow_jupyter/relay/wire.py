"""An end's WebSocket: `websockets` connects, pings and closes; the messages take a shorter way past it.

A message that comes is handed on within the read that brought it, without a queue and a task in between, and what is to
be sent is written within the call. At the pace of a language model each token meets cold caches, so what counts is how
little there is to do, not how fast a loop could do it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, Event

from aiflow_jupyter.relay.cutter import Cutter, masked
from aiflow_jupyter.relay.frames import MAX_FRAME

_HEAD_END = b"\r\n\r\n"
_EARLY = 64  # messages kept until somebody listens; a relay sends one

Message = str | bytes


class Wire(ClientConnection):
    """A connection whose messages go to a listener.

    Args: as of `ClientConnection`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cutter = Cutter(MAX_FRAME, masked=False)
        self._head: bytes | None = b""  # the last bytes of the answer to the handshake, until it is whole
        self._parts: list[bytes] = []
        self._mask = os.urandom(4)
        self._early: list[Message] = []
        self._hand: Callable[[Message], None] = self._keep
        self._gone = asyncio.Event()
        self._error: Exception | None = None
        self._stopped = False

    # For the end

    def listen(self, listener: Callable[[Message], None]) -> None:
        """Hand every message to `listener`, which must not raise, until `stop`."""
        early, self._early = self._early, []
        if not self._stopped:
            self._hand = listener
        for message in early:
            self._hand(message)

    def stop(self, error: Exception | None = None) -> None:
        """Hand on no more messages, and have `left` return or raise `error`."""
        if not self._stopped:
            self._stopped, self._error = True, error
            self._hand = self._drop
        self._gone.set()

    async def left(self) -> None:
        """Return after `stop`.

        Raises:
            ConnectionClosed: the connection was lost before.
            Exception: what `stop` was given.
        """
        await self._gone.wait()
        if self._error is not None:
            raise self._error
        if not self._stopped:
            raise self.close_exc

    def write(self, messages: Sequence[bytes]) -> None:
        """Write messages. `paused` says whether to wait for `drain` now. What a closing line can't take is lost."""
        if self.protocol.state is not OPEN:
            return
        if len(messages) == 1:
            self.transport.write(masked(messages[0], self._mask))
            self._mask = os.urandom(4)  # for the next one: now nobody waits for it
        elif messages:
            self.transport.write(b"".join([masked(message, os.urandom(4)) for message in messages]))

    async def leave(self, code: int) -> None:
        """Close the connection. No socket is left behind, also where the wait for its end is late or cancelled.

        One that is closing or closed is only waited for: `websockets` would abort its transport, and one of asyncio
        that is gone already may fail of that with an AttributeError.

        Raises:
            TimeoutError: the other end did not close in time.
        """
        try:
            if self.protocol.state is OPEN:
                await self.close(code)
            else:
                async with asyncio.timeout(self.close_timeout):
                    await self.wait_closed()
        finally:
            if not self.connection_lost_waiter.done():
                self.transport.abort()

    # For the event loop

    def data_received(self, data: bytes) -> None:
        """Hand on the messages of one read; the rest is for `websockets`."""
        if self._head is not None:
            data = self._shake_hands(data)
            if not data:
                return
        for whole, piece in self._cutter.feed(data):
            if whole:
                self._hand(piece)
                continue
            super().data_received(piece)
            if self.protocol.state is not OPEN:
                self._hand = self._drop

    def process_event(self, event: Event) -> None:
        """Take what `websockets` has read: the handshake's answer, control frames, messages in several frames."""
        if self.response is None or not isinstance(event, Frame) or event.opcode not in _DATA:
            super().process_event(event)
            return
        if event.opcode is Opcode.TEXT:
            self._hand("")
            return
        self._parts.append(bytes(event.data))
        if event.fin:
            message = b"".join(self._parts)
            self._parts.clear()
            self._hand(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that it is over."""
        super().connection_lost(exc)
        self._gone.set()

    def _shake_hands(self, data: bytes) -> bytes:
        """Give `websockets` the answer to the handshake; what follows it is returned."""
        assert self._head is not None
        before = len(self._head)
        found = (self._head + data).find(_HEAD_END)
        end = len(data) if found < 0 else found + len(_HEAD_END) - before
        self._head = (self._head + data)[-3:]
        super().data_received(data[:end])
        if found >= 0 and self.protocol.state is OPEN:
            self._head = None
            return data[end:]
        if end < len(data):
            super().data_received(data[end:])  # the body of a refusal
        return b""

    def _keep(self, message: Message) -> None:
        if len(self._early) < _EARLY:
            self._early.append(message)

    def _drop(self, message: Message) -> None:
        pass


_DATA = {Opcode.TEXT, Opcode.BINARY, Opcode.CONT}
