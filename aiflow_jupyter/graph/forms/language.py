"""The cell language: text in, spec out, every mistake with its line, column and caret.

    ask   = generate(tier="auto")
    lane  = route(by="phase")
    kind  = classify(patterns=(greeting="^hi", bye="bye$"))
    parts = segment(by="sentence")     [queue=16]
    speak = sink(function=say)         [workers=2, overflow=(token=drop_oldest, else=block)]   # a comment

    ask -> lane
    lane.answer -> parts -> speak
    lane.reasoning, parts -> log        # several sources or targets share an arrow
    check -> ask [feedback, limit=4, hops=8]
    inject ask: str

A statement ends with its line; inside brackets a line may break. Values are strings, numbers, `true`, `false`, `null`,
bare words (the name of a function, or one of a set of choices), lists `(a, b)` and mappings `(a=1, b=2)` of these.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.forms import literals
from aiflow_jupyter.graph.forms.grammar import SyntaxProblem, statements, tree
from aiflow_jupyter.graph.forms.slips import CURLED, NAME
from aiflow_jupyter.graph.names import MOST_NAME, checked_name
from aiflow_jupyter.graph.parsed import Parsed, Step
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.problems import (
    BYTE_ORDER_MARK,
    MOST_PROBLEMS,
    NO_NODE,
    Place,
    caret,
    expected,
    nearest,
    parted,
    policy_problems,
    reason,
    shown,
)
from aiflow_jupyter.graph.signatures import Signatures
from aiflow_jupyter.graph.spec import MOST_EDGES, MOST_NODES, EdgeSpec, Feedback, GraphSpec, NodeSpec

__all__ = ["MOST_TEXT", "Parsed", "parse", "read"]

MOST_TEXT = 100_000
"""Characters of one graph's text: some hundred for each of a thousand nodes."""

MOST_MARKS = 20_000
"""What the text has of the marks between its parts: they, not its length, are what reading takes time for."""

_HEAD = re.compile(r"""(?:[^(\[{"'>-]|-(?!>))*""")
"""A statement up to its first bracket, text or arrow: where a node that can't be read has its name."""


MARKS = ",=()[]{}.:->"
"""An arrow is two of them, and takes as long."""


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
        the graph as far as it is known, with the mistakes of its text, so that `checks` can tell of all in one go.

    Raises:
        GraphError: the text is empty or too long, or the graph can't be called so; with every mistake found.
    """
    if said := excess(text):
        raise GraphError([GraphProblem(said, code="AF101", hint="make several graphs of it")], title=name)
    text = text.removeprefix(BYTE_ORDER_MARK)
    reader = _Reader(text, signatures)
    for line, statement in statements(text):
        if len(reader.problems) >= MOST_PROBLEMS or len(reader.nodes) > MOST_NODES:
            break
        reader.statement(line, statement)
    reader.problems.sort(key=lambda problem: problem.place or (0, 0))
    if not (reader.nodes or reader.edges or reader.inject or reader.problems):
        raise GraphError([GraphProblem("the graph is empty", code="AF102", hint=NO_NODE)])
    if len(reader.nodes) > MOST_NODES:
        reader.problem(
            f"the graph has more than {MOST_NODES:,} nodes",
            "AF101",
            reader.places["nodes", next(reversed(reader.nodes))],
        )
    if any(problem.code == "AF101" for problem in reader.problems):
        raise GraphError(reader.problems, title=name)
    try:
        spec = GraphSpec(name=name, nodes=reader.nodes, edges=reader.edges, inject=reader.inject)
    except ValidationError as error:
        message, hint = parted(reason(error))
        problem = GraphProblem(f"graph {shown(name)}: {message}", code="AF103", hint=hint)
        raise GraphError([*reader.problems, problem], title=name) from None
    partial = any(problem.code.startswith("AF1") for problem in reader.problems)
    return Parsed(spec, text, reader.places, reader.problems, partial=partial, lost=frozenset(reader.lost))


def excess(text: str) -> str:
    """How a graph's text is more than is read; empty where it is not."""
    for many, what, most in (
        (len(text), "characters", MOST_TEXT),
        (sum(map(text.count, MARKS)), "marks (of arrows, commas, brackets and the like)", MOST_MARKS),
    ):
        if many > most:
            return f"the graph's text has {many:,} {what}; at most {most:,}"
    return ""


