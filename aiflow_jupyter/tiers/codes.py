"""The codes of tiers, settings, costs and conversations: stable, one meaning each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AF720": "a setting or an option is unknown, or has a value that it can't have",
        "AF722": "no tier is called so, or it is not configured",
        "AF723": "a file of settings can't be read, or says what it can't say",
        "AF724": "the key of a tier, its relay's key or its executor is missing or can't be used",
        "AF725": "a judge is unknown, or is given a value that it can't have",
        "AF726": "the judge's model file can't be read",
        "AF727": "the model that judges gave no verdict",
        "AF728": "which files are trusted can't be read",
        "AF751": "no tier may answer, or none can",
        "AF753": "a tier gave no first token in time",
        "AF754": "a tier fell silent in the middle of its answer",
        "AF755": "every tier that was asked failed",
        "AF760": "an answer could go over a budget, and was not asked for",
        "AF761": "the file of costs and conversations is locked, full or can't be used",
        "AF762": "the file of costs and conversations is not this version's or not yours, or can't be made",
        "AF763": "the worst case of an answer is no amount",
        "AF764": "costs are asked for by what they are not added up by, or since what is no day",
        "AF770": "no conversation is called so, or none can be",
        "AF771": "a file of a conversation is not what it has to be",
        "AF772": "the file of a conversation can't be read or written",
        "AF773": "there is a conversation of that name already",
        "AF774": "the local model's window is too small to summarise in",
    }
)
"""What each code says."""
