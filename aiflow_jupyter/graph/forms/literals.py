"""Values as the cell language writes them: strings with escapes, numbers, `true`, `false`, `null`, bare names."""

from __future__ import annotations

import math
import re
from typing import Final

from aiflow_jupyter.graph.names import checked_name
from aiflow_jupyter.graph.problems import shown
from aiflow_jupyter.graph.spec import MOST_INTEGER

MOST_DIGITS: Final = 40

WORDS: Final = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
"""Bare words that are no names. `none` is one: policies have it as a choice."""

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}
_ESCAPES = {character: f"\\{letter}" for letter, character in _ESCAPED.items() if character not in "'\0"}


def text(source: str) -> str:
    r"""The text that a string in quotes stands for; an unknown escape stays as it is, as in Python.

    Raises:
        ValueError: an escape such as `\x` without its digits, or one that stands for no character.
    """
    return _ESCAPE.sub(_unescaped, source[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 1:
        if code in _DIGITS:
            raise ValueError(f"the escape \\{code} needs {_DIGITS[code]} hexadecimal digits")
        return _ESCAPED.get(code, match[0])
    point = int(code[1:], 16)
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise ValueError(f"{match[0]} is no character")
    return chr(point)


def number(source: str) -> int | float:
    """The number that digits stand for.

    Raises:
        ValueError: it is too large.
    """
    if len(source) <= MOST_DIGITS:
        if any(c in source for c in ".eE"):
            if math.isfinite(value := float(source)):
                return value
        elif abs(whole := int(source)) <= MOST_INTEGER:
            return whole
    raise ValueError(f"the number {shown(source)} is too large")


def is_bare(value: object) -> bool:
    """Whether a value can be written as a bare word."""
    if not isinstance(value, str) or value in WORDS:
        return False
    try:
        checked_name(value)
    except ValueError:
        return False
    return True


def quoted(value: str) -> str:
    """A text in double quotes, as Python reads it too, with escapes for what would end it or not be seen."""
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    point = ord(character)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
