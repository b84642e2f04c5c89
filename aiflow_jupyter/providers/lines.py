"""Whole lines out of a stream's bytes, however the network cut them, and none longer than memory should have to hold.

Server-sent events and NDJSON are both lines of UTF-8. A line ends with LF, CRLF or CR (WHATWG HTML, section 9.2.5), and
with none of the others that Unicode knows: those may stand within a piece of an answer. A byte order mark before the
first line is none of it.
"""

from __future__ import annotations

import codecs
from typing import Final

from aiflow_jupyter.errors import ProviderError

LONGEST: Final = 8 * 1024 * 1024
"""Bytes that a line, or an event of several lines, may have."""


class Lines:
    """One stream on its way in.

    Args:
        provider: the provider's name, for the error.
        longest: bytes that a line may have.

    Attributes:
        rest: the beginning of a line whose end has not come.
    """

    def __init__(self, provider: str, longest: int = LONGEST) -> None:
        self.rest = bytearray()
        self._provider = provider
        self._longest = longest
        self._first = True
        self._return = False  # what came last was a CR, and a LF would belong to it

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that `piece` completes, without their ends.

        Raises:
            ProviderError: a line is too long.
        """
        if self._return:
            piece = piece.removeprefix(b"\n")
        if not piece:
            return []
        self._return = piece.endswith(b"\r")
        lines = piece.splitlines()
        rest = b"" if piece.endswith((b"\r", b"\n")) else lines.pop()
        if lines:
            lines[0] = bytes(self.rest) + lines[0]
            self.rest.clear()
        self.rest += rest
        self.check(max(map(len, [*lines, self.rest])))
        if self._first and lines:
            self._first = False
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        return lines

    def check(self, size: int) -> None:
        """Refuse what has more bytes than a line may have.

        Raises:
            ProviderError: it has.
        """
        if size > self._longest:
            raise ProviderError(
                f"{self._provider} sent a piece of more than {self._longest:,} bytes",
                code="AF708",
                hint="No model sends that much at once. Is the address that of its API?",
            )
