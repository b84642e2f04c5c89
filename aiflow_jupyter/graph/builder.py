"""Graphs in Python: nodes are added by name and joined with `>>`; the result is the same spec as from cell text.

flow = Flow("support")
ask = flow.add("ask", generate())
lane = flow.add("lane", route(by="phase"))
parts = flow.add("parts", segment(by="sentence"), queue=16)
speech = flow.add("speech", sink(function=speak))
ask >> lane
lane["answer"] >> parts >> speech
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.problems import nearest, policy_problems
from aiflow_jupyter.graph.spec import EdgeSpec, GraphSpec, NodeSpec


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator with its arguments, not yet a node; what `generate(...)`, `map(...)` and the others return.

    Attributes:
        operator: the operator's name.
        args: arguments as the spec holds them; a function stands there by its name.
        functions: the functions that the arguments name.
    """

    operator: str
    args: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def call(operator: str, **arguments: Any) -> OperatorCall:
    """Build an `OperatorCall`; arguments that are None are left out, callables are named."""
    args: dict[str, Any] = {}
    functions: dict[str, Callable[..., Any]] = {}
    for name, value in arguments.items():
        if value is None:
            continue
        if callable(value):
            args[name] = _name(value)
            functions[args[name]] = value
        else:
            args[name] = value
    return OperatorCall(operator, args, functions)


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else f"function_{id(function):x}"


@dataclass(frozen=True, slots=True)
class Port:
    """One output port of a node: `lane["answer"]`."""

    node: Node
    name: str | None

    def __rshift__(self, other: Node | Sequence[Node]) -> Any:
        return self.node.flow.join(self, other)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node of a `Flow`; `a >> b` adds an edge and gives `b`, so chains read as they flow."""

    flow: Flow
    name: str

    def __getitem__(self, port: str) -> Port:
        return Port(self, port)

    def __rshift__(self, other: Node | Sequence[Node]) -> Any:
        return self.flow.join(Port(self, None), other)


class Flow:
    """A graph under construction.

    Args:
        name: an identifier.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.functions: dict[str, Callable[..., Any]] = {}
        self._nodes: dict[str, NodeSpec] = {}
        self._edges: list[EdgeSpec] = []

    def add(self, name: str, operator: OperatorCall | Callable[..., Any], **policy: Any) -> Node:
        """Add a node.

        Args:
            name: an identifier, unique in the graph.
            operator: an operator with its arguments, or a plain function (which stands for `map(function)`).
            **policy: keys of `Policy`, such as `queue=16, workers=2`.

        Raises:
            GraphError: the name is taken, or a policy key or value does not exist.
        """
        if name in self._nodes:
            raise GraphError(
                [GraphProblem(f"node {name!r} is defined twice", code="AF202", hint="give it another name")]
            )
        if not isinstance(operator, OperatorCall):
            function = operator
            operator = OperatorCall(_name(function), {}, {_name(function): function})
        try:
            checked = Policy(**policy)
        except ValidationError as error:
            raise GraphError(
                [
                    GraphProblem(f"node {name!r}: {problem.message}", code="AF401", hint=problem.hint)
                    for problem in policy_problems(error, policy)
                ]
            ) from None
        for key, value in operator.functions.items():
            if self.functions.setdefault(key, value) is not value:
                raise GraphError(
                    [
                        GraphProblem(
                            f"node {name!r}: two different functions are called {key!r}",
                            code="AF205",
                            hint="give one of them another name",
                        )
                    ]
                )
        try:
            self._nodes[name] = NodeSpec(operator=operator.operator, args=dict(operator.args), policy=checked)
        except ValidationError as error:
            raise GraphError([GraphProblem(f"node {name!r}: {error.errors()[0]['msg']}", code="AF204")]) from None
        return Node(self, name)

    def __repr__(self) -> str:
        return f"<Flow {self.name}: {len(self._nodes)} nodes, {len(self._edges)} edges>"

    def __getitem__(self, name: str) -> Node:
        if name not in self._nodes:
            raise GraphError(
                [GraphProblem(f"no node is called {name!r}", code="AF206", hint=nearest(name, self._nodes))]
            )
        return Node(self, name)

    def join(self, source: Port, other: Node | Sequence[Node]) -> Any:
        """Add the edges of `source >> other`."""
        for node in [other] if isinstance(other, Node) else other:
            if node.flow is not self or source.node.flow is not self:
                raise GraphError(
                    [GraphProblem(f"{source.node.name!r} and {node.name!r} belong to different flows", code="AF206")]
                )
            self._edges.append(EdgeSpec(source=source.node.name, port=source.name, target=node.name))
        return other

    @property
    def spec(self) -> GraphSpec:
        """The graph as data."""
        try:
            return GraphSpec(name=self.name, nodes=dict(self._nodes), edges=list(self._edges))
        except ValidationError as error:
            raise GraphError(
                [
                    GraphProblem(f"{'.'.join(map(str, item['loc']))}: {item['msg']}", code="AF200")
                    for item in error.errors()
                ]
            ) from None
