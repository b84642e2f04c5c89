"""Cuts what comes over a WebSocket's line into whole frames, so that the common one is read in a few steps.

A relay's messages are binary and come in one frame each. Those are read here; every other frame, and whatever is wrong
with one, is left to `websockets`, which gets it whole and in its place.
"""

from __future__ import annotations

from collections.abc import Iterator

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without its compiled part
    from websockets.utils import apply_mask

_BINARY = 0x82  # the last and only frame of a binary message
_FIN = _MASKED = 0x80
_CONTROL = 0x08
_HEADERS = [bytes((_BINARY, size)) for size in range(126)]


def header(size: int) -> bytes:
    """The header of an unmasked, unfragmented binary frame (RFC 6455, section 5.2)."""
    if size < 126:
        return _HEADERS[size]
    if size < 0x10000:
        return b"\x82\x7e" + size.to_bytes(2, "big")
    return b"\x82\x7f" + size.to_bytes(8, "big")


def masked(message: bytes, mask: bytes) -> bytes:
    """A binary message as a client sends it."""
    size = len(message)
    if size < 126:
        head = bytes((_BINARY, _MASKED | size))
    elif size < 0x10000:
        head = b"\x82\xfe" + size.to_bytes(2, "big")
    else:
        head = b"\x82\xff" + size.to_bytes(8, "big")
    return head + mask + apply_mask(message, mask)


class Cutter:
    """The frames of one direction of one connection, from the first byte after the handshake.

    Args:
        max_size: the largest message; from a frame that says it is larger on, everything is left as it comes.
        masked: whether the sender is a client.
    """

    __slots__ = ("_left", "_masked", "_max_size", "_open", "_rest")

    def __init__(self, max_size: int, *, masked: bool) -> None:
        self._max_size = max_size
        self._masked = _MASKED if masked else 0
        self._rest = b""  # of a frame that is not whole yet
        self._open = False  # within a message of several frames
        self._left = False

    def feed(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """Take what came, and yield true and each whole message, or false and the bytes of each other frame."""
        if self._left:
            yield False, data
            return
        if self._rest:
            data = self._rest + data
        self._rest = b""
        at, size = 0, len(data)
        while size - at >= 2:
            first, start, length = _lengths(data, at)
            if length > self._max_size:
                self._left = True
                yield False, data[at:]
                return
            end = start + length
            if end > size:
                break
            mask = data[at + 1] & _MASKED
            whole = first == _BINARY and mask == self._masked and not self._open
            piece = data[start if whole else at : end]
            if whole:
                if mask:
                    piece = apply_mask(piece, data[start - 4 : start])
            elif not first & _CONTROL:
                self._open = not first & _FIN
            at = end
            yield whole, piece
        self._rest = data[at:]


def _lengths(data: bytes, at: int) -> tuple[int, int, int]:
    """A frame's first byte, where its payload starts and how long that is; it is not whole if the line ends before."""
    second = data[at + 1]
    length, start = second & 0x7F, at + 2
    if length >= 126:
        start += 2 if length == 126 else 8
        length = int.from_bytes(data[at + 2 : start], "big") if start <= len(data) else 0
    return data[at], start + 4 if second & _MASKED else start, length
