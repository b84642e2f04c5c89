"""The Python form, read: what `graph.forms.python` prints is a graph again, by its syntax tree; no line of it is run.

Read are the statements that are printed: `flow = Flow(...)`, `ask = flow.add("ask", generate(...), queue=16)`,
`ask >> lane["answer"] >> out`, `check.feedback(ask, limit=4)` and `ask.inject(str)`, with literals and names in them.
Imports, functions and classes are passed over, as names are all that a graph has of them. Anything else might change
the graph when it is run, so that it is a mistake, with its place.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Iterable
from itertools import islice, pairwise
from typing import Any, Final

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.forms.document import graph_problems
from aiflow_jupyter.graph.forms.language import excess
from aiflow_jupyter.graph.forms.printing import names_something
from aiflow_jupyter.graph.forms.slips import deeper
from aiflow_jupyter.graph.parsed import Parsed, Step
from aiflow_jupyter.graph.problems import BYTE_ORDER_MARK, MOST_PROBLEMS, Place, caret, nearest, shown
from aiflow_jupyter.graph.signatures import Parameter, Signatures
from aiflow_jupyter.graph.spec import MOST_EDGES, MOST_INTEGER, GraphSpec

MOST_DEPTH: Final = 16
"""Brackets in brackets: Python's own parser recurses into them."""

MOST_COUNTED: Final = 10_000
"""Characters of a line that is gone through for each place in it."""

RUN: Final = "run it, and check what print(json.dumps(flow.spec.to_json())) prints"

_CALLED = ("key", "compensate", "retry_on")
_PASSED = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Path = tuple[Step, ...]


def read_python(text: str, name: str | None, signatures: Signatures) -> Parsed:
    """Read a graph from the Python that builds it, of which nothing is run.

    Args:
        text: the source.
        name: the graph's name; None for that of its `Flow`.
        signatures: the known operators.

    Raises:
        GraphError: it is no Python, or more than the statements that build a graph; with every mistake found.
    """
    text = text.removeprefix(BYTE_ORDER_MARK)
    reader = _Reader(text, signatures)
    reader.module(_tree(text))
    if not reader.flow:
        reader.problem("no Flow is made in it", "AF107", (1, 1), 'a graph begins with flow = Flow("name")')
        raise GraphError(reader.problems)
    title = reader.name if name is None else name
    data = {"name": title, "nodes": reader.nodes, "edges": reader.edges, "inject": reader.inject}
    partial = bool(reader.problems)
    readable = all(problem.code != "AF101" for problem in reader.problems)
    for problem in islice(graph_problems(data), MOST_PROBLEMS):
        place = reader.places.get(problem.path[:4]) or reader.places.get(problem.path[:2]) or (1, 1)
        reader.problem(problem.message, problem.code, place, problem.hint.partition("\n")[2])
        if problem.code == "AF401":
            reader.nodes[str(problem.path[1])]["policy"] = {}
        elif problem.code != "AF102" or not partial:
            readable = False
    if not readable:
        raise GraphError(reader.problems, title=title)
    spec = GraphSpec.model_validate(data)
    return Parsed(spec, text, reader.places, reader.problems, partial=partial, lost=frozenset(reader.lost))


