"""The router: asks the first tier that may and can answer, and goes on to another one where that fails.

    for each candidate:  floor -> able -> fits -> healthy -> within budget -> asked -> first token -> finish
                                                                               │            │
                                                     the next candidate  <── failed      cut, or restart

A named tier is strict: it is never left, unless the request says `fallback`, and it is asked also while it rests.
`auto` takes the chain of the judge's label (`choosing.py`). The floor is looked at first and nothing comes past it:
what lies beyond is neither asked nor has its tokenizer count the text, and the judge and whoever folds a chat are told
of it.

Before the first token another tier takes over silently, and the decision says so; its floor, window, abilities and
budget are looked at as those of the first. After it the answer is cut, with what came; only a request that says
`restart` is begun anew, behind a `restart` event. A request that is cancelled is never sent on. One tier is asked at a
time, and the one before it is closed by then.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any, Final

from aiflow_jupyter.errors import AiflowError, ConfigError, ProviderError
from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.source import Message, Request
from aiflow_jupyter.tiers.attempt import Attempt
from aiflow_jupyter.tiers.booking import Aside, Books
from aiflow_jupyter.tiers.choosing import Choice, Chooser, Routing
from aiflow_jupyter.tiers.counting import TokenCounter, estimate
from aiflow_jupyter.tiers.decision import Candidate, Decision
from aiflow_jupyter.tiers.health import Health
from aiflow_jupyter.tiers.terms import PLACES, Fitted, Fitter, Intent, Judge, Ledger, Misfit, Tier, TierName, within

_PATIENCE_S: Final = 15.0
"""A server that is started again is back by then, and whoever asks still waits; a large model that is being loaded
takes minutes, which only whoever names its tier means to wait."""
_TRIAL_S: Final = 2.0  # the same for a tier that rests or is on trial: it was waited for already


class NoTierError(ConfigError):
    """No tier may or can answer; the message says of each one why."""

    code = "AF751"


class Router:
    """See the module. Implements `runtime.source.Provider`.

    Args:
        tiers: those that are configured, by name.
        judge: says how hard a request is.
        ledger: counts the money.
        fitter: makes a chat fit into a window.
        counter: counts tokens.
        settings: how it chooses.
        health: of the tiers.
        clock: nanoseconds.
        aside: runs what blocks.
        recall: gives the tier that answered a stored conversation's last turn, empty for none.
    """

    def __init__(
        self,
        tiers: Mapping[TierName, Tier],
        *,
        judge: Judge,
        ledger: Ledger,
        fitter: Fitter,
        counter: TokenCounter,
        settings: Routing | None = None,
        health: Health | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        aside: Aside = asyncio.to_thread,
        recall: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.tiers = dict(tiers)
        self.settings = settings or Routing()
        self.health = health or Health(clock)
        self._chooser = Chooser(judge, clock, aside, recall)
        self._books = Books(ledger, aside)
        self._fitter = fitter
        self._counter = counter
        self._clock = clock

    def follow(self, tiers: Mapping[TierName, Tier], settings: Routing) -> None:
        """Take other tiers and settings from the next request on; those under way keep what they began with.

        A tier that changed begins with a clean health. Providers that are left out are not closed.
        """
        for name, tier in tiers.items():
            if self.tiers.get(name) != tier:
                self.health.forget(name)
        self.tiers, self.settings = dict(tiers), settings

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request`; see `runtime.source.Source`, and the module.

        Raises:
            ConfigError: no tier may or can answer, or the budget does not allow it.
            ProviderError: those that were asked failed.
            StreamCut: the answer broke off.
        """
        choice = self._choice(request)
        decision = choice.decision
        try:
            begun = self._clock()
            try:
                await self._chooser.choose(choice)
            finally:
                decision.seconds += (self._clock() - begun) / 1e9
            answers = self._answers(choice)
            async with aclosing(answers):
                async for event in answers:
                    yield event
        except AiflowError:
            if decision.chosen is None and request.decided is not None:
                request.decided(decision)
            raise

    async def explain(self, messages: Sequence[Message], **fields: Any) -> Decision:
        """Decide without sending: every candidate is checked, and nothing is folded, booked or spent.

        A judge that asks a model is asked where that is on this machine; else the classifier stands in for it.

        Args:
            messages: the chat.
            fields: further ones of `runtime.source.Request`.

        Raises:
            ConfigError: the tier that was named is unknown or not configured.
        """
        choice = self._choice(Request(tuple(messages), **fields))
        choice.judged_within = "local"
        decision = choice.decision
        begun = self._clock()
        await self._chooser.choose(choice)
        for candidate in choice.left:
            if await self._would(choice, candidate) and decision.chosen is None:
                candidate.state = "answers"
                decision.chosen, decision.model = candidate.tier, candidate.model
        decision.seconds = (self._clock() - begun) / 1e9
        return decision

    async def view(self, messages: Sequence[Message], tier: TierName, conversation: str = "") -> Fitted | Misfit:
        """A chat as a tier would be sent it, with what has to be folded folded; the text stays on this machine.

        Raises:
            ConfigError: the tier is not configured.
        """
        to = self.tiers.get(tier)
        if to is None:
            there = ", ".join(self.tiers) or "none"
            raise ConfigError(f"tier {tier!r} is not configured", code="AF722", hint=f"configured: {there}")
        room = _room(Request(tuple(messages)), to)
        return await self._fitter.fit(messages, to, room, "local", conversation)

    async def aclose(self) -> None:
        """Close every provider, also where one can't be closed."""
        async with AsyncExitStack() as stack:
            for tier in self.tiers.values():
                stack.push_async_callback(tier.provider.aclose)
            await self._books.aclose()

    def _choice(self, request: Request) -> Choice:
        choice = Choice(request, dict(self.tiers), self.settings, Decision(request.tier))
        choice.decision.stay = choice.floor
        return choice

    # -- asking

    async def _answers(self, choice: Choice) -> AsyncGenerator[Event, None]:
        """The events of the first tier that answers, behind a `restart` those of the one that takes over."""
        request, decision = choice.request, choice.decision
        failures: list[AiflowError] = []
        void: Event | None = None
        sequence = 0
        while (attempt := await self._next(choice, failures)) is not None:
            try:
                decision.chosen, decision.model = attempt.tier.name, attempt.candidate.model
                if not failures and request.decided is not None:
                    request.decided(decision)
                if void is not None:
                    yield Event("restart", None, "", void.source, sequence, self._clock(), "", void.meta)
                    sequence, void = sequence + 1, None
                async with aclosing(attempt.events()) as events:
                    async for event in events:
                        if event.kind == "finish":
                            self._answered(choice, attempt)
                        elif not decision.model:  # the server's own, which it names
                            decision.model = attempt.candidate.model = event.meta.get("model", "")
                        event.sequence = sequence
                        sequence += 1
                        yield event
            except AiflowError as error:
                attempt.failed(error, decision)
                failures.append(error)
                if not _movable(choice) or (attempt.last is not None and not choice.restarts):
                    raise
                void = attempt.last or void
            else:
                return
            finally:
                await attempt.close(decision)
        raise _nobody(choice, failures)

    def _answered(self, choice: Choice, attempt: Attempt) -> None:
        """Take in that an answer is whole."""
        choice.decision.cost = attempt.cost()
        attempt.learn(self._counter)
        self._chooser.answered(choice, attempt.tier.name, attempt.request.model)

    # -- getting ready

    async def _next(self, choice: Choice, failures: Sequence[AiflowError]) -> Attempt | None:
        """The next candidate that can be asked, with all that has to be done before."""
        begun = self._clock()
        resting: list[Candidate] = []
        try:
            while choice.left:
                candidate = choice.left.pop(0)
                status = self.health.status(candidate.tier)
                if status.state == "open" and not choice.named(candidate.tier):
                    candidate.refuse(str(status))
                    resting.append(candidate)
                    choice.rested = True
                elif (attempt := await self._ready(choice, candidate)) is not None:
                    return attempt
            # Where there is no other way, a tier that rests is tried early, by one request at a time.
            for candidate in resting if not failures else ():
                if (attempt := await self._ready(choice, candidate, early=True)) is not None:
                    return attempt
        finally:
            choice.decision.seconds += (self._clock() - begun) / 1e9
        return None

    async def _ready(self, choice: Choice, candidate: Candidate, *, early: bool = False) -> Attempt | None:
        """An attempt at a candidate; None, and the reason noted, where it can't be asked.

        Raises:
            AiflowError: it can't, and no other tier may take its place.
        """
        request, tier = choice.request, choice.tiers[candidate.tier].serving(candidate.model)
        try:
            await self._counter.measure(request.messages, tier)
            fitted = await self._fitter.fit(
                request.messages, tier, _room(request, tier), choice.floor, request.conversation
            )
            _worst(request, tier, candidate, fitted.tokens)
            if isinstance(fitted, Misfit):
                candidate.refuse(fitted.why)
                return None
            candidate.folded, candidate.note = fitted.folded, fitted.note
            passage = self.health.enter(tier.name, early=early, anyway=choice.named(tier.name))
            if passage is None:
                candidate.refuse(f"{self.health.status(tier.name)}; another request tries it")
                choice.rested = True
                return None
            try:
                booking = await self._books.intend(_intent(choice, candidate))
            except BaseException:
                passage.over()
                raise
        except AiflowError as error:
            candidate.refuse(error.message)
            if not choice.movable:
                raise
            return None
        candidate.state, candidate.reason = "answers", ""
        choice.decision.currency = candidate.currency
        sent = replace(
            request,
            messages=fitted.messages,
            tier=tier.name,
            stay=choice.floor,
            model=choice.model(tier.name),
            # The worst case holds only if the server is told of it.
            max_tokens=candidate.output if candidate.most and not _asked(request) else request.max_tokens,
            decided=None,
            patience=self._patience(choice, candidate),
        )
        return Attempt(tier, candidate, sent, booking, passage, self._clock)

    def _patience(self, choice: Choice, candidate: Candidate) -> float | None:
        """Seconds for which a server that can't be reached is tried again: few where somebody else could answer."""
        given = choice.request.patience
        others = _movable(choice) and any(self.health.status(each.tier).state != "open" for each in choice.left)
        if given is not None or not others:
            return given
        return _PATIENCE_S if self.health.status(candidate.tier).state == "closed" else _TRIAL_S

    async def _would(self, choice: Choice, candidate: Candidate) -> bool:
        """Whether a candidate could be asked, as far as that can be told without doing anything."""
        tier = choice.tiers[candidate.tier].serving(candidate.model)
        tokens = await asyncio.to_thread(self._counter.tokens, choice.request.messages, tier)
        _worst(choice.request, tier, candidate, tokens)
        room = _room(choice.request, tier)
        if (misfit := self._fitter.misfit(choice.request.messages, tier, room)) is not None:
            candidate.refuse(misfit.why)
            return False
        if tier.window is not None and tokens + room > tier.window:
            candidate.note = "older turns have to be folded"
        status = self.health.status(tier.name)
        if status.state == "open" and not choice.named(tier.name):
            candidate.refuse(str(status))
            return False
        try:
            await self._books.allows(_intent(choice, candidate))
        except ConfigError as error:
            candidate.refuse(error.message)
            return False
        return True


