"""Slips: what somebody probably meant who wrote what can't be parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

NAME: Final = r"(?!\d)(?:[A-Za-z0-9_]|[^\x00-\x7f\s])+"
"""A name as it is lexed: wider than it may be (accents and signs of every script), and checked when it is read.

No character fits both halves: a search would try each of them both ways, which takes for ever where it fails."""

CLOSING: Final = {"(": ")", "[": "]", "{": "}"}

PIECE: Final = re.compile(
    r"""(?P<comment>\#[^\n]*) | "(?:[^"\\\n]|\\[^\n])*" | '(?:[^'\\\n]|\\[^\n])*'
    | (?P<open>[(\[{]) | (?P<close>[)\]}]) | (?P<newline>\n) | [^\#"'()\[\]{}\n]+ | ["'][^\n]*""",
    re.VERBOSE,
)
"""A comment, a whole string, a bracket, a newline, plain text, or all that follows a quote that is never closed."""

_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'")
_TEXT = re.compile(r"""([^"'(){}\[\]\n]*?[^"'(){}\[\]\s])[ \t]*(?=,[ \t]*\w+[ \t]*=|[()\[\]{}\n]|$)""")
"""What may be a text without its quotes: up to the next argument, or the bracket that closes them all."""

CURLED: Final = "\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb"
"""Quotes of print, which some editors write; those of the language are straight."""

_NEAR: Final = 100
"""Characters before a place that are searched for a name: a search of all takes as long as they are many, squared."""

_ALONE = re.compile(rf"(?:{NAME}|[-+]?[\d.]+)?")
_ARROWS = (">", "=>", "→", "⇒", "|")
OWN_LINE: Final = "give it a name on a line of its own, as in out = sink(...), and lead the edge there: ask -> out"


def unclosed(statement: str) -> list[tuple[str, int]]:
    """The brackets that a statement opens and never closes, outermost first, each with where it stands."""
    stack: list[tuple[str, int]] = []
    for piece in PIECE.finditer(statement):
        if piece.lastgroup == "open":
            stack.append((piece[0], piece.start()))
        elif piece.lastgroup == "close" and stack:
            stack.pop()
    return stack


def deeper(text: str, most: int) -> int | None:
    """Where brackets stand in more than so many others; None where none do."""
    depth = 0
    for piece in PIECE.finditer(text):
        depth += (piece.lastgroup == "open") - (piece.lastgroup == "close")
        if depth > most:
            return piece.start()
    return None


def meant(statement: str, offset: int) -> str:
    """A hint on what was meant where parsing stopped; empty where no slip that is often made fits."""
    open_ = unclosed(statement[:offset])
    found = _inside(statement, offset, open_[-1]) if open_ else _outside(statement, offset)
    return next(found, "")


def _outside(statement: str, offset: int) -> Iterator[str]:
    """Hints on what stands outside of brackets."""
    before, at = statement[:offset], statement[offset:]
    node = re.match(rf"\s*{NAME}\s*=(?![=>])", before)
    if at.startswith(_ARROWS) or (at.startswith("-") and at[1:2] in ("-", " ")):
        yield "an edge is written ->"
    if at.startswith("-") and before[-1:].isalnum() and at[:2] != "->":
        yield "a name is letters, digits and _, without a hyphen"
    if node:
        yield from _behind_a_node(before, at, node[0].strip(" ="))
    else:
        yield from _in_an_edge(before, at)
    if at[:1] in _MARKS:
        yield _MARKS[at[0]]
    yield from _quotes(at)


_MARKS = {
    ":": "a node is written out = sink(...)",
    ";": "a statement ends with its line, without a mark",
    **dict.fromkeys(CLOSING.values(), "expected the end of the line: no bracket is open that this one would close"),
}


def _behind_a_node(before: str, at: str, name: str) -> Iterator[str]:
    if at.startswith("->"):
        yield f"the node stands on a line of its own; then lead edges from its name: {name} -> ..."
    if "->" in before and at.startswith("("):
        yield OWN_LINE
    if re.match(rf",?\s*{NAME}\s*=", at) and not before.rstrip().endswith("="):
        yield "a policy stands in brackets behind its node: [queue=16]"


def _in_an_edge(before: str, at: str) -> Iterator[str]:
    if at.startswith("(") or (at.startswith("=") and "->" in before):
        yield OWN_LINE
    if re.fullmatch(rf"\s*{NAME}\s+", before) and re.match(rf"{NAME}\s*=", at):
        yield "a name is one word: a node is written ask = generate()"


def _inside(statement: str, offset: int, bracket: tuple[str, int]) -> Iterator[str]:
    """Hints on what stands in brackets."""
    before, at = statement[:offset], statement[offset:]
    inner, line = before[bracket[1] + 1 :], before.rpartition("\n")[2]
    last = before.rstrip()[-1:]
    follows = last.isalnum() or last in ("_", '"', "'", ")", "]", "}")
    if re.search(r"\blambda$", line.rstrip()) or at.startswith("lambda"):
        yield "name a function that is defined in an earlier cell"
    if at[:1] in CLOSING.values():
        yield f"{bracket[0]} is closed by {CLOSING[bracket[0]]}"
    if at.startswith("[") and bracket[0] == "(" and follows:
        yield "a ) is missing before it"
    if at.startswith("(") and re.search(rf"{NAME}\s*$", inner[-_NEAR:]) and "->" not in inner:
        yield "a function is named, not called: the graph calls it"
    if follows and re.match(rf"{NAME}\s*=(?!=)", at):
        yield "a comma is missing before it"
    yield from _quotes(at)
    start = max(inner.rfind(mark) for mark in ",=([{") + 1
    value = _TEXT.match(statement, bracket[1] + 1 + start)
    key = re.search(rf"({NAME})\s*=\s*$", inner[:start][-_NEAR:])
    if at.startswith(":") and (key is None or bracket[0] == "{"):
        yield "a value follows =, as in limit=4"
    if value and bracket[0] == "[" and (digits := re.match(r"[-+]?[\d_ ]{0,20}\.?\d{1,20}", value[1].strip())):
        yield f"a number is digits alone, without a unit: {re.sub('[_ ]', '', digits[0])}"
    if value and bracket[0] == "(" and value.end() > offset and not _ALONE.fullmatch(value[1].strip()):
        text = value[1].strip().strip(CURLED)
        said = text if len(text) <= 60 else f"{text[:57]}..."
        escaped = said.replace("\\", "\\\\")
        yield f'a text stands in quotes: {f"{key[1]}=" if key else ""}"{escaped}"'


def _quotes(at: str) -> Iterator[str]:
    if at[:1] in ("'", '"'):
        closed = _STRING.match(at)
        yield "a comma is missing before it" if closed else "no quote closes it on its line; a line end is written \\n"
