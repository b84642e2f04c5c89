"""How hard is a question? A judge says so in a `Verdict`, from the whole conversation, in a few milliseconds.

    verdict = judge_named("classifier").judge([{"role": "user", "content": "Prove that the root of 2 is irrational."}])
    verdict.label, verdict.why

Judges: `classifier` (the default, embedded), `rules`, `fixed:LOW`, and `llm:local`, which asks a tier's model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers.judge.verdict import EmbeddedJudge, Rule
from aiflow_jupyter.tiers.terms import JUDGES, Label, TierName

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.source import Source
    from aiflow_jupyter.tiers.judge.llm import LlmJudge

__all__ = ["EmbeddedJudge", "Rule", "judge_named"]


def judge_named(
    name: str,
    rule: Rule | None = None,
    *,
    source: Source | None = None,
    local_is_small: bool = True,
    deadline: float = 2.0,
) -> EmbeddedJudge | LlmJudge:
    """The judge of that name; its module is loaded now, its model when it is first asked.

    Args:
        name: one of `terms.JUDGES`.
        rule: how probabilities become a label.
        source: who is asked by `llm`.
        local_is_small: the local tier's model does not keep to three words by itself.
        deadline: seconds that `llm` has.

    Raises:
        ConfigError: there is none of that name, or `llm` has nobody to ask.
    """
    kind, _, which = name.partition(":")
    if name not in JUDGES:
        raise ConfigError(f"there is no judge {name!r}", code="AF725", hint=f"Judges: {', '.join(JUDGES)}.")
    if kind == "fixed":
        from aiflow_jupyter.tiers.judge.fixed import FixedJudge  # noqa: PLC0415

        return FixedJudge(cast("Label", which))
    if kind == "rules":
        from aiflow_jupyter.tiers.judge.rules import RulesJudge  # noqa: PLC0415 - numpy is loaded when asked

        return RulesJudge(rule)
    if kind == "classifier":
        from aiflow_jupyter.tiers.judge.classifier import ClassifierJudge  # noqa: PLC0415

        return ClassifierJudge(rule)
    if source is None:
        raise ConfigError("the judge llm has no source to ask", code="AF725", hint="Name a tier that is configured.")
    from aiflow_jupyter.tiers.judge.llm import LlmJudge  # noqa: PLC0415

    grammar = which == "local" and local_is_small
    return LlmJudge(source, tier=cast("TierName", which), rule=rule, grammar=grammar, deadline=deadline)
