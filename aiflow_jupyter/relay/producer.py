"""The producing end of a stream, without I/O. The state machine is drawn in `protocol`."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

import msgpack  # type: ignore[import-untyped]

from aiflow_jupyter.relay.crypto import CONSUMER, PRODUCER
from aiflow_jupyter.relay.errors import (
    DeliveryUnknown,
    PeerLost,
    RelayError,
    SecondConsumer,
    SecondProducer,
    StateError,
    StreamCancelled,
    StreamStalled,
    ValueRefused,
)
from aiflow_jupyter.relay.frames import (
    HEADER,
    INITIAL_BYTES,
    INITIAL_FRAMES,
    MAX_FRAME,
    MAX_SEQ,
    MAX_VALUE,
    TAG_BYTES,
    End,
    Flag,
    Kind,
    Status,
    Type,
    pack_batch,
    pack_beat,
    pack_data,
    pack_end,
    payload_limit,
    unpack_state,
)
from aiflow_jupyter.relay.session import DEFAULT_LIMITS, Session, StreamLimits

_DATA = Type.DATA  # to look a member of an enumeration up takes a call
_ARRAY = 3  # bytes before the values of a batch


def pack(value: Any) -> bytes:
    """A value as it travels; plain msgpack data, arrays as bytes beside what describes them.

    Raises:
        ValueRefused: the value does not travel.
    """
    try:
        if type(value) is str and len(value) < 64:
            return _pack_token(value)
        item = bytes(msgpack.packb(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueRefused(
            f"a value of type {type(value).__name__} does not travel ({type(error).__name__})",
            hint="send text, numbers, bytes, lists and maps of them",
        ) from None
    if len(item) > MAX_VALUE:
        raise ValueRefused(f"a value of {len(item)} bytes; at most {MAX_VALUE} travel", hint="send it in parts")
    return item


def _pack_token(text: str) -> bytes:
    """A text of less than 256 bytes, without the large buffer that msgpack begins with."""
    data = text.encode()
    size = len(data)
    return (bytes((0xA0 | size,)) if size < 32 else bytes((0xD9, size))) + data


class Producer(Session):
    """Seals values into frames, keeps them until they are acknowledged, and ends the stream so that all can be checked.

    Attributes:
        cancelled: the consumer asked for the end.
    """

    _own = PRODUCER
    _peer = CONSUMER

    def __init__(
        self,
        secret: bytes,
        channel: bytes,
        limits: StreamLimits = DEFAULT_LIMITS,
        *,
        salt: bytes | None = None,
        now: float = 0.0,
    ) -> None:
        super().__init__(secret, channel, limits, salt=salt, now=now)
        self.cancelled = False
        self._handlers = {Type.STATE: self._on_state}
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._part = 0  # how much of the first pending value has been sealed
        self._payload = payload_limit(limits.pad)
        self._stored: deque[bytes] = deque()  # sealed and not acknowledged; the first has the sequence `_base`
        self._stored_bytes = 0
        self._base = 1
        self._next = 1  # the sequence to seal
        self._cursor = 1  # the sequence to write
        self._in_step = False  # the consumer is there and the cursor is where it wants it
        self._frame_limit = INITIAL_FRAMES
        self._byte_limit = INITIAL_BYTES
        self._sealed_bytes = 0
        self._items = 0
        self._closing: tuple[Status, str] | None = None
        self._end_seq = 0
        self._state_seq = 0
        self._beat_seq = 0
        self._written = now - 1
        self._progress = now  # when an acknowledgement last moved

    # What the source does

    def send(self, item: bytes, now: float, *, busy: bool = False) -> bool:
        """Take a value: sealed at once when the line is idle, else with what else comes before the next `flush`.

        Args:
            item: a value as `pack` gives it.
            now: the time.
            busy: the line is being written to; `flush` will be called after that.

        Returns:
            whether all values are sealed; if not, `flush` is to be called soon.

        Raises:
            StreamCancelled: the consumer does not want more.
            RelayError: the stream has failed, or has been ended.
        """
        if self.error is not None:
            raise self.error
        if self.cancelled:
            raise StreamCancelled("the consumer cancelled the stream")
        if self._closing is not None:
            raise RelayError("the stream has been ended; nothing can follow", code="AF902")
        self._pending.append(item)
        self._pending_bytes += len(item)
        if not busy and (now - self._written > self.limits.idle or self._pending_bytes >= self._payload):
            self.flush(now)
        return not self._pending

    def end(self, status: Status, message: str, now: float) -> None:
        """End the stream once all before it is sealed. The first end counts; others are ignored.

        Args:
            status: how it ends.
            message: the reason of an end that is not OK.
            now: the time.
        """
        if self._closing is None:
            self._closing = (status, message)
            self.flush(now)

    def flush(self, now: float) -> None:
        """Write what is to be repeated, then seal as many values as credit and the resend buffer allow."""
        self._advance(now)
        if not self._in_step:
            return
        before = len(self.output)
        if self._cursor < self._next:
            self.output.extend(islice(self._stored, self._cursor - self._base, None))
            self._cursor = self._next
        while self._pending and self._next <= self._frame_limit:
            room = min(self._byte_limit - self._sealed_bytes, self.limits.resend_bytes - self._stored_bytes)
            plain = self._cut(room)
            if plain is None:
                break
            self._store(_DATA, plain)
        if self._closing is not None:
            self._seal_end()
        if len(self.output) > before:
            self._written = now

    @property
    def full(self) -> bool:
        """Enough values wait: the source should wait too."""
        return self._pending_bytes >= self.limits.pending_bytes

    @property
    def buffered(self) -> int:
        """Bytes kept: sealed and not acknowledged, and waiting to be sealed."""
        return self._stored_bytes + self._pending_bytes

    @property
    def ended(self) -> bool:
        """END has been sealed."""
        return bool(self._end_seq)

    # Sealing

    def _cut(self, room: int) -> bytes | None:
        limit = self._payload
        if room < MAX_FRAME:
            usable = room - HEADER.size - TAG_BYTES
            limit = min(limit, usable - usable % (self.limits.pad or 1) - _ARRAY)
        if self._pending_bytes + _ARRAY <= limit and not self._part:
            taken = list(self._pending)
            self._pending.clear()
            self._pending_bytes = 0
            self._items += len(taken)
            return pack_batch(taken, self.limits.pad)
        return self._cut_part(limit)

    def _cut_part(self, limit: int) -> bytes | None:
        pad, first = self.limits.pad, self._pending[0]
        if len(first) + _ARRAY > self._payload:
            if limit < self._payload:
                return None  # parts fill their frames
            piece = first[self._part : self._part + self._payload]
            self._part += len(piece)
            self._pending_bytes -= len(piece)
            if self._part < len(first):
                return pack_data(Kind.PART, piece, pad)
            self._pending.popleft()
            self._part = 0
            self._items += 1
            return pack_data(Kind.LAST, piece, pad)
        taken, total = [], _ARRAY
        while self._pending and total + len(self._pending[0]) <= limit:
            total += len(self._pending[0])
            taken.append(self._pending.popleft())
        self._pending_bytes -= total - _ARRAY
        if not taken:
            return None
        self._items += len(taken)
        return pack_batch(taken, pad)

    def _store(self, kind: Type, plain: bytes) -> None:
        assert self._seal is not None
        if self._next > MAX_SEQ:
            raise RelayError(f"a stream has at most {MAX_SEQ} frames", code="AF903", hint="open a new one")
        frame = self._seal.seal(kind, self._next, plain)
        if kind is _DATA:
            self.settle()
            self._unhashed = plain
            self._sealed_bytes += len(frame)
        if not self._stored:
            self._progress = self._clock
        self._stored.append(frame)
        self._stored_bytes += len(frame)
        if self._in_step and self._cursor == self._next:
            self.output.append(frame)
            self._cursor += 1
        self._next += 1

    def _seal_end(self) -> None:
        if self._closing is None or self._pending or self._end_seq:
            return
        status, message = self._closing
        self.settle()
        end = End(status, self._items, self._next - 1, self._digest.digest(), message)
        self._end_seq = self._next
        self._store(Type.END, pack_end(end, self.limits.pad))

    # What the consumer says

    def _on_state(self, frame: bytes, seq: int, now: float) -> None:
        if self._peer_seal is None or seq <= self._state_seq:
            return  # of nobody known yet, or an old one again: the newest says everything
        state = unpack_state(self._peer_seal.open(frame, Type.STATE, seq))
        if not self._base <= state.ack <= self._next:
            raise StateError(f"an acknowledgement of {state.ack}, between {self._base} and {self._next} was possible")
        self._state_seq = seq
        self._proved(now)
        while self._base < state.ack:
            self._stored_bytes -= len(self._stored.popleft())
            self._base += 1
            self._progress = now
        self.over = 0 < self._end_seq < self._base
        self._frame_limit = max(self._frame_limit, state.frames)
        self._byte_limit = max(self._byte_limit, state.size)
        if Flag.RESEND in state.flags or not self._in_step:
            self._cursor = state.ack
        self._cursor = max(self._cursor, state.ack)
        if not self._in_step:
            self._in_step, self._progress = self.attached, now
        if Flag.CANCEL in state.flags:
            self._cancel(now)
        self.flush(now)

    def _cancel(self, now: float) -> None:
        if self.cancelled or self._end_seq:
            return
        self.cancelled = True
        self._part = 0
        self._pending.clear()  # without credit these would keep END back for ever
        self._pending_bytes = 0
        self._closing = None
        self.end(Status.CANCELLED, "", now)

    # Presence and time

    def _attached(self, now: float) -> None:  # noqa: ARG002  # as of the consumer
        self._in_step = False
        self._hello()

    def _detached(self) -> None:
        self._in_step = False

    def _hinted(self, now: float) -> None:
        if self._alone:
            self._in_step = False  # until a STATE shows that somebody is there
        elif not self._in_step:
            self._asked = now
            self._hello()

    def _met(self, first: bool, now: float) -> None:
        if first:
            self._in_step = self.attached
            self._progress = now
            self.flush(now)

    def _late(self, message: bytes, now: float) -> None:
        """After the last acknowledgement nothing matters any more."""

    def _slept(self, gap: float) -> None:
        super()._slept(gap)
        self._progress += gap

    def _judge(self, now: float) -> None:
        if not self.joined:
            return
        if now - self._heard > self.limits.linger:
            if self._end_seq:
                raise DeliveryUnknown("everything was sent, but the consumer was not heard of again")
            raise PeerLost(f"the consumer has been silent for {self.limits.linger:g} s")
        if self._stored and self._heard - self._progress > self.limits.stall:
            if self._end_seq:
                raise DeliveryUnknown(f"the end of the stream was not acknowledged in {self.limits.stall:g} s")
            raise StreamStalled(f"the consumer is alive, but has received nothing for {self.limits.stall:g} s")

    def _due(self) -> float:
        if not self._in_step:
            return self._asked + self._waiting()
        quiet = self.limits.repeat if self._stored or self._pending else self.limits.beat
        return max(self._asked, self._written) + quiet

    def _repeat(self, now: float) -> None:
        if self._seal is None:
            self._hello()
            return
        self._beat_seq += 1
        self.output.append(self._seal.seal(Type.BEAT, self._beat_seq, pack_beat(self._next, self.limits.pad)))
        self.flush(now)

    def _second_peer(self) -> RelayError:
        return SecondConsumer(
            "another consuming process joined this stream",
            hint="a restarted kernel can't continue a stream: ask again, on a new channel",
        )

    def _second_self(self) -> RelayError:
        return SecondProducer(
            "the consumer is bound to another producing process of this stream",
            hint="the job was started twice, or this process is a restart: it can't continue the stream",
        )
