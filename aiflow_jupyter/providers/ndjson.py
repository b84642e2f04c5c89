"""Ollama's answers as its client can read them: whole lines of JSON, of bounded length.

The client cuts a stream also at line ends that JSON allows within a text (U+0085, U+2028, U+2029), holds a line however
long it gets, takes half of one for something else than a stream that was cut, and drops what says that another machine
answers. So what it reads has passed here. The
last line may lack its end; the beginning of one that no more came of is left out, and the missing `done` tells the cut.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx

from aiflow_jupyter.errors import StreamCut
from aiflow_jupyter.providers import remote
from aiflow_jupyter.providers.lines import Lines

_BODY: Final = 64 * 1024
_ESCAPED: Final = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in ("\x85", "\u2028", "\u2029"))


class WholeLines(httpx.AsyncByteStream):
    """The body of an answer.

    Args:
        body: as it comes.
        provider: the provider's name, for errors.
        model: the model that was asked for, for errors.
    """

    def __init__(self, body: httpx.AsyncByteStream, provider: str, model: str) -> None:
        self._body = body
        self._provider = provider
        self._model = model

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the lines, each with its end.

        Raises:
            StreamCut: the connection was lost.
            ProviderError: a line is too long.
            ConfigError: a line says that another machine answers.
        """
        lines = Lines(self._provider)
        try:
            async for piece in self._body:
                if whole := lines.feed(piece):
                    yield b"".join(self._readable(line) for line in whole if line.strip())
        except httpx.RequestError as error:
            why = "it fell silent" if isinstance(error, httpx.TimeoutException) else "the connection was lost"
            raise StreamCut(
                f"the answer of {self._provider} broke off: {why}",
                hint="What came so far is a part of the answer. Run it again.",
            ) from error
        rest = bytes(lines.rest).removeprefix(codecs.BOM_UTF8)
        if not _is_beginning(rest):
            yield self._readable(rest)

    def _readable(self, line: bytes) -> bytes:
        if b'"remote_' in line and (host := remote.host_of(_json(line))):
            raise remote.refused(self._provider, self._model, host)
        for end, escaped in _ESCAPED:
            line = line.replace(end, escaped)
        return line + b"\n"

    async def aclose(self) -> None:
        """Close the connection."""
        await self._body.aclose()


class Beginning(httpx.AsyncByteStream):
    """The body of a refusal, no more of which is read than anybody needs."""

    def __init__(self, body: httpx.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the first pieces."""
        size = 0
        async for piece in self._body:
            yield piece
            size += len(piece)
            if size > _BODY:
                return

    async def aclose(self) -> None:
        """Close the connection."""
        await self._body.aclose()


def _is_beginning(line: bytes) -> bool:
    """Whether a line without its end is but the beginning of a piece."""
    if codecs.BOM_UTF8.startswith(line):
        return True
    return _json(line) is None and line.lstrip()[:1] in (b"", b"{")


def _json(line: bytes) -> Any:
    """What a line holds, None where that can't be read."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
