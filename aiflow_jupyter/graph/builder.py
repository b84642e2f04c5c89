"""Graphs in Python: nodes are added by name and joined with `>>`; the result is the same spec as from cell text.

flow = Flow("support")
ask = flow.add("ask", generate())
lane = flow.add("lane", route(by="phase"))
parts = flow.add("parts", segment(by="sentence"), queue=16)
speech = flow.add("speech", sink(function=speak), overflow={"token": "drop_oldest", "else": "block"})
ask >> lane
lane["answer"] >> parts >> speech
[lane["reasoning"], parts] >> log
check.feedback(ask, limit=4, hops=8)
ask.inject(str)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.problems import NO_NODE, counted, expected, nearest, parted, policy_problems, reason, shown
from aiflow_jupyter.graph.spec import EdgeSpec, Feedback, GraphSpec, NodeSpec


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator with its arguments, not yet a node; what `generate(...)`, `map(...)` and the others return.

    Attributes:
        operator: the operator's name.
        args: arguments as the spec holds them; a function, or another object, stands there by its name.
        functions: what the arguments name.
    """

    operator: str
    args: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Any] = field(default_factory=dict)


def call(operator: str, /, **arguments: Any) -> OperatorCall:
    """Build an `OperatorCall`; arguments that are None are left out, functions and other objects are named."""
    named: list[tuple[str, Any]] = []
    args = {name: _held(value, named) for name, value in arguments.items() if value is not None}
    functions: dict[str, Any] = {}
    _add(functions, named, operator)
    return OperatorCall(operator, args, functions)


def _held(value: Any, named: list[tuple[str, Any]]) -> Any:
    """A value as the spec holds it: functions and other objects by their names, which are put into `named`."""
    if isinstance(value, list | tuple):
        return [_held(item, named) for item in value]
    if isinstance(value, Mapping):
        return {key: _held(item, named) for key, item in value.items()}
    if callable(value) or type(value).__module__ != "builtins":
        name = _name(value)
        named.append((name, value))
        return name
    return value


def _name(value: Any) -> str:
    kind = type.__getattribute__(type(value), "__name__")
    try:
        name = value.name if isinstance(value, Flow) else getattr(value, "__name__", kind)
    except BaseException:  # noqa: BLE001 - a user's object may fail in any way when it is looked at
        name = kind
    return name if isinstance(name, str) and name.isidentifier() else f"function_{id(value):x}"


def _add(functions: dict[str, Any], named: Sequence[tuple[str, Any]], where: str) -> None:
    """Put objects under their names, each of which can stand for one only."""
    for name, value in named:
        if functions.setdefault(name, value) is not value:
            problem = GraphProblem(
                f"{where}: two different functions are called {name!r}", code="AF205", hint="give one another name"
            )
            raise GraphError([problem])


def _problem(message: str, code: str, path: tuple[str | int, ...] = (), hint: str = "") -> GraphProblem:
    problem = GraphProblem(message, code=code, hint=hint)
    problem.path = path
    return problem