def _movable(choice: Choice) -> bool:
    """Whether another tier may take over; never for a request that is being cancelled."""
    task = asyncio.current_task()
    return choice.movable and not (task is not None and task.cancelling())


def _asked(request: Request) -> int | None:
    """The most tokens of an answer as the request says them."""
    said = (request.max_tokens, *(request.extra.get(key) for key in ("max_tokens", "max_completion_tokens")))
    return max((each for each in said if isinstance(each, int)), default=None)


def _room(request: Request, tier: Tier) -> int:
    """The tokens that have to stay free for the answer: what is asked for, else a share of the window."""
    asked = _asked(request)
    if asked is not None:
        return asked
    return tier.max_output if tier.window is None else min(tier.max_output, tier.window // 4)


def _worst(request: Request, tier: Tier, candidate: Candidate, tokens: int) -> None:
    """Note the most that an answer takes and costs."""
    output = _room(request, tier)
    if request.tools:  # a server reads their schemas with the chat
        tokens += estimate(json.dumps(request.tools, default=str))
    if _asked(request) is None and tier.window is not None:
        output = max(output, min(tier.max_output, tier.window - tokens))
    several = request.extra.get("n", 1)
    answers = several if isinstance(several, int) and several > 0 else 1
    candidate.tokens, candidate.output, candidate.window = tokens, output, tier.window
    candidate.most, candidate.currency = tier.price.of(tokens, output * answers), tier.price.currency
    candidate.priced = tier.price.known


def _intent(choice: Choice, candidate: Candidate) -> Intent:
    return Intent(
        candidate.tier,
        candidate.model,
        candidate.most,
        candidate.currency,
        choice.request.conversation,
        choice.settings.notebook,
        candidate.priced,
    )


def _nobody(choice: Choice, failures: Sequence[AiflowError]) -> AiflowError:
    """What is raised where no candidate is left."""
    candidates = choice.decision.candidates
    if len(failures) == 1:
        return failures[0]
    reasons = "\n".join(f"{each.tier}: {each.reason}" for each in candidates)
    if failures:
        error = ProviderError("every tier that was asked failed", code="AF755", hint=reasons)
        error.__cause__ = failures[0]
        return error
    if not choice.tiers:
        return ConfigError("no tier is configured", code="AF722")
    if len(candidates) > 1:
        return NoTierError("no tier can answer this", hint=reasons)
    alone = candidates[0]
    advice = ""
    if alone.tokens is not None:
        advice = "Shorten it, ask for fewer tokens (max_tokens), or ask a tier with a larger window."
    elif not within(PLACES[alone.tier], choice.floor):
        own = choice.settings.stay == choice.floor
        advice = (
            "route.stay in aiflow.toml says so"
            if own
            else "It was asked so, or a turn of its conversation was (--stay)."
        )
    elif alone.tier in choice.tiers and "takes no" in alone.reason:
        advice = f'takes = ["images", "tools"] under [tiers.{alone.tier}] says what its model can do'
    return NoTierError(f"{alone.tier} can't answer this: {alone.words()}", hint=advice)
