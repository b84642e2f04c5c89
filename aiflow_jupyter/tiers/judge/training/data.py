"""The labelled queries, and folds that keep what is nearly the same text on one side."""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aiflow_jupyter.tiers.terms import LABELS

FILE: Final = Path(__file__).with_name("queries.jsonl")
WRITTEN: Final = ("written", "short_and_long")
"""Sources whose labels do not go with their style; stems of examinations, which are nearly all LOW, weigh less."""

STEM: Final = 0.6
_COMMON: Final = 60
"""Shingles that more texts have say nothing of two of them."""


class Queries:
    """The rows of a file of queries.

    Attributes:
        texts: the queries.
        labels: the position of each one's label in `LABELS`.
        weights: how much each counts in training, classes evened out.
        written: which come from `WRITTEN`.
        sources: where each comes from.
    """

    def __init__(self, path: Path = FILE) -> None:
        rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        self.texts: list[str] = [row["text"] for row in rows]
        self.sources: list[str] = [row["source"] for row in rows]
        self.labels = np.array([LABELS.index(row["label"]) for row in rows])
        self.written = np.array([source in WRITTEN for source in self.sources])
        self.weights = np.where(self.written, 1.0, STEM)
        for label in range(len(LABELS)):
            self.weights[self.labels == label] *= len(rows) / (3 * self.weights[self.labels == label].sum())


def folds(texts: list[str], count: int = 5, seed: int = 0) -> npt.NDArray[np.intp]:
    """The fold of each text; near-duplicates share theirs."""
    group = _groups([_shingles(text) for text in texts])
    order = sorted(set(group))
    random.Random(seed).shuffle(order)  # noqa: S311
    place = {name: number % count for number, name in enumerate(order)}
    return np.array([place[name] for name in group])


def _shingles(text: str) -> set[str]:
    plain = re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
    return {plain[start : start + 5] for start in range(max(1, len(plain) - 4))}


def _groups(shingles: list[set[str]]) -> list[int]:
    """The first text of the cluster that each belongs to; two are near-duplicates that share half their shingles."""
    frequency = Counter(piece for pieces in shingles for piece in pieces)
    parent = list(range(len(shingles)))

    def root(number: int) -> int:
        while parent[number] != number:
            number = parent[number]
        return number

    seen: dict[str, list[int]] = defaultdict(list)
    for number, pieces in enumerate(shingles):
        shared: Counter[int] = Counter()
        for piece in pieces:
            if frequency[piece] <= _COMMON:
                shared.update(seen[piece])
                seen[piece].append(number)
        for other in shared:
            if len(pieces & shingles[other]) > 0.5 * len(pieces | shingles[other]):
                parent[root(number)] = root(other)
    return [root(number) for number in range(len(shingles))]
