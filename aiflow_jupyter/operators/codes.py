"""The codes of what operators meet in a run: stable, one meaning each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AF620": "an answer makes more calls than tools may put together",
        "AF621": "a result of a call fits no answer of generate that waits for one, or more wait than it may remember",
        "AF622": "more waits at a merge for the inputs before it than may",
        "AF623": "a join can't pair what comes, or keeps as much as it may",
        "AF624": "a graph that delegate names has not one input, or gives nothing to go on with",
        "AF625": "graphs delegate to each other too deeply, or in a circle",
        "AF626": "an answer in the graph of a delegate broke off, or began anew in part",
        "AF627": "retrieve is given a list of documents, and bm25s, which ranks them, is not installed",
        "AF628": "a pattern of classify takes too long on one text",
        "AF721": "a run with generate has nothing that answers",
        "AF730": "the file of a sink can't be written",
    }
)
"""What each code says."""
