"""Counting tokens: by the tier's own tokenizer where it has one and it matters, else an estimate that errs high.

The estimate knows nothing but the bytes: what a token is worth differs by script, so each class of bytes has its own
price, set above what vocabularies made for English take of it; a page of prose comes out at about 1.4 times its
tokens. What a provider then says it read calibrates it, for each model by itself: a model's factor is the highest that
was seen lately, so that it still errs high. A number beyond belief counts as the most that is believed, and only until
the provider says a better one.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.terms import Tier

IMAGE: Final = 1_500
"""Tokens of an image, whatever its size: what the dear ones of today's models take for a large picture.

It rests on what their makers document and on nothing that is measured here: models count pictures by tiles, patches or
a fixed price, from under 100 tokens to a few thousand. An image sent to a model that takes more is counted too low, and
the budget then holds once the provider has said what it read, not before.
"""
_TURN: Final = 8
"""Tokens around each turn: who speaks, begin and end."""
_FIRST: Final = 32
"""Tokens around a chat: the system message that some templates add by themselves."""
_NEAR: Final = 0.5
"""The share of a window from which an estimate is not enough."""
_REMEMBERED: Final = 4_096
_SEEN: Final = 16
_TELLING: Final = 200
"""Tokens from which a prompt says something of the factor, and not only of what stands around it."""
_TELLING_MANY: Final = 3
"""Answers from which the factor may be less than 1."""
_MOST_FACTOR: Final = 2.0
"""Times the estimate that a text may be: it errs high already, and a template adds less than the text itself."""
_MOST_AROUND: Final = 4_096
"""Tokens that a template and a server's own instructions may add to a chat."""


def _those(*ranges: tuple[int, int]) -> bytes:
    return bytes(byte for first, last in ranges for byte in range(first, last + 1))


_CLASSES: Final[tuple[tuple[bytes, float], ...]] = (
    (_those((0x61, 0x7A)), 0.33),  # small Latin letters
    (_those((0x41, 0x5A)), 0.45),  # capital ones
    (_those((0x30, 0x39)), 1.15),  # digits
    (_those((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)), 0.95),  # signs
    (_those((0x00, 0x1F)), 0.9),  # line ends
    (b" ", 0.13),
    (_those((0xC2, 0xCF)), 3.0),  # Latin letters with accents, Greek
    (_those((0xD0, 0xD4)), 1.25),  # Cyrillic
    (_those((0xD5, 0xDF)), 1.5),  # Hebrew, Arabic
    (_those((0xE0, 0xE0), (0xE3, 0xE9)), 2.3),  # Indic scripts, Thai; Chinese, Japanese
    (_those((0xE1, 0xE2), (0xEA, 0xEF)), 3.0),  # Korean, rare scripts, mathematical signs
    (_those((0xF0, 0xF4)), 4.0),  # emoji and whatever else has four bytes
)
"""Bytes, and the tokens of each; the bytes that go on with a letter are paid with its first."""

_UNBROKEN: Final = re.compile(rb"[!-~]{32,}")
_UNREADABLE: Final = 1.0
"""Tokens of a byte in what is no words: base64, hashes."""


def estimate(text: str) -> int:
    """The tokens that a text takes at most, as far as its bytes tell."""
    data = text.encode("utf-8", "replace")
    tokens = 0.0
    if _UNBROKEN.search(data) is not None:
        tokens = _UNREADABLE * sum(map(len, _UNBROKEN.findall(data)))
        data = _UNBROKEN.sub(b"", data)
    for those, price in _CLASSES:
        tokens += price * (len(data) - len(data.translate(None, those)))
    return int(tokens) + 1


def parts(message: Message) -> tuple[str, int]:
    """The text of a turn, calls included, and how many images it holds."""
    content: Any = message["content"]
    images = 0
    if isinstance(content, str):
        texts = [content]
    else:
        texts = []
        for part in content or ():
            if isinstance(part, Mapping) and part.get("type") == "text":
                texts.append(str(part.get("text", "")))
            else:
                images += 1
    calls: Any = message.get("tool_calls")
    for call in calls if isinstance(calls, list | tuple) else ():
        texts.append(str(call.get("function", call) if isinstance(call, Mapping) else call))
    return "\n".join(texts), images


def images(messages: Sequence[Message]) -> int:
    """How many images a chat holds; whatever is no text counts as one."""
    return sum(parts(message)[1] for message in messages)


