"""Operator signatures: what can be written for an operator, and which events it takes and gives.

The checks are handed a table of signatures, so this room knows no operator by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

ArgumentType = Literal["text", "integer", "number", "boolean", "function", "choice", "choice_or_function"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an operator.

    Attributes:
        name: as written, `function=`.
        type: what the value must be; `function` is the name of a user's function.
        choices: the allowed words of a `choice`.
        required: whether the graph is wrong without it.
        least: smallest allowed number.
    """

    name: str
    type: ArgumentType
    choices: tuple[str, ...] = ()
    required: bool = False
    least: float | None = None


def _never(_args: Mapping[str, Any]) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class OperatorSignature:
    """How an operator is written and what passes through it.

    Attributes:
        name: the word that names it in a graph.
        parameters: its arguments; positional ones are taken in this order.
        takes: the data kinds that it can work on, None for any.
        gives: the data kinds that it emits, None for what it takes.
        ports: for given arguments, the names of its output ports (None: any name), or no ports at all.
        sink: nothing comes out of it.
        alternatives: parameters of which exactly one has to be given.
        single: whether a node with given arguments works one event at a time, so that it can't have several workers.
    """

    name: str
    parameters: tuple[Parameter, ...] = ()
    takes: frozenset[str] | None = None
    gives: frozenset[str] | None = None
    ports: Callable[[Mapping[str, Any]], tuple[str, ...] | None] | None = None
    sink: bool = False
    alternatives: tuple[str, ...] = ()
    single: Callable[[Mapping[str, Any]], bool] = _never

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name, or None."""
        return next((p for p in self.parameters if p.name == name), None)


Signatures = Mapping[str, OperatorSignature]
