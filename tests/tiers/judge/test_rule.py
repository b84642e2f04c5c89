"""From probabilities to a label."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers.judge import Rule
from aiflow_jupyter.tiers.terms import LABELS

SHARES = st.tuples(*[st.floats(0.001, 1)] * 3).map(
    lambda parts: {label: part / sum(parts) for label, part in zip(LABELS, parts, strict=True)}
)


def shares(low, medium, high):
    return {"LOW": low, "MEDIUM": medium, "HIGH": high}


def test_the_likeliest_label_wins():
    assert Rule().label(shares(0.2, 0.5, 0.3)) == "MEDIUM"


def test_when_torn_the_harder_one_wins():
    assert Rule(torn=0.1).label(shares(0.45, 0.4, 0.15)) == "MEDIUM"
    assert Rule(torn=0.1).label(shares(0.1, 0.48, 0.42)) == "HIGH"
    assert Rule(torn=0.1).label(shares(0.6, 0.3, 0.1)) == "LOW"


def test_the_threshold_alone_decides_on_high():
    assert Rule(high=0.3).label(shares(0.6, 0.1, 0.3)) == "HIGH"
    assert Rule(high=0.95).label(shares(0.05, 0.1, 0.85)) == "MEDIUM"


@given(SHARES, st.floats(0, 1), st.floats(0, 1))
def test_a_lower_threshold_never_makes_a_question_easier(probabilities, one, other):
    lower, higher = sorted((one, other))
    assert LABELS.index(Rule(high=lower).label(probabilities)) >= LABELS.index(Rule(high=higher).label(probabilities))


@given(SHARES, st.floats(0, 1))
def test_rounding_up_never_makes_a_question_easier(probabilities, torn):
    assert LABELS.index(Rule(torn=torn).label(probabilities)) >= LABELS.index(Rule().label(probabilities))


@pytest.mark.parametrize("wrong", [{"high": 1.5}, {"torn": -0.1}, {"high": float("nan")}])
def test_a_setting_that_is_no_share_is_refused(wrong):
    with pytest.raises(ConfigError, match="AF725"):
        Rule(**wrong)
