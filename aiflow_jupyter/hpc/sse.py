"""The data of server-sent events, as the WHATWG's HTML standard reads them (section 9.2.6), without I/O.

Bytes go in, the `data` of each complete event comes out; other fields are ignored, as no model server uses them. An
event that the stream's end cuts off is dropped, as the standard has it.
"""

from __future__ import annotations

import codecs
from typing import Final

from aiflow_jupyter.hpc.errors import HpcError

LONGEST: Final = 10 * 1024 * 1024


class Events:
    """One event stream on its way in.

    Args:
        longest: bytes that one event may have.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._longest = longest
        self._line: list[str] = []  # the beginning of a line
        self._data: list[str] = []
        self._held = 0  # characters of `_data`, and one for each line of it
        self._open = 0  # characters of `_line`
        self._begun = False
        self._return = False  # the last piece ended with CR, and a LF would belong to it

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that `piece` completes.

        Raises:
            HpcError: an event is too long.
        """
        text = self._decoder.decode(piece)
        if not self._begun and text:
            self._begun = True
            text = text.removeprefix("\ufeff")
        if self._return and text:
            self._return = False
            text = text.removeprefix("\n")
        if text.endswith("\r"):
            self._return = True
        events: list[str] = []
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for line in lines:
            whole = "".join((*self._line, line))
            self._line.clear()
            self._open = 0
            self._take(whole, events)
        if rest:
            self._line.append(rest)
            self._open += len(rest)
        if self._held + self._open > self._longest:
            raise HpcError(f"the model server sent an event of more than {self._longest:,} bytes", code="AF708")
        return events

    def _take(self, line: str, events: list[str]) -> None:
        if not line:
            if self._data:
                events.append("\n".join(self._data))
                self._data.clear()
                self._held = 0
            return
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
            self._held += len(value) + 1
