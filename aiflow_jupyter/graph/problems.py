"""Problems in words: where a mistake stands, what was probably meant, and what a value may be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from aiflow_jupyter.graph.policy import Policy

MOST_PROBLEMS = 50
"""Nobody reads more of them in one go, and a hostile text has a hundred thousand."""

Place = tuple[int, int]


def caret(text: str, place: Place) -> str:
    """The line of `text` at `place` with its number, and a caret below the column."""
    line, column = place
    lines = text.split("\n")  # not at the other separators of Unicode, which don't end a statement
    source = "".join(c if c.isprintable() else " " for c in lines[line - 1]) if line <= len(lines) else ""
    start = max(0, column - 70)
    shown = source[start : start + 100]
    number = f"line {line}, column {column}: "
    return f"{number}{shown}\n{' ' * (len(number) + column - 1 - start)}^"


def nearest(word: str, words: Iterable[str]) -> str:
    """A hint that names the word that was probably meant, or lists what there is."""
    known = sorted(words)
    alike = [other for other in known if abs(len(other) - len(word)) <= 4]
    close = difflib.get_close_matches(word, alike[:200], n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(known[:20])}" if known else ""


def shown(value: Any) -> str:
    """A value as it is written, cut where it is too long to be read."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-1]}"


def reason(error: ValidationError) -> str:
    """What pydantic found first, as the end of a sentence."""
    return str(error.errors()[0]["msg"]).removeprefix("Value error, ")


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
            allowed = "a whole number" if item["type"].startswith("int") else reason(error).lower()
            allowed = allowed.removeprefix("input should be ")
        found.append(PolicyProblem(key, f"{key}={shown(settings.get(key))} is not {allowed}", f"{key} is {allowed}"))
    return found