def _tree(text: str) -> ast.Module:
    if said := excess(text):
        raise GraphError([GraphProblem(said, code="AF101", hint="make several graphs of it")])
    if deeper(text, MOST_DEPTH) is not None:
        message = f"brackets stand in more than {MOST_DEPTH} others"
        raise GraphError([GraphProblem(message, code="AF101", hint=RUN)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        problem = GraphProblem(f"not Python: {error.msg}", code="AF100")
        problem.place = max(error.lineno or 1, 1), max(error.offset or 1, 1)
        problem.hint = caret(text, problem.place)
        raise GraphError([problem]) from None
    except (MemoryError, RecursionError, ValueError) as error:
        said = str(error) or "it is too deep"
        raise GraphError([GraphProblem(f"not read as Python: {said[:200]}", code="AF100", hint=RUN)]) from None


class _Wrong(Exception):
    """A part that is none of those that are read."""

    def __init__(self, node: ast.AST, message: str, hint: str = RUN, code: str = "AF107") -> None:
        super().__init__(message)
        self.node, self.message, self.hint, self.code = node, message, hint, code


class _Reader:
    """Turns the tree into the graph's JSON form, collecting problems instead of stopping at the first."""

    def __init__(self, text: str, signatures: Signatures) -> None:
        self.text = text
        self.rows = text.split("\n")
        self.signatures = signatures
        self.flow = ""
        self.name = "graph"
        self.nodes: dict[str, Any] = {}
        self.edges: list[dict[str, Any]] = []
        self.inject: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        self.lost: set[str] = set()
        self.places: dict[Path, Place] = {}
        self.problems: list[GraphProblem] = []

    def problem(self, message: str, code: str, place: Place, hint: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            found = GraphProblem(message, code=code, hint="\n".join(filter(None, (caret(self.text, place), hint))))
            found.place = place
            self.problems.append(found)

    def place(self, node: Any) -> Place:
        """Line and column from 1; Python counts bytes."""
        line = self.rows[node.lineno - 1] if node.lineno <= len(self.rows) else ""
        if line.isascii() or len(line) > MOST_COUNTED:
            return node.lineno, node.col_offset + 1
        return node.lineno, len(line.encode(errors="replace")[: node.col_offset].decode(errors="replace")) + 1

    def module(self, tree: ast.Module) -> None:
        for statement in tree.body:
            try:
                self.statement(statement)
            except _Wrong as wrong:
                self.problem(wrong.message, wrong.code, self.place(wrong.node), wrong.hint)

    def statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, _PASSED):
            return
        variable = ""
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            variable = target.id if isinstance(target, ast.Name) else ""
        elif not isinstance(statement, ast.Expr):
            raise _Wrong(statement, "this statement is not read, as it would have to be run")
        value: ast.expr = statement.value
        if isinstance(value, ast.Call):
            self.call(value, variable)
        elif isinstance(value, ast.BinOp) and not variable:
            self.chain(value)
        elif not (isinstance(value, ast.Constant) and isinstance(statement, ast.Expr)):
            raise _Wrong(statement, "this statement is not read, as it would have to be run")

    def call(self, call: ast.Call, variable: str) -> None:
        function = call.func
        if isinstance(function, ast.Name) and function.id == "Flow" and variable and not self.flow:
            self.flow, self.name = variable, self.text_of(call.args[0] if call.args else call)
        elif isinstance(function, ast.Attribute) and function.attr == "add" and self.is_flow(function.value):
            self.node(call, variable)
        elif isinstance(function, ast.Attribute) and function.attr == "feedback" and not variable and call.args:
            back = {each.arg or "": self.value(each.value) for each in call.keywords}
            for target in self.ends(call.args[0]):
                self.edge(*self.end(function.value), target[0], call, back)
        elif isinstance(function, ast.Attribute) and function.attr == "inject" and not variable and call.args:
            kind = call.args[0]
            node, _ = self.end(function.value)
            name = kind.id if isinstance(kind, ast.Name) else self.text_of(kind)
            self.inject[node] = "any" if name == "Any" else name
            self.places["inject", node] = self.place(call)
        else:
            raise _Wrong(call, "this call is not read, as it would have to be run")

    def is_flow(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Name) and bool(self.flow) and value.id == self.flow

    # -- nodes

    def node(self, call: ast.Call, variable: str) -> None:
        if len(call.args) != 2:
            raise _Wrong(call, "a node has a name and an operator", 'ask = flow.add("ask", generate())')
        name = self.text_of(call.args[0])
        if name in self.nodes:
            raise _Wrong(call.args[0], f"node {shown(name)} is defined twice", "give it another name", "AF202")
        if variable:
            self.variables[variable] = name
        self.lost.add(name)
        self.places["nodes", name] = self.place(call.args[0])
        node: dict[str, Any] = {"operator": "", "args": {}, "policy": {}}
        operator = call.args[1]
        self.places["nodes", name, "operator"] = self.place(operator)
        if isinstance(operator, ast.Name):
            node["operator"] = operator.id
        elif isinstance(operator, ast.Call) and isinstance(operator.func, ast.Name):
            node["operator"], node["args"] = self.operator(operator, name)
        else:
            raise _Wrong(operator, f"node {shown(name)}: this is no operator", "generate(), or the name of a function")
        for key, value in self.keywords(call):
            self.places["nodes", name, "policy", key] = self.place(value)
            node["policy"][key] = self.value(value, named=key in _CALLED)
        self.nodes[name] = node
        self.lost.discard(name)

    def operator(self, call: ast.Call, node: str) -> tuple[str, dict[str, Any]]:
        assert isinstance(call.func, ast.Name)
        operator, positional = call.func.id, call.args
        if operator == "call" and positional:
            operator, positional = self.text_of(positional[0]), positional[1:]
        signature = self.signatures.get(operator)
        known = list(signature.parameters) if signature else []
        if len(positional) > len(known):
            raise _Wrong(
                positional[len(known)], f"node {shown(node)}: too many arguments for {shown(operator)}", "", "AF204"
            )
        given = [(parameter.name, value) for parameter, value in zip(known, positional, strict=False)]
        args: dict[str, Any] = {}
        for key, value in [*given, *self.keywords(call)]:
            self.places["nodes", node, "args", key] = self.place(value)
            found = self.argument(next((each for each in known if each.name == key), None), value)
            if found is not None:
                args[key] = found
        return operator, args

    def argument(self, parameter: Parameter | None, value: ast.expr) -> Any:
        """An argument's value; a name stands there for a function, where the argument names one."""
        return self.value(value, named=parameter is None or names_something(parameter, " "))

    def keywords(self, call: ast.Call) -> Iterable[tuple[str, ast.expr]]:
        """A call's arguments by name, also those of a `**{...}` with texts for keys."""
        for each in call.keywords:
            if each.arg is not None:
                yield each.arg, each.value
            elif isinstance(each.value, ast.Dict):
                for key, value in zip(each.value.keys, each.value.values, strict=True):
                    yield self.text_of(key or each.value), value
            else:
                raise _Wrong(each.value, "what stands behind ** is not read, as it would have to be run")

    # -- edges

    def chain(self, chain: ast.expr) -> None:
        parts = []
        while isinstance(chain, ast.BinOp):
            if not isinstance(chain.op, ast.RShift):
                raise _Wrong(chain, "an edge is written >>", "ask >> out")
            parts.append(chain.right)
            chain = chain.left
        parts.append(chain)
        groups = [self.ends(part) for part in reversed(parts)]
        for (sources, targets), at in zip(pairwise(groups), reversed(parts), strict=False):
            for source in sources:
                for target, _ in targets:
                    self.edge(*source, target, at)

    def ends(self, part: ast.expr) -> list[tuple[str, str | None]]:
        return [self.end(each) for each in (part.elts if isinstance(part, ast.List | ast.Tuple) else [part])]

    def end(self, part: ast.expr) -> tuple[str, str | None]:
        """A node, and the port of it if one is named."""
        port = None
        if isinstance(part, ast.Subscript) and not self.is_flow(part.value):
            port, part = self.text_of(part.slice), part.value
        if isinstance(part, ast.Subscript):
            return self.text_of(part.slice), port
        if not isinstance(part, ast.Name):
            raise _Wrong(part, "this is no node", 'a node is a variable: ask = flow.add("ask", generate())')
        if part.id not in self.variables:
            hint = nearest(part.id, self.variables) or 'ask = flow.add("ask", generate())'
            raise _Wrong(part, f"no node is called {shown(part.id)}", hint, "AF206")
        return self.variables[part.id], port

    def edge(self, source: str, port: str | None, target: str, at: ast.expr, back: Any = None) -> None:
        if len(self.edges) >= MOST_EDGES:
            raise _Wrong(at, f"the graph has more than {MOST_EDGES:,} edges", "make several graphs of it", "AF101")
        self.places["edges", len(self.edges)] = self.place(at)
        edge = {"from": source, "to": target} | ({"port": port} if port else {})
        self.edges.append(edge if back is None else edge | {"feedback": back})

    # -- values

    def text_of(self, value: ast.expr) -> str:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
        raise _Wrong(value, "only a text in quotes can stand here")

    def value(self, value: ast.expr, *, named: bool = False) -> Any:
        """What a literal stands for; with `named`, a name is what it names."""
        if isinstance(value, ast.List | ast.Tuple):
            return [self.value(each, named=named) for each in value.elts]
        if isinstance(value, ast.Dict):
            return {
                self.text_of(key or value): self.value(each) for key, each in zip(value.keys, value.values, strict=True)
            }
        if (
            isinstance(value, ast.UnaryOp)
            and isinstance(value.op, ast.USub)
            and isinstance(value.operand, ast.Constant)
        ):
            found = value.operand.value
            if isinstance(found, int | float):
                return -self.number(value.operand, found)
        if isinstance(value, ast.Constant) and isinstance(value.value, str | bool | None):
            return value.value
        if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
            return self.number(value, value.value)
        if isinstance(value, ast.Name) and named:
            return value.id
        raise _Wrong(value, "this value is not known, as nothing is run", "write a text, a number, or a list of these")

    def number(self, value: ast.expr, found: float) -> float:
        """A number, if a graph can hold it."""
        if abs(found) > MOST_INTEGER if isinstance(found, int) else not math.isfinite(found):
            raise _Wrong(value, "the number is too large", "write a smaller one, or a text in quotes", "AF103")
        return found
