"""Problems in words: where a mistake stands, what was probably meant, and what a value may be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from aiflow_jupyter.graph.names import MOST_NAME
from aiflow_jupyter.graph.policy import Policy

MOST_PROBLEMS = 50
"""Nobody reads more of them in one go, and a hostile text has a hundred thousand."""

BYTE_ORDER_MARK = "\ufeff"
"""What some editors write before a text; it is no part of it."""

MOST_COMPARED = 500
"""Names that a slip is compared with: those of nearest its length."""

NO_NODE = "a node looks like: ask = generate()"

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
    known = sorted(set(words))
    if close := alike(word, known):
        return f"did you mean {close!r}?"
    more = ", ..." if len(known) > 20 else ""
    return f"known: {', '.join(each[:MOST_NAME] for each in known[:20])}{more}" if known else ""


def alike(word: str, words: Iterable[str]) -> str:
    """The word that is most like another one; empty where none is alike enough for a slip."""
    near = sorted((other for other in words if abs(len(other) - len(word)) <= 4), key=lambda w: abs(len(w) - len(word)))
    found = difflib.get_close_matches(word[:100], near[:MOST_COMPARED], n=1)
    if not found:
        lower = {other.lower(): other for other in near}
        found = [lower[word.lower()]] if word.lower() in lower else []
    return found[0] if found else ""


def counted(number: int, thing: str) -> str:
    """A number of things in words: `1 event`, `1,000 events`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def indefinite(word: str) -> str:
    """A word with its article: `an int`, `a list`."""
    return f"{'an' if word[:1].lower() in 'aeiou' and word[:1] else 'a'} {word}"


def shown(value: Any) -> str:
    """A value as it is written, cut where it is too long to be read."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-1]}"


def reason(error: ValidationError) -> str:
    """What pydantic found first, as the end of a sentence."""
    return _said(error.errors(include_url=False)[0])


def _said(item: Mapping[str, Any]) -> str:
    return str(item["msg"]).removeprefix("Value error, ")


_TYPES = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "string_type": "a text",
}
_BOUNDS = {"ge": "of at least", "gt": "of more than", "le": "of at most", "lt": "of less than"}


def expected(item: Mapping[str, Any]) -> str:
    """What a value should have been, by one of pydantic's findings, as in "a whole number of at least 1"; or empty."""
    context = item.get("ctx", {})
    if "expected" in context:
        return f"one of {context['expected']}"
    if item["type"] == "too_long":
        return f"a list of at most {context['max_length']:,}"
    for name, words in _BOUNDS.items():
        if name in context:
            least = context[name]
            return f"a {'' if isinstance(least, float) else 'whole '}number {words} {least:,.15g}"
    return _TYPES.get(item["type"], "")


def located(steps: Iterable[int | str], data: Any) -> tuple[tuple[int | str, ...], Any]:
    """The steps of pydantic's `loc` that lead into the data, without its names of a union's branches; and the value."""
    path: list[int | str] = []
    for step in steps:
        inside = isinstance(data, Mapping) if isinstance(step, str) else isinstance(data, list)
        if inside and (step in data if isinstance(step, str) else step < len(data)):
            path.append(step)
            data = data[step]
    return tuple(path), data


def likeliest(items: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of pydantic's findings about one value, one for each branch of a union, the one of the branch that was meant."""
    return max(items, key=lambda item: (len(item["loc"]), not item["type"].endswith("_type")))


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """One policy key that is unknown or has a value it can't have."""

    key: str
    message: str
    hint: str


def policy_problems(error: ValidationError, settings: Mapping[str, Any]) -> list[PolicyProblem]:
    """Put pydantic's findings about a policy into words: one problem for each key, in the order of `settings`."""
    items: dict[str, list[Mapping[str, Any]]] = {key: [] for key in settings}
    for item in error.errors(include_url=False):
        if item["loc"]:
            items[str(item["loc"][0])].append(item)
        else:  # a key with half of a character in it: pydantic looks at nothing then
            for key in settings.keys() - Policy.model_fields.keys():
                items[key].append({"type": "extra_forbidden", "loc": (key,)})
    wrong = [(key, found) for key, found in items.items() if found][:MOST_PROBLEMS]
    return [_policy_problem(key, likeliest(found), settings[key]) for key, found in wrong]


def _policy_problem(key: str, item: Mapping[str, Any], value: Any) -> PolicyProblem:
    if item["type"] == "extra_forbidden":
        return PolicyProblem(key, f"unknown policy {shown(key)}", nearest(key, Policy.model_fields))
    path, part = located(item["loc"][1:], value)
    what = f"{key}={shown(value)}"
    if path:
        what = f"{key}: {f'{path[0]}=' if isinstance(path[0], str) else ''}{shown(part)}"
    allowed = expected(item)
    if allowed:
        return PolicyProblem(key, f"{what} is not {allowed}", f"{key} is {allowed}")
    message, hint = parted(_said(item))
    return PolicyProblem(key, f"{key}: {message}", hint)


def parted(said: str) -> tuple[str, str]:
    """What a validator says, as what is wrong and what may be done about it."""
    message, _, hint = said.partition("; ") if "; " in said else said.partition(": ")
    return message, hint or "leave it out"
