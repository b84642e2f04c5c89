"""Checks before a run: everything that can be known to be wrong from the spec, with a code, a place and a hint.

`check` finds all problems of a graph in one go; `require` raises them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.language import Parsed
from aiflow_jupyter.graph.problems import MOST_PROBLEMS, nearest, shown
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter, Signatures
from aiflow_jupyter.graph.spec import GraphSpec, NodeSpec

Functions = Mapping[str, Callable[..., Any]]


def check(
    spec: GraphSpec, signatures: Signatures, functions: Collection[str], parsed: Parsed | None = None
) -> list[GraphProblem]:
    """Find every problem of a graph.

    Args:
        spec: the graph.
        signatures: the known operators.
        functions: the names of the user's functions.
        parsed: where the spec came from, for line, column and caret, and with the problems that were found there.

    Returns:
        the problems, empty when the graph may run.
    """
    return _Checker(spec, signatures, functions, parsed).run()


def require(spec: GraphSpec, signatures: Signatures, functions: Collection[str], parsed: Parsed | None = None) -> None:
    """Raise `GraphError` with every problem of a graph, if it has any."""
    problems = check(spec, signatures, functions, parsed)
    if problems:
        raise GraphError(problems, title=spec.name)


class _Checker:
    def __init__(
        self, spec: GraphSpec, signatures: Signatures, functions: Collection[str], parsed: Parsed | None
    ) -> None:
        self.spec = spec
        self.signatures = signatures
        self.functions = functions
        self.parsed = parsed
        self.problems: list[GraphProblem] = list(parsed.problems) if parsed else []

    def run(self) -> list[GraphProblem]:
        """Find them all, up to as many as anybody reads."""
        if not self.spec.nodes:
            self.problem("the graph is empty", "AF102", ("nodes",), "a node looks like: ask = generate()")
        for node, spec in self.spec.nodes.items():
            self.node(node, spec)
        self.edges()
        if not self.problems:
            self.cycle()
            self.reach()
        return self.problems[:MOST_PROBLEMS]

    def problem(self, message: str, code: str, path: tuple[str | int, ...], hint: str = "") -> None:
        place = self.parsed.caret(path) if self.parsed else "at /" + "/".join(map(str, path))
        self.problems.append(GraphProblem(message, code=code, hint="\n".join(filter(None, (place, hint)))))

    def nearest(self, word: Any, words: Iterable[str]) -> str:
        """A hint, while there are few enough problems that each is read."""
        return nearest(str(word), words) if len(self.problems) < MOST_PROBLEMS else ""

    def node(self, node: str, spec: NodeSpec) -> None:
        """Check one node's operator and arguments."""
        signature = self.signatures.get(spec.operator)
        if signature is None:
            if spec.operator in self.functions:
                if spec.args:
                    self.problem(
                        f"node {node!r}: the function {spec.operator!r} takes no arguments here",
                        "AF204",
                        ("nodes", node, "args"),
                    )
                return
            hint = self.nearest(spec.operator, [*self.signatures, *self.functions])
            self.problem(
                f"node {node!r}: no operator or function is called {spec.operator!r}",
                "AF201",
                ("nodes", node, "operator"),
                hint,
            )
            return
        for name, value in spec.args.items():
            path = ("nodes", node, "args", name)
            parameter = signature.parameter(name)
            if parameter is None:
                known = [p.name for p in signature.parameters]
                self.problem(
                    f"node {node!r}: {spec.operator!r} has no argument {name!r}",
                    "AF204",
                    path,
                    self.nearest(name, known),
                )
            else:
                self.argument(node, spec.operator, parameter, value, path)
        for parameter in signature.parameters:
            if parameter.required and parameter.name not in spec.args:
                self.problem(
                    f"node {node!r}: {spec.operator!r} needs {parameter.name!r}",
                    "AF204",
                    ("nodes", node, "operator"),
                    f"{spec.operator}({parameter.name}=...)",
                )
        given = [name for name in signature.alternatives if name in spec.args]
        if signature.alternatives and len(given) != 1:
            self.problem(
                f"node {node!r}: {spec.operator!r} needs one of {', '.join(signature.alternatives)}"
                + (f", not {' and '.join(given)}" if given else ""),
                "AF204",
                ("nodes", node, "args", given[1]) if given else ("nodes", node, "operator"),
            )
        self.workers(node, spec, signature)

    def workers(self, node: str, spec: NodeSpec, signature: OperatorSignature) -> None:
        """A node that works one event at a time has one worker."""
        workers = spec.policy.workers
        if workers > 1 and signature.single(spec.args):
            how = f"{spec.operator} with inline=true" if spec.args.get("inline") else spec.operator
            self.problem(
                f"node {node!r}: {how} works one event at a time: workers={workers} has no effect",
                "AF402",
                ("nodes", node, "policy", "workers"),
                "leave out inline=true" if spec.args.get("inline") else "leave out workers",
            )

    def argument(self, node: str, operator: str, parameter: Parameter, value: Any, path: tuple[str | int, ...]) -> None:
        where = f"node {node!r}: {operator}({parameter.name}=...)"
        kind = parameter.type
        if kind in ("choice", "choice_or_function"):
            known = parameter.choices if kind == "choice" else (*parameter.choices, *self.functions)
            if value not in known:
                what = " or ".join(map(repr, parameter.choices))
                also = "" if kind == "choice" else " or the name of a function"
                self.problem(f"{where} is {shown(value)}, not {what}{also}", "AF204", path, self.nearest(value, known))
        elif kind == "function":
            if not isinstance(value, str) or value not in self.functions:
                self.problem(
                    f"{where}: no function is called {shown(value)}",
                    "AF205",
                    path,
                    self.nearest(value, self.functions) if self.functions else "define it in a cell before",
                )
        elif not _fits(kind, value):
            self.problem(f"{where} is {shown(value)}, not {_WORDS[kind]}", "AF204", path)
        elif parameter.least is not None and value < parameter.least:
            self.problem(f"{where} is {shown(value)}; at least {parameter.least:g}", "AF204", path)

    def edges(self) -> None:
        seen = set()
        for index, edge in enumerate(self.spec.edges):
            path = ("edges", index)
            missing = [
                (name, end) for name, end in ((edge.source, "from"), (edge.target, "to")) if name not in self.spec.nodes
            ]
            for name, end in missing:
                self.problem(f"no node is called {name!r}", "AF206", (*path, end), self.nearest(name, self.spec.nodes))
            if missing:
                continue
            key = (edge.source, edge.port, edge.target)
            if key in seen:
                self.problem(f"the edge {edge.source} -> {edge.target} is there twice", "AF207", path)
            seen.add(key)
            source, target = self.signature(edge.source), self.signature(edge.target)
            if source is not None:
                self.port(edge.source, source, edge.port, path)
            if source is not None and target is not None:
                self.kinds(index, source, target)

    def signature(self, node: str) -> OperatorSignature | None:
        return self.signatures.get(self.spec.nodes[node].operator)

    def port(self, node: str, signature: OperatorSignature, port: str | None, path: tuple[str | int, ...]) -> None:
        if port == "error":
            return
        if signature.sink:
            self.problem(f"nothing comes out of {node!r}: {signature.name!r} is a sink", "AF203", path)
            return
        if signature.ports is None:
            if port is not None:
                self.problem(
                    f"node {node!r} has no port {port!r}: {signature.name!r} has one plain output",
                    "AF203",
                    (*path, "port"),
                    f"write {node} -> ..., or {node}.error for its failures",
                )
            return
        names = signature.ports(self.spec.nodes[node].args)
        if port is None:
            hint = f"write {node}.{names[0] if names else 'else'} -> ..."
            self.problem(f"node {node!r} routes: name the port that this edge leaves by", "AF203", path, hint)
        elif names is not None and port not in names:
            self.problem(f"node {node!r} has no port {port!r}", "AF203", (*path, "port"), self.nearest(port, names))

    def kinds(self, index: int, gives: OperatorSignature, takes: OperatorSignature) -> None:
        edge = self.spec.edges[index]
        failures = edge.port == "error"
        given = frozenset({"value"}) if failures else gives.gives
        if given is None or takes.takes is None or given & takes.takes:
            return
        wanted = " or ".join(sorted(takes.takes))
        self.problem(
            f"{edge.target!r} can't take what {edge.source!r} gives: {takes.name} takes {wanted}, "
            f"{'the port error' if failures else gives.name} gives {' or '.join(sorted(given))}",
            "AF301",
            ("edges", index),
        )

    def cycle(self) -> None:
        after: dict[str, list[tuple[str, int]]] = {node: [] for node in self.spec.nodes}
        for index, edge in enumerate(self.spec.edges):
            after[edge.source].append((edge.target, index))
        state: dict[str, int] = {}
        for root in self.spec.nodes:
            stack = [(root, iter(after[root]))] if root not in state else []
            state.setdefault(root, 1)
            while stack:
                node, rest = stack[-1]
                step = next(rest, None)
                if step is None:
                    state[node] = 2
                    stack.pop()
                elif state.get(step[0]) == 1:
                    names = [n for n, _ in stack]
                    loop = " -> ".join([*names[names.index(step[0]) :], step[0]])
                    self.problem(
                        f"the graph has a cycle: {loop}",
                        "AF210",
                        ("edges", step[1]),
                        "this version runs graphs without cycles",
                    )
                    return
                elif step[0] not in state:
                    state[step[0]] = 1
                    stack.append((step[0], iter(after[step[0]])))

    def reach(self) -> None:
        sending = {edge.source for edge in self.spec.edges}
        receiving = {edge.target for edge in self.spec.edges}
        for node in self.spec.nodes:
            signature = self.signature(node)
            if node not in sending and not (signature and signature.sink):
                self.problem(
                    f"nothing takes what node {node!r} gives",
                    "AF208",
                    ("nodes", node),
                    f'end it with a sink: {node} -> out, out = sink(var="result")',
                )
            if signature and signature.sink and node not in receiving and len(self.spec.nodes) > 1:
                self.problem(f"node {node!r} is a sink that nothing leads to", "AF209", ("nodes", node))


_WORDS = {"text": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


def _fits(kind: str, value: Any) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "text":
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) if kind == "integer" else isinstance(value, (int, float))
