"""What the judges share that need no server, and the rule that turns probabilities into one of three words.

LOW: one fact, a definition, a trivial computation. MEDIUM: a textbook procedure, or two to four known ideas put
together. HIGH: whoever answers has to build the path: a proof, a design with trade-offs, contested evidence.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.judge.conversation import Gist, gist
from aiflow_jupyter.tiers.terms import LABELS, Label, Verdict


@dataclass(frozen=True, slots=True)
class Rule:
    """From probabilities to a label: the likeliest one, but for these two settings.

    Attributes:
        high: from this P(HIGH) on it is HIGH, below it never is; None leaves it to the likeliest.
        torn: the next harder label is taken where it is less likely than the likeliest one by at most this much; 0
            rounds nothing up.

    Raises:
        ConfigError: one of them is no number from 0 to 1.
    """

    high: float | None = None
    torn: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("high", self.high), ("torn", self.torn)):
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"the judge's {name} is {value}, not a number from 0 to 1", code="AF725")

    def label(self, probabilities: Mapping[Label, float]) -> Label:
        """The label for these probabilities."""
        allowed = LABELS
        if self.high is not None:
            if probabilities["HIGH"] >= self.high:
                return "HIGH"
            allowed = LABELS[:2]
        best = max(allowed, key=lambda label: probabilities[label])
        harder = allowed[allowed.index(best) + 1 :][:1]
        if self.torn and harder and probabilities[best] - probabilities[harder[0]] <= self.torn:
            return harder[0]
        return best


class EmbeddedJudge(ABC):
    """A judge that needs no server: it answers at once, in the calling thread.

    Args:
        rule: how probabilities become a label.
    """

    name: str

    def __init__(self, rule: Rule | None = None) -> None:
        self.rule = rule or Rule()

    @abstractmethod
    def weigh(self, question: Gist) -> tuple[Mapping[Label, float], str]:
        """The probabilities for a question, and the reasons in words."""

    def judge(self, messages: Sequence[Message]) -> Verdict:
        """The verdict on a conversation, oldest message first."""
        begun = time.perf_counter()
        question = gist(messages)
        probabilities, why = self.weigh(question)
        if question.inherited:
            why += "; a follow-up, judged by the question that it belongs to"
        return Verdict(self.rule.label(probabilities), probabilities, time.perf_counter() - begun, why, self.name)

    async def ajudge(self, messages: Sequence[Message]) -> Verdict:
        """The same from a loop, which goes on meanwhile."""
        return await asyncio.to_thread(self.judge, messages)
