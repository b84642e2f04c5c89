"""What the two ends of a stream have in common: meeting, presence and time, without I/O.

Messages and times go in, messages come out (`data_to_send`); nothing here reads a clock or a socket. Times are seconds
of any clock that only grows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from aiflow_jupyter.relay.crypto import PRODUCER, Opening, Seal
from aiflow_jupyter.relay.errors import FrameError, RelayError
from aiflow_jupyter.relay.frames import (
    INITIAL_BYTES,
    INITIAL_FRAMES,
    SALT_BYTES,
    UNKNOWN_SALT,
    Hint,
    Type,
    header,
    unpack_hint,
)


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Every bound and interval of a stream; sizes in bytes, times in seconds.

    Args:
        window_frames: DATA frames the consumer lets be under way or unread.
        window_bytes: their bytes. About rate times round trip; 1 MiB suits arrays.
        resend_bytes: what the producer keeps until it is acknowledged.
        pending_bytes: values that wait at the producer before `full`.
        pad: plaintexts are filled up to a multiple of it; 0 for none.
        idle: a line not written to for this long is written to at once; before that, values share a frame.
        hello: how often an end that waits for the other says so.
        hello_alone: the same when the relay says nobody is there.
        repeat: after how long what got no answer is asked again.
        beat: how often each end shows that it is alive.
        lost: after how long of silence the consumer gives the producer up.
        linger: after how long of silence the producer gives the consumer up.
        stall: how long nothing new may get through while the other end is alive.
        resumes: how many reconnections without anything new are too many.
    """

    window_frames: int = 256
    window_bytes: int = 256 * 1024
    resend_bytes: int = 1024 * 1024
    pending_bytes: int = 32 * 1024
    pad: int = 64
    idle: float = 0.0002
    hello: float = 1.0
    hello_alone: float = 15.0
    repeat: float = 1.0
    beat: float = 5.0
    lost: float = 15.0
    linger: float = 120.0
    stall: float = 30.0
    resumes: int = 50

    def __post_init__(self) -> None:
        if self.window_frames < INITIAL_FRAMES or min(self.window_bytes, self.resend_bytes) < INITIAL_BYTES:
            raise RelayError(
                f"a window has {INITIAL_FRAMES} frames and {INITIAL_BYTES} bytes at least: so much comes unasked",
                code="AF901",
            )
        if not 0 <= self.pad <= 1024 or self.pending_bytes < 1 or min(self.hello, self.repeat, self.beat) <= 0:
            raise RelayError("padding is 0 to 1024 bytes, and every interval is above zero", code="AF901")


DEFAULT_LIMITS = StreamLimits()