class _Reader:
    """Turns the tree into nodes and edges, collecting problems instead of stopping at the first."""

    def __init__(self, text: str, signatures: Signatures) -> None:
        self.text = text
        self.signatures = signatures
        self.nodes: dict[str, NodeSpec] = {}
        self.edges: list[EdgeSpec] = []
        self.inject: dict[str, str] = {}
        self.places: dict[tuple[Step, ...], Place] = {}
        self.problems: list[GraphProblem] = []
        self.lost: set[str] = set()
        self.before = 0

    def problem(self, message: str, code: str, place: Place, hint: str = "") -> None:
        if len(self.problems) >= MOST_PROBLEMS:
            return
        problem = GraphProblem(message, code=code, hint="\n".join(filter(None, (caret(self.text, place), hint))))
        problem.place = place
        self.problems.append(problem)

    def statement(self, line: int, text: str) -> None:
        """Read one statement that starts on `line`."""
        self.before = line - 1
        if not text.strip(" \t\f\r\n"):
            return
        try:
            found = tree(text)
        except SyntaxProblem as problem:
            row, column = problem.place
            self.problem(problem.message, "AF100", (row + self.before, column), problem.hint)
            if problem.found is None:
                head = _HEAD.match(text)
                if head and ("=" in head[0] or ":" in head[0]):
                    self.lost.update(unicodedata.normalize("NFKC", each) for each in re.findall(NAME, head[0]))
                return
            found = problem.found
        if found.data == "node":
            self.node(found.children)
        elif found.data == "flow":
            self.flow(found.children)
        else:
            for injection in found.children[1:]:
                self.injection(*injection.children)

    def place(self, item: Any) -> Place:
        """Where a token or a list stands."""
        at = item if hasattr(item, "line") else item.meta
        return (at.line + self.before, at.column)

    def name(self, token: Any) -> str:
        """A token as a name, in the form in which Python reads it; one that can't be is a problem."""
        word = str(token)
        try:
            return checked_name(unicodedata.normalize("NFKC", word) if word.isidentifier() else word)
        except ValueError as error:
            message, hint = parted(str(error))
            if any(mark in word for mark in CURLED):
                hint = f'write straight quotes: "{word.strip(CURLED)[:MOST_NAME]}"'
            self.problem(message, "AF103", self.place(token), hint)
            unnamed = f"unnamed_{len(self.problems)}"
            self.lost.add(unnamed)
            return unnamed

    # -- nodes

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
        before = len(self.problems)
        for part in rest:
            if part.data == "arguments":
                args = self.arguments(node, function, part.children)
            else:
                policy = self.policy(node, part.children)
        if any(problem.code.startswith("AF1") for problem in self.problems[before:]):
            self.lost.add(node)
        try:
            self.nodes[node] = NodeSpec(operator=function, args=args, policy=policy)
        except ValidationError as error:
            message, hint = parted(reason(error))
            self.problem(f"node {node!r}: {message}", "AF103", at, hint)

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
                self.problem(f"node {node!r}: argument {name!r} is given twice", "AF204", at, "leave one of them out")
                continue
            args[name] = self.value(value)
            self.places["nodes", node, "args", name] = at
        return args

    def policy(self, node: str, parts: list[Any]) -> Policy:
        settings: dict[str, Any] = {}
        for part in parts:
            token, *value = part.children
            key, at = str(token), self.place(token)
            if key in settings:
                self.problem(f"node {node!r}: policy {key!r} is given twice", "AF401", at, "leave one of them out")
            if not value:
                self.problem(
                    f"node {node!r}: policy {shown(key)} has no value",
                    "AF401",
                    at,
                    f"{key[:MOST_NAME]}=..., in brackets",
                )
                continue
            settings[key] = self.value(value[0])
            self.places["nodes", node, "policy", key] = at
        try:
            return Policy(**settings)
        except ValidationError as error:
            for problem in policy_problems(error, settings):
                place = self.places["nodes", node, "policy", problem.key]
                self.problem(f"node {node!r}: {problem.message}", "AF401", place, problem.hint)
            return Policy()

    # -- edges

    def flow(self, parts: list[Any]) -> None:
        *ends, last = parts
        feedback = None
        if last.data == "settings":
            feedback = self.feedback(last)
            if len(ends) > 2:
                hint = "give that edge a line of its own: a -> b [feedback]"
                self.problem("which edge of the chain do the brackets belong to?", "AF105", self.place(last), hint)
        else:
            ends.append(last)
        for left, right in pairwise(ends):
            for source in left.children:
                for target in right.children:
                    if len(self.edges) >= MOST_EDGES:
                        self.problem(
                            f"the graph has more than {MOST_EDGES:,} edges", "AF101", self.place(source.children[0])
                        )
                        return
                    self.edge(source, target, feedback)
                    if feedback:
                        self.places["edges", len(self.edges) - 1, "feedback"] = self.place(last)
        for end in ends[-1].children:
            if len(end.children) > 1:
                self.problem(
                    f"{str(end.children[0])!r} has a port but nothing follows it",
                    "AF203",
                    self.place(end.children[1]),
                    "a port is where events leave a node: lane.answer -> next",
                )

    def edge(self, source: Any, target: Any, feedback: Feedback | None) -> None:
        index = len(self.edges)
        port = self.name(source.children[1]) if len(source.children) > 1 else None
        start, end = self.name(source.children[0]), self.name(target.children[0])
        self.edges.append(EdgeSpec(source=start, port=port, target=end, feedback=feedback))
        self.places["edges", index] = self.places["edges", index, "from"] = self.place(source.children[0])
        self.places["edges", index, "to"] = self.place(target.children[0])
        if port is not None:
            self.places["edges", index, "port"] = self.place(source.children[1])

    def feedback(self, brackets: Any) -> Feedback | None:
        """What the brackets behind an edge say: `[feedback, limit=4, hops=8]`."""
        settings: dict[str, Any] = {}
        places: dict[str, Place] = {}
        for part in brackets.children:
            token, *value = part.children
            key, at = str(token), self.place(token)
            message, hint = _misused(key, places, valued=bool(value))
            if message:
                self.problem(message, "AF105", at, hint)
            elif value:
                settings[key] = self.value(value[0])
            places[key] = at
        if "feedback" not in places:
            if settings or not brackets.children:
                message = "the brackets behind an edge don't say feedback"
                self.problem(message, "AF105", self.place(brackets), "[feedback, limit=4, hops=8]")
            return None
        try:
            return Feedback(**settings)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                key = str(item["loc"][0])
                allowed = expected(item)
                message = f"{key}={shown(settings[key])} is not {allowed}"
                self.problem(message, "AF105", places[key], f"{key} is {allowed}")
            return Feedback()

    def injection(self, node: Any, kind: Any) -> None:
        name, at = self.name(node), self.place(node)
        if name in self.inject:
            self.problem(f"{name!r} is declared twice as taking values", "AF104", at, "leave one of them out")
            return
        self.inject[name] = self.name(kind)
        self.places["inject", name] = at

    # -- values

    def value(self, item: Any) -> Any:
        """What a value stands for; one that stands for nothing is a problem."""
        if hasattr(item, "type"):
            return self.scalar(item)
        if item.data == "list":
            return [self.inner(child, "list") for child in item.children]
        found: dict[str, Any] = {}
        for pair in item.children:
            name = self.name(pair.children[0])
            if name in found:
                place = self.place(pair.children[0])
                self.problem(f"{name!r} is given twice", "AF104", place, "leave one of them out")
            found[name] = self.inner(pair.children[1], "mapping")
        return found

    def inner(self, item: Any, outer: str) -> Any:
        if hasattr(item, "type"):
            return self.scalar(item)
        hint = "names, texts and numbers can"
        self.problem(f"a {item.data} can't stand in a {outer}", "AF103", self.place(item), hint)
        return None

    def scalar(self, token: Any) -> Any:
        text = str(token)
        try:
            if token.type == "STRING":
                return literals.text(text)
            if token.type == "NUMBER":
                return literals.number(text)
        except ValueError as error:
            hint = r"write \\ for a backslash" if token.type == "STRING" else "write a smaller one, or a text in quotes"
            self.problem(str(error), "AF103", self.place(token), hint)
            return None
        return literals.WORDS[text] if text in literals.WORDS else self.name(token)


def _misused(key: str, given: Container[str], *, valued: bool) -> tuple[str, str]:
    """What is wrong with one attribute of an edge, and what to do about it; empty where nothing is."""
    known = ("feedback", *Feedback.model_fields)
    if key in Policy.model_fields:
        return f"an edge has no attribute {key!r}", f"a policy stands behind its node: b = ... [{key}=...]"
    if key not in known:
        return f"an edge has no attribute {shown(key)}", nearest(key, known)
    if key in given:
        return f"{key!r} is given twice", "leave one of them out"
    if valued == (key == "feedback"):
        return f"{key!r} {'takes' if valued else 'has'} no value", "[feedback, limit=4, hops=8]"
    return "", ""
