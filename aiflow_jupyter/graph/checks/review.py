"""One look at one graph: what all checks share, and where they put what they find."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from aiflow_jupyter.errors import GraphProblem
from aiflow_jupyter.graph.codes import CERTAIN, CODES
from aiflow_jupyter.graph.hints import UNKNOWN, FunctionType, read
from aiflow_jupyter.graph.parsed import Parsed, pointer
from aiflow_jupyter.graph.problems import MOST_PROBLEMS, nearest
from aiflow_jupyter.graph.shape import Shape
from aiflow_jupyter.graph.signatures import VERDICT, OperatorSignature, Parameter, Signatures
from aiflow_jupyter.graph.spec import EdgeSpec, GraphSpec, NodeSpec

Path = tuple[str | int, ...]

CALLED: Final = ("function", "functions", "choice_or_function")
"""Types of arguments that name functions."""


class Review:
    """A graph with what is known about it, and what was found.

    Args:
        spec: the graph.
        signatures: the known operators.
        functions: the user's functions and other objects by name, or the names alone; then nothing is known of types.
        parsed: where the spec came from.
        flows: the names of the other graphs; None where they are not known.

    Attributes:
        errors: what keeps the graph from running.
        warnings: what may surprise.
        partial: whether the spec is only a part of what was written: then only what is wrong for sure is told.
        lost: the nodes of which not all could be read.
        wrong: how many errors there are, also of those that nobody would read any more.
        doubtful: nodes with arguments that nothing should be concluded from.
    """

    def __init__(
        self,
        spec: GraphSpec,
        signatures: Signatures,
        functions: Collection[str] = (),
        parsed: Parsed | None = None,
        flows: Collection[str] | None = None,
    ) -> None:
        self.spec = spec
        self.signatures = signatures
        self.functions = functions
        self.objects: Mapping[str, Any] | None = functions if isinstance(functions, Mapping) else None
        self.parsed = parsed
        self.flows = flows
        self.errors: list[GraphProblem] = list(parsed.problems) if parsed else []
        self.warnings: list[GraphProblem] = []
        self.partial = parsed is not None and parsed.partial
        self.lost = parsed.lost if parsed else frozenset()
        self.wrong = 0
        self.doubtful: set[str] = set(spec.nodes)  # until their arguments were checked
        self._read: dict[str, FunctionType] = {}

    @cached_property
    def shape(self) -> Shape:
        """The graph's nodes and edges, put in order."""
        return Shape(self.spec)

    def found(self, message: str, code: str, path: Path, hint: str = "") -> None:
        """Note a problem, as an error or a warning by its code, with its place; of each only as many as are read."""
        if self.partial and code not in CERTAIN:
            return
        severity = CODES[code][0]
        problems = self.errors if severity == "error" else self.warnings
        self.wrong += severity == "error"
        if len(problems) >= MOST_PROBLEMS:
            return
        place = (self.parsed.caret(path) if self.parsed else "") or f"at {pointer(path)}"
        problem = GraphProblem(message, code=code, hint="\n".join(filter(None, (place, hint))))
        problem.severity = severity
        problem.path = path
        problems.append(problem)

    def ordered(self, problems: list[GraphProblem]) -> list[GraphProblem]:
        """Problems in the order of their places in the text."""
        parsed = self.parsed
        if parsed is None:
            return problems
        return sorted(problems, key=lambda problem: problem.place or parsed.place(problem.path) or (0, 0))

    def nearest(self, word: Any, words: Iterable[str]) -> str:
        """A hint, while there are few enough problems that each is read."""
        return nearest(str(word), words) if len(self.errors) < MOST_PROBLEMS else ""

    def signature(self, node: str) -> OperatorSignature | None:
        """The signature of a node's operator; None for an unknown one and for a function."""
        spec = self.spec.nodes[node]
        found = self.signatures.get(spec.operator)
        return found if found is None or node in self.doubtful else found.given(spec.args)

    def silent(self, edge: EdgeSpec) -> bool:
        """Whether no data leaves by an edge: verdicts alone do."""
        signature = self.signature(edge.source)
        return signature is not None and signature.verdicts and edge.port == VERDICT

    def sure(self, node: str) -> OperatorSignature | None:
        """The same, where the node's arguments are such that the signature can be asked about them."""
        return None if node in self.doubtful else self.signature(node)

    def function(self, name: Any) -> FunctionType:
        """What is known of a function by name."""
        if self.objects is None or not isinstance(name, str) or name not in self.objects:
            return UNKNOWN
        if name not in self._read:
            self._read[name] = read(self.objects[name])
        return self._read[name]

    def called(self, node: str) -> Iterator[tuple[Parameter | None, str, Path]]:
        """The known functions that a node calls with its events: the parameter, the name, and where it stands.

        The parameter is None for a node whose operator is a function.
        """
        spec = self.spec.nodes[node]
        signature = self.signature(node)
        if signature is None:
            if spec.operator in self.functions:
                yield None, spec.operator, ("nodes", node, "operator")
            return
        for name, value in spec.args.items():
            parameter = signature.parameter(name)
            if parameter is None or parameter.type not in CALLED:
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str) and each not in parameter.choices and each in self.functions:
                    yield parameter, each, ("nodes", node, "args", name)

    def bare(self, node: str) -> bool:
        """Whether the node's operator is a function of the user's."""
        spec = self.spec.nodes[node]
        return spec.operator not in self.signatures and spec.operator in self.functions

    def results(self, node: str) -> str:
        """What one event gives at a node: `one`, `some`, `many` or `gathered`."""
        signature = self.signature(node)
        if signature is not None:
            return signature.results
        return "many" if self.bare(node) and self.function(self.spec.nodes[node].operator).yields else "some"

    def policies(self) -> Iterator[tuple[str, NodeSpec]]:
        """The nodes whose policy says anything."""
        for node, spec in self.spec.nodes.items():
            if spec.policy.model_fields_set:
                yield node, spec
