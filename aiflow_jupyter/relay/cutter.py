"""Cuts what comes over a WebSocket's line into whole frames, so that the common one is read in a few steps.

A relay's messages are binary and come in one frame each. Those are read here; every other frame, and whatever is wrong
with one, is left to `websockets`, which gets it whole and in its place.
"""

from __future__ import annotations

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without its compiled part
    from websockets.utils import apply_mask

_BINARY = 0x82  # the last and only frame of a binary message
_FIN = _MASKED = 0x80
_CONTROL = 0x08
_SHORT = 126  # from this size on a header has further bytes
_HEADERS = [bytes((_BINARY, size)) for size in range(_SHORT)]
_MASKED_HEADERS = [bytes((_BINARY, _MASKED | size)) for size in range(_SHORT)]


def header(size: int) -> bytes:
    """The header of an unmasked, unfragmented binary frame (RFC 6455, section 5.2)."""
    if size < _SHORT:
        return _HEADERS[size]
    if size < 0x10000:
        return b"\x82\x7e" + size.to_bytes(2, "big")
    return b"\x82\x7f" + size.to_bytes(8, "big")


def masked(message: bytes, mask: bytes) -> bytes:
    """A binary message as a client sends it."""
    size = len(message)
    if size < _SHORT:
        head = _MASKED_HEADERS[size]
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

    __slots__ = ("_left", "_masked", "_max_size", "_open", "_rest", "_short", "_start")

    def __init__(self, max_size: int, *, masked: bool) -> None:
        self._max_size = max_size
        self._masked = _MASKED if masked else 0
        self._start = 6 if masked else 2  # of the payload of a short frame
        self._short = min(max_size + 1, _SHORT)
        self._rest = b""  # of a frame that is not whole yet
        self._open = False  # within a message of several frames
        self._left = False

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """Take what came, and return true and each whole message, or false and the bytes of each other frame."""
        length = len(data) - self._start
        # One short message, the whole of it and nothing else: so it is at the pace of a language model.
        if (
            0 <= length < self._short
            and data[0] == _BINARY
            and data[1] == self._masked | length
            and not (self._rest or self._open or self._left)
        ):
            return [(True, apply_mask(data[6:], data[2:6]) if self._masked else data[2:])]
        return self._cut(data)

    def _cut(self, data: bytes) -> list[tuple[bool, bytes]]:
        if self._left:
            return [(False, data)]
        found: list[tuple[bool, bytes]] = []
        if self._rest:
            data = self._rest + data
        self._rest = b""
        at, size = 0, len(data)
        while size - at >= 2:
            first, start, length = _lengths(data, at)
            if length > self._max_size:
                self._left = True
                found.append((False, data[at:]))
                return found
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
            found.append((whole, piece))
        self._rest = data[at:]
        return found


def _lengths(data: bytes, at: int) -> tuple[int, int, int]:
    """A frame's first byte, where its payload starts and how long that is; it is not whole if the line ends before."""
    second = data[at + 1]
    length, start = second & 0x7F, at + 2
    if length >= 126:
        start += 2 if length == 126 else 8
        length = int.from_bytes(data[at + 2 : start], "big") if start <= len(data) else 0
    return data[at], start + 4 if second & _MASKED else start, length
