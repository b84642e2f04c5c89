"""The consuming end of a stream, without I/O. The state machine is drawn in `protocol`."""

from __future__ import annotations

from collections import deque
from typing import Any

from aiflow_jupyter.relay.crypto import CONSUMER, PRODUCER
from aiflow_jupyter.relay.errors import (
    PeerLost,
    RelayError,
    SecondConsumer,
    SecondProducer,
    StateError,
    StreamStalled,
    ValueRefused,
)
from aiflow_jupyter.relay.frames import (
    MAX_VALUE,
    End,
    Flag,
    Kind,
    State,
    Status,
    Type,
    pack_state,
    unpack_batch,
    unpack_beat,
    unpack_data,
    unpack_end,
    unpack_value,
)
from aiflow_jupyter.relay.session import DEFAULT_LIMITS, Session, StreamLimits

_DATA, _BATCH = Type.DATA, Kind.BATCH  # to look a member of an enumeration up takes a call


class Consumer(Session):
    """Hands out values in order, each once, grants credit for what was taken, and knows an end from a cut.

    Attributes:
        end: what the producer said at the end, once that and all before it have arrived and agree with each other.
        cancelled: this end asked for the end.
    """

    _own = CONSUMER
    _peer = PRODUCER

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
        self.end: End | None = None
        self.cancelled = False
        self._handlers = {Type.DATA: self._on_data, Type.END: self._on_end, Type.BEAT: self._on_beat}
        self._queue: deque[tuple[list[Any], int]] = deque()  # values, and the size of the frame they came in
        self._taken = 0  # the size of the frame whose values the application has in hand
        self._next = 1
        self._items = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._received_bytes = 0
        self._consumed_frames = 0
        self._consumed_bytes = 0
        self._state_seq = 0
        self._ack_due = 0  # a STATE is due when the next three reach these
        self._frames_due = 0
        self._bytes_due = 0
        self._beat_seq = 0
        self._gap = False  # a frame after the one wanted has come
        self._behind: float | None = None  # since when something is known to be missing
        self._resumes = 0

    # What the application does

    def take(self, now: float) -> list[Any]:
        """The next values; taking more says that those before are done with, which gives the producer credit.

        Returns:
            the values of one frame in order; empty when none are there yet.
        """
        if self._taken:
            self._consume(self._taken)
            self._taken = 0
            self._grant(now)
        if self._queue:
            values, self._taken = self._queue.popleft()
            return values
        self.settle()
        return []

    def cancel(self, now: float) -> None:
        """Ask for the end, until the producer has sent it. What is not taken yet is dropped."""
        if self.cancelled or self.end is not None:
            return
        self.cancelled = True
        while self._queue:
            self._consume(self._queue.popleft()[1])
        self._state(now)

    @property
    def ready(self) -> bool:
        """There are values to take."""
        return bool(self._queue)

    # What the producer says

    def _unexpected(self, seq: int, now: float) -> None:
        """A frame of nobody known yet, a repetition of what has arrived, or one after the one wanted."""
        if self._peer_seal is not None and seq > self._next and not self._gap:
            self._gap = True
            self._miss(now)
            self._state(now, Flag.RESEND)

    def _arrived(self, now: float) -> None:
        self._next += 1
        self._proved(now)
        self._gap, self._behind, self._resumes = False, None, 0

    def _on_data(self, frame: bytes, seq: int, now: float) -> None:
        if seq != self._next or self._peer_seal is None:
            self._unexpected(seq, now)
            return
        plain = self._peer_seal.open(frame, _DATA, seq)
        kind, payload = unpack_data(plain)
        size = len(frame)
        if (
            seq > self._consumed_frames + self.limits.window_frames
            or self._received_bytes + size > self._consumed_bytes + self.limits.window_bytes
        ):
            raise StateError("the producer sent more than it had credit for")
        values = unpack_batch(payload) if kind is _BATCH and not self._parts else self._part(kind, payload)
        self.settle()
        self._unhashed = plain
        self._items += len(values)
        self._received_bytes += size
        self._arrived(now)
        if self.cancelled or not values:
            self._consume(size)
        else:
            self._queue.append((values, size))
        self._grant(now)

    def _part(self, kind: Kind, payload: bytes) -> list[Any]:
        if kind is _BATCH:
            raise StateError("a value broke off and another came")
        self._parts.append(payload)
        self._parts_bytes += len(payload)
        if self._parts_bytes > MAX_VALUE:
            raise ValueRefused(f"a value of more than {MAX_VALUE} bytes")
        if kind is Kind.PART:
            return []
        value = unpack_value(b"".join(self._parts))
        self._parts, self._parts_bytes = [], 0
        return [value]

    def _on_end(self, frame: bytes, seq: int, now: float) -> None:
        if seq != self._next or self._peer_seal is None:
            self._unexpected(seq, now)
            return
        end = unpack_end(self._peer_seal.open(frame, Type.END, seq))
        self.settle()
        if (end.items, end.frames, end.digest) != (self._items, seq - 1, self._digest.digest()):
            raise StateError("the end of the stream does not agree with what came before it")
        if end.status is Status.OK and self._parts:
            raise StateError("the stream ended within a value")
        self._arrived(now)
        self.end, self.over = end, True
        self._state(now)

    def _on_beat(self, frame: bytes, seq: int, now: float) -> None:
        if self._peer_seal is None or seq <= self._beat_seq:
            return
        following = unpack_beat(self._peer_seal.open(frame, Type.BEAT, seq))
        self._beat_seq = seq
        self._proved(now)
        if following > self._next:  # the line keeps order, so these were lost
            self._miss(now)
            self._state(now, Flag.RESEND)
        else:
            self._resumes = 0
            self._state(now)

    def _late(self, message: bytes, now: float) -> None:
        """The producer still asks: its last acknowledgement was lost."""
        if message[1:2] != bytes([Type.HINT]) and now - self._asked >= self.limits.repeat / 4:
            self._asked = now
            self._state(now)

    # What the producer is told

    def _consume(self, size: int) -> None:
        self._consumed_frames += 1
        self._consumed_bytes += size

    def _grant(self, now: float) -> None:
        """Say how far things are, each quarter of a window: more often would cost the line and gain nothing."""
        if (
            self._next >= self._ack_due
            or self._consumed_frames >= self._frames_due
            or self._consumed_bytes >= self._bytes_due
        ):
            self._state(now)

    def _state(self, now: float, flags: Flag = Flag.NONE) -> None:
        if self._seal is None or not self.attached:
            return
        if self.end is not None:
            flags |= Flag.FINISHED
        elif self.cancelled:
            flags |= Flag.CANCEL
        self._asked = now
        self._state_seq += 1
        frames, size = self.limits.window_frames, self.limits.window_bytes
        self._ack_due = self._next + -(-frames // 4)
        self._frames_due = self._consumed_frames + -(-frames // 4)
        self._bytes_due = self._consumed_bytes + -(-size // 4)
        state = State(self._next, self._consumed_frames + frames, self._consumed_bytes + size, flags)
        self.output.append(self._seal.seal(Type.STATE, self._state_seq, pack_state(state, self.limits.pad)))

    # Presence and time

    def _attached(self, now: float) -> None:
        self._heard += now - self._parted  # silence while this end was away is nobody's fault
        if self.over:
            self._state(now)
            return
        if self._behind is not None:
            self._behind = now
        if self.joined:
            self._resumes += 1
            if self._resumes > self.limits.resumes:
                raise StreamStalled(f"{self._resumes} reconnections, and nothing new came through")
        self._greet(now)

    def _detached(self) -> None:
        self._gap = False

    def _hinted(self, now: float) -> None:
        if not self._alone:
            self._greet(now)

    def _greet(self, now: float) -> None:
        self._asked = now
        if self.joined:
            self._state(now, Flag.RESEND)
        else:
            self._hello()

    def _met(self, first: bool, now: float) -> None:  # noqa: ARG002  # as of the producer
        self._state(now)

    def _miss(self, now: float) -> None:
        if self._behind is None:
            self._behind = now

    def _slept(self, gap: float) -> None:
        super()._slept(gap)
        if self._behind is not None:
            self._behind += gap

    def _judge(self, now: float) -> None:
        if not self.joined or not self.attached:
            return
        if now - self._heard > self.limits.lost:
            raise PeerLost(
                f"the producer has been silent for {self.limits.lost:g} s", hint="what arrived is a part; ask again"
            )
        if self._behind is not None and now - self._behind > self.limits.stall:
            raise StreamStalled(f"what the producer sends has not come through for {self.limits.stall:g} s")

    def _due(self) -> float:
        if not self.joined:
            return self._asked + self._waiting()
        return self._asked + (self.limits.repeat if self._gap or self.cancelled else self.limits.beat)

    def _repeat(self, now: float) -> None:
        if self.joined:
            self._state(now, Flag.RESEND if self._gap else Flag.NONE)
        else:
            self._hello()

    def _fail(self, error: RelayError, now: float) -> None:
        super()._fail(error, now)
        self.cancelled = True
        self._state(now)  # whatever went wrong, nobody reads on: the source can stop

    def _second_peer(self) -> RelayError:
        return SecondProducer(
            "another producing process joined this stream",
            hint="the job was started twice or restarted: ask again, on a new channel",
        )

    def _second_self(self) -> RelayError:
        return SecondConsumer(
            "the producer is bound to another consuming process of this stream",
            hint="a restarted kernel can't continue a stream: ask again, on a new channel",
        )
