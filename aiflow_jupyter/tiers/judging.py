"""The judge that the settings name, asked within the floor; one that asks a model does so through the router.

So what it costs is booked, and text never goes further than the request may. Where the floor leaves the judge's tier
out, the tier rests, or its model does not answer, the classifier judges, and says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from aiflow_jupyter.tiers.terms import PLACES, REACH, Floor, TierName

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aiflow_jupyter.events import Event
    from aiflow_jupyter.runtime.source import Message, Request, Source
    from aiflow_jupyter.tiers.judge import EmbeddedJudge, Label
    from aiflow_jupyter.tiers.judge.llm import LlmJudge
    from aiflow_jupyter.tiers.sections import Config, Route
    from aiflow_jupyter.tiers.terms import Verdict


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
        self._made: tuple[Route, str | None, EmbeddedJudge, LlmJudge | None] | None = None
        self.source: Source | None = None
        self.rests: Callable[[TierName], bool] = lambda _: False

    def __call__(self, messages: Sequence[Message], floor: Floor, /) -> Verdict | Awaitable[Verdict]:
        """Judge a chat; see `terms.Judge`. May block, as a model file is read at first."""
        settings = self._settings()
        route, provider = settings.route, settings.tiers.local.provider
        if self._made is None or self._made[:2] != (route, provider):
            self._made = (route, provider, *self._make(route, provider))
        *_, embedded, asking = self._made
        name, _, tier = route.judge.partition(":")
        if name != "llm" or asking is None:
            return embedded.judge(messages)
        asked = cast("TierName", tier)
        beyond = REACH[PLACES[asked]] > REACH[floor]
        if not beyond and not self.rests(asked):
            return asking.ajudge(messages)
        verdict = embedded.judge(messages)
        why = "may not be asked here" if beyond else "rests"
        return replace(verdict, why=f"{verdict.why} ({route.judge} {why})")

    def _make(self, route: Route, provider: str | None) -> tuple[EmbeddedJudge, LlmJudge | None]:
        from aiflow_jupyter.tiers.judge import Rule, judge_named  # noqa: PLC0415 - numpy is loaded when first asked
        from aiflow_jupyter.tiers.judge.fixed import FixedJudge  # noqa: PLC0415
        from aiflow_jupyter.tiers.judge.llm import LlmJudge  # noqa: PLC0415

        rule = Rule(high=route.threshold, torn=route.round_up)
        name, _, which = route.judge.partition(":")
        if name == "fixed":
            return FixedJudge(cast("Label", which)), None
        embedded = cast("EmbeddedJudge", judge_named("classifier" if name == "llm" else name, rule))
        if name != "llm" or self.source is None:
            return embedded, None
        # The embedded model is too small to keep to three words by itself; an Ollama in its place ignores the grammar.
        small = which == "local" and provider in (None, "embedded")
        return embedded, LlmJudge(
            _Within(self.source, PLACES[cast("TierName", which)]),
            tier=which,
            rule=rule,
            constraint="grammar" if small else "none",
            fallback=embedded,
        )


class _Within:
    """A source that is asked no further than a floor."""

    def __init__(self, source: Source, floor: Floor) -> None:
        self._source, self._floor = source, floor

    def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `runtime.source.Source`."""
        return self._source.stream(replace(request, stay=self._floor))
