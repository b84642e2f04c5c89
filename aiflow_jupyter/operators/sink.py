"""`sink`: where a branch ends.

speech = sink(function=speak)                 # called with each payload, in the node's own threads
notes  = sink(jsonl="reasoning.jsonl")        # one JSON object per event
answer = sink(var="answer")                   # collected into the run's result
shown  = sink(display=true)                   # streamed under the cell

A file is appended to, and made as the umask says where there is none. Each line is JSON as its standard has it: NaN and
the infinities are texts, and half of a character is U+FFFD. A value that is no text is displayed as JSON, cut behind
`MOST_SHOWN` bytes, a passage and a tool's result as their text; fragments of calls and usage are not displayed.

What turned out void (`restart`, `retract`) is taken out of a variable; to a file a line is added that says so; the
display is told by the event. A function is not called for it: what it did can't be undone.
"""

from __future__ import annotations

import errno
import json
import math
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

from aiflow_jupyter.errors import ConfigError, encodable
from aiflow_jupyter.events import TEXT, Event, Retrieval, ToolResult
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.functions import user_behaviour
from aiflow_jupyter.operators.json_text import json_text
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Collected, Operator


def _on_loop(args: Args) -> bool:
    return "jsonl" not in args and ("function" not in args or args.get("inline") is True)


SIGNATURE = OperatorSignature(
    "sink",
    (
        Parameter("function", "function"),
        Parameter("var", "text"),
        Parameter("jsonl", "text"),
        Parameter("display", "boolean"),
        Parameter("inline", "boolean"),
    ),
    gives=frozenset(),
    sink=True,
    alternatives=("function", "var", "jsonl", "display"),
    single=_on_loop,
)


def sink(
    function: Callable[..., Any] | None = None,
    *,
    var: str | None = None,
    jsonl: str | Path | None = None,
    display: bool | None = None,
    inline: bool | None = None,
) -> OperatorCall:
    """End a branch; give one of the first four.

    Args:
        function: called with each payload (or `Event`); may be `async`.
        var: collects payloads in the run's result under this name.
        jsonl: appends one JSON object per event to this file; a new one has the permissions that the umask says.
        display: streams text under the cell, and other values as JSON.
        inline: run `function` on the loop: only for cheap ones.
    """
    return call(
        "sink", function=function, var=var, jsonl=None if jsonl is None else str(jsonl), display=display, inline=inline
    )


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `sink`."""
    if "function" in args:
        return user_behaviour(args["function"], binding, lambda _event, _result: None, inline=args.get("inline", False))
    if "jsonl" in args:
        return _jsonl(Path(args["jsonl"]), binding)
    if "var" in args:
        return _collecting(binding.variables.setdefault(args["var"], Collected()))
    return _showing(binding.show or (lambda _event: None))


VOID: Final = ("restart", "retract")
MOST_SHOWN: Final = 4_096
_BREAK: Final = "\n\n"


def _collecting(collected: Collected) -> Behaviour:
    def control(event: Event) -> Iterator[Event]:
        if event.kind in VOID:
            collected.discard(event.lineage)
        if event.kind != "end":
            yield event

    return Behaviour("inline", collected.take, control=control)


def _showing(show: Callable[[Event], None]) -> Behaviour:
    at_line_start = True

    def take(event: Event) -> None:
        nonlocal at_line_start
        text = _shown(event)
        if text is None:
            return
        if event.kind in TEXT or text is event.payload:
            show(event)
        else:
            text = f"{'' if at_line_start else _BREAK}{text}{_BREAK}"
            show(event.derive(text))
        at_line_start = text.endswith("\n") if text else at_line_start

    def control(event: Event) -> Iterator[Event]:
        if event.kind in VOID:
            show(event.derive(None))
        if event.kind != "end":
            yield event

    return Behaviour("inline", take, control=control)


def _shown(event: Event) -> str | None:
    """An event as text; None where it is nothing for a reader."""
    payload = event.payload
    if isinstance(payload, str):
        return payload
    if payload is None or event.kind in ("tool_fragment", "usage"):
        return None
    if isinstance(payload, Retrieval | ToolResult):
        return payload.text if isinstance(payload, Retrieval) else payload.content
    text = json_text(payload, MOST_SHOWN)
    return f"```json\n{text}\n```" if text[:1] in "[{" else text


class _File:
    """A file that lines are appended to, by the several workers of a node."""

    def __init__(self, path: Path, node: str) -> None:
        self._path = path
        self._node = node
        self._opened: FileIO | None = None
        self._alone = threading.Lock()

    def append(self, line: str) -> None:
        """Append one line.

        Raises:
            ConfigError: it can't be written.
        """
        try:
            with self._alone:
                self._write(line.encode())
        except (OSError, ValueError) as error:  # a name with a NUL is a wrong value
            why = (isinstance(error, OSError) and error.strerror) or error
            raise ConfigError(f"node {self._node!r}: {self._path} can't be written: {why}", code="AF730") from error

    def _write(self, data: bytes) -> None:
        if self._opened is None:
            if self._path.exists() and stat.S_ISFIFO(self._path.stat().st_mode):
                raise OSError(errno.EINVAL, "it is a pipe, which would wait for a reader")
            self._opened = self._path.open("ab", buffering=0)
        while data:
            data = data[self._opened.write(data) :]

    def close(self) -> None:
        """Close it, where it was opened."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _jsonl(path: Path, binding: Binding) -> Behaviour:
    """Appends, and closes, in a thread: a disk (or a network file system) may be slow."""
    file = _File(path, binding.node)

    def write(event: Event) -> None:
        about = event.payload.event if isinstance(event.payload, _Told) else event
        file.append(f"{encodable(_line(_row(about)))}\n")

    def control(event: Event) -> Iterator[Event]:
        if event.kind in VOID:
            yield event.derive(_Told(event), "value")
        if event.kind != "end":
            yield event

    return Behaviour("thread", write, control=control, close=file.close, recalls=True)


@dataclass(frozen=True, slots=True)
class _Told:
    """A control event on its way to the file."""

    event: Event


def _row(event: Event) -> dict[str, Any]:
    row = {
        "kind": event.kind,
        "payload": event.payload,
        "source": event.source,
        "sequence": event.sequence,
        "lineage": event.lineage,
        "phase": event.phase,
    }
    if "label" in event.meta:
        row["label"] = event.meta["label"]
    if not event.complete:
        row["complete"] = False
    return row


def _line(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError as error:
        if not str(error).startswith("Out of range"):
            raise
        return json.dumps(_finite(row), ensure_ascii=False, default=_plain)


def _finite(value: Any) -> Any:
    """The value with texts for the numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_finite(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _finite(_plain(value))
    return value


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}  # `asdict` would copy what it holds
    return repr(value)


SINK = Operator(SIGNATURE, bind)
