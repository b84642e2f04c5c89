"""The grammar of the cell language: its statements, and what is said of one that can't be parsed.

A statement ends with its line; inside brackets a line may break. A comment begins with `#` and goes to the end of its
line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from aiflow_jupyter.graph.problems import Place, shown

if TYPE_CHECKING:
    from lark import Lark, Tree

GRAMMAR = r"""
statement: node | flow
node: NAME "=" NAME arguments? settings?
arguments: "(" (argument ("," argument)* ","?)? ")"
argument: NAME "=" value -> named
        | value          -> positional
settings: "[" (setting ("," setting)* ","?)? "]"
setting: NAME ("=" value)?
flow: ends ("->" ends)+ settings?
ends: end ("," end)*
end: NAME ("." NAME)?
inject: NAME injection ("," injection)*
injection: NAME ":" NAME
?value: STRING | NUMBER | NAME | list | mapping
list: "(" _items ")" | "[" _items "]"
mapping: "(" _pairs ")" | "{" _pairs? "}"
_items: (value ("," value)* ","?)?
_pairs: pair ("," pair)* ","?
pair: NAME "=" value

NAME: /(?!\d)(?:\w|[^\x00-\x7f\s])+/
STRING: /"(?:[^"\\\n]|\\.)*"/ | /'(?:[^'\\\n]|\\.)*'/
NUMBER: /[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.])/
%ignore /[ \t\f\r\n]+/
"""
"""A name is lexed wider than it may be (accents and signs of every script), and checked when it is read."""

_INJECT = re.compile(r"\s*inject\s+(?!\d)\w")


@cache
def _parser() -> Lark:
    from lark import Lark  # noqa: PLC0415 - the parser is built when the first graph is read

    return Lark(
        GRAMMAR, start=["statement", "inject"], parser="lalr", propagate_positions=True, maybe_placeholders=False
    )


class SyntaxProblem(Exception):
    """What is wrong with a statement, where within it (line and column from 1), and what was probably meant."""

    def __init__(self, message: str, place: Place, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.hint = hint


def tree(statement: str) -> Tree[Any]:
    """The tree of one statement: a `node`, a `flow` or an `inject`.

    Raises:
        SyntaxProblem: it can't be parsed.
    """
    from lark.exceptions import UnexpectedInput  # noqa: PLC0415

    inject = _INJECT.match(statement) is not None
    try:
        found: Any = _parser().parse(statement, start="inject" if inject else "statement")
    except UnexpectedInput as error:
        what, (row, column) = _unexpected(error, statement)
        hint = _slip(statement.split("\n")[row - 1], column) or _expected(error)
        raise SyntaxProblem(what, (row, column), hint) from None
    return found if inject else found.children[0]


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
    if at.startswith((">", "=>", "→", "⇒")) or (at.startswith("-") and at[1:2] in ("-", " ")):
        return "an edge is written ->"
    if at.startswith("-") and before[-1:].isalnum():
        return "a name is letters, digits and _, without a hyphen"
    if re.search(r"\blambda$", before.rstrip()) or at.startswith("lambda"):
        return "name a function that is defined in an earlier cell"
    if at.startswith(":"):
        return "a value follows =, as in limit=4"
    return ""


_WORDS = {
    "NAME": "a name",
    "STRING": "a string",
    "NUMBER": "a number",
    "EQUAL": "=",
    "COLON": ": and a type",
    "$END": "the end of the line",
    "__ANON_0": "->",
    "LPAR": "(",
    "RPAR": ")",
    "LSQB": "[",
    "RSQB": "]",
    "LBRACE": "{",
    "RBRACE": "}",
    "COMMA": "a comma",
    "DOT": ".",
}


def _expected(error: Any) -> str:
    allowed = getattr(error, "expected", None) or getattr(error, "allowed", None) or ()
    names = sorted({_WORDS.get(str(item), "") for item in allowed} - {""})
    return f"expected {', '.join(names)}" if names else ""


_PIECE = re.compile(
    r"""(?P<comment>\#[^\n]*) | "(?:[^"\\\n]|\\[^\n])*" | '(?:[^'\\\n]|\\[^\n])*'
    | (?P<open>[(\[{]) | (?P<close>[)\]}]) | (?P<newline>\n) | [^\#"'()\[\]{}\n]+ | ["'][^\n]*""",
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
