"""The grammar of the cell language: its statements, and what is said of one that can't be parsed.

A statement ends with its line; inside brackets a line may break. A comment begins with `#` and goes to the end of its
line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from aiflow_jupyter.graph.forms.slips import CLOSING, NAME, PIECE, meant, unclosed
from aiflow_jupyter.graph.problems import Place, shown

if TYPE_CHECKING:
    from lark import Lark, Tree

GRAMMAR = (
    r"""
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

NAME: /"""
    + NAME
    + r"""/
STRING: /"(?:[^"\\\n]|\\.)*"/ | /'(?:[^'\\\n]|\\.)*'/
NUMBER: /[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.])/
%ignore /[ \t\f\r\n]+/
"""
)

_INJECT = re.compile(r"\s*inject\s+(?!\d)\w")


@cache
def _parser() -> Lark:
    from lark import Lark  # noqa: PLC0415 - the parser is built when the first graph is read

    return Lark(
        GRAMMAR, start=["statement", "inject"], parser="lalr", propagate_positions=True, maybe_placeholders=False
    )


class SyntaxProblem(Exception):
    """What is wrong with a statement, where within it (line and column from 1), and what was probably meant.

    Attributes:
        found: the statement's tree, where it is known in spite of that.
    """

    def __init__(self, message: str, place: Place, hint: str, found: Tree[Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.hint = hint
        self.found = found


def tree(statement: str) -> Tree[Any]:
    """The tree of one statement: a `node`, a `flow` or an `inject`.

    Raises:
        SyntaxProblem: it can't be parsed; with the tree if brackets are all that it lacks.
    """
    from lark.exceptions import UnexpectedInput  # noqa: PLC0415

    try:
        return _parsed(statement)
    except UnexpectedInput as error:
        wrong = error
    open_ = unclosed(statement)
    if open_:
        try:
            found = _parsed(statement + "".join(CLOSING[bracket] for bracket, _ in reversed(open_)))
        except UnexpectedInput as error:
            wrong = error
        else:
            bracket, start = open_[-1]
            lines = statement[:start].split("\n")
            hint = f"write {CLOSING[bracket]} where it ends"
            raise SyntaxProblem(f"{bracket!r} is not closed", (len(lines), len(lines[-1]) + 1), hint, found) from None
    what, (row, column) = _unexpected(wrong, statement)
    offset = sum(len(line) + 1 for line in statement.split("\n")[: row - 1]) + column - 1
    raise SyntaxProblem(what, (row, column), meant(statement, offset) or _expected(wrong, statement[:offset])) from None


def _parsed(statement: str) -> Tree[Any]:
    inject = _INJECT.match(statement) is not None
    found: Any = _parser().parse(statement, start="inject" if inject else "statement")
    return found if inject else found.children[0]


def _unexpected(error: Any, text: str) -> tuple[str, Place]:
    """What a parser error says, and where within its statement."""
    token = getattr(error, "token", None)
    if token is None and getattr(error, "char", None):
        return f"unexpected character {error.char!r}", (error.line, error.column)
    lines = text.rstrip().split("\n")
    end = (len(lines), len(lines[-1]) + 1)
    if token is None or token.type == "$END" or (token.line, token.column) >= end:
        return "the statement ends too early", end
    return f"unexpected {shown(str(token))}", (token.line, token.column)


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


def _expected(error: Any, before: str) -> str:
    allowed = getattr(error, "expected", None) or getattr(error, "allowed", None) or ()
    open_ = unclosed(before)
    closing = {CLOSING[open_[-1][0]]} if open_ else set()  # the parser's states are merged: it takes any for right
    names = sorted({_WORDS.get(str(item), "") for item in allowed} - {""} - (set(CLOSING.values()) - closing))
    return f"expected {', '.join(names)}" if names else ""


_BEGINS = re.compile(
    rf"""[ \t\f]*(?:{NAME}[ \t]*=[ \t]*{NAME}[ \t]*[(\[] | inject[ \t]+{NAME}[ \t]*: | [^"'\#()\[\]{{}}=\n]*->)""",
    re.VERBOSE,
)
"""A line that can only be a statement of its own: no call, arrow or type stands in brackets."""

_SPACE = re.compile(r"[ \t\f]*")
_ASSIGNS = re.compile(rf"([ \t\f]*){NAME}[ \t]*=")


def statements(text: str) -> Iterator[tuple[int, str]]:
    """The statements of a text, each with the number of its first line, comments left out.

    A statement ends with its line, except inside brackets; lines and columns stay as they are. Where a bracket is never
    closed, the statement ends before the first line that can't belong to it, so that what follows is read as well.
    """
    out: list[str] = []
    first = line = 1
    depth = 0
    indent = _indent(text, 0)
    last = ""
    for piece in PIECE.finditer(text):
        kind = piece.lastgroup
        if kind == "comment":
            continue
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth = max(0, depth - 1)
        elif kind == "newline":
            line += 1
            if not depth or _begins(text, piece.end(), indent, last):
                yield first, "".join(out)
                out.clear()
                first, depth, last = line, 0, ""
                indent = _indent(text, piece.end())
                continue
        last = piece[0].rstrip()[-1:] or last
        out.append(piece[0])
    yield first, "".join(out)


def _indent(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return len(found[0]) if found else 0


def _begins(text: str, start: int, indent: int, last: str) -> bool:
    """Whether a line in brackets begins a statement: it can be no argument, or no comma stands before it nor space."""
    if _BEGINS.match(text, start):
        return True
    found = _ASSIGNS.match(text, start)
    return found is not None and last not in (",", "(", "[", "{", "=") and len(found[1]) <= indent
