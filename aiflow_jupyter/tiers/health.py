"""Health: a circuit breaker for each tier, and how fast its last answers began.

    closed ── `failures` within `window_s`, ──> open ── after its rest ──> half-open
      ^       no whole answer between;           ^                            │ one request is let through
      │       or one that was long waited for    └──────── it failed ─────────┤
      └─────────────────── it began to answer ────────────────────────────────┘

It rests for `rest_s`, and twice as long after each trial that failed, up to ten minutes.

While a breaker is open, requests that have another way take it. Whoever is let through gets a `Pass` and says how it
went, or only gives it back where it says nothing of the tier (the user cancelled).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from aiflow_jupyter.tiers.terms import TierName

State = Literal["closed", "open", "half-open"]
_LATENCIES: Final = 20
_LONGEST_REST_S: Final = 600.0
_DOUBLED: Final = 10  # times, at most: more than the longest rest takes
_LONG_WAIT_S: Final = 5.0  # before a failure: nobody shall wait so long for the same again and again


@dataclass(frozen=True, slots=True)
class Status:
    """A tier's health at one instant.

    Attributes:
        failures: those that count now.
        why: the last failure, empty after a whole answer.
        retry_s: seconds until an open breaker lets a request through, else 0.
        latency_s: median seconds to the first token of the last answers, None before the first.
    """

    state: State
    failures: int
    why: str
    retry_s: float
    latency_s: float | None

    def __str__(self) -> str:
        if self.state == "open":
            return f"rests for {self.retry_s:.0f} s after it failed: {self.why}"
        if self.state == "half-open":
            return f"is on trial after it failed: {self.why}"
        return f"ok, but lately: {self.why}" if self.why else "ok"


class Breaker:
    """One tier's circuit breaker; see `Health` for the arguments."""

    def __init__(self, clock: Callable[[], int], failures: int, window_s: float, rest_s: float) -> None:
        self._clock = clock
        self._most = failures
        self._window_ns = round(window_s * 1e9)
        self._rest_s = rest_s
        self._failed_at: deque[int] = deque()
        self._open_until: int | None = None
        self._trial: Pass | None = None
        self._why = ""
        self._trials = 0  # that failed since it opened
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)

    def status(self) -> Status:
        """The health now."""
        self._forget()
        left = 0 if self._open_until is None else self._open_until - self._clock()
        state: State = "closed" if self._open_until is None else "open" if left > 0 else "half-open"
        latency = median(self._latencies) if self._latencies else None
        return Status(state, len(self._failed_at), self._why, max(0, left) / 1e9, latency)

    def enter(self, *, early: bool, anyway: bool) -> Pass | None:
        """Let a request through, or not; see `Health.enter`."""
        entered = Pass(self)
        state = self.status().state
        if state == "closed" or anyway:
            return entered
        if self._trial is not None or (state == "open" and not early):
            return None
        self._trial = entered
        return entered

    def began(self, entered: Pass, latency_s: float) -> None:
        """See `Pass.began`."""
        self.leave(entered)
        if self._open_until is not None:
            self._failed_at.clear()
            self._open_until = None
            self._trials = 0
        self._latencies.append(latency_s)

    def ended(self) -> None:
        """See `Pass.ended`."""
        self._failed_at.clear()
        self._why = ""

    def failed(self, entered: Pass, why: str, rest_s: float | None, waited_s: float) -> None:
        """See `Pass.failed`."""
        on_trial = self._trial is entered
        self.leave(entered)
        self._forget()
        self._failed_at.append(self._clock())
        self._why = why
        if on_trial or rest_s is not None or waited_s > _LONG_WAIT_S or len(self._failed_at) >= self._most:
            self._trials += on_trial
            rest = self._rest_s * 2 ** min(self._trials, _DOUBLED) if rest_s is None else rest_s
            self._open_until = self._clock() + round(min(rest, _LONGEST_REST_S) * 1e9)

    def leave(self, entered: Pass) -> None:
        """A request is through; if it was the one on trial, another one may be."""
        if self._trial is entered:
            self._trial = None

    def _forget(self) -> None:
        since = self._clock() - self._window_ns
        while self._failed_at and self._failed_at[0] < since:
            self._failed_at.popleft()


class Pass:
    """One request's way to a tier; after `ended`, `failed` or `over` it says no more."""

    __slots__ = ("_breaker",)

    def __init__(self, breaker: Breaker) -> None:
        self._breaker: Breaker | None = breaker

    def began(self, latency_s: float) -> None:
        """The answer began, so many seconds after it was asked for."""
        if self._breaker is not None:
            self._breaker.began(self, latency_s)

    def ended(self) -> None:
        """The answer is whole: failures before it count no more."""
        if self._breaker is not None:
            self._breaker.ended()
        self.over()

    def failed(self, why: str, rest_s: float | None = None, waited_s: float = 0.0) -> None:
        """The tier failed.

        Args:
            why: in words.
            rest_s: for how long it wants to be left alone, None where it did not say.
            waited_s: for how long its first token was waited for in vain, 0 where that had come.
        """
        if self._breaker is not None:
            self._breaker.failed(self, why, rest_s, waited_s)
        self._breaker = None

    def over(self) -> None:
        """Nothing more is said of the tier."""
        if self._breaker is not None:
            self._breaker.leave(self)
        self._breaker = None


class Health:
    """See the module.

    Args:
        clock: nanoseconds.
        failures: how many open a breaker.
        window_s: within how many seconds.
        rest_s: how long an open breaker stays so at first.
    """

    def __init__(
        self, clock: Callable[[], int], *, failures: int = 3, window_s: float = 60.0, rest_s: float = 30.0
    ) -> None:
        self._make: Callable[[], Breaker] = lambda: Breaker(clock, failures, window_s, rest_s)
        self._breakers: dict[TierName, Breaker] = {}

    def status(self, tier: TierName) -> Status:
        """A tier's health now."""
        return self._of(tier).status()

    def enter(self, tier: TierName, *, early: bool = False, anyway: bool = False) -> Pass | None:
        """Let a request through, if the tier's breaker does.

        Args:
            tier: which one.
            early: be the one request on trial, also before the rest is over.
            anyway: whatever the breaker says; what comes of it counts all the same.
        """
        return self._of(tier).enter(early=early, anyway=anyway)

    def forget(self, tier: TierName) -> None:
        """Begin anew: its settings have changed."""
        self._breakers.pop(tier, None)

    def _of(self, tier: TierName) -> Breaker:
        if tier not in self._breakers:
            self._breakers[tier] = self._make()
        return self._breakers[tier]
