"""What the linear half of the classifier sees of a text: hashed n-grams, and a few counts that a person would name.

Numbers depend on the text alone (CRC-32, not Python's salted hash), so a model file fits every machine.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

BUCKETS: Final = 1 << 15
_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_LONGEST: Final = 24

COUNTS: Final[dict[str, re.Pattern[str]]] = {
    "asks for one fact": re.compile(
        r"^(who|when|where|which|what (is|are|was|were|does|did|year|colou?r|unit)"
        r"|name|define|meaning of|how (many|old|long|tall|far))\b"
    ),
    "asks how or why": re.compile(r"\b(how|why|explain|compare|difference)\b"),
    "asks for a proof or a derivation": re.compile(
        r"\b(prov(e|es|ing)|proof|deriv\w+|show that|rigorous\w*|lower bound|upper bound)\b"
    ),
    "asks for a design or a plan": re.compile(
        r"\b(design\w*|architect\w*|plan|strateg\w+|trade-?offs?|optimal|choos\w+|should (i|we)|propose|diagnose)\b"
    ),
    "asks what is contested": re.compile(
        r"\b(evidence|debate\w*|justif\w+|really|reconcil\w+|coheren\w+|can one|is it possible|to what extent)\b"
    ),
    "has figures": re.compile(r"\d+(?:[.,]\d+)?"),
    "has mathematical signs": re.compile(r"[=^\\<>\u2200-\u22ff]"),
    "has code": re.compile(r"```|\w\(\)|[{};]|\w_\w|--\w"),
    "has several sentences": re.compile(r"[.!?](?=\s+\S)"),
    "has clauses": re.compile(r",|;|\b(when|if|while|given|without|because|although|but)\b"),
}
"""Counts by what they say of a text; the names are the reasons that a verdict gives."""

COLUMNS: Final = len(COUNTS) + 2


def counts(text: str) -> npt.NDArray[np.float32]:
    """How often each of `COUNTS` is found, damped, then the length in words and the mean length of a word."""
    lowered = text.lower()
    words = lowered.split()
    found = [len(pattern.findall(lowered)) for pattern in COUNTS.values()]
    length = sum(map(len, words)) / len(words) if words else 0.0
    return np.log1p(np.array([*found, len(words), length], dtype=np.float32))


def ngrams(text: str) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Buckets of the words, pairs of words and pieces of words of a text, each with its damped count."""
    tokens = [token[:_LONGEST] for token in _TOKEN.findall(text.lower())]
    found: Counter[int] = Counter()
    for token in tokens:
        found[_bucket(token)] += 1
        if len(token) > 3:
            padded = f"<{token}>"
            for size in (4, 5):
                for start in range(len(padded) - size + 1):
                    found[_bucket("#" + padded[start : start + size])] += 1
    for first, second in zip(["^", *tokens], [*tokens, "$"], strict=True):
        found[_bucket(f"{first} {second}")] += 1
    return np.fromiter(found, np.intp, len(found)), 1 + np.log(np.fromiter(found.values(), np.float32, len(found)))


def _bucket(text: str) -> int:
    return crc32(text.encode("utf-8", "replace")) % BUCKETS
