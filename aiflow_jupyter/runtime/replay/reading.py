"""A trace, read: strictly, line by line, and no code is run; what is wrong is a `TraceError` with its line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aiflow_jupyter.errors import GraphError
from aiflow_jupyter.events import NOTHING, Finish, Phase, ToolFragment, Usage
from aiflow_jupyter.graph.problems import indefinite
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.replay.trace import (
    MOST_BYTES,
    MOST_LINE,
    VERSION,
    Broken,
    Exchange,
    Recorded,
    Trace,
    TraceError,
)


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


Nanoseconds = Annotated[int, Field(ge=0, le=1 << 62)]
Number = Annotated[int, Field(ge=0, le=1_000_000)]
Name = Annotated[str, Field(max_length=200)]


class Header(_Line):
    """The first line."""

    aiflow_trace: Literal[1]
    graph: Name
    spec: dict[str, Any] | None
    start: Nanoseconds
    begun: Name
    library: Name


class _Asked(_Line):
    kind: Literal["request"]
    request: Number
    at: Nanoseconds
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tier: Name
    model: Name | None
    node: Name
    messages: list[dict[str, Any]] | None = None


class _By(_Line):
    tier: Name = ""
    model: Name = ""
    provider: Name = ""


class _Came(_Line):
    kind: Literal["token", "tool_fragment", "usage", "restart", "finish"]
    request: Number
    at: Nanoseconds
    payload: Any = None
    phase: Phase | None = None
    by: _By | None = None


class _Raised(_Line):
    type: Name
    code: Name
    message: str
    hint: str


class _Error(_Line):
    kind: Literal["error"]
    request: Number
    at: Nanoseconds
    error: _Raised


class _Closed(_Line):
    kind: Literal["closed"]
    request: Number
    at: Nanoseconds


class _Full(_Line):
    kind: Literal["full"]
    at: Nanoseconds


_KINDS: Final[Mapping[str, type[_Line]]] = {
    "request": _Asked,
    "token": _Came,
    "tool_fragment": _Came,
    "usage": _Came,
    "restart": _Came,
    "finish": _Came,
    "error": _Error,
    "closed": _Closed,
    "full": _Full,
}


# -- reading


def load(path: str | Path, *, partial: bool = False) -> Trace:
    """Read a trace from a file.

    Args:
        path: the file.
        partial: leave out a last line that was cut off, as a crash leaves one.

    Raises:
        TraceError: it can't be read, or it is no trace; with the line.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{path} can't be read: {getattr(error, 'strerror', None) or error}", code="AF740", hint="name a trace"
        ) from None
    return read(data, partial=partial)


def read(data: bytes, *, partial: bool = False) -> Trace:
    """Read a trace; see `load`."""
    if len(data) > MOST_BYTES:
        raise TraceError(f"the trace has more than {MOST_BYTES:,} bytes", code="AF740", hint="record less in one file")
    lines = data.split(b"\n")
    cut = lines.pop()  # what stands behind the last line end
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        reader.take(number, line)
    truncated = False
    if cut:
        truncated = reader.take_last(len(lines) + 1, cut, partial=partial)
    return reader.trace(truncated=truncated)


@dataclass(slots=True)
class _Open:
    """An answer that is being read."""

    asked: _Asked
    events: list[Recorded] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    by: _By | None = None
    last: int = 0
    ended: bool = False
    broken: Broken | None = None


class _Reader:
    def __init__(self) -> None:
        self.header: Header | None = None
        self.spec: GraphSpec | None = None
        self.answers: list[_Open] = []
        self.full = False
        self.last = 0

    def take(self, number: int, line: bytes) -> None:
        """Take in one line."""
        content = _parsed(number, line)
        if self.header is None:
            self.header = _header(number, content)
            self.spec = _spec(number, self.header)
            return
        if self.full:
            _refuse(number, "nothing may follow after the line that says the trace is full")
        kind = content.get("kind")
        model = _KINDS.get(kind) if isinstance(kind, str) else None
        if model is None:
            _refuse(number, f"{_shown(kind)} is no kind of line", f"known: {', '.join(_KINDS)}")
        self._accept(number, _validated(number, content, model))

    def take_last(self, number: int, line: bytes, *, partial: bool) -> bool:
        """Take in a last line that has no end; whether it was cut off, and left out."""
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            if not partial or self.header is None:
                error = TraceError(
                    f"line {number} of the trace is cut off",
                    code="AF742",
                    hint="the recording was interrupted; read what came before it: partial=True, or --partial",
                )
                error.line = number
                raise error from None
            return True
        self.take(number, line)
        return False

    def _accept(self, number: int, line: Any) -> None:
        if isinstance(line, _Full):
            self.full = True
            return
        if isinstance(line, _Asked):
            if line.request != len(self.answers):
                _refuse(number, f"request {line.request} comes where request {len(self.answers)} should")
            self.answers.append(_Open(line, last=line.at))
            return
        if line.request >= len(self.answers):
            _refuse(number, f"request {line.request} was not asked")
        answer = self.answers[line.request]
        if answer.ended:
            _refuse(number, f"the answer to request {line.request} has ended before")
        if line.at < answer.last:
            _refuse(number, f"time goes back in the answer to request {line.request}")
        answer.last = line.at
        if isinstance(line, _Came):
            answer.ended = line.kind == "finish"
            answer.events.append(_recorded(number, answer, line))
        elif isinstance(line, _Error):
            error = line.error
            answer.ended = True
            answer.broken = Broken(line.at, "error", (error.type, error.code, error.message, error.hint))
        else:
            answer.ended = True
            answer.broken = Broken(line.at, "closed")

    def trace(self, *, truncated: bool) -> Trace:
        """What was read."""
        header = self.header
        if header is None:
            _refuse(1, "the trace is empty", "its first line says what it is")
        exchanges = tuple(
            Exchange(
                each.asked.request,
                each.asked.at,
                each.asked.hash,
                each.asked.tier,
                each.asked.model,
                each.asked.node,
                None if each.asked.messages is None else tuple(each.asked.messages),  # type: ignore[arg-type]
                tuple(each.events),
                each.broken if each.ended else Broken(each.last, "lost"),
            )
            for each in self.answers
        )
        return Trace(
            exchanges, header.graph, self.spec, header.start, header.begun, header.library, truncated, self.full
        )