class Session:
    """One end of a stream. `Producer` and `Consumer` are the two.

    Args:
        secret: the stream's 32 bytes.
        channel: the channel's 16 bytes.
        limits: bounds and intervals.
        salt: 16 random bytes of this process; given only by tests and vectors.
        now: the time.

    Attributes:
        attached: there is a connection to the relay.
        over: everything went well and there is nothing left to say.
        error: why the stream failed, once it has.
        output: messages to write, in order, for `data_to_send`.
        proofs: how many authentic frames of the other end have come.
        crowded: the relay said that a third party tried to join.
    """

    _own: bytes
    _peer: bytes
    _handlers: dict[int, Callable[[bytes, int, float], None]]  # of the types that come sealed

    def __init__(
        self,
        secret: bytes,
        channel: bytes,
        limits: StreamLimits = DEFAULT_LIMITS,
        *,
        salt: bytes | None = None,
        now: float = 0.0,
    ) -> None:
        self.limits = limits
        self.attached = False
        self.over = False
        self.proofs = 0
        self.crowded = False
        self.error: RelayError | None = None
        self._secret = secret
        self._channel = channel
        self._salt = salt or os.urandom(SALT_BYTES)
        self._peer_salt = UNKNOWN_SALT
        self._opening = Opening(secret, channel, self._own)
        self._peer_opening = Opening(secret, channel, self._peer)
        self._seal: Seal | None = None
        self._peer_seal: Seal | None = None
        self.output: list[bytes] = []
        self._digest = sha256()
        self._unhashed = b""  # the last plaintext, until it is on its way, or where it is waited for
        self._nap = 2 * limits.beat
        self._clock = now
        self._heard = now  # when the other end last proved to be alive
        self._asked = now  # when this end last said hello, or repeated itself
        self._alone = False
        self._parted = now

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'attached' if self.attached else 'detached'}{', joined' * self.joined}>"

    # What goes in

    def attach(self, now: float) -> None:
        """A connection to the relay stands.

        Raises:
            RelayError: there were too many connections that brought nothing.
        """
        self._begin(now)
        self.attached = True
        self._alone = False
        try:
            self._attached(now)
        except RelayError as error:
            self._fail(error, now)
            raise

    def detach(self, now: float) -> None:
        """The connection is gone, with whatever was not written to it."""
        self._clock = now
        if self.attached:
            self.attached = False
            self._parted = now
        self.output.clear()
        self._detached()

    def receive(self, message: bytes, now: float) -> None:
        """A binary message came.

        Raises:
            RelayError: the stream has failed; the same as `error`.
        """
        self._begin(now)
        if self.over:
            self._late(message, now)
            return
        try:
            kind, seq = header(message)
            if (handler := self._handlers.get(kind)) is not None:
                handler(message, seq, now)
            else:
                self._read(kind, message, now)
        except RelayError as error:
            self._fail(error, now)
            raise

    def tick(self, now: float) -> None:
        """The time of `next_timer` has come, or any other.

        Raises:
            RelayError: the other end is gone, or nothing gets through any more.
        """
        self._begin(now)
        if self.over:
            return
        try:
            self._judge(now)
        except RelayError as error:
            self._fail(error, now)
            raise
        if now >= self._due():
            self._asked = now
            if self.attached:
                self._repeat(now)

    # What comes out

    def data_to_send(self) -> list[bytes]:
        """The messages to write, in order; each is handed out once."""
        out, self.output = self.output, []
        return out

    def settle(self) -> None:
        """Do what could wait until the messages were written; without this call it is done with the next frame."""
        if self._unhashed:
            self._digest.update(self._unhashed)
            self._unhashed = b""

    def next_timer(self) -> float | None:
        """When `tick` wants to be called at the latest; `None` once the stream is over."""
        return None if self.over or self.error else self._due()

    @property
    def joined(self) -> bool:
        """The other end has proved that it is there."""
        return self._seal is not None

    # For the two ends

    def _begin(self, now: float) -> None:
        if self.error is not None:
            raise self.error
        self._advance(now)

    def _advance(self, now: float) -> None:
        if now - self._clock > self._nap:
            self._slept(now - self._clock)
        self._clock = now

    def _proved(self, now: float) -> None:
        self._heard = now
        self.proofs += 1

    def _slept(self, gap: float) -> None:
        """This process was asleep or stopped: the other end can't be blamed for its silence."""
        self._heard += gap

    def _fail(self, error: RelayError, now: float) -> None:  # noqa: ARG002  # the consumer needs the time
        self.error = error

    def _read(self, kind: int, message: bytes, now: float) -> None:
        if kind == Type.HINT:
            hint = unpack_hint(message)
            if hint is Hint.CROWDED:
                self.crowded = True
            elif hint in {Hint.ALONE, Hint.PRESENT, Hint.ATTACHED}:
                self._alone = hint is Hint.ALONE
                self._hinted(now)
        elif kind == Type.OPEN:
            self._meet(message, now)
        else:
            raise FrameError(f"a frame of type {kind} is not for this end")

    def _meet(self, frame: bytes, now: float) -> None:
        salt, known = self._peer_opening.unpack(frame)
        if self.joined and salt != self._peer_salt:
            raise self._second_peer()
        if known not in {UNKNOWN_SALT, self._salt}:
            raise self._second_self()
        first = not self.joined
        if first:
            self._peer_salt = salt
            self._proved(now)
            salts = (self._salt, salt) if self._own == PRODUCER else (salt, self._salt)
            self._seal = Seal(self._secret, self._channel, self._own, *salts)
            self._peer_seal = Seal(self._secret, self._channel, self._peer, *salts)
        if known == UNKNOWN_SALT:
            self._hello()  # an answer only to those who do not know this end: two ends never answer each other for ever
        self._met(first, now)

    def _hello(self) -> None:
        if self.attached:
            self.output.append(self._opening.pack(self._salt, self._peer_salt))

    def _waiting(self) -> float:
        if not self._alone:
            return self.limits.hello
        return self.limits.beat if self.joined else self.limits.hello_alone

    def _attached(self, now: float) -> None:
        raise NotImplementedError

    def _detached(self) -> None:
        raise NotImplementedError

    def _hinted(self, now: float) -> None:
        raise NotImplementedError

    def _met(self, first: bool, now: float) -> None:
        raise NotImplementedError

    def _late(self, message: bytes, now: float) -> None:
        raise NotImplementedError

    def _judge(self, now: float) -> None:
        raise NotImplementedError

    def _repeat(self, now: float) -> None:
        raise NotImplementedError

    def _due(self) -> float:
        raise NotImplementedError

    def _second_peer(self) -> RelayError:
        raise NotImplementedError

    def _second_self(self) -> RelayError:
        raise NotImplementedError
