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

import ast
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.signatures import Signatures
from aiflow_jupyter.graph.spec import MOST_NODES, EdgeSpec, GraphSpec, NodeSpec

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

MOST_TEXT = 200_000
"""Characters of one graph's text; a graph of a thousand nodes needs half of that."""

GRAMMAR = r"""
start: _line (_NL _line)*
_line: (node | flow)?
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

NAME: /[^\W\d]\w{0,99}/
STRING: /"(?:[^"\\\n]|\\.)*"/ | /'(?:[^'\\\n]|\\.)*'/
NUMBER: /[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.])/
_NL: /(\r?\n[ \t\f]*)+/
%ignore /[ \t\f]+/
%ignore /#[^\n]*/
%ignore /\\\r?\n/
"""

Place = tuple[int, int]


@dataclass(slots=True)
class Parsed:
    """A spec with the places it came from.

    Attributes:
        spec: the graph.
        text: its source.
        places: line and column (from 1) by path: `("nodes", id)`, `("nodes", id, "operator")`,
            `("nodes", id, "args", name)`, `("nodes", id, "policy", key)`, `("edges", index)`, `("edges", index, "to")`.
    """

    spec: GraphSpec
    text: str
    places: dict[tuple[str | int, ...], Place] = field(default_factory=dict)

    def caret(self, path: Iterable[str | int]) -> str:
        """The source line of a path with a caret below it; empty where the place is unknown."""
        steps = tuple(path)
        while steps and steps not in self.places:
            steps = steps[:-1]
        return caret(self.text, self.places[steps]) if steps else ""


def caret(text: str, place: Place) -> str:
    """The line of `text` at `place` with its number, and a caret below the column."""
    line, column = place
    lines = text.splitlines()
    source = lines[line - 1] if line <= len(lines) else ""
    start = max(0, column - 70)
    shown = source[start : start + 100]
    number = f"line {line}, column {column}: "
    return f"{number}{shown}\n{' ' * (len(number) + column - 1 - start)}^"


def nearest(word: str, words: Iterable[str]) -> str:
    """A hint that names the word that was probably meant, or lists what there is."""
    known = sorted(words)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(known[:20])}" if known else ""


def parse(text: str, name: str, signatures: Signatures) -> Parsed:
    """Read a graph from cell text.

    Args:
        text: the cell's body.
        name: the graph's name.
        signatures: the known operators; they say what positional arguments are called.

    Raises:
        GraphError: with every mistake found, each with line, column, source line, caret and a suggestion.
    """
    if len(text) > MOST_TEXT:
        raise GraphError([GraphProblem(f"the graph's text has {len(text):,} characters; at most {MOST_TEXT:,}",
                                       code="AF101")])  # fmt: skip
    reader = _Reader(text, signatures)
    reader.read(_tree(text))
    if not reader.nodes and not reader.problems:
        raise GraphError([GraphProblem("the graph is empty", code="AF102", hint="a node looks like: ask = generate()")])
    if len(reader.nodes) > MOST_NODES:
        reader.problem(f"the graph has {len(reader.nodes):,} nodes; at most {MOST_NODES:,}", "AF101", (1, 1))
    if reader.problems:
        raise GraphError(reader.problems, title=name)
    return Parsed(GraphSpec(name=name, nodes=reader.nodes, edges=reader.edges), text, reader.places)


@cache
def _parser() -> Lark:
    from lark import Lark  # noqa: PLC0415 - the parser is built when the first graph is read

    return Lark(GRAMMAR, parser="lalr", propagate_positions=True, maybe_placeholders=False)


