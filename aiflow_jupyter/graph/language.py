"""The cell language: text in, spec out, every mistake with its line, column and caret.

    ask   = generate(tier="auto")
    lane  = route(by="phase")
    parts = segment(by="sentence")     [queue=16]
    speak = sink(function=say)         [workers=2, overflow=drop_oldest]   # a comment

    ask -> lane
    lane.answer -> parts -> speak
    lane.reasoning, parts -> log        # several sources or targets share an arrow

A statement ends with its line; inside brackets a line may break. Values are strings, numbers, `true`, `false`, lists
of these, or a bare word (the name of a function, or one of a fixed set of choices).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.names import checked_name
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.problems import MOST_PROBLEMS, Place, caret, policy_problems, reason, shown
from aiflow_jupyter.graph.signatures import Signatures
from aiflow_jupyter.graph.spec import MOST_EDGES, MOST_NODES, EdgeSpec, GraphSpec, NodeSpec

if TYPE_CHECKING:
    from lark import Lark

MOST_TEXT = 100_000
"""Characters of one graph's text: some sixty for each of a thousand nodes, and no more than is read in a second."""

GRAMMAR = r"""
start: node | flow
node: NAME "=" NAME arguments? policy?
arguments: "(" (argument ("," argument)* ","?)? ")"
argument: NAME "=" value -> named
        | value          -> positional
policy: "[" (setting ("," setting)* ","?)? "]"
setting: NAME "=" value
flow: ends ("->" ends)+
ends: end ("," end)*
end: NAME ("." NAME)?
?value: STRING | NUMBER | NAME | list
list: "(" _items ")" | "[" _items "]"
_items: (value ("," value)* ","?)?

NAME: /[^\W\d]\w*/
STRING: /"(?:[^"\\\n]|\\.)*"/ | /'(?:[^'\\\n]|\\.)*'/
NUMBER: /[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.])/
%ignore /[ \t\f\r\n]+/
"""


@dataclass(slots=True)
class Parsed:
    """A spec with the places it came from.

    Attributes:
        spec: the graph.
        text: its source.
        places: line and column (from 1) by path: `("nodes", id)`, `("nodes", id, "operator")`,
            `("nodes", id, "args", name)`, `("nodes", id, "policy", key)`, `("edges", index)`, `("edges", index, "to")`.
        problems: mistakes that leave the graph's shape known; a graph with any may not run.
    """

    spec: GraphSpec
    text: str
    places: dict[tuple[str | int, ...], Place] = field(default_factory=dict)
    problems: list[GraphProblem] = field(default_factory=list)

    def caret(self, path: Iterable[str | int]) -> str:
        """The source line of a path with a caret below it; empty where the place is unknown."""
        steps = tuple(path)
        while steps and steps not in self.places:
            steps = steps[:-1]
        return caret(self.text, self.places[steps]) if steps else ""


def parse(text: str, name: str, signatures: Signatures) -> Parsed:
    """Read a graph from cell text; see `read` for its arguments.

    Raises:
        GraphError: with every mistake found, each with line, column, source line, caret and a suggestion.
    """
    parsed = read(text, name, signatures)
    if parsed.problems:
        raise GraphError(parsed.problems, title=name)
    return parsed


def read(text: str, name: str, signatures: Signatures) -> Parsed:
    """Read a graph from cell text, as far as it can be understood.

    Args:
        text: the cell's body.
        name: the graph's name.
        signatures: the known operators; they say what positional arguments are called.

    Returns:
        the graph with the mistakes that leave its nodes and edges known (a policy, an argument), so that `checks` can
        tell of all there are in one go.

    Raises:
        GraphError: the text can't be understood; with every mistake found.
    """
    if len(text) > MOST_TEXT:
        raise GraphError(
            [GraphProblem(f"the graph's text has {len(text):,} characters; at most {MOST_TEXT:,}", code="AF101")]
        )
    reader = _Reader(text, signatures)
    for line, statement in statements(text):
        if len(reader.problems) >= MOST_PROBLEMS or len(reader.nodes) > MOST_NODES:
            break
        reader.statement(line, statement)
    if not reader.nodes and not reader.problems:
        raise GraphError([GraphProblem("the graph is empty", code="AF102", hint="a node looks like: ask = generate()")])
    if len(reader.nodes) > MOST_NODES:
        reader.problem(
            f"the graph has more than {MOST_NODES:,} nodes",
            "AF101",
            reader.places["nodes", next(reversed(reader.nodes))],
        )
    if any(problem.code.startswith("AF1") for problem in reader.problems):
        raise GraphError(reader.problems, title=name)
    try:
        spec = GraphSpec(name=name, nodes=reader.nodes, edges=reader.edges)
    except ValidationError as error:
        raise GraphError(
            [*reader.problems, GraphProblem(f"graph {shown(name)}: {reason(error)}", code="AF103")], title=name
        ) from None
    return Parsed(spec, text, reader.places, reader.problems)


