"""The layout of frames, without keys: one frame is one binary WebSocket message.

    frame = version u8 (=1) | type u8 | seq u64 | body             all integers big-endian, at most 16 KiB in all

The bodies of DATA, END, STATE and BEAT stand here as plaintext; `crypto` seals them. Whatever the bytes, parsing raises
`RelayError` or nothing. The layouts in full, with the reasons, are in `PROTOCOL.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

import msgpack  # type: ignore[import-untyped]

from aiflow_jupyter.relay.errors import FrameError, ValueRefused, VersionMismatch

VERSION = 1
HEADER = struct.Struct(">BBQ")
TAG_BYTES = 16
SALT_BYTES = 16
CHANNEL_BYTES = 16
MAX_FRAME = 16 * 1024  # longer ones would keep the line from other channels (head of line)
MAX_SEQ = 2**32  # far below what AES-GCM allows under one key
MAX_VALUE = 8 * 1024 * 1024  # one value, packed; it is put together in the consumer's memory
MAX_MESSAGE = 2048  # bytes of END's message
INITIAL_FRAMES = 32  # what a producer may send before the first STATE, so that the first token needs no round trip
INITIAL_BYTES = 64 * 1024

_BATCH = struct.Struct(">BH")
_END = struct.Struct(">BQQ32sH")
_STATE = struct.Struct(">QQQB")
_BEAT = struct.Struct(">Q")
_VALUES = struct.Struct(">BHBH")  # a batch's head, and that of its array
_ARRAY_BYTES = 3
_ARRAY16 = 0xDC
MAX_PLAIN = MAX_FRAME - HEADER.size - TAG_BYTES
UNKNOWN_SALT = bytes(SALT_BYTES)


class Type(IntEnum):
    """The second byte of a frame."""

    HINT = 0  # from the relay, in clear
    OPEN = 1  # either end: its salt, under a MAC
    DATA = 2  # producer: a batch of values, or a part of one
    END = 3  # producer: the last frame, with counts and hash
    STATE = 4  # consumer: acknowledgement, credit and flags; its own counter
    BEAT = 5  # producer: alive, and how far it is; its own counter


class Hint(IntEnum):
    """What the relay says in clear. It speeds things up and is never believed."""

    ALONE = 0
    PRESENT = 1
    ATTACHED = 2
    CROWDED = 3
    LEAVING = 4


class Kind(IntEnum):
    """How the payload of a DATA frame is to be read."""

    BATCH = 0  # a msgpack array of values
    PART = 1  # bytes of one packed value, more follow
    LAST = 2  # the last bytes of one packed value


_KINDS = tuple(Kind)
_BATCH_KIND = Kind.BATCH


class Flag(IntFlag):
    """What a STATE asks for."""

    NONE = 0
    RESEND = 1
    CANCEL = 2
    FINISHED = 4


class Status(IntEnum):
    """How a stream ended."""

    OK = 0
    ERROR = 1
    CANCELLED = 2


@dataclass(frozen=True, slots=True)
class End:
    """The body of END: what the whole stream was.

    Args:
        status: how it ended.
        items: number of values in it.
        frames: number of its DATA frames.
        digest: SHA-256 over the plaintexts of all DATA frames in order.
        message: the producer's word on a status other than OK.
    """

    status: Status
    items: int
    frames: int
    digest: bytes
    message: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """The body of STATE: everything the producer needs to know, so that a lost one costs nothing.

    Args:
        ack: the next sequence wanted; all before it have arrived.
        frames: DATA may be sent up to this sequence. Absolute, only grows.
        size: DATA frames may be sent up to this many bytes in all. Absolute, only grows.
        flags: what else is asked for.
    """

    ack: int
    frames: int
    size: int
    flags: Flag


def header(message: bytes) -> tuple[int, int]:
    """The type and sequence of a message.

    Raises:
        FrameError: too short or too long for a frame.
        VersionMismatch: another version of the protocol.
    """
    if not HEADER.size < len(message) <= MAX_FRAME:
        raise FrameError(f"a message of {len(message)} bytes is no frame (11 to {MAX_FRAME})")
    version, kind, seq = HEADER.unpack_from(message)
    if version != VERSION:
        raise VersionMismatch(
            f"a frame of version {version}, this end speaks {VERSION}", hint="install the same release at both ends"
        )
    return kind, seq


def pad(plain: bytes, multiple: int) -> bytes:
    """Zeros up to the next multiple, so that a frame's length tells little of a token's."""
    short = -len(plain) % multiple if multiple else 0
    return plain + bytes(short) if short else plain


def payload_limit(multiple: int) -> int:
    """The most payload bytes a DATA frame can hold when padded to `multiple`."""
    return (MAX_PLAIN - MAX_PLAIN % multiple if multiple else MAX_PLAIN) - _BATCH.size


def pack_data(kind: Kind, payload: bytes, multiple: int) -> bytes:
    """The plaintext of a DATA frame."""
    return pad(_BATCH.pack(kind, len(payload)) + payload, multiple)


def pack_batch(items: Sequence[bytes], multiple: int) -> bytes:
    """The plaintext of a DATA frame that holds these packed values."""
    values = b"".join(items)
    return pad(_VALUES.pack(_BATCH_KIND, len(values) + _ARRAY_BYTES, _ARRAY16, len(items)) + values, multiple)


def unpack_data(plain: bytes) -> tuple[Kind, bytes]:
    """The kind and payload of a DATA frame."""
    try:
        number, length = _BATCH.unpack_from(plain)
        kind = _KINDS[number]
    except (struct.error, IndexError):
        raise FrameError("a DATA frame of unknown kind") from None
    if not 0 < length <= len(plain) - _BATCH.size:
        raise FrameError("a DATA frame whose length does not fit")
    return kind, plain[_BATCH.size : _BATCH.size + length]


def _no_extension(code: int, _: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def unpack_value(payload: bytes) -> Any:
    """One msgpack value: plain data only, no extension types, text as valid UTF-8, map keys text or bytes.

    Raises:
        ValueRefused: anything else.
    """
    try:
        # Every inner length is held to the payload's own by msgpack; extension types would be foreign code's to read.
        return msgpack.unpackb(payload, raw=False, strict_map_key=True, max_ext_len=0, ext_hook=_no_extension)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException, msgpack.BufferFull) as error:
        raise ValueRefused(f"a value that is not plain msgpack data ({type(error).__name__})") from None


def unpack_batch(payload: bytes) -> list[Any]:
    """The values of a batch: at least one."""
    values = unpack_value(payload)
    if not isinstance(values, list) or not values:
        raise ValueRefused("a batch that is no list of values")
    return values


def pack_end(end: End, multiple: int) -> bytes:
    """The plaintext of END. A long message is cut to `MAX_MESSAGE` bytes."""
    text = end.message.encode("utf-8", "replace")[:MAX_MESSAGE].decode("utf-8", "ignore").encode()
    return pad(_END.pack(end.status, end.items, end.frames, end.digest, len(text)) + text, multiple)


def unpack_end(plain: bytes) -> End:
    """The body of END."""
    try:
        status, items, frames, digest, length = _END.unpack_from(plain)
        if length > min(MAX_MESSAGE, len(plain) - _END.size):
            raise FrameError("an END whose length does not fit")
        text = plain[_END.size : _END.size + length].decode()
        return End(Status(status), items, frames, digest, text)
    except (struct.error, ValueError):
        raise FrameError("an END that can't be read") from None


def pack_state(state: State, multiple: int) -> bytes:
    """The plaintext of STATE."""
    return pad(_STATE.pack(state.ack, state.frames, state.size, state.flags), multiple)


def unpack_state(plain: bytes) -> State:
    """The body of STATE."""
    try:
        ack, frames, size, flags = _STATE.unpack_from(plain)
    except struct.error:
        raise FrameError("a STATE that can't be read") from None
    if flags > 7:
        raise FrameError("a STATE with unknown flags")
    return State(ack, frames, size, Flag(flags))


def pack_beat(following: int, multiple: int) -> bytes:
    """The plaintext of BEAT: the sequence that will be sealed next."""
    return pad(_BEAT.pack(following), multiple)


def unpack_beat(plain: bytes) -> int:
    """The body of BEAT."""
    try:
        return int(_BEAT.unpack_from(plain)[0])
    except struct.error:
        raise FrameError("a BEAT that can't be read") from None


def pack_hint(hint: Hint) -> bytes:
    """A whole HINT frame, as the relay sends it."""
    return HEADER.pack(VERSION, Type.HINT, 0) + bytes([hint])


def unpack_hint(message: bytes) -> Hint | None:
    """The hint in a message; `None` for one that this version does not know."""
    try:
        return Hint(message[HEADER.size])
    except (IndexError, ValueError):
        return None
