"""How hard is a question? `judge(messages)` gives a `Verdict`, from the whole conversation, in a few milliseconds.

    verdict = judge([{"role": "user", "content": "Prove that the square root of 2 is irrational."}])
    verdict.label, verdict.why

Judges: `classifier` (the default, embedded), `rules`, `fixed:LOW`, and `llm:local`, which asks a tier's model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.judge.verdict import LABELS, EmbeddedJudge, Judge, Label, Rule, Verdict

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.source import Source
    from aiflow_jupyter.tiers.judge.llm import Constraint

__all__ = ["LABELS", "NAMES", "EmbeddedJudge", "Judge", "Label", "Rule", "Verdict", "judge", "judge_named"]

NAMES: Final = ("classifier", "rules", "fixed:LABEL", "llm:TIER")
"""As the settings name them; `fixed` alone says MEDIUM, and `llm` alone asks the local tier."""
_default: list[EmbeddedJudge] = []


def judge(messages: Sequence[Message]) -> Verdict:
    """The default judge's verdict on a conversation, oldest message first."""
    if not _default:
        _default.append(_classifier(Rule()))
    return _default[0].judge(messages)


def judge_named(
    name: str,
    rule: Rule | None = None,
    *,
    source: Source | None = None,
    constraint: Constraint = "none",
    deadline: float = 2.0,
) -> Judge:
    """The judge of that name; its module is loaded now, its model when it is first asked.

    Args:
        name: one of `NAMES`.
        rule: how probabilities become a label.
        source: who is asked by `llm`.
        constraint: how the server of `llm` holds it to the three words.
        deadline: seconds that `llm` has.

    Raises:
        ConfigError: there is none of that name, or `llm` has nobody to ask.
    """
    rule = rule or Rule()
    kind, _, which = name.partition(":")
    if kind == "llm" and which in ("", *_TIERS):
        if source is None:
            raise ConfigError(
                "the judge llm has no source to ask", code="AF725", hint="Name a tier that is configured."
            )
        from aiflow_jupyter.tiers.judge.llm import LlmJudge  # noqa: PLC0415

        return LlmJudge(source, tier=which or "local", rule=rule, constraint=constraint, deadline=deadline)
    if kind == "fixed" and which.upper() in ("", *LABELS):
        return _fixed(which.upper())
    if name not in _EMBEDDED:
        raise ConfigError(
            f"there is no judge {name!r}",
            code="AF725",
            hint=f"Judges: {', '.join(NAMES)}. A LABEL is {_either(LABELS)}, a TIER {_either(_TIERS)}.",
        )
    return _EMBEDDED[name](rule)


_TIERS: Final = ("local", "hpc", "cloud")


def _either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _classifier(rule: Rule) -> EmbeddedJudge:
    from aiflow_jupyter.tiers.judge.classifier import ClassifierJudge  # noqa: PLC0415 - numpy is loaded when asked

    return ClassifierJudge(rule)


def _rules(rule: Rule) -> EmbeddedJudge:
    from aiflow_jupyter.tiers.judge.rules import RulesJudge  # noqa: PLC0415

    return RulesJudge(rule)


def _fixed(label: str) -> EmbeddedJudge:
    from aiflow_jupyter.tiers.judge.fixed import FixedJudge  # noqa: PLC0415

    return FixedJudge(next((each for each in LABELS if each == label), "MEDIUM"))


_EMBEDDED: Final[Mapping[str, Callable[[Rule], EmbeddedJudge]]] = {
    "classifier": _classifier,
    "rules": _rules,
}