@cache
def _parser() -> Lark:
    from lark import Lark  # noqa: PLC0415 - the parser is built when the first graph is read

    return Lark(GRAMMAR, parser="lalr", propagate_positions=True, maybe_placeholders=False)


def _unexpected(error: Any, text: str) -> tuple[str, Place]:
    """What a parser error says, and where within its statement."""
    token = getattr(error, "token", None)
    if token is None and getattr(error, "char", None):
        return f"unexpected character {error.char!r}", (error.line, error.column)
    if token is None or token.type == "$END":
        lines = text.rstrip().split("\n")
        return "the statement ends too early", (len(lines), len(lines[-1]) + 1)
    return f"unexpected {shown(str(token))}", (token.line, token.column)


def _slip(line: str, column: int) -> str:
    """What was probably meant, for the slips that are made most; empty where none fits."""
    before, at = line[: column - 1], line[column - 1 :]
    if at.startswith((">", "=>")) or (at.startswith("-") and at[1:2] in ("-", " ")):
        return "an edge is written ->"
    if at.startswith("-") and before[-1:].isalnum():
        return "a name is letters, digits and _, without a hyphen"
    if re.search(r"\blambda$", before.rstrip()) or at.startswith("lambda"):
        return "name a function that is defined in an earlier cell"
    return ""


def _expected(error: Any) -> str:
    words = {
        "NAME": "a name",
        "STRING": "a string",
        "NUMBER": "a number",
        "EQUAL": "=",
        "$END": "the end of the line",
        "__ANON_0": "->",
        "LPAR": "(",
        "RPAR": ")",
        "LSQB": "[",
        "RSQB": "]",
        "COMMA": "a comma",
        "DOT": ".",
    }
    allowed = getattr(error, "expected", None) or getattr(error, "allowed", None) or ()
    names = sorted({words.get(str(item), "") for item in allowed} - {""})
    return f"expected {', '.join(names)}" if names else ""


_PIECE = re.compile(
    r"""(?P<comment>\#[^\n]*) | "(?:[^"\\\n]|\\[^\n])*" | '(?:[^'\\\n]|\\[^\n])*'
    | (?P<open>[(\[]) | (?P<close>[)\]]) | (?P<newline>\n) | [^\#"'()\[\]\n]+ | ["'][^\n]*""",
    re.VERBOSE,
)
"""A comment, a whole string, a bracket, a newline, plain text, or all that follows a quote that is never closed."""


def statements(text: str) -> Iterator[tuple[int, str]]:
    """The statements of a text, each with the number of its first line, comments left out.

    A statement ends with its line, except inside brackets; lines and columns stay as they are.
    """
    out: list[str] = []
    first = line = 1
    depth = 0
    for piece in _PIECE.finditer(text):
        kind = piece.lastgroup
        if kind == "comment":
            continue
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth = max(0, depth - 1)
        elif kind == "newline":
            line += 1
            if not depth:
                yield first, "".join(out)
                out.clear()
                first = line
                continue
        out.append(piece[0])
    yield first, "".join(out)


