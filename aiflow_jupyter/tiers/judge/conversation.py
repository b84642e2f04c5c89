"""What a judge reads of a conversation: the question that is open, not only the last words.

"Shorter please" asks for the earlier answer again, so it is as hard as the question before it; "thanks" asks for
nothing. System messages and answers are not read: what they say is not what is asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiflow_jupyter.runtime.source import Message

BEGIN: Final = 3_000
END: Final = 1_000
"""How much of a long text is read: its beginning and its end, in characters; a question stands at one of them."""

LOOK_BACK: Final = 20
"""How many follow-ups in a row are followed back."""

_COURTESY: Final = re.compile(
    r"\W*((many )?thanks?( you)?( (so|very) much| a lot)?|thx|ok(ay)?|got it|great|perfect|cool|nice|hi|hello|hey|bye"
    r"|good( morning| evening| night|bye)?|yes|no|danke|merci|gracias)\W*",
    re.IGNORECASE,
)
_FOLLOW_UP: Final = re.compile(
    r"^\W*(and|but|so|then|also|or|why( not)?\W*$|how so|shorter|longer|simpler|more|less|again|continue|go on"
    r"|keep going|try again|next|rewrite|rephrase|redo|expand|elaborate|summari[sz]e|translate|explain (it|that|this)"
    r"|what about|how about|same|now|instead|in (python|english|german|french|one|two|three|a|bullet|simple)\b|as an? "
    r"|with(out)? |for )"
    r"|\b(it|this|them|these|those|above|previous|your (answer|proof|code|list|plan))\b|\bthat\W*$",
    re.IGNORECASE,
)
_ORDER: Final = re.compile(r"^\W*(add|make|use|fix|remove|change|plot|show|drop|keep|please)\b", re.IGNORECASE)
_OWN: Final = re.compile(
    r"\d\s*[-+*/^x]\s*\d|^\W*(what|who|when|where|which|how (many|much|old|far)|define)\b", re.IGNORECASE
)
"""A sum or a question for one fact, which stands for itself however few words it has."""

_SHORT: Final = 12
"""The most words of a follow-up."""
_ORDERED: Final = 4
"""The most words of one that only says what to do."""


@dataclass(frozen=True, slots=True)
class Gist:
    """The open question.

    Attributes:
        text: what is judged; empty if nobody asked anything.
        inherited: it comes from before the last message, which only follows it up.
        courtesy: a greeting or thanks, which asks for nothing.
    """

    text: str
    inherited: bool = False
    courtesy: bool = False


def gist(messages: Sequence[Message]) -> Gist:
    """The open question of a conversation, oldest message first."""
    asked = [text for message in messages if message["role"] == "user" and (text := _text(message["content"])).strip()]
    if not asked:
        return Gist("")
    last = asked[-1]
    if _COURTESY.fullmatch(last[: _SHORT * 10]) and len(last) < _SHORT * 10:
        return Gist(last, courtesy=True)
    if not _follows(last):
        return Gist(last)
    for earlier in reversed(asked[:-1][-LOOK_BACK:]):
        if not _follows(earlier) and not _COURTESY.fullmatch(earlier[: _SHORT * 10]):
            return Gist(f"{earlier}\n{last}" if len(last.split()) > _ORDERED else earlier, inherited=True)
    return Gist(last)


def _follows(text: str) -> bool:
    text = text[:400]
    words = len(text.split())
    if words > _SHORT or (_OWN.search(text) and not re.match(r"\W*what about\b", text, re.IGNORECASE)):
        return False
    return words == 1 or (words <= _ORDERED and _ORDER.search(text) is not None) or _FOLLOW_UP.search(text) is not None


def _text(content: Any) -> str:
    """The text of a message's content, which may be a list of parts, cut to what is read."""
    if isinstance(content, list):
        content = "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    text = content if isinstance(content, str) else ""
    return text if len(text) <= BEGIN + END else f"{text[:BEGIN]}\n{text[-END:]}"
