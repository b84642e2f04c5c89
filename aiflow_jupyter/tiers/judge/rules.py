"""Rules that a person can read: no model, no numbers learnt, the same words for the same text.

Each rule adds to or takes from a score; the verdict's reasons are the rules that were met. It is less right than the
classifier and says why in full.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from aiflow_jupyter.tiers.judge.conversation import Gist
from aiflow_jupyter.tiers.judge.features import COUNTS
from aiflow_jupyter.tiers.judge.verdict import EmbeddedJudge
from aiflow_jupyter.tiers.terms import LABELS, Label

_POINTS: Final[Mapping[str, float]] = {
    "asks for one fact": -1.0,
    "asks how or why": 0.6,
    "asks for a proof or a derivation": 1.6,
    "asks for a design or a plan": 1.3,
    "asks what is contested": 1.2,
    "has figures": 0.3,
    "has mathematical signs": 0.4,
    "has code": 0.4,
    "has several sentences": 0.4,
    "has clauses": 0.3,
}
_WORDS: Final = re.compile(r"\S+")
_LONG: Final = 12
"""Words from which on a question counts as long."""

_CENTRES: Final = (-0.4, 0.9, 2.2)
"""The score that is most of each label's own."""


class RulesJudge(EmbeddedJudge):
    """Judges by what a text asks for and how it is built."""

    name = "rules"

    def weigh(self, question: Gist) -> tuple[Mapping[Label, float], str]:
        """See `EmbeddedJudge`."""
        if not question.text or question.courtesy:
            return _near(-2.0), "it asks for nothing"
        text = question.text.lower()
        met = [name for name, pattern in COUNTS.items() if pattern.search(text)]
        score = sum(_POINTS[name] for name in met)
        if sum(1 for _ in _WORDS.finditer(text)) > _LONG:
            met.append("is long")
            score += 0.4
        return _near(score), f"it {', '.join(met) or 'has no sign of being hard'}"


def _near(score: float) -> dict[Label, float]:
    """Probabilities that fall with the distance from each label's centre."""
    weights = [math.exp(-2.0 * (score - centre) ** 2 / (1 + abs(score - centre))) for centre in _CENTRES]
    return {label: weight / sum(weights) for label, weight in zip(LABELS, weights, strict=True)}
