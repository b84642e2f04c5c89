"""The measurement of long conversations: what is canned is as long as the published test, and facts stand early."""

from __future__ import annotations

import random

from aiflow_jupyter.bench.context import _FACTS, FULL, PAST, _turn
from aiflow_jupyter.tiers.counting import estimate


def test_a_full_conversation_is_past_the_published_length_and_has_its_facts_early():
    for number in range(FULL.conversations):
        chance = random.Random(number)
        turns = [_turn(number, turn, FULL, chance) for turn in range(1, FULL.turns + 1)]
        # The estimate is about 1.4 times the tokens of prose.
        assert sum(estimate(question) + estimate(answer) for question, answer in turns) / 1.4 > PAST
        for (_, _, values), (question, _) in zip(_FACTS, turns, strict=False):
            assert values[number] in question
        said = " ".join(answer for _, answer in turns)
        assert all(values[number] not in said for _, _, values in _FACTS)


def test_probes_are_twenty_five_and_after_the_facts_at_the_end():
    assert len(FULL.probed) * FULL.conversations == 25
    assert FULL.probed[-1] == FULL.turns > len(_FACTS)
