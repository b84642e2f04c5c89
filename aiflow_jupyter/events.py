"""Events: the one typed item that travels on every edge.

An event is what the AiFlow paper calls `Context<T>` (definition 2). It is a plain slots class because a guardian
handles millions of them; treat one as immutable once it has been emitted, since the branches of a split share it.

Data kinds: `token`, `chunk`, `tool_fragment`, `tool_call`, `tool_result`, `retrieval`, `label`, `usage`, `value`.
Control kinds: `finish` (one answer is complete), `end` (the edge closes), `error`, `skip`, `flush`, `restart`,
`commit`, `retract`. Control events are never dropped and keep their place in the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

DataKind = Literal[
    "token", "chunk", "tool_fragment", "tool_call", "tool_result", "retrieval", "label", "usage", "value"
]
ControlKind = Literal["finish", "end", "error", "skip", "flush", "restart", "commit", "retract"]
Kind = DataKind | ControlKind
Phase = Literal["answer", "reasoning"]

DATA: Final[frozenset[str]] = frozenset(get_args(DataKind))
CONTROL: Final[frozenset[str]] = frozenset(get_args(ControlKind))
TEXT: Final[frozenset[str]] = frozenset({"token", "chunk"})

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Event:
    """One typed item on an edge.

    Attributes:
        kind: a data or control kind.
        payload: text for `token` and `chunk`, else one of the payload classes below or any value.
        conversation: identifier of the conversation, empty outside one.
        source: the node (or provider) that started this stream of events.
        sequence: position in its source's stream, from 0.
        time: when it entered the graph, nanoseconds of the run's clock.
        lineage: what this event comes from: the number of the run's input, and for each answer on the way
            `/SEQUENCE.NODE`: the sequence of the event that was asked about, and the node that asked (`0/0.ask`).
        meta: read-only facts shared by a stream: `phase`, `label`, `tier`, `model`, `provider`, `complete`, `hops`;
            of a `finish` or `end`, `lost`: the lineages that overflow took something from.
    """

    __slots__ = ("conversation", "kind", "lineage", "meta", "payload", "sequence", "source", "time")

    def __init__(
        self,
        kind: Kind,
        payload: Any = None,
        conversation: str = "",
        source: str = "",
        sequence: int = 0,
        time: int = 0,
        lineage: str = "",
        meta: Mapping[str, Any] = NOTHING,
    ) -> None:
        self.kind = kind
        self.payload = payload
        self.conversation = conversation
        self.source = source
        self.sequence = sequence
        self.time = time
        self.lineage = lineage
        self.meta = meta

    def derive(self, payload: Any, kind: Kind | None = None) -> Event:
        """The same event with another payload (and kind): what a 1:1 operator emits."""
        return Event(
            kind or self.kind,
            payload,
            self.conversation,
            self.source,
            self.sequence,
            self.time,
            self.lineage,
            self.meta,
        )

    @property
    def identity(self) -> tuple[str, int]:
        """What the results of one event share on all its branches: lineage and sequence; `join` pairs by it."""
        return self.lineage, self.sequence

    def answer_lineage(self, node: str, turn: int = 0) -> str:
        """The lineage of the answer that `node` gives to this event (its `turn`-th, where tools were called)."""
        return f"{self.lineage}/{self.sequence}.{node}{f'+{turn}' if turn else ''}"

    @property
    def phase(self) -> Phase | None:
        """`answer` or `reasoning` for a model's tokens, None for events that have no phase."""
        return self.meta.get("phase")

    @property
    def complete(self) -> bool:
        """False for what was made from a stream that broke off."""
        return bool(self.meta.get("complete", True))

    def __repr__(self) -> str:
        return f"Event({self.kind}, {self.payload!r}, source={self.source!r}, sequence={self.sequence})"


@dataclass(slots=True)
class Usage:
    """Tokens of one answer as the provider counted them; None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(slots=True)
class Finish:
    """Why one answer is complete (`stop`, `length`, `tool_calls`, `content_filter`), and its usage."""

    reason: str = "stop"
    usage: Usage | None = None


@dataclass(slots=True)
class Failure:
    """Payload of an `error` event: which node failed, on which sequence, and why."""

    node: str
    sequence: int
    error: BaseException


@dataclass(slots=True)
class ToolFragment:
    """A piece of a tool call as a provider streams it: `index` says which call, `arguments` is partial JSON."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class ToolCall:
    """Payload of a `tool_call`: a whole call, its arguments parsed and checked."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(slots=True)
class ToolResult:
    """Payload of a `tool_result`: what a call gave, as the text that the model is told; `failed` if it is an error.

    `calls` says how many calls the answer made, so that whoever asks on knows when all results are there.
    """

    id: str
    name: str
    content: str
    failed: bool = False
    calls: int = 1


@dataclass(slots=True)
class Retrieval:
    """Payload of a `retrieval`: one passage found for a query, best first by `rank` (from 0)."""

    text: str
    query: str = ""
    score: float | None = None
    rank: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict)


def origin(lineage: str) -> tuple[str, int] | None:
    """The identity of the event that an answer's lineage answers; None for the lineage of an input.

    >>> origin("0/3.ask")
    ('0', 3)
    """
    parent, slash, step = lineage.rpartition("/")
    if not slash:
        return None
    return parent, int(step.partition(".")[0])


def descends(lineage: str, of: str) -> bool:
    """Whether a lineage is another one, or that of an answer somewhere below it.

    >>> descends("0/0.ask", "0"), descends("0/0.ask", "0/0.ask"), descends("0/0.ask", "1")
    (True, True, False)
    """
    return lineage == of or lineage.startswith(f"{of}/")


def above(lineage: str) -> Iterator[str]:
    """A lineage, and those that it is below, the nearest first.

    >>> list(above("0/3.ask"))
    ['0/3.ask', '0']
    """
    while lineage:
        yield lineage
        lineage = lineage.rpartition("/")[0]


def text_bytes(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