def _recorded(number: int, answer: _Open, line: _Came) -> Recorded:
    """An event with its meta; events in a row that have the same share it."""
    by = line.by or answer.by
    if line.by is not None or answer.meta.get("phase") != line.phase:
        phase = {} if line.phase is None else {"phase": line.phase}
        answer.meta = phase | ({} if by is None else by.model_dump(exclude_unset=True))
        answer.by = by
    try:
        payload = _payload(line.kind, line.payload)
    except ValueError as error:
        _refuse(number, f"payload: {error}")
    return Recorded(line.at, line.kind, payload, answer.meta)


def _payload(kind: str, value: Any) -> Any:
    """An event's payload out of what stands in the file; by hand, as a token may hold half of a character."""
    if kind == "token" and isinstance(value, str):
        return value
    if kind == "restart" and value is None:
        return None
    if kind == "tool_fragment":
        return ToolFragment(**_fields(value, {"index": (int,), "id": _TEXT, "name": _TEXT, "arguments": (str,)}))
    if kind == "usage":
        return _usage(value)
    if kind == "finish":
        finish = _fields(value, {"reason": (str,), "usage": (dict, NoneType)})
        return Finish(finish["reason"], None if finish["usage"] is None else _usage(finish["usage"]))
    raise ValueError(f"{indefinite(kind)} has no {type(value).__name__}")


_TEXT: Final = (str, NoneType)


def _usage(value: Any) -> Usage:
    counts = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens")
    return Usage(**_fields(value, dict.fromkeys(counts, (int, NoneType))))


def _fields(value: Any, types: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != types.keys():
        raise ValueError(f"an object with {', '.join(types)} was expected")
    for name, allowed in types.items():
        if type(value[name]) not in allowed:
            raise ValueError(f"{name} is {_shown(value[name])}")
    return value


class _Twice(ValueError):
    """A key that is given twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _Twice(next(key for key in keys if keys.count(key) > 1))
    return found


def _constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _parsed(number: int, line: bytes) -> dict[str, Any]:
    """A line as a JSON object."""
    if len(line) >= MOST_LINE:
        _refuse(number, f"it has {len(line) + 1:,} bytes; at most {MOST_LINE:,}")
    if b"\0" in line:
        _refuse(number, "it holds a NUL byte", "the file was damaged, as by a crash of the machine")
    try:
        content = json.loads(line.decode(), object_pairs_hook=_unique, parse_constant=_constant)
    except UnicodeDecodeError:
        _refuse(number, "it is no UTF-8 text")
    except _Twice as error:
        _refuse(number, f"the key {_shown(str(error))} is given twice")
    except json.JSONDecodeError as error:
        what = "it is empty" if not line.strip() else f"it is no JSON (column {error.colno})"
        _refuse(number, what)
    except (ValueError, RecursionError) as error:
        _refuse(number, f"it is no JSON that can be read: {_shown(str(error))}")
    if not isinstance(content, dict):
        _refuse(number, "it is no JSON object")
    return content


def _header(number: int, content: Mapping[str, Any]) -> Header:
    version = content.get("aiflow_trace")
    if version is None:
        _refuse(number, "it is no header of a trace", 'a trace begins with {"aiflow_trace": 1, ...')
    if type(version) is not int or version != VERSION:
        error = TraceError(
            f"line {number} of the trace: version {_shown(version)} of the format",
            code="AF743",
            hint=f"this library reads version {VERSION}",
        )
        error.line = number
        raise error
    header: Header = _validated(number, content, Header)
    return header


def _spec(number: int, header: Header) -> GraphSpec | None:
    if header.spec is None:
        return None
    from aiflow_jupyter.graph.forms.document import read_json  # noqa: PLC0415 - most traces have none

    try:
        return read_json(json.dumps(header.spec)).spec
    except GraphError as error:
        problem = error.problems[0]
        _refuse(number, f"its graph is none: {problem.message}", problem.hint)


def _validated(number: int, content: Mapping[str, Any], model: type[_Line]) -> Any:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        _refuse(number, f"{where}: {first['msg']}" if where else first["msg"])


def _refuse(number: int, what: str, hint: str = "") -> NoReturn:
    error = TraceError(f"line {number} of the trace: {what}", hint=hint)
    error.line = number
    raise error from None


def _shown(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:57]}..."
