"""An attempt: one tier is asked, with its deadlines kept, and what came of it told to health, ledger and counter.

A tier has failed that gives no first token within `first_token_s` without a word of progress, or falls silent within
its answer for `silence_s`. The time that whoever reads the answer takes between two events is not the tier's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from aiflow_jupyter.errors import AiflowError, ConfigError, ProviderError, StreamCut
from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.runtime.source import Request
from aiflow_jupyter.tiers.booking import Booking
from aiflow_jupyter.tiers.counting import TokenCounter
from aiflow_jupyter.tiers.decision import Candidate, Charge, Decision, Fallback
from aiflow_jupyter.tiers.health import Pass
from aiflow_jupyter.tiers.terms import Tier

_QUIET_S: Final = 2.0  # until whoever asks is told of a tier that says nothing
_STALE_S: Final = 6.0  # the same, of one that said something; the hpc tier itself says more before that


class Attempt:
    """See the module.

    Args:
        tier: who is asked.
        candidate: what the decision says of it.
        request: what is sent.
        booking: its worst case.
        passage: its way through the tier's breaker.
        clock: nanoseconds.

    Attributes:
        last: the last event that came, None before the first.
        finish: the answer's end, None before.
    """

    def __init__(
        self,
        tier: Tier,
        candidate: Candidate,
        request: Request,
        booking: Booking,
        passage: Pass,
        clock: Callable[[], int],
    ) -> None:
        self.tier = tier
        self.candidate = candidate
        self.request = request
        self.last: Event | None = None
        self.finish: Finish | None = None
        self._booking = booking
        self._passage = passage
        self._clock = clock
        self._sent_at: int | None = None
        self._cost: float | None = None if tier.price.input or tier.price.output else 0.0
        self._said = False
        self._free = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """The tier's events.

        Raises:
            ProviderError: it failed.
            StreamCut: its answer broke off, or fell silent.
        """
        loop, tier = asyncio.get_running_loop(), self.tier
        limit: asyncio.Timeout | None = None
        waiting = _Waiting(tier.name, self.request.report, loop)

        def alive(words: str) -> None:
            if words and limit is not None and not self._begun:
                limit.reschedule(loop.time() + tier.first_token_s)
            waiting.said(words)

        self._sent_at = self._clock()
        async with waiting, aclosing(tier.provider.stream(replace(self.request, report=alive))) as events:
            while True:
                limit = asyncio.timeout(tier.silence_s if self._begun else tier.first_token_s)
                try:
                    async with limit:
                        event = await anext(events, None)
                except TimeoutError as error:
                    raise self._late() if limit.expired() else error from None
                finally:
                    limit = None
                if event is None:
                    break
                waiting.stop()
                self._note(event)
                yield event
        if self.finish is None:
            raise StreamCut(f"the answer of {tier.name} ended before it was complete")

    def failed(self, error: AiflowError, decision: Decision) -> None:
        """Take in what it failed of."""
        unread = unhelpful = isinstance(error, ConfigError)
        if isinstance(error, ProviderError):
            unread, unhelpful = error.unread, error.of_request
        self._free = unread and not self._begun
        seconds = 0.0 if self._sent_at is None else (self._clock() - self._sent_at) / 1e9
        if unhelpful:
            self._passage.over()
        else:
            rest_s = error.retry_after if isinstance(error, ProviderError) else None
            self._passage.failed(error.message, rest_s, 0.0 if self._begun else seconds)
        self.candidate.state, self.candidate.reason = "failed", error.message
        decision.chosen, decision.model = None, ""
        decision.fallbacks.append(Fallback(self.tier.name, error.code, error.message, seconds, self._begun))

    def learn(self, counter: TokenCounter) -> None:
        """Let the counter know how many tokens the provider read."""
        if self.finish is not None and self.finish.usage is not None:
            counter.learn(self.request.messages, self.tier, self.finish.usage.prompt_tokens)

    async def close(self, decision: Decision) -> None:
        """Settle what was booked, or release it where nothing was used."""
        self._passage.over()
        usage = self.finish.usage if self.finish is not None else None
        if self._sent_at is None or self._free:
            problem = await self._booking.release()
        else:
            most, priced = self.candidate.most, self.candidate.priced or self._said
            decision.charges.append(Charge(self.tier.name, self._cost, most, self.candidate.currency, priced))
            problem = await self._booking.settle(usage, self._cost, self.candidate.model)
        if problem:
            decision.notes.append(f"what it cost could not be booked: {problem}")

    def cost(self) -> float | None:
        """What the answer cost, None where that is not known."""
        return self._cost

    @property
    def _begun(self) -> bool:
        return self.last is not None

    def _note(self, event: Event) -> None:
        if self.last is None:
            assert self._sent_at is not None
            self._passage.began((self._clock() - self._sent_at) / 1e9)
        self.last = event
        if event.kind == "finish":
            self.finish = event.payload if isinstance(event.payload, Finish) else Finish()
            self._cost = self._priced(event.meta.get("cost"))
            self._passage.ended()

    def _priced(self, said: object) -> float | None:
        """What the answer cost: as its provider says in dollars, else by its tokens; None where nothing says it."""
        usage, price = self.finish.usage if self.finish is not None else None, self.tier.price
        if isinstance(said, int | float) and price.currency == "USD" and math.isfinite(said) and said >= 0:
            self._said = True
            return float(said)
        read, written = (usage.prompt_tokens, usage.completion_tokens) if usage is not None else (None, None)
        if read is not None and written is not None and min(read, written) >= 0:
            return price.of(read, written)
        return self._cost

    def _late(self) -> ProviderError:
        tier = self.tier
        if self._begun:
            return StreamCut(
                f"the answer of {tier.name} broke off: nothing for {tier.silence_s:g} s",
                code="AF754",
                hint="What came so far is a part of the answer. Run it again.",
            )
        return ProviderError(
            f"{tier.name} gave no first token in {tier.first_token_s:g} s, and no word of progress",
            code="AF753",
            hint="Its server may be loading a model or be busy: run it again, or raise its first_token_timeout.",
        )


class _Waiting:
    """Tells whoever asks what is waited for, also while the tier says nothing of it, until `stop` or the way out.

    Args:
        tier: the name of who is asked.
        report: told in words; None where nobody listens.
        loop: the time.
    """

    def __init__(self, tier: str, report: Callable[[str], None] | None, loop: asyncio.AbstractEventLoop) -> None:
        self._tier = tier
        self._report = report
        self._loop = loop
        self._words = ""
        self._since = self._begun = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._over = report is None

    async def __aenter__(self) -> None:
        self._again(_QUIET_S)

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def said(self, words: str) -> None:
        """Pass on what the tier itself says."""
        if self._report is not None:
            self._report(words)
        self._words, self._since = words, self._loop.time()
        self._again(_STALE_S if words else _QUIET_S)

    def stop(self) -> None:
        """Say no more: the answer has begun, or is over."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def _again(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._over:
            self._timer = self._loop.call_later(seconds, self._tell)

    def _tell(self) -> None:
        now = self._loop.time()
        words, since = (self._words, self._since) if self._words else (f"waiting for {self._tier}", self._begun)
        if self._report is not None:
            self._report(f"{words}, {now - since:.0f} s")
        self._again(1.0)
