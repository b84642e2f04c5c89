"""`sink`: where a branch ends.

speech = sink(function=speak)                 # called with each payload, in the node's own threads
notes  = sink(jsonl="reasoning.jsonl")        # one JSON object per event
answer = sink(var="answer")                   # collected into the run's result
shown  = sink(display=true)                   # streamed under the cell
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, Any

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter
from aiflow_jupyter.operators.functions import user_behaviour
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Collected, Operator


def _on_loop(args: Mapping[str, Any]) -> bool:
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
        jsonl: appends one JSON object per event to this file.
        display: streams text under the cell.
        inline: run `function` on the loop: only for cheap ones.
    """
    return call(
        "sink", function=function, var=var, jsonl=None if jsonl is None else str(jsonl), display=display, inline=inline
    )


def bind(args: Mapping[str, Any], binding: Binding) -> Behaviour:
    """The behaviour of `sink`."""
    if "function" in args:
        return user_behaviour(args["function"], binding, lambda _event, _result: None, inline=args.get("inline", False))
    if "jsonl" in args:
        return _jsonl(Path(args["jsonl"]), binding)
    if "var" in args:
        return Behaviour("inline", binding.variables.setdefault(args["var"], Collected()).take)
    show = binding.show
    return Behaviour("inline", show or (lambda _event: None))


def _jsonl(path: Path, binding: Binding) -> Behaviour:
    """Appends, and closes, in a thread: a disk (or a network file system) may be slow."""
    opened: list[IO[str]] = []
    alone = threading.Lock()  # the node may have several workers

    def file() -> IO[str]:
        if not opened:
            try:
                opened.append(path.open("a", encoding="utf-8"))
            except OSError as error:
                raise ConfigError(
                    f"node {binding.node!r}: {path} can't be written: {error.strerror}", code="AF730"
                ) from error
        return opened[0]

    def write(event: Event) -> None:
        row = {
            "kind": event.kind,
            "payload": event.payload,
            "source": event.source,
            "sequence": event.sequence,
            "lineage": event.lineage,
            "phase": event.phase,
        }
        line = json.dumps(row, ensure_ascii=False, default=_plain) + "\n"
        with alone:
            file().write(line)
            file().flush()

    def close() -> None:
        for each in opened:
            each.close()
        opened.clear()

    return Behaviour("thread", write, close=close)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}  # `asdict` would copy what it holds
    return repr(value)


SINK = Operator(SIGNATURE, bind)