_IN_PARTS: Final = frozenset({"role", "content", "tool_calls"})


def _sent(message: Message) -> tuple[str, int]:
    """The text of a turn with all else of it that a server reads, such as thoughts and names, and its images."""
    text, images = parts(message)
    return "\n".join([text, *(str(value) for key, value in message.items() if key not in _IN_PARTS and value)]), images


@runtime_checkable
class Tokenizing(Protocol):
    """A provider that can say how many tokens a text is."""

    async def count(self, text: str, model: str) -> int | None:
        """The tokens of a text; None where its server can't say, or is not there yet.

        Raises:
            ProviderError: the server can't be asked.
        """
        ...


class _Lately:
    """What was seen lately of a number that may be as high as `most`.

    One beyond that may be a server's mistake: it counts as `most`, and is forgotten once one comes that can be true.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._seen: deque[float] = deque(maxlen=_SEEN)

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, value: float) -> None:
        if value <= self._most and self.highest(0.0) >= self._most:
            self._seen = deque((each for each in self._seen if each <= self._most), _SEEN)
        self._seen.append(value)

    def highest(self, otherwise: float) -> float:
        """The highest, or what is given where none was seen."""
        return min(max(self._seen, default=otherwise), self._most)


@dataclass(slots=True)
class _Known:
    """What is known of one model: the tokens of texts, times the estimate that others are, tokens around a chat."""

    counts: OrderedDict[str, int] = field(default_factory=OrderedDict)
    ratios: _Lately = field(default_factory=lambda: _Lately(_MOST_FACTOR))
    around: _Lately = field(default_factory=lambda: _Lately(_MOST_AROUND))


class TokenCounter:
    """Counts the tokens of chats; implements `terms.Counter`."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], _Known] = {}

    def tokens(self, messages: Sequence[Message], tier: Tier) -> int:
        """The tokens that these messages take in the tier's window; never asks anybody."""
        known = self._of(tier)
        factor = known.ratios.highest(1.0)
        if len(known.ratios) < _TELLING_MANY:
            factor = max(1.0, factor)
        total = _FIRST + round(known.around.highest(0))
        for message in messages:
            text, images = _sent(message)
            counted = known.counts.get(text)
            total += _TURN + images * IMAGE + (round(estimate(text) * factor) if counted is None else counted)
        return total

    async def measure(self, messages: Sequence[Message], tier: Tier) -> None:
        """Ask the tier's own tokenizer where the estimate can't settle whether the chat fits.

        The text goes to the tier, so a floor is looked at before. What can't be asked stays an estimate, and so does
        what is older than a window full of messages: such a chat does not fit, whatever that takes.
        """
        known, provider = self._of(tier), tier.provider
        if tier.window is None or not isinstance(provider, Tokenizing):
            return
        if not self._reach(messages, tier, _NEAR * tier.window):
            return
        left = tier.window
        for message in reversed(messages):
            text, _ = _sent(message)
            if text not in known.counts:
                try:
                    counted = await provider.count(text, tier.model)
                except AiflowError:  # it will say so when it is asked for the answer
                    return
                if counted is None:
                    return
                known.counts[text] = counted
            known.counts.move_to_end(text)
            left -= known.counts[text]
            if len(known.counts) > _REMEMBERED:
                known.counts.popitem(last=False)
            if left < 0:
                return

    def _reach(self, messages: Sequence[Message], tier: Tier, most: float) -> bool:
        """Whether messages take so many tokens; of a long chat only as many are gone through as that needs."""
        tokens, nothing = 0, self.tokens((), tier)
        for message in reversed(messages):
            tokens += self.tokens((message,), tier) - nothing
            if tokens + nothing >= most:
                return True
        return False

    def learn(self, messages: Sequence[Message], tier: Tier, prompt_tokens: int | None) -> None:
        """Take in what the provider says it read."""
        if not prompt_tokens or prompt_tokens < 0 or images(messages):
            return
        known = self._of(tier)
        guess = sum(_TURN + estimate(_sent(message)[0]) for message in messages)
        if guess < _TELLING:
            known.around.add(max(0, prompt_tokens - guess - _FIRST))
        else:
            known.ratios.add(max(0.3, (prompt_tokens - known.around.highest(0)) / guess) * 1.05)

    def _of(self, tier: Tier) -> _Known:
        return self._known.setdefault((tier.name, tier.kind, tier.model), _Known())