def _tree(text: str) -> Tree[Token]:
    from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput  # noqa: PLC0415

    # A line that breaks inside brackets goes on: there the newline is white space, at the same place.
    try:
        return _parser().parse(_join_brackets(text))
    except UnexpectedInput as error:
        line, column = max(1, error.line), max(1, error.column)
        if isinstance(error, UnexpectedEOF) or getattr(getattr(error, "token", None), "type", "") == "$END":
            lines = text.rstrip().splitlines() or [""]
            line, column = len(lines), len(lines[-1]) + 1
            what = "the text ends too early"
        elif isinstance(error, UnexpectedCharacters):
            what = f"unexpected character {error.char!r}"
        else:
            token = getattr(error, "token", "")
            what = "the line ends too early" if not str(token).strip() else f"unexpected {str(token)[:40]!r}"
        expected = _expected(error)
        problem = GraphProblem(what, code="AF100", hint=caret(text, (line, column)) + (f"\n{expected}" if expected else ""))
        raise GraphError([problem]) from None
    except RecursionError:
        raise GraphError([GraphProblem("lists are nested too deeply", code="AF101")]) from None


def _expected(error: Any) -> str:
    words = {"NAME": "a name", "STRING": "a string", "NUMBER": "a number", "EQUAL": "=", "_NL": "a new line", "$END": "",
             "__ANON_0": "->", "LPAR": "(", "RPAR": ")", "LSQB": "[", "RSQB": "]", "COMMA": ",", "DOT": "."}  # fmt: skip
    allowed = getattr(error, "expected", None) or getattr(error, "allowed", None) or ()
    names = sorted({words.get(str(item), "") for item in allowed} - {""})
    return f"expected {', '.join(names)}" if names else ""


def _join_brackets(text: str) -> str:
    """Turn newlines inside brackets into spaces, one for one, so that places stay right up to the line number.

    Lark counts lines by newlines, so a joined line keeps its newline as a backslash continuation, which is ignored.
    """
    out: list[str] = []
    depth = 0
    quote = ""
    comment = False
    previous = ""
    for char in text:
        if comment:
            comment = char != "\n"
            if comment and depth:
                char = " "  # noqa: PLW2901 - a comment would swallow the continuation
        elif quote:
            if (char == quote and previous != "\\") or char == "\n":
                quote = ""
            previous = "" if previous == "\\" else char
        elif char in "\"'":
            quote, previous = char, ""
        elif char == "#":
            comment = True
            if depth:
                char = " "  # noqa: PLW2901
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth = max(0, depth - 1)
        out.append("\\\n" if char == "\n" and depth else char)
    return "".join(out)