@dataclass(frozen=True, slots=True)
class Port:
    """One output port of a node: `lane["answer"]`."""

    node: Node
    name: str | None

    def __rshift__(self, other: Node | Sequence[Node]) -> Any:
        return self.node.flow.join(self, other)

    def feedback(self, other: Node | Sequence[Node], *, limit: int = 4, hops: int = 8) -> Any:
        """Add an edge that closes a cycle; see `Node.feedback`."""
        return self.node.flow.join(self, other, {"limit": limit, "hops": hops})


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node of a `Flow`; `a >> b` adds an edge and gives `b`, so chains read as they flow."""

    flow: Flow
    name: str

    def __getitem__(self, port: str) -> Port:
        return Port(self, port)

    def __rshift__(self, other: Node | Sequence[Node]) -> Any:
        return self.flow.join(Port(self, None), other)

    def __rrshift__(self, others: Sequence[Node | Port]) -> Node:
        """`[a, b["answer"]] >> c`: several sources."""
        for other in others:
            self.flow.join(other if isinstance(other, Port) else Port(other, None), self)
        return self

    def feedback(self, other: Node | Sequence[Node], *, limit: int = 4, hops: int = 8) -> Any:
        """Add an edge that closes a cycle: what this node gives goes to `other` once more.

        Args:
            other: a node further up.
            limit: data events that may wait on the edge; one more fails the run.
            hops: how often one lineage may go round.

        Raises:
            GraphError: `limit` or `hops` is no whole number of at least 1.
        """
        return Port(self, None).feedback(other, limit=limit, hops=hops)

    def inject(self, kind: Any) -> Node:
        """Let `run.offer` send values to this node while the graph runs.

        Args:
            kind: their type: `str`, `int`, `float`, `bool`, `list`, `dict`, `Any`, or the name of a data kind.
        """
        self.flow.inject(self, kind)
        return self


class Flow:
    """A graph under construction.

    Args:
        name: an identifier.

    Attributes:
        name: as given.
        functions: the functions and other objects that the graph names.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.functions: dict[str, Any] = {}
        self._nodes: dict[str, NodeSpec] = {}
        self._edges: list[EdgeSpec] = []
        self._inject: dict[str, str] = {}

    def add(self, name: str, operator: OperatorCall | Callable[..., Any], **policy: Any) -> Node:
        """Add a node.

        Args:
            name: an identifier, unique in the graph.
            operator: an operator with its arguments, or a plain function (which stands for `map(function)`).
            **policy: keys of `Policy`, such as `queue=16, retry_on=[TimeoutError], key=by_user`.

        Raises:
            GraphError: the name is taken, or a policy key or value does not exist.
        """
        if name in self._nodes:
            raise GraphError(
                [_problem(f"node {name!r} is defined twice", "AF202", ("nodes", name), "give it another name")]
            )
        if not isinstance(operator, OperatorCall):
            function = operator
            operator = OperatorCall(_name(function), {}, {_name(function): function})
        named = list(operator.functions.items())
        settings = {key: _held(value, named) for key, value in policy.items()}
        try:
            checked = Policy(**settings)
        except ValidationError as error:
            raise GraphError(
                [
                    _problem(
                        f"node {name!r}: {problem.message}",
                        "AF401",
                        ("nodes", name, "policy", problem.key),
                        problem.hint,
                    )
                    for problem in policy_problems(error, settings)
                ]
            ) from None
        _add(self.functions, named, f"node {name!r}")
        try:
            self._nodes[name] = NodeSpec(operator=operator.operator, args=dict(operator.args), policy=checked)
        except ValidationError as error:
            message, hint = parted(reason(error))
            raise GraphError([_problem(f"node {name!r}: {message}", "AF204", ("nodes", name), hint)]) from None
        return Node(self, name)

    def __repr__(self) -> str:
        return f"<Flow {self.name}: {counted(len(self._nodes), 'node')}, {counted(len(self._edges), 'edge')}>"

    def __getitem__(self, name: str) -> Node:
        if name not in self._nodes:
            raise GraphError(
                [_problem(f"no node is called {name!r}", "AF206", (), nearest(name, self._nodes) or NO_NODE)]
            )
        return Node(self, name)

    def join(self, source: Port, other: Node | Sequence[Node], feedback: Mapping[str, Any] | None = None) -> Any:
        """Add the edges of `source >> other`, or with `feedback` those of `source.feedback(other)`."""
        closing = None if feedback is None else self._feedback(feedback)
        for node in [other] if isinstance(other, Node) else other:
            if node.flow is not self or source.node.flow is not self:
                message = f"{source.node.name!r} and {node.name!r} belong to different flows"
                raise GraphError([_problem(message, "AF206", (), "add both to one Flow")])
            try:
                edge = EdgeSpec(source=source.node.name, port=source.name, target=node.name, feedback=closing)
            except ValidationError as error:
                message, hint = parted(reason(error))
                raise GraphError([_problem(f"{source.node.name!r}: {message}", "AF203", (), hint)]) from None
            self._edges.append(edge)
        return other

    def _feedback(self, settings: Mapping[str, Any]) -> Feedback:
        try:
            return Feedback(**settings)
        except ValidationError as error:
            raise GraphError(
                [
                    _problem(f"{key}={shown(settings[key])} is not {expected(item)}", "AF105")
                    for item in error.errors(include_url=False)
                    for key in [str(item["loc"][0])]
                ]
            ) from None

    def inject(self, node: Node, kind: Any) -> None:
        """Let `run.offer` send values of a type to a node; see `Node.inject`."""
        if kind is Any:
            kind = "any"
        self._inject[node.name] = kind if isinstance(kind, str) else _name(kind)

    @property
    def spec(self) -> GraphSpec:
        """The graph as data."""
        try:
            return GraphSpec(name=self.name, nodes=self._nodes, edges=self._edges, inject=self._inject)
        except ValidationError as error:
            raise GraphError(
                [
                    _problem(f"{'.'.join(map(str, item['loc']))}: {item['msg']}", "AF200")
                    for item in error.errors(include_url=False)
                ]
            ) from None
