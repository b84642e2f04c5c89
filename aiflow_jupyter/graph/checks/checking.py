"""Checks before a run: everything that can be known to be wrong from the spec, with a code, a place and a hint.

`check` finds all errors of a graph in one go, `examine` its warnings as well, and `require` raises the errors. What
each code means stands in `codes.CODES`. Nothing of the user's is called: functions are looked at for their hints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.checks.arguments import check_nodes
from aiflow_jupyter.graph.checks.liveness import check_liveness
from aiflow_jupyter.graph.checks.pairing import check_pairing
from aiflow_jupyter.graph.checks.policies import check_policies
from aiflow_jupyter.graph.checks.review import Review
from aiflow_jupyter.graph.checks.structure import check_ports, check_structure
from aiflow_jupyter.graph.checks.types import Flows, check_types
from aiflow_jupyter.graph.parsed import Parsed
from aiflow_jupyter.graph.problems import NO_NODE
from aiflow_jupyter.graph.signatures import Signatures
from aiflow_jupyter.graph.spec import GraphSpec

Functions = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Findings:
    """What the checks found, in source order, of each as many as anybody reads.

    Attributes:
        errors: what keeps the graph from running.
        warnings: what may surprise.
    """

    errors: list[GraphProblem]
    warnings: list[GraphProblem]


def examine(
    spec: GraphSpec,
    signatures: Signatures,
    functions: Collection[str],
    parsed: Parsed | None = None,
    *,
    flows: Collection[str] | None = None,
) -> Findings:
    """Find every error and every warning of a graph.

    Args:
        spec: the graph.
        signatures: the known operators.
        functions: the user's functions and objects by name; names alone do where the objects are not at hand, and then
            nothing is known of their types.
        parsed: where the spec came from, for line, column and caret, and with the problems that were found there.
        flows: the names of the graphs that `delegate` may name; None where they are not known.
    """
    review = Review(spec, signatures, functions, parsed, flows)
    if not (spec.nodes or spec.edges or spec.inject):
        review.found("the graph is empty", "AF102", ("nodes",), NO_NODE)
    check_nodes(review)
    check_structure(review)
    types = Flows(review)
    check_ports(review, types)
    check_types(review, types)
    check_policies(review, types)
    if not review.shape.closing:
        check_pairing(review)
        check_liveness(review)
    return Findings(review.ordered(review.errors), review.ordered(review.warnings))


def check(
    spec: GraphSpec,
    signatures: Signatures,
    functions: Collection[str],
    parsed: Parsed | None = None,
    *,
    flows: Collection[str] | None = None,
) -> list[GraphProblem]:
    """Find every error of a graph; see `examine` for the arguments.

    Returns:
        the errors, empty when the graph may run.
    """
    return examine(spec, signatures, functions, parsed, flows=flows).errors


def require(
    spec: GraphSpec,
    signatures: Signatures,
    functions: Collection[str],
    parsed: Parsed | None = None,
    *,
    flows: Collection[str] | None = None,
) -> None:
    """Raise `GraphError` with every error of a graph, if it has any; see `examine` for the arguments."""
    problems = check(spec, signatures, functions, parsed, flows=flows)
    if problems:
        raise GraphError(problems, title=spec.name)