class _Reader:
    """Turns the tree into nodes and edges, collecting problems instead of stopping at the first."""

    def __init__(self, text: str, signatures: Signatures) -> None:
        self.text = text
        self.signatures = signatures
        self.nodes: dict[str, NodeSpec] = {}
        self.edges: list[EdgeSpec] = []
        self.places: dict[tuple[str | int, ...], Place] = {}
        self.problems: list[GraphProblem] = []
        self.before = 0

    def problem(self, message: str, code: str, place: Place, hint: str = "") -> None:
        if len(self.problems) >= MOST_PROBLEMS:
            return
        self.problems.append(
            GraphProblem(message, code=code, hint="\n".join(filter(None, (caret(self.text, place), hint))))
        )

    def statement(self, line: int, text: str) -> None:
        """Read one statement that starts on `line`."""
        from lark.exceptions import UnexpectedInput  # noqa: PLC0415

        self.before = line - 1
        if not text.strip(" \t\f\r\n"):
            return
        try:
            tree = _parser().parse(text)
        except UnexpectedInput as error:
            what, (row, column) = _unexpected(error, text)
            hint = _slip(text.split("\n")[row - 1], column) or _expected(error)
            self.problem(what, "AF100", (row + self.before, column), hint)
            return
        inner: Any = tree.children[0]
        if inner.data == "node":
            self.node(inner.children)
        else:
            self.flow(inner.children)

    def place(self, item: Any) -> Place:
        """Where a token or a list stands."""
        at = item if hasattr(item, "line") else item.meta
        return (at.line + self.before, at.column)

    def name(self, token: Any) -> str:
        """A token as a name; one that can't be is a problem."""
        try:
            return checked_name(str(token))
        except ValueError as error:
            self.problem(str(error), "AF103", self.place(token))
            return f"unnamed_{len(self.problems)}"

    def node(self, parts: list[Any]) -> None:
        name, operator, *rest = parts
        node = self.name(name)
        at = self.place(name)
        if node in self.nodes:
            line, _ = self.places["nodes", node]
            self.problem(f"node {node!r} is defined twice (first on line {line})", "AF202", at, "give it another name")
            return
        self.places["nodes", node] = at
        self.places["nodes", node, "operator"] = self.place(operator)
        function = self.name(operator)
        args: dict[str, Any] = {}
        policy = Policy()
        for part in rest:
            if part.data == "arguments":
                args = self.arguments(node, function, part.children)
            else:
                policy = self.policy(node, part.children)
        try:
            self.nodes[node] = NodeSpec(operator=function, args=args, policy=policy)
        except ValidationError as error:
            self.problem(f"node {node!r}: {reason(error)}", "AF103", at)

    def arguments(self, node: str, operator: str, parts: list[Any]) -> dict[str, Any]:
        signature = self.signatures.get(operator)
        order = [p.name for p in signature.parameters] if signature else []
        args: dict[str, Any] = {}
        for index, part in enumerate(parts):
            if part.data == "positional":
                value = part.children[0]
                if signature is None:  # the checks say that it is unknown, or a function that takes none
                    order.append(f"argument_{index + 1}")
                if index >= len(order):
                    hint = f"it takes {', '.join(order)}" if order else "it takes no arguments"
                    self.problem(
                        f"node {node!r}: too many arguments for {operator!r}", "AF204", self.place(value), hint
                    )
                    continue
                name, at = order[index], self.place(value)
            else:
                key, value = part.children
                name, at = self.name(key), self.place(key)
            if name in args:
                self.problem(f"node {node!r}: argument {name!r} is given twice", "AF204", at)
                continue
            args[name] = self.value(value)
            self.places["nodes", node, "args", name] = at
        return args

    def policy(self, node: str, parts: list[Any]) -> Policy:
        settings: dict[str, Any] = {}
        for part in parts:
            key, value = part.children
            if str(key) in settings:
                self.problem(f"node {node!r}: policy {str(key)!r} is given twice", "AF401", self.place(key))
            settings[str(key)] = self.value(value)
            self.places["nodes", node, "policy", str(key)] = self.place(key)
        try:
            return Policy(**settings)
        except ValidationError as error:
            for problem in policy_problems(error, settings):
                place = self.places["nodes", node, "policy", problem.key]
                self.problem(f"node {node!r}: {problem.message}", "AF401", place, problem.hint)
            return Policy()

    def flow(self, parts: list[Any]) -> None:
        for left, right in pairwise(parts):
            for source in left.children:
                for target in right.children:
                    if len(self.edges) >= MOST_EDGES:
                        self.problem(
                            f"the graph has more than {MOST_EDGES:,} edges", "AF101", self.place(source.children[0])
                        )
                        return
                    self.edge(source, target)
        for end in parts[-1].children:
            if len(end.children) > 1:
                self.problem(
                    f"{str(end.children[0])!r} has a port but nothing follows it",
                    "AF203",
                    self.place(end.children[1]),
                    "a port is where events leave a node: lane.answer -> next",
                )

    def edge(self, source: Any, target: Any) -> None:
        index = len(self.edges)
        port = self.name(source.children[1]) if len(source.children) > 1 else None
        start, end = self.name(source.children[0]), self.name(target.children[0])
        self.edges.append(EdgeSpec(source=start, port=port, target=end))
        self.places["edges", index] = self.places["edges", index, "from"] = self.place(source.children[0])
        self.places["edges", index, "to"] = self.place(target.children[0])
        if port is not None:
            self.places["edges", index, "port"] = self.place(source.children[1])

    def value(self, item: Any) -> Any:
        """What a value stands for; one that stands for nothing is a problem."""
        if not hasattr(item, "type"):
            return self.list(item)
        text = str(item)
        if item.type == "STRING":
            try:
                return _ESCAPE.sub(_unescaped, text[1:-1])
            except ValueError as error:
                self.problem(str(error), "AF103", self.place(item), r"write \\ for a backslash")
        elif item.type == "NUMBER":
            whole = not any(c in text for c in ".eE")
            if len(text) <= MOST_DIGITS and math.isfinite(float(text)):
                return int(text) if whole else float(text)
            self.problem(f"the number {shown(text)} is too large", "AF103", self.place(item))
        else:
            return _WORDS.get(text, text)
        return None

    def list(self, item: Any) -> list[Any]:
        found = []
        for child in item.children:
            if hasattr(child, "type"):
                found.append(self.value(child))
            else:
                self.problem("a list can't stand in a list", "AF103", self.place(child))
        return found


MOST_DIGITS = 40

_WORDS = {"true": True, "false": False, "True": True, "False": False}

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)

_DIGITS = {"x": 2, "u": 4, "U": 8}

_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}


def _unescaped(match: re.Match[str]) -> str:
    """The character that an escape in a string stands for; an unknown one stays as it is, as in Python."""
    code = match[1]
    if len(code) == 1:
        if code in _DIGITS:
            raise ValueError(f"the escape \\{code} needs {_DIGITS[code]} hexadecimal digits")
        return _ESCAPED.get(code, match[0])
    point = int(code[1:], 16)
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise ValueError(f"{match[0]} is no character")
    return chr(point)
