"""`sink`: where a branch ends.

speech = sink(function=speak)                 # called with each payload, in the node's own threads
notes  = sink(jsonl="reasoning.jsonl")        # one JSON object per event
answer = sink(var="answer")                   # collected into the run's result
shown  = sink(display=true)                   # streamed under the cell

What turned out void (`restart`, `retract`) is taken out of a variable; to a file a line is added that says so; the
display is told by the event. A function is not called for it: what it did can't be undone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import IO, Any, Final

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.functions import user_behaviour
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
        jsonl: appends one JSON object per event to this file.
        display: streams text under the cell.
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


def _collecting(collected: Collected) -> Behaviour:
    def control(event: Event) -> Iterator[Event]:
        if event.kind in VOID:
            collected.discard(event.lineage)
        if event.kind != "end":
            yield event

    return Behaviour("inline", collected.take, control=control)


def _showing(show: Callable[[Event], None]) -> Behaviour:
    def control(event: Event) -> Iterator[Event]:
        if event.kind in VOID:
            show(event.derive(None))
        if event.kind != "end":
            yield event

    return Behaviour("inline", show, control=control)


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
        about = event.payload.event if isinstance(event.payload, _Told) else event
        line = json.dumps(_row(about), ensure_ascii=False, default=_plain) + "\n"
        with alone:
            file().write(line)
            file().flush()

    def close() -> None:
        for each in opened:
            each.close()
        opened.clear()

    def control(event: Event) -> Iterator[Event]:
        if event.kind in VOID:
            yield event.derive(_Told(event), "value")
        if event.kind != "end":
            yield event

    return Behaviour("thread", write, control=control, close=close, recalls=True)


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


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}  # `asdict` would copy what it holds
    return repr(value)


SINK = Operator(SIGNATURE, bind)
