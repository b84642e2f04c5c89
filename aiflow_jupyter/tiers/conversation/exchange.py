"""A conversation as a file of JSON lines: a head that says how many turns there are, then one turn in each line.

    {"aiflow": "conversation", "version": 1, "name": "thesis", "turns": 2}
    {"at": 1767225600.0, "tier": "local", "model": "...", "cell": "", "stay": "anywhere",
     "messages": [{"role": "user", "content": "..."}]}    (in one line)

Reading is strict: an unknown field, a wrong type, a turn too few or too many is an error with its line, and nothing is
taken in. It is data and stays data: nothing in it is evaluated. Written files are for their owner alone.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.operators.calls import is_object
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.conversation.turns import Cell, Turn
from aiflow_jupyter.tiers.terms import Floor

VERSION: Final = 1
MOST_BYTES: Final = 256 * 2**20
_LATEST: Final = 253_402_300_799
"""Seconds since the epoch: the end of the year 9999, after which no calendar goes."""
_DIGITS: Final = 20
"""Of the longest whole number that stands in such a file."""

_Label = Annotated[str, Field(max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Head(_Strict):
    aiflow: Literal["conversation"]
    version: Literal[1]
    name: _Label = ""
    turns: Annotated[int, Field(ge=1)]


def _arguments(text: str) -> str:
    if not is_object(text):
        raise ValueError("the arguments of a call are a JSON object, as text")
    return text


class _Function(_Strict):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: Annotated[str, AfterValidator(_arguments)]


class _Call(_Strict):
    id: _Label = ""
    type: Literal["function"] = "function"
    function: _Function


class _Said(_Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: Annotated[list[_Call], Field(min_length=1)] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _Line(_Strict):
    at: Annotated[float, Field(ge=0, le=_LATEST, allow_inf_nan=False)]
    tier: _Label = ""
    model: _Label = ""
    cell: _Label = ""
    stay: Floor = "anywhere"
    messages: Annotated[list[_Said], Field(min_length=1)]


def export_to(path: Path, name: str, turns: Sequence[Turn]) -> None:
    """Write a conversation to a new file.

    Raises:
        CommandError: there is such a file already, or it can't be written.
    """
    lines: list[dict[str, Any]] = [
        {"aiflow": "conversation", "version": VERSION, "name": name, "turns": len(turns)},
        *(
            {
                "at": turn.at,
                "tier": turn.tier,
                "model": turn.model,
                "cell": turn.cell.id,
                "stay": turn.stay,
                "messages": turn.messages,
            }
            for turn in turns
        ),
    ]
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
    except FileExistsError:
        raise CommandError(f"there is {path} already", code="AF772", hint="name another file") from None
    except OSError as error:
        raise CommandError(f"{path} can't be written: {error.strerror or error}", code="AF772") from None


def import_from(path: Path) -> list[Turn]:
    """Read the turns of a file.

    Raises:
        CommandError: it can't be read (AF772), or a line is not what it has to be (AF771).
    """
    lines = _bytes(path).split(b"\n")
    if lines[-1] == b"":
        del lines[-1]
    if not lines:
        raise CommandError(f"{path} is empty", code="AF771", hint=_HINT)
    head = _Head.model_validate(_read(path, 1, lines[0], _Head))
    if head.turns != len(lines) - 1:
        raise CommandError(
            f"{path}, line 1: it says that it has {counted(head.turns, 'turn')}, and it has {len(lines) - 1}",
            code="AF771",
            hint="the file was cut off or put together; export it once more",
        )
    return [_turn(_Line.model_validate(_read(path, number, line, _Line))) for number, line in enumerate(lines[1:], 2)]


def _bytes(path: Path) -> bytes:
    """What stands in a file; a pipe or a device, which may never end, is refused."""
    try:
        # Without O_NONBLOCK a pipe is waited for until somebody writes to it.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CommandError(f"{path} is no file", code="AF772", hint=_HINT)
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{path} can't be read: {error.strerror or error}", code="AF772") from None
    if len(data) > MOST_BYTES:
        raise CommandError(f"{path} is larger than {MOST_BYTES:,} bytes", code="AF772")
    return data


_HINT: Final = "such a file is written by: %aiflow conversation export NAME FILE"


def _turn(line: _Line) -> Turn:
    messages = tuple(cast("Message", said.model_dump(exclude_none=True)) for said in line.messages)
    cell = Cell(line.cell, "imported" if line.cell else "")
    return Turn(messages, line.tier, line.model, line.at, cell, stay=line.stay)


def _read(path: Path, number: int, line: bytes, kind: type[_Strict]) -> Any:
    """A line's value, once it is sure that it is one of that kind."""

    def wrong(why: str) -> NoReturn:
        raise CommandError(f"{path}, line {number}: {why}", code="AF771", hint=_HINT) from None

    try:
        value = json.loads(
            line.decode("utf-8"), object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite, parse_int=_whole
        )
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        wrong(f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg'].lower()}")
    except UnicodeDecodeError:
        wrong("it is no text in UTF-8")
    except json.JSONDecodeError as error:
        wrong(f"it is no JSON: {error.msg} (column {error.colno})")
    except (ValueError, RecursionError) as error:
        wrong("it is nested too deeply" if isinstance(error, RecursionError) else str(error))
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a field stands there twice")
    return made


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:_DIGITS]} is no number")
    return value


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number has {len(text):,} digits")
    return int(text)
