"""A trace: what was asked in a run and what came back, each event with its time, as a file of JSON lines.

    {"aiflow_trace":1,"graph":"support","spec":{...},"start":81234,"begun":"2026-03-01T09:30:00+00:00","library":"0.1.0"}
    {"kind":"request","request":0,"at":1200,"hash":"9f86...","tier":"auto","model":null,"node":"ask"}
    {"kind":"token","request":0,"at":310000200,"payload":"Be","phase":"answer","by":{"tier":"local",...}}
    {"kind":"finish","request":0,"at":990000200,"payload":{"reason":"stop","usage":{"completion_tokens":14,...}}}

Times are nanoseconds after the trace's `start`. Messages are there as a SHA-256, or in full where that was asked for; a
hash hides no message that somebody can guess. `by` stands where it changed. An answer ends by its `finish`; by `error`
where its source failed; by `closed` where whoever read it left; or with the recording. `{"kind":"full"}` says that no
more was recorded. Keys and headers are never in it.

Reading a trace runs no code, and what is wrong with it is a `TraceError` with its line:

| code | what it means |
|---|---|
| AF740 | the file can't be read or written |
| AF741 | a line is no line of a trace |
| AF742 | the last line is cut off |
| AF743 | another version of the format |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aiflow_jupyter.errors import AiflowError, ProviderError, StreamCut
from aiflow_jupyter.events import NOTHING, Event, Finish, Usage
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.source import Message

VERSION: Final = 1
MOST_LINE: Final = 1_000_000
"""Bytes of one line, its end included."""
MOST_BYTES: Final = 200_000_000
"""Bytes of a whole trace."""

RECORDED: Final = frozenset({"token", "tool_fragment", "usage", "restart", "finish"})
"""The kinds of event that a source gives, and a trace holds."""

Ending = Literal["finish", "error", "closed", "lost"]


class TraceError(AiflowError):
    """A trace that can't be read, written or followed; `line` (from 1) says where, 0 for the file as a whole."""

    code = "AF741"
    line: int = 0


# -- a trace


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event of a recorded answer; `at` in nanoseconds after the trace's start."""

    at: int
    kind: Literal["token", "tool_fragment", "usage", "restart", "finish"]
    payload: Any
    meta: Mapping[str, Any] = field(default_factory=lambda: NOTHING)

    def event(self, sequence: int, time: int) -> Event:
        """The event again, as it would arrive at another time."""
        payload = deepcopy(self.payload)  # whoever takes it may change it
        return Event(self.kind, payload, self.meta.get("provider", ""), sequence=sequence, time=time, meta=self.meta)


@dataclass(frozen=True, slots=True)
class Broken:
    """How an answer ended that has no finish.

    Attributes:
        at: nanoseconds after the trace's start.
        how: its source failed, its reader left, or the recording ends before it.
        error: class, code, message and hint of what its source raised.
    """

    at: int
    how: Literal["error", "closed", "lost"]
    error: tuple[str, str, str, str] = ("StreamCut", "AF702", "", "")

    def raised(self) -> ProviderError:
        """What whoever reads on is to be told."""
        name, code, message, hint = self.error
        told = {
            "closed": "the recorded answer goes no further: whoever read it left",
            "lost": "the recorded answer goes no further: the recording ends in the midst of it",
        }.get(self.how, message)
        return (StreamCut if name == "StreamCut" else ProviderError)(told, code=code, hint=hint)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer.

    Attributes:
        number: its place in the trace, from 0.
        at: when it was asked, nanoseconds after the trace's start.
        hash: of its messages, see `hash_of`.
        messages: in full, where they were recorded so.
        broken: None for an answer that finished.
    """

    number: int
    at: int
    hash: str
    tier: str = "auto"
    model: str | None = None
    node: str = ""
    messages: tuple[Message, ...] | None = None
    events: tuple[Recorded, ...] = ()
    broken: Broken | None = None

    @property
    def ending(self) -> Ending:
        """How the answer ended."""
        return self.broken.how if self.broken is not None else "finish"

    @property
    def usage(self) -> Usage | None:
        """Tokens as the provider counted them."""
        last = self.events[-1].payload if self.events else None
        return last.usage if isinstance(last, Finish) else None

    @property
    def tokens(self) -> int:
        """Tokens of the answer: the provider's count, else the pieces that came."""
        if self.usage is not None and self.usage.completion_tokens is not None:
            return self.usage.completion_tokens
        return sum(event.kind in ("token", "tool_fragment") for event in self.events)

    @property
    def ttft_ns(self) -> int | None:
        """Nanoseconds from the request to the first delta."""
        first = (event.at for event in self.events if event.kind in ("token", "tool_fragment"))
        return next((at - self.at for at in first), None)

    @property
    def duration_ns(self) -> int:
        """Nanoseconds from the request to the end of the answer."""
        ends = [event.at for event in self.events[-1:]] + ([self.broken.at] if self.broken else [])
        return max(ends, default=self.at) - self.at


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run.

    Attributes:
        graph: the graph's name, empty where it is not known.
        spec: the graph, where it was recorded.
        start: what the clock of the recording showed at its start, in nanoseconds.
        begun: the time of day of that, as ISO 8601.
        library: the version that recorded it.
        exchanges: requests with their answers, in the order in which they were asked.
        truncated: the last line was cut off, and left out.
        full: not everything was recorded.
    """

    exchanges: tuple[Exchange, ...]
    graph: str = ""
    spec: GraphSpec | None = None
    start: int = 0
    begun: str = ""
    library: str = ""
    truncated: bool = False
    full: bool = False


def hash_of(messages: Iterable[Mapping[str, Any]]) -> str:
    """The SHA-256 of a request's messages, by which an answer finds the same question again."""
    told = json.dumps([dict(message) for message in messages], sort_keys=True, default=repr)
    return hashlib.sha256(told.encode()).hexdigest()
