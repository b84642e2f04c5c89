"""A source that records what another one gives, while it streams; `trace` says what stands in the file.

Each line is handed to the system before its event goes on, so a crash loses none but the one that is being written. The
answer counts for more than its record: where no more can be written the stream goes on, and `problem` says why. What is
recorded is when events were taken: behind a graph that is slower than its model, that is the graph's pace.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final

from aiflow_jupyter.errors import AiflowError, encodable
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.replay.trace import MOST_BYTES, MOST_LINE, RECORDED, VERSION, TraceError, hash_of
from aiflow_jupyter.runtime.source import Request, Source

_BY: Final = ("tier", "model", "provider")
_ROOM: Final = 200
"""Bytes that are kept for the line that says the trace is full."""


class Recorder:
    """A `Source` that wraps another one and records it.

    Args:
        source: what answers.
        to: a new file (of mode 0600), or an open text file.
        spec: the graph that asks, to stand in the header.
        messages: record the messages in full, not their hash alone.
        clock: nanoseconds; that of the source's events.
        most_bytes: the most that is written.

    Raises:
        TraceError: the file is there already, or can't be written.
    """

    def __init__(
        self,
        source: Source,
        to: str | Path | IO[str],
        *,
        spec: GraphSpec | None = None,
        messages: bool = False,
        clock: Callable[[], int] = time.perf_counter_ns,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._source = source
        self._messages = messages
        self._requests = 0
        self.stamps = bool(getattr(source, "stamps", False))
        self._lines = _Lines(to, clock, most_bytes)
        self._lines.put(
            {
                "aiflow_trace": VERSION,
                "graph": spec.name if spec is not None else "",
                "spec": spec.to_json() if spec is not None else None,
                "start": self._lines.start,
                "begun": datetime.now(UTC).isoformat(timespec="seconds"),
                "library": version("aiflow-jupyter"),
            }
        )

    @property
    def problem(self) -> TraceError | None:
        """Why no more is recorded, None as long as everything is."""
        return self._lines.problem

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request` with the source, and record it; see `runtime.source.Source`."""
        answer = self._asked(request)
        try:
            async with aclosing(self._source.stream(request)) as events:
                async for event in events:
                    answer.came(event)
                    yield event
        except BaseException as error:
            answer.broke(error)
            raise
        answer.broke(None)

    async def aclose(self) -> None:
        """Close the file, and the source where that can be closed."""
        self.close()
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()

    def close(self) -> None:
        """Record no more, and close the file, if it is one of its own."""
        self._lines.close()

    def _asked(self, request: Request) -> _Answer:
        number, at = self._requests, self._lines.now()
        self._requests += 1
        line: dict[str, Any] = {
            "kind": "request",
            "request": number,
            "at": at,
            "hash": hash_of(request.messages),
            "tier": request.tier,
            "model": request.model,
            "node": request.node,
        }
        if self._messages:
            line["messages"] = [dict(message) for message in request.messages]
        self._lines.put(line)
        return _Answer(self._lines, number, at)


class _Answer:
    """One answer on its way to the file."""

    def __init__(self, lines: _Lines, number: int, at: int) -> None:
        self._lines = lines
        self._number = number
        self._last = at
        self._by: dict[str, str] = {}
        self._finished = False

    def came(self, event: Event) -> None:
        """Record an event that came."""
        if event.kind not in RECORDED:
            self._lines.end(f"events of kind {event.kind!r} are not recorded")
            return
        now = self._lines.now()
        line = self._line(event.kind, min(now, event.time - self._lines.start) if event.time else now)
        if event.kind != "restart":
            line["payload"] = event.payload
        if event.phase is not None:
            line["phase"] = event.phase
        by = {key: str(event.meta[key]) for key in _BY if key in event.meta}
        if by != self._by:
            line["by"] = self._by = by
        self._finished = self._finished or event.kind == "finish"
        self._lines.put(line)

    def broke(self, error: BaseException | None) -> None:
        """Record that an answer ended before its finish: its source failed, ended (None), or was left."""
        if self._finished:
            return
        self._finished = True
        if error is not None and not isinstance(error, Exception):  # the reader left, or was cancelled
            self._lines.put(self._line("closed", self._lines.now()))
        else:
            self._lines.put(self._line("error", self._lines.now()) | {"error": _told(error)})

    def _line(self, kind: str, at: int) -> dict[str, Any]:
        self._last = max(at, self._last)  # in one answer time never goes back
        return {"kind": kind, "request": self._number, "at": self._last}