class _Reader:
    """Turns the tree into nodes and edges, collecting problems instead of stopping at the first."""

    def __init__(self, text: str, signatures: Signatures) -> None:
        self.text = text
        self.signatures = signatures
        self.nodes: dict[str, NodeSpec] = {}
        self.edges: list[EdgeSpec] = []
        self.places: dict[tuple[str | int, ...], Place] = {}
        self.problems: list[GraphProblem] = []

    def problem(self, message: str, code: str, place: Place, hint: str = "") -> None:
        self.problems.append(GraphProblem(message, code=code, hint="\n".join(filter(None, (caret(self.text, place), hint)))))

    def read(self, tree: Tree[Token]) -> None:
        for statement in tree.children:
            inner: Any = statement
            if inner.data == "node":
                self.node(inner.children)
            else:
                self.flow(inner.children)

    def node(self, parts: list[Any]) -> None:
        name, operator, *rest = parts
        node = str(name)
        at = _place(name)
        if node in self.nodes:
            line, _ = self.places["nodes", node]
            self.problem(f"node {node!r} is defined twice (first on line {line})", "AF202", at, "give it another name")
            return
        self.places["nodes", node] = at
        self.places["nodes", node, "operator"] = _place(operator)
        args: dict[str, Any] = {}
        policy = Policy()
        for part in rest:
            if part.data == "arguments":
                args = self.arguments(node, str(operator), part.children)
            else:
                policy = self.policy(node, part.children)
        try:
            self.nodes[node] = NodeSpec(operator=str(operator), args=args, policy=policy)
        except ValidationError as error:
            self.problem(f"node {node!r}: {error.errors()[0]['msg'].lower()}", "AF100", at)

    def arguments(self, node: str, operator: str, parts: list[Any]) -> dict[str, Any]:
        signature = self.signatures.get(operator)
        order = [p.name for p in signature.parameters] if signature else []
        args: dict[str, Any] = {}
        for index, part in enumerate(parts):
            if part.data == "positional":
                value = part.children[0]
                if index >= len(order):
                    hint = f"it takes {', '.join(order)}" if order else "it takes no arguments"
                    self.problem(f"node {node!r}: too many arguments for {operator!r}", "AF204", _place(value), hint)
                    continue
                name, at = order[index], _place(value)
            else:
                key, value = part.children
                name, at = str(key), _place(key)
            if name in args:
                self.problem(f"node {node!r}: argument {name!r} is given twice", "AF204", at)
                continue
            args[name] = _value(value)
            self.places["nodes", node, "args", name] = at
        return args

    def policy(self, node: str, parts: list[Any]) -> Policy:
        settings: dict[str, Any] = {}
        for part in parts:
            key, value = part.children
            if str(key) in settings:
                self.problem(f"node {node!r}: policy {str(key)!r} is given twice", "AF401", _place(key))
            settings[str(key)] = _value(value)
            self.places["nodes", node, "policy", str(key)] = _place(key)
        try:
            return Policy(**settings)
        except ValidationError as error:
            for problem in policy_problems(error, settings):
                place = self.places["nodes", node, "policy", problem.key]
                self.problem(f"node {node!r}: {problem.message}", "AF401", place, problem.hint)
            return Policy()

    def flow(self, parts: list[Any]) -> None:
        for left, right in zip(parts, parts[1:], strict=False):
            for source in left.children:
                for target in right.children:
                    self.edge(source, target)
        for end in parts[-1].children:
            if len(end.children) > 1:
                self.problem(f"{str(end.children[0])!r} has a port but nothing follows it", "AF203", _place(end.children[1]),
                             "a port is where events leave a node: lane.answer -> next")  # fmt: skip

    def edge(self, source: Any, target: Any) -> None:
        index = len(self.edges)
        port = str(source.children[1]) if len(source.children) > 1 else None
        self.edges.append(EdgeSpec(source=str(source.children[0]), port=port, target=str(target.children[0])))
        self.places["edges", index] = self.places["edges", index, "from"] = _place(source.children[0])
        self.places["edges", index, "to"] = _place(target.children[0])
        if port is not None:
            self.places["edges", index, "port"] = _place(source.children[1])


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """One policy key that is unknown or has a value it can't have."""

    key: str
    message: str
    hint: str


def policy_problems(error: ValidationError, settings: Mapping[str, Any]) -> list[PolicyProblem]:
    """Put pydantic's findings about a policy into words."""
    found = []
    for item in error.errors():
        key = str(item["loc"][0])
        if item["type"] == "extra_forbidden":
            found.append(PolicyProblem(key, f"unknown policy {key!r}", nearest(key, Policy.model_fields)))
            continue
        context = item.get("ctx", {})
        if "expected" in context:
            allowed = f"one of {context['expected']}"
        elif "ge" in context:
            allowed = f"a whole number of at least {context['ge']}"
        elif "le" in context:
            allowed = f"a whole number of at most {context['le']}"
        else:
            allowed = item["msg"].lower().removeprefix("input should be ")
        found.append(PolicyProblem(key, f"{key}={settings.get(key)!r} is not {allowed}", f"{key} is {allowed}"))
    return found


def _place(item: Any) -> Place:
    if hasattr(item, "line"):
        return (item.line, item.column)
    return (item.meta.line, item.meta.column) if not item.meta.empty else (1, 1)


def _value(item: Any) -> Any:
    if not hasattr(item, "type"):
        return [_value(child) for child in item.children]
    text = str(item)
    if item.type == "STRING":
        return str(ast.literal_eval(text))
    if item.type == "NUMBER":
        return float(text) if any(c in text for c in ".eE") else int(text[:40])
    return {"true": True, "false": False, "True": True, "False": False}.get(text, text)
