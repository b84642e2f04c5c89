"""What a node does, as its guardian sees it: a call, how it is called, and what it adds when an answer ends.

An operator's signature (`graph.signatures`) says how it is written and checked; its `bind` turns the arguments of
one node into a `Behaviour`. Guardians know behaviours only, so an operator knows nothing of queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.signatures import OperatorSignature
from aiflow_jupyter.runtime.metrics import Answer
from aiflow_jupyter.runtime.source import Source

Mode = Literal["inline", "iterate", "await", "stream", "thread"]


@dataclass(slots=True)
class Behaviour:
    """How one node treats its events.

    Attributes:
        mode: `inline` (call returns an event or None, on the loop), `iterate` (call returns an iterable of events,
            on the loop), `await` (a coroutine function), `stream` (an async generator function), `thread` (a plain
            function, run in the node's own threads).
        call: takes a data event; returns as `mode` says.
        flush: called with a `finish`, `end` or `error` event before it passes on; yields what was held back.
        routes: call (of `inline`) returns the port that the event leaves by, and the event.
        answers: this node starts answers of its own, each with a lineage of its own, so `finish` events from upstream
            end at it.
        close: releases what the node holds open, after its last event or at cancel; for `thread` in a thread, once
            every call has returned.
    """

    mode: Mode
    call: Callable[[Event], Any]
    flush: Callable[[Event], Iterable[Event]] | None = None
    routes: bool = False
    answers: bool = False
    close: Callable[[], Awaitable[None] | None] | None = None


class Collected(list[Any]):
    """What a `sink(var=...)` collected; `tokens` says that all of it are a model's tokens, pieces of one text."""

    tokens: bool = True

    def take(self, event: Event) -> None:
        """Collect one event's payload."""
        self.append(event.payload)
        self.tokens = self.tokens and event.kind == "token"


@dataclass(slots=True)
class Binding:
    """What an operator may use when it is bound to a node.

    Attributes:
        node: the node's name.
        functions: the user's functions by name, as they are when the run starts.
        source: what answers requests; None where the run has none.
        clock: monotonic nanoseconds.
        answers: where `generate` notes the answers that it started.
        asked: how many answers were started for each lineage, by all nodes of the run.
        variables: where `sink(var=...)` puts what it collects, by variable name.
        show: what `sink(display=true)` hands its text to; None where there is no display.
    """

    node: str
    functions: Mapping[str, Callable[..., Any]]
    source: Source | None
    clock: Callable[[], int]
    answers: list[Answer] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    variables: dict[str, Collected] = field(default_factory=dict)
    show: Callable[[Event], None] | None = None


@dataclass(frozen=True, slots=True)
class Operator:
    """A standard operator: its signature, and what makes a node's behaviour out of arguments."""

    signature: OperatorSignature
    bind: Callable[[Mapping[str, Any], Binding], Behaviour]
