"""Operator signatures: what can be written for an operator, and which events it takes and gives.

The checks are handed a table of signatures, so this room knows no operator by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

ArgumentType = Literal[
    "text",
    "integer",
    "number",
    "boolean",
    "function",
    "functions",
    "object",
    "flow",
    "patterns",
    "choice",
    "choice_or_function",
    "choice_or_integer",
]
"""`functions` is a list of names of functions; `object` names anything of the caller's; `flow` names another graph;
`patterns` is a mapping of labels to regular expressions."""

VERDICT: Final = "verdict"
"""The port by which an operator with verdicts sends them, and no data."""

Results = Literal["one", "some", "many", "gathered"]
"""What an event gives: exactly one, at most one, any number, or what was gathered from many at the end."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an operator.

    Attributes:
        name: as written, `function=`.
        type: what the value must be.
        choices: the allowed words of a `choice`.
        required: whether the graph is wrong without it.
        least: smallest allowed number.
        gets: what a function that it names is called with: each event's payload, a list of payloads, or arguments of
            its own.
        plain: a function that it names is called on the loop, so it may be neither `async` nor a generator.
    """

    name: str
    type: ArgumentType
    choices: tuple[str, ...] = ()
    required: bool = False
    least: float | None = None
    gets: Literal["payload", "list", "arguments"] = "payload"
    plain: bool = False


Args = Mapping[str, Any]


def _never(_args: Args) -> bool:
    return False


def _nothing(_args: Args) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class OperatorSignature:
    """How an operator is written and what passes through it.

    Attributes:
        name: the word that names it in a graph.
        parameters: its arguments; positional ones are taken in this order.
        takes: the data kinds that it can work on, None for any.
        gives: the data kinds that it emits, None for what it takes.
        ports: for given arguments, the names of its output ports (None: any name), `""` among them where it has a plain
            output too; or no ports at all.
        sink: nothing comes out of it.
        alternatives: parameters of which exactly one has to be given.
        single: whether a node with given arguments works one event at a time, so that it can't have several workers.
        whole: it works on whole values; a stream of pieces has to be gathered before it.
        results: what one event gives.
        lineage: whose lineage a result has: its event's, or an answer's below it (`own`); that of what was asked, whose
            answer it was gathered from (`asked`: `reduce`); that of the first of what was gathered, which may come from
            several inputs (`first`: `window`).
        holds: for given arguments, the data events that it keeps by default, beyond queue and workers; the policy's
            `hold` takes the place of it where it is not 0.
        pairs: it tells its inputs apart and pairs their events by lineage (`join`).
        tells_inputs: for given arguments, whether it is told by which input each event comes, and when one of them is
            through with a lineage (`merge`).
        verdicts: it sends `commit` and `retract` (`guard`), by the port `verdict` nothing else.
        returns: the parameter whose function's return is what leaves (`map`); for `many` results it is a generator
            function or returns an iterable. None where functions only decide (`filter`).
        payload: for given arguments and the type of the payloads that come in, the type of what leaves as `value`
            events (`window`: a list of them). None where `returns` or the kind says it.
        accepts: the types of `value` payloads that it can work on; the other kinds have payloads of one type.
        opaque: which kinds it gives, and how many for one, does not stand in the graph (`delegate`).
        restarts: what it gives may be begun anew by itself (`generate`, where an answer breaks off), so that the policy
            `restart` says something also without `retry`.
        variant: for given arguments, the signature in place of this one, where arguments change what it gives.
    """

    name: str
    parameters: tuple[Parameter, ...] = ()
    takes: frozenset[str] | None = None
    gives: frozenset[str] | None = None
    ports: Callable[[Args], tuple[str, ...] | None] | None = None
    sink: bool = False
    alternatives: tuple[str, ...] = ()
    single: Callable[[Args], bool] = _never
    whole: bool = False
    results: Results = "one"
    lineage: Literal["own", "asked", "first"] = "own"
    holds: Callable[[Args], int] = _nothing
    pairs: bool = False
    tells_inputs: Callable[[Args], bool] = _never
    verdicts: bool = False
    returns: str | None = None
    payload: Callable[[Args, Any], Any] | None = None
    accepts: tuple[Any, ...] = (Any,)
    opaque: bool = False
    restarts: bool = False
    variant: Callable[[Args], OperatorSignature] | None = None

    def given(self, args: Args) -> OperatorSignature:
        """The signature for some arguments, which have to be such as it declares."""
        return self if self.variant is None else self.variant(args)

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name, or None."""
        return next((p for p in self.parameters if p.name == name), None)


Signatures = Mapping[str, OperatorSignature]
