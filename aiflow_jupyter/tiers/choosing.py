"""Choosing: which tiers come into question for a request, and in which order.

A named tier comes first, and alone unless the request says `fallback`. For `auto` the judge says how hard the request
is, and that label has a chain of tiers; where fewer than two are possible nobody has to judge. A conversation stays
with the tier of its last turn, which has read it already, unless that can't go on, the label rises, or the label's own
tier is cheaper; whoever keeps conversations is asked for that tier where it answered before this process began. A tier
that only stood in for one that failed, or rested, keeps nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from aiflow_jupyter.errors import AiflowError, ConfigError, words
from aiflow_jupyter.runtime.source import Request
from aiflow_jupyter.tiers.booking import Aside
from aiflow_jupyter.tiers.counting import images
from aiflow_jupyter.tiers.decision import Candidate, Decision
from aiflow_jupyter.tiers.terms import (
    FIRST_VERDICT_S,
    LABELS,
    NAMES,
    PLACES,
    Floor,
    Judge,
    Label,
    Tier,
    TierName,
    strictest,
    within,
)

CHAINS: Final[Mapping[Label, tuple[TierName, ...]]] = MappingProxyType(
    {
        "LOW": ("local", "hpc", "cloud"),
        "MEDIUM": ("hpc", "local", "cloud"),
        "HIGH": ("cloud", "hpc", "local"),
    }
)
_UNJUDGED: Final[Label] = "MEDIUM"
_CONVERSATIONS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Routing:
    """How the router chooses.

    Attributes:
        chains: for each label the tiers in the order in which they are asked; one that is left out is never asked.
        judge_s: seconds that the judge may take, with time left for what it says where its model is silent.
        notebook: what costs are booked to, empty for none.
        stay: how far any request may go, whatever it says itself.
        restart: whether an answer that broke off is begun anew elsewhere, where the request does not say.
    """

    chains: Mapping[Label, tuple[TierName, ...]] = field(default_factory=lambda: CHAINS)
    judge_s: float = FIRST_VERDICT_S + 5
    notebook: str = ""
    stay: Floor = "anywhere"
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """What a conversation stays with: a tier and the model that was named there, None for the tier's own."""

    tier: TierName
    model: str | None
    label: Label | None


@dataclass(slots=True)
class Choice:
    """A request on its way through the candidates, with the tiers and settings of when it began.

    Attributes:
        left: the candidates that were not tried yet.
        kept: what its conversation stays with, None where it does not.
        rested: whether a candidate was passed over because it rests.
        judged_within: how far a judge that asks a model may go, beside the floor.
    """

    request: Request
    tiers: Mapping[TierName, Tier]
    settings: Routing
    decision: Decision
    left: list[Candidate] = field(default_factory=list)
    kept: Kept | None = None
    rested: bool = False
    judged_within: Floor = "anywhere"

    @property
    def auto(self) -> bool:
        """Whether the tier is left to the router."""
        return self.request.tier == "auto"

    @property
    def movable(self) -> bool:
        """Whether another tier may take over where one fails."""
        return self.auto or self.request.fallback

    @property
    def floor(self) -> Floor:
        """How far the request may go: the nearer of what it says and what the settings say."""
        return strictest(self.request.stay, self.settings.stay)

    @property
    def restarts(self) -> bool:
        """Whether an answer that broke off may be begun anew elsewhere."""
        return self.settings.restart if self.request.restart is None else self.request.restart

    def named(self, name: TierName) -> bool:
        """Whether it is the tier that was asked for."""
        return name == self.request.tier

    def model(self, name: TierName) -> str | None:
        """The model that a tier is asked for: the one named, else the one that the conversation stays with there."""
        staying = self.kept.model if self.kept is not None and self.kept.tier == name else None
        return self.request.model or staying

    def serving(self, name: TierName) -> Tier | None:
        """A tier as it would be asked."""
        tier = self.tiers.get(name)
        return tier.serving(self.model(name)) if tier is not None else None

    def costs(self, name: TierName) -> float:
        """What its tokens cost, to be compared with another tier's; where nobody says it, the cloud is the dearest."""
        tier = self.serving(name)
        price = tier.price.input + tier.price.output if tier is not None else 0.0
        return math.inf if not price and PLACES[name] == "anywhere" else price

    def unfit(self, name: TierName) -> str:
        """Why a tier is out of the question whatever its state, empty if it is not. The floor comes first."""
        request, floor = self.request, self.floor
        if not within(PLACES[name], floor):
            where = "on this machine" if floor == "local" else "within the institution"
            return f"not allowed: this request stays {where}"
        tier = self.serving(name)
        if tier is None:
            return "not configured"
        needs = [need for need, wanted in (("images", images(request.messages)), ("tools", request.tools)) if wanted]
        lacking = [need for need in needs if need not in tier.takes]
        return f"takes no {' and no '.join(lacking)}" if lacking else ""