class _Lines:
    """Writes lines, each handed to the system at once, until there are too many or the file takes no more."""

    def __init__(self, to: str | Path | IO[str], clock: Callable[[], int], most_bytes: int) -> None:
        self.start = clock()
        self.problem: TraceError | None = None
        self._clock = clock
        self._left = most_bytes - _ROOM
        self._own = isinstance(to, str | Path)
        self._file: IO[str] | None = _created(Path(to)) if isinstance(to, str | Path) else to

    def now(self) -> int:
        """Nanoseconds since the start."""
        return max(0, self._clock() - self.start)

    def put(self, line: Mapping[str, Any]) -> None:
        """Write one line."""
        if self._file is None or self.problem is not None:
            return
        try:
            text = _encoded(line)
            size = len(text.encode())
            if size > MOST_LINE:
                self.end(f"a line has {size:,} bytes; at most {MOST_LINE:,}")
            elif size > self._left:
                self.end("it has as many bytes as it may have")
            else:
                self._left -= size
                self._file.write(text)
                self._file.flush()
        except OSError as error:
            self.close()
            self.end(error.strerror or str(error))
        except (ValueError, TypeError, RecursionError) as error:
            self.end(str(error))

    def end(self, why: str) -> None:
        """Write no more than a line that says so."""
        if self.problem is not None:
            return
        self.problem = TraceError(
            f"the trace was not recorded to its end: {why}", code="AF740", hint="what came before is in the file"
        )
        if self._file is not None:
            with suppress(OSError, ValueError):
                self._file.write(_encoded({"kind": "full", "at": self.now()}))
                self._file.flush()

    def close(self) -> None:
        """Write no more, and close the file, if it was made here."""
        file, self._file = self._file, None
        if file is not None and self._own:
            with suppress(OSError):  # every line was written when it came
                file.close()


def _told(error: BaseException | None) -> dict[str, str]:
    """An error for the file. What is none of this library's may say anything, a key too: only its name is kept."""
    if isinstance(error, AiflowError):
        said = {"message": encodable(error.message), "hint": encodable(error.hint)}
        return {"type": type(error).__name__, "code": error.code, **said}
    message = f"the source failed: {type(error).__name__}" if error else "the answer ended without its finish"
    return {"type": "ProviderError" if error else "StreamCut", "code": "AF702", "message": message, "hint": ""}


def _encoded(line: Mapping[str, Any]) -> str:
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_fields)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a character, as a token may end in
            text = json.dumps(line, separators=(",", ":"), allow_nan=False, default=_fields)
    return text + "\n"


def _fields(payload: Any) -> dict[str, Any]:
    """A payload that is a dataclass, for the file; a TypeError for any other that JSON does not know."""
    return asdict(payload)


def require_new(path: Path) -> None:
    """See that a trace can be recorded to a file later on; nothing is left of that.

    Raises:
        TraceError: the file is there already, or can't be written.
    """
    _created(path).close()
    path.unlink()


def _created(path: Path) -> IO[str]:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise TraceError(
            f"{path} is there already", code="AF740", hint="name another file, or delete it: a trace is not overwritten"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(
            f"{path} can't be written: {reason}", code="AF740", hint="name a file in a folder that you may write to"
        ) from None
    return os.fdopen(handle, "w", encoding="utf-8", newline="\n")
