"""A key masked in what a server says, however the server spells it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

MASK: Final = "***"
_SHORTEST: Final = 8


def masked(text: str, secret: str) -> str:
    """`text` with every occurrence of the secret masked, also one that JSON, HTML or an address escapes.

    A value as short as `EMPTY`, as servers without keys want it, is no secret and would only garble the text.
    """
    return text if len(secret) < _SHORTEST else _pattern(secret).sub(MASK, text)


@lru_cache(maxsize=32)
def _pattern(secret: str) -> re.Pattern[str]:
    return re.compile("".join(map(_spellings, secret)))


def _spellings(letter: str) -> str:
    """How a letter may be written: itself, or escaped as in JSON (also twice), an address, or HTML."""
    own, code = re.escape(letter), ord(letter)
    short, long = (_digits(f"{code:0{width}x}") for width in (2, 4))
    return rf"(?:{own}|\\{{1,4}}(?:{own}|u{long}|x{short})|%{short}|&#(?:0*{code}|[xX]0*{short});)"


def _digits(number: str) -> str:
    """A hexadecimal number, in capitals or not."""
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in number)