class Chooser:
    """See the module.

    Args:
        judge: says how hard a request is.
        clock: nanoseconds.
        aside: runs what blocks.
        recall: gives the tier that answered a conversation's last turn, empty for none.
    """

    def __init__(
        self, judge: Judge, clock: Callable[[], int], aside: Aside, recall: Callable[[str], str] = lambda _: ""
    ) -> None:
        self._judge = judge
        self._clock = clock
        self._aside = aside
        self._recall = recall
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    async def choose(self, choice: Choice) -> None:
        """Put the candidates in order, and refuse those that are out of the question.

        Raises:
            ConfigError: the tier that was named is unknown or not configured.
        """
        request, decision = choice.request, choice.decision
        if choice.auto:
            chain = await self._chain(choice)
        else:
            first = _named(choice)
            rest = choice.settings.chains[_UNJUDGED] if request.fallback else ()
            chain = (first, *(name for name in rest if name != first))
            decision.why = f"{request.tier} was named"
        for name in chain:
            tier = choice.serving(name)
            candidate = Candidate(name, tier.model if tier is not None else request.model or "")
            decision.candidates.append(candidate)
            if why := choice.unfit(name):
                candidate.refuse(why)
            else:
                choice.left.append(candidate)

    def answered(self, choice: Choice, tier: TierName, model: str | None) -> None:
        """Note who answered: there the conversation stays."""
        name, decision = choice.request.conversation, choice.decision
        if not name or decision.fallbacks or choice.rested:
            return
        before = self._kept.pop(name, None)
        label = decision.label
        if before is not None and (before.tier == tier or label is None):
            label = max(label, before.label, key=_rank)
        self._kept[name] = Kept(tier, model, label)
        if len(self._kept) > _CONVERSATIONS:
            self._kept.popitem(last=False)

    async def _chain(self, choice: Choice) -> tuple[TierName, ...]:
        """The tiers in the order of the label, or behind that of the conversation's last turn."""
        request, decision = choice.request, choice.decision
        kept = await self._keeps(choice)
        allowed = [name for name in NAMES if not choice.unfit(name)]
        if len(allowed) < 2:
            decision.why = f"only {allowed[0]} is possible" if allowed else "no tier is possible"
        else:
            await self._judged(choice)
        label = decision.label or (kept.label if kept is not None else None) or _UNJUDGED
        chain = choice.settings.chains[label]
        if kept is None or kept.tier not in chain or _rank(decision.label) > _rank(kept.label):
            return chain
        own = next((name for name in chain if name in allowed), kept.tier)
        if choice.costs(own) < choice.costs(kept.tier):
            return chain
        choice.kept = kept
        if own != kept.tier:
            decision.kept = request.conversation
        return (kept.tier, *(name for name in chain if name != kept.tier))

    async def _keeps(self, choice: Choice) -> Kept | None:
        """What the conversation stays with."""
        name = choice.request.conversation
        if not name or not any(message["role"] == "assistant" for message in choice.request.messages):
            return None
        if name in self._kept:
            return self._kept[name]
        try:
            before = await self._aside(self._recall, name)
        except AiflowError:  # a file that can't be read is told by who reads the turns
            return None
        first = {choice.settings.chains[label][0]: label for label in reversed(LABELS)}
        tier = next((each for each in NAMES if each == before), None)
        return Kept(tier, None, first.get(tier, _UNJUDGED)) if tier is not None else None

    async def _judged(self, choice: Choice) -> None:
        """Have the request judged; a judge that fails says MEDIUM, as no answer shall be lost for it."""
        request, decision, limit = choice.request, choice.decision, choice.settings.judge_s
        begun = self._clock()
        try:
            async with asyncio.timeout(limit):
                verdict = await self._aside(
                    self._judge, request.messages, strictest(choice.floor, choice.judged_within)
                )
                if inspect.isawaitable(verdict):
                    verdict = await verdict
        except TimeoutError:
            decision.label, decision.why = _UNJUDGED, f"the judge failed: no verdict in {limit:g} s"
        except Exception as error:  # noqa: BLE001 - a model file or a library may be missing or broken
            said = error.message if isinstance(error, AiflowError) else f"{type(error).__name__}: {words(error)}"
            decision.label, decision.why = _UNJUDGED, f"the judge failed: {said}"
        else:
            decision.label, decision.why = verdict.label, verdict.why
            decision.probabilities = dict(verdict.probabilities)
        decision.judged_s = (self._clock() - begun) / 1e9


def _named(choice: Choice) -> TierName:
    """The tier that was named, if there is such a one."""
    named = choice.request.tier
    name = next((each for each in NAMES if each == named), None)
    if name is None:
        raise ConfigError(f"no tier is called {named!r}", code="AF722", hint=f"auto, {', '.join(NAMES)}")
    if name not in choice.tiers and not choice.request.fallback:
        from aiflow_jupyter.tiers.config import place  # noqa: PLC0415 - pydantic is loaded when first needed

        there = f"configured: {', '.join(choice.tiers) or 'none'}"
        raise ConfigError(
            f"tier {name!r} is not configured",
            code="AF722",
            hint=f"{there}; a section [tiers.{name}] turns it on, in\n{place()}",
        )
    return name


def _rank(label: Label | None) -> int:
    return LABELS.index(label) if label is not None else -1
