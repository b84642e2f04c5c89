"""JSON as strict as a document from anywhere has to be read: text in, values out.

Python's own reader takes `NaN`, lets the last of two keys win, turns `1e999` into infinity, spends seconds on a million
digits and recurses into brackets. Here a key that was given twice is remembered, a number that can't be is a `Fault` in
its place, so that all of them can be told with their pointers, and brackets are counted before any is read.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.problems import Place, caret
from aiflow_jupyter.graph.spec import MOST_INTEGER

MOST_JSON: Final = 2_000_000
"""Characters of one document: a graph of as many nodes and edges as there may be, and a policy at each."""

MOST_DEPTH: Final = 16
"""Brackets in brackets; a graph has six."""


def load(text: str) -> Any:
    """The document as Python's dicts, lists and values, with a `Fault` in place of what JSON or a graph can't hold.

    Raises:
        GraphError: it is too long or too deep, or it is no JSON.
    """
    if len(text) > MOST_JSON:
        problem = GraphProblem(
            f"the document has {len(text):,} characters; at most {MOST_JSON:,}",
            code="AF101",
            hint="make several graphs of it",
        )
        raise GraphError([problem])
    deep = _too_deep(text)
    if deep is not None:
        hint = "a graph is an object of nodes, each an object with operator, args and policy"
        raise GraphError([_at(text, deep, f"brackets stand in more than {MOST_DEPTH} others", "AF101", hint)])
    try:
        return json.loads(
            text, object_pairs_hook=Object, parse_int=_integer, parse_float=_float, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        what = error.msg[:1].lower() + error.msg[1:]
        hint = "see https://json.org for how JSON is written" if text.strip() else "a graph begins with {"
        raise GraphError([_at(text, error.pos, f"not JSON: {what}", "AF100", _slip(text, error.pos) or hint)]) from None


def _at(text: str, position: int, message: str, code: str, hint: str) -> GraphProblem:
    before = text[:position]
    place: Place = (before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1)
    problem = GraphProblem(message, code=code, hint=f"{caret(text, place)}\n{hint}")
    problem.place = place
    return problem


_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)|[\[{]|[\]}]', re.DOTALL)


def _too_deep(text: str) -> int | None:
    """Where brackets stand in too many others, so that the parser, which would recurse into them, is not begun."""
    depth = 0
    for piece in _BRACKET.finditer(text):
        if piece[0] in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                return piece.start()
        elif piece[0] in "]}":
            depth -= 1
    return None


def _slip(text: str, position: int) -> str:
    """What was probably meant, for the slips that are made most; empty where none fits."""
    before, at = text[:position].rstrip(), text[position : position + 5]
    if at.startswith("'"):
        return "JSON has its texts in double quotes"
    if before.endswith(",") and at[:1] in ("}", "]"):
        return "no comma stands before a closing bracket"
    if at.startswith(("#", "/")):
        return "JSON has no comments"
    if at.startswith(("True", "False", "None")):
        return "JSON writes true, false, null"
    if at[:1] and ord(at[0]) < 0x20:
        return "a line end, a tab or another control character in a text is written as an escape, as in \\n"
    return ""


@dataclass(frozen=True, slots=True)
class Fault:
    """What stands in place of a value that can't be."""

    message: str
    hint: str


class Object(dict[str, Any]):
    """A JSON object that remembers the keys that it was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs) if len(self) < len(pairs) else {}
        self.twice = [key for key, count in counts.items() if count > 1]


def _integer(digits: str) -> int | Fault:
    if len(digits) <= len(str(-MOST_INTEGER)) and abs(value := int(digits)) <= MOST_INTEGER:
        return value
    return Fault(f"the number {_cut(digits)} is too large", f"at most {MOST_INTEGER}, or a text")


def _float(digits: str) -> float | Fault:
    value = float(digits)
    if math.isfinite(value):
        return value
    return Fault(f"the number {_cut(digits)} is too large", "a double holds at most 1.8e308")


def _constant(word: str) -> Fault:
    return Fault(f"{word} is no JSON", "write a number, or leave it out")


def _cut(digits: str) -> str:
    """Digits, cut where nobody reads them."""
    return digits if len(digits) <= 40 else f"{digits[:20]}... ({len(digits):,} characters)"
