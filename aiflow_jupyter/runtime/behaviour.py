"""What a node does, as its guardian sees it: a call, how it is called, and what it adds when an answer ends.

An operator's signature (`graph.signatures`) says how it is written and checked; its `bind` turns the arguments of
one node into a `Behaviour`. Guardians know behaviours only, so an operator knows nothing of queues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal

from aiflow_jupyter.events import Event, descends
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.signatures import OperatorSignature
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.metrics import Answer
from aiflow_jupyter.runtime.source import Source

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.run import Run

Mode = Literal["inline", "iterate", "await", "stream", "thread", "thread_iterate"]


@dataclass(slots=True)
class Behaviour:
    """How one node treats its events.

    Attributes:
        mode: `inline` (call returns an event or None, on the loop), `iterate` (call returns an iterable of events,
            on the loop), `await` (a coroutine function), `stream` (an async generator function), `thread` (a plain
            function, run in the node's own threads), `thread_iterate` (a generator function, each step of it in the
            node's threads).
        call: takes a data event; returns as `mode` says.
        control: called with every control event that acts at this node; yields what leaves because of it: what was
            held back, and the event itself unless it stops here. `end` passes by itself. None lets all pass.
        holds: how many data events the operator keeps now, beyond queue and workers.
        extras: what the call takes by keyword besides the event, of `state` (a dict, kept by the node's policy) and
            `idempotency_key` (the same text for every try of one event).
        recalls: a data event that `control` yields is no output yet: it goes through `call` first, as `mode` says (what
            was gathered, for a user's function that must not hold the loop).
        routes: call (of `inline`) returns the port that the event leaves by, and the event.
        governed: its calls have the node's state, tries and time limit already (`Binding.govern`).
        waits: how many of its calls wait for another one of them, and so do nothing.
        close: releases what the node holds open, after its last event or at cancel; for `thread` in a thread, once
            every call has returned.
    """

    mode: Mode
    call: Callable[[Event], Any]
    control: Callable[[Event], Iterable[Event]] | None = None
    holds: Callable[[], int] | None = None
    extras: frozenset[str] = frozenset()
    recalls: bool = False
    routes: bool = False
    governed: bool = False
    waits: Callable[[], int] | None = None
    close: Callable[[], Awaitable[None] | None] | None = None


def _no_run(*_: Any) -> Any:
    raise RuntimeError("this binding belongs to no run")


class Collected(list[Any]):
    """What a `sink(var=...)` collected; `tokens` says that all of it are a model's tokens, pieces of one text."""

    tokens: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._lineages: list[str] = []

    def take(self, event: Event) -> None:
        """Collect one event's payload."""
        self.append(event.payload)
        self._lineages.append(event.lineage)
        self.tokens = self.tokens and event.kind == "token"

    def discard(self, lineage: str) -> None:
        """Take out what was collected of a lineage that is void, and of the answers to it."""
        kept = [(value, of) for value, of in zip(self, self._lineages, strict=True) if not descends(of, lineage)]
        self[:] = [value for value, _ in kept]
        self._lineages = [of for _, of in kept]


_USUAL: Final = Policy()


@dataclass(slots=True)
class Binding:
    """What an operator may use when it is bound to a node.

    Attributes:
        node: the node's name.
        policy: the node's policy; its `hold` bounds what the operator keeps.
        inputs: the names of the nodes that lead to it, in the order of the edges.
        functions: the user's functions (and other objects that arguments name), as they are when the run starts.
        flows: other graphs by name, for `delegate`.
        later: after so many seconds of the run's clock, has the node's `control` act on an event (a `flush` of the
            node's own, which it keeps from passing on); calling what it returns takes that back.
        source: what answers requests; None where the run has none.
        clock: monotonic nanoseconds.
        answers: where `generate` notes the answers that it started.
        variables: where `sink(var=...)` puts what it collects, by variable name.
        show: what `sink(display=true)` hands its events to, each with a text as its payload, or with None where what
            was shown of its lineage is void; None where there is no display.
        threads: gives the node threads of its own, `workers` of them; what it returns calls a plain function in one.
        govern: gives a behaviour the node's state, tries and time limit: for an operator that makes several calls for
            one event, or none for some, each of which is to be tried by itself.
        dropped: counts an event of a kind that the operator discards.
        withheld: says that the operator kept a part of what was asked for from leaving, and why: the run warns of it,
            and its result is no whole one.
        harmless: whether no node of the run, or of the one around it, does what a restart must not repeat.
        run: the run's identifier.
        random: gives what is random in the run: a replay's is seeded.
        check: has another graph pass its checks, with the run's operators, functions and graphs.
        inner: makes a run of another graph, within this one, with some operators in place of the known ones and an
            identifier of its own.
    """

    node: str
    functions: Mapping[str, Any]
    source: Source | None
    clock: Callable[[], int]
    policy: Policy = _USUAL
    inputs: tuple[str, ...] = ()
    flows: Mapping[str, GraphSpec] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    variables: dict[str, Collected] = field(default_factory=dict)
    show: Callable[[Event], None] | None = None
    later: Callable[[float, Event], Callable[[], None]] = _no_run
    threads: Callable[[], Callable[..., Awaitable[Any]]] = _no_run
    govern: Callable[[Behaviour], Behaviour] = _no_run
    dropped: Callable[[str], None] = _no_run
    withheld: Callable[[str], None] = _no_run
    harmless: bool = True
    run: str = ""
    random: Random = field(default_factory=Random)
    check: Callable[[GraphSpec], None] = _no_run
    inner: Callable[[GraphSpec, Mapping[str, Operator], str], Run] = _no_run


@dataclass(frozen=True, slots=True)
class Operator:
    """A standard operator: its signature, and what makes a node's behaviour out of arguments."""

    signature: OperatorSignature
    bind: Callable[[Mapping[str, Any], Binding], Behaviour]
