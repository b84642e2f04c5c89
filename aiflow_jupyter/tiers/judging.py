"""The judge that the settings name, asked within the floor; one that asks a model does so through the router.

So what it costs is booked, and text never goes further than the request may. Where the floor leaves the judge's tier
out, the tier rests, or its model does not answer, the classifier judges, and says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aiflow_jupyter.tiers.judge import EmbeddedJudge, Rule, judge_named
from aiflow_jupyter.tiers.terms import PLACES, Floor, TierName, Verdict, within

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.source import Message, Source
    from aiflow_jupyter.tiers.judge.llm import LlmJudge
    from aiflow_jupyter.tiers.sections import Config, Route


class ConfiguredJudge:
    """See the module; implements `terms.Judge`.

    Args:
        settings: gives the settings of now.

    Attributes:
        source: who is asked by a judge that asks a model.
        rests: whether a tier rests, as a judge that names its tier would have it asked all the same.
    """

    def __init__(self, settings: Callable[[], Config]) -> None:
        self._settings = settings
        self._made: tuple[Route, str | None, EmbeddedJudge | LlmJudge] | None = None
        self.source: Source | None = None
        self.rests: Callable[[TierName], bool] = lambda _: False

    def __call__(self, messages: Sequence[Message], floor: Floor, /) -> Verdict | Awaitable[Verdict]:
        """Judge a chat; see `terms.Judge`. May block, as a model file is read at first."""
        settings = self._settings()
        route, provider = settings.route, settings.tiers.local.provider
        if self._made is None or self._made[:2] != (route, provider):
            rule = Rule(high=route.threshold, torn=route.round_up)
            small = provider in (None, "embedded")  # an Ollama in its place ignores the grammar
            self._made = (route, provider, judge_named(route.judge, rule, source=self.source, local_is_small=small))
        judge = self._made[-1]
        if isinstance(judge, EmbeddedJudge):
            return judge.judge(messages)
        beyond = not within(PLACES[judge.tier], floor)
        if not beyond and not self.rests(judge.tier):
            return judge.ajudge(messages)
        verdict = judge.fallback.judge(messages)
        why = "may not be asked here" if beyond else "rests"
        return replace(verdict, why=f"{verdict.why} ({route.judge} {why})")
