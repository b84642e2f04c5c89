"""A decision about who answers: what the judge said, which tiers came into question, and why one was taken.

`str(decision)` is for people, `as_dict()` for programs, `badge()` for the line under an answer. It is handed out when
a tier has been chosen, and goes on being told what happens: a tier that failed, one that took over, what it cost.

    auto: local answers · llama3.2
    judged MEDIUM (LOW 0.12, MEDIUM 0.71, HIGH 0.17) in 3 ms: asks how or why
      hpc    failed   nothing answers at gpu01:8000 · 412 of 32768 tokens, at most 1024 more
      local  answers  412 of 8192 tokens, at most 1024 more
      cloud  refused  not allowed: this request stays within the institution
    hpc failed before its first token, after 80 ms (AF701): nothing answers at gpu01:8000
    decided in 5 ms
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.tiers.terms import Floor, Label, TierName, amount

_BADGE: Final = 120
"""Letters of an error that a badge shows; the decision has all of them."""

State = Literal["unasked", "refused", "failed", "answers"]
"""Not needed so far; not allowed or not able; asked in vain; the one that answers."""


@dataclass(slots=True)
class Candidate:
    """One tier that came into question.

    Attributes:
        model: what it would be asked for, empty for its server's own.
        state: see `State`.
        reason: why it is refused, or how it failed; empty for the others.
        tokens: of the chat as it is sent to this tier, None where nobody counted.
        output: the most tokens of its answer.
        window: of its model, None where that is not known.
        folded: messages that a summary stands for.
        note: what there is to say of that.
        most: the worst case, in `currency`.
        priced: whether the model's own price is known; else it is counted at that of its tier's own model.
    """

    tier: TierName
    model: str = ""
    state: State = "unasked"
    reason: str = ""
    tokens: int | None = None
    output: int | None = None
    window: int | None = None
    folded: int = 0
    note: str = ""
    most: float = 0.0
    currency: str = "USD"
    priced: bool = True

    def refuse(self, reason: str) -> None:
        """Note why it is not asked."""
        self.state, self.reason = "refused", reason

    def words(self) -> str:
        """What there is to say of it, in one line."""
        parts = [self.reason]
        if self.tokens is not None:
            of = f"{self.tokens} of {self.window}" if self.window is not None else str(self.tokens)
            parts.append(f"{of} tokens, at most {self.output} more")
        if self.folded:
            parts.append(f"{counted(self.folded, 'older message')} folded")
        parts.append(self.note)
        if self.most:
            unknown = "" if self.priced else ", at the price of the tier's own model: this one's is not known"
            parts.append(f"at most {amount(self.most, self.currency)}{unknown}")
        return " · ".join(part for part in parts if part) or "not needed"


@dataclass(frozen=True, slots=True)
class Fallback:
    """A tier that was asked and failed, so that another one took over.

    Attributes:
        error: what it failed of, in one sentence; `code` is the error's.
        seconds: how long it was waited for.
        begun: whether its answer had begun, which is then void.
    """

    tier: TierName
    code: str
    error: str
    seconds: float
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Charge:
    """What asking one tier came to, also where it failed.

    Attributes:
        cost: None where nobody said it, as of an answer that broke off: then `most` counts as spent.
        most: its worst case.
        priced: whether both are at the model's own price, or as its server said.
    """

    tier: TierName
    cost: float | None
    most: float
    currency: str = "USD"
    priced: bool = True

    def __str__(self) -> str:
        said = f"at most {amount(self.most, self.currency)}" if self.cost is None else amount(self.cost, self.currency)
        return said if self.priced else f"{said} if its model costs what the tier's own does"


@dataclass(slots=True)
class Decision:
    """See the module.

    Attributes:
        asked: the tier that was asked for, `auto` among them.
        stay: the floor.
        label, probabilities: the judge's verdict; None and empty where nobody had to judge.
        why: the judge's reason, or why it was not asked.
        judged_s: seconds that the judge took.
        kept: the conversation that holds the request to the tier of its last turn; empty for none.
        candidates: in the order in which they are asked.
        chosen, model: who answers; None where nobody can.
        fallbacks: the tiers that failed before.
        seconds: spent deciding, the judge's included, and what was decided anew after a failure.
        cost: what the answer cost, None where that is not known.
        charges: what each tier came to that was asked and may have to be paid, those that failed among them.
        notes: what else there is to say.
    """

    asked: str
    stay: Floor = "anywhere"
    label: Label | None = None
    probabilities: Mapping[Label, float] = field(default_factory=dict)
    why: str = ""
    judged_s: float = 0.0
    kept: str = ""
    candidates: list[Candidate] = field(default_factory=list)
    chosen: TierName | None = None
    model: str = ""
    fallbacks: list[Fallback] = field(default_factory=list)
    seconds: float = 0.0
    cost: float | None = None
    currency: str = "USD"
    charges: list[Charge] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def candidate(self, tier: TierName) -> Candidate:
        """What there is of a tier.

        Raises:
            KeyError: it did not come into question.
        """
        for each in self.candidates:
            if each.tier == tier:
                return each
        raise KeyError(tier)

    def badge(self) -> str:
        """What a reader of the answer has to know of it; empty where a named tier answered as asked."""
        parts = [f"judged {self.label}"] if self.label is not None else []
        if self.kept:
            parts.append("stays where its conversation was")
        if self.fallbacks:
            failed = ", ".join(f"{each.tier} failed: {_short(each.error)}" for each in self.fallbacks)
            parts.append(f"{failed}, answered by {self.chosen}" if self.chosen else failed)
        folded = next((each.folded for each in self.candidates if each.state == "answers"), 0)
        if folded:
            parts.append(f"{counted(folded, 'older message')} folded")
        return " · ".join([*parts, *([self.costs] if self.costs else [])])

    @property
    def costs(self) -> str:
        """What it cost, in words; empty where it cost nothing."""
        paid = [each for each in self.charges if (each.most if each.cost is None else each.cost)]
        return ", ".join(f"{each.tier} {each}" if len(self.charges) > 1 else str(each) for each in paid)

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain types."""
        return asdict(self)

    def __str__(self) -> str:
        who = " · ".join(part for part in (f"{self.chosen} answers", self.model) if part) if self.chosen else "nobody"
        lines = [f"{self.asked}: {who}"]
        if self.label is not None:
            odds = ", ".join(f"{label} {p:.2f}" for label, p in self.probabilities.items())
            shown = f" ({odds})" if odds else ""
            lines.append(f"judged {self.label}{shown} in {_time(self.judged_s)}{self.why and f': {self.why}'}")
        elif self.why:
            lines.append(f"not judged: {self.why}")
        if self.kept:
            lines.append(f"conversation {self.kept!r} stays where its last turn was")
        lines += [f"  {each.tier:<5}  {each.state:<7}  {each.words()}" for each in self.candidates]
        for each in self.fallbacks:
            when = "within its answer" if each.begun else "before its first token"
            lines.append(f"{each.tier} failed {when}, after {_time(each.seconds)} ({each.code}): {each.error}")
        lines += self.notes
        if self.costs:
            lines.append(f"cost: {self.costs}")
        if any(each.cost is None and each.most for each in self.charges):
            lines.append("nobody said what it really cost: the most that it could counts as spent")
        lines.append(f"decided in {_time(self.seconds)}")
        return "\n".join(lines)


def _short(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) <= _BADGE else f"{line[:_BADGE]}…"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
