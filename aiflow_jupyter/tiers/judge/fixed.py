"""A judge that always says the same: for who knows what is asked, and as the floor that others are measured by."""

from __future__ import annotations

from collections.abc import Mapping

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers.judge.conversation import Gist
from aiflow_jupyter.tiers.judge.verdict import EmbeddedJudge
from aiflow_jupyter.tiers.terms import LABELS, Label


class FixedJudge(EmbeddedJudge):
    """Always one label.

    Args:
        label: LOW, MEDIUM or HIGH.

    Raises:
        ConfigError: it is another word.
    """

    name = "fixed"

    def __init__(self, label: Label = "MEDIUM") -> None:
        super().__init__()
        if label not in LABELS:
            raise ConfigError(f"a fixed judge says LOW, MEDIUM or HIGH, not {label!r}", code="AF725")
        self._probabilities: Mapping[Label, float] = {each: float(each == label) for each in LABELS}

    def weigh(self, question: Gist) -> tuple[Mapping[Label, float], str]:  # noqa: ARG002
        """See `EmbeddedJudge`."""
        return self._probabilities, "it was set"
