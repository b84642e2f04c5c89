"""Folding: a chat that is too long for a tier's window is sent with a summary in the place of its older turns.

From a share of the window on (`fold_at`) older turns are folded. What stays as it is: every system message, and the
recent turns, at least the last one with all calls and results that belong to it. A turn is folded as a whole: a
question is never parted from its answer, nor a call from its results. The summary stands before the first turn that is
kept, as a question and an answer of its own, as not every model takes a system message there, nor two questions in a
row.

A summary is made of the one before it and of what is new since, and remembered by the content that it stands for: a
chat that has grown by a turn is mostly sent with the summary that there is. Enough is folded at a time that it lasts
for several turns. Each tier has its own, as windows differ.

    [system] [1] [2] [3] [4] [5] [6] [question]
    [system] [summary of 1-4]    [5] [6] [question]
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Final

from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.conversation.aside import aside
from aiflow_jupyter.tiers.conversation.cache import Summaries, hashes
from aiflow_jupyter.tiers.conversation.summary import EXTRACT, Summariser, Summary
from aiflow_jupyter.tiers.terms import Counter, Fitted, Floor, Misfit, Tier

FOLD_AT: Final = 0.8
_LEAST: Final = 64
"""Tokens that a summary has to have; where there is less room the chat does not fit."""
_MOST: Final = 2_048
_SHARE: Final = 5
"""A summary takes at most one of so many parts of what is sent, and never more than `_MOST` tokens."""
_AFTER: Final = 0.6
"""The share of what may be sent that is taken once turns were folded, so that it lasts for a while."""
_HEAD: Final = "[Earlier in this conversation, "
_TAKEN: Final = "I take that into account."
_NOTHING: Final = Summary("")


class Folding:
    """Makes a chat fit into a tier's window; see the module. Implements `terms.Fitter`.

    Args:
        counter: counts tokens.
        summariser: condenses turns.
        summaries: remembers what it made.
        fold_at: gives the share of a window from which on older turns are folded.
    """

    def __init__(
        self,
        counter: Counter,
        summariser: Summariser,
        summaries: Summaries,
        *,
        fold_at: Callable[[], float] = lambda: FOLD_AT,
    ) -> None:
        self._counter = counter
        self._summariser = summariser
        self._summaries = summaries
        self._fold_at = fold_at

    async def fit(
        self, messages: Sequence[Message], tier: Tier, output: int, floor: Floor, conversation: str = ""
    ) -> Fitted | Misfit:
        """The chat with what has to be folded folded; see `terms.Fitter`."""
        looked = await aside(messages, partial(self._look, tuple(messages), tier, output))
        if not isinstance(looked, tuple):
            return looked
        chat, most = looked
        made = await self._summaries.find(conversation, tier.name, chat.hashes)
        begun = await aside(messages, partial(self._begun, chat, made, most))
        if not isinstance(begun, int):
            return begun
        older, room = self._enough(chat, begun, most)
        before = made[chat.hashes[begun]].text if begun else ""
        summary = await self._summariser.condense(before, chat.spoken(begun, older), tier, room, floor)
        summary, fitted = await aside(messages, partial(self._cut, chat, older, summary, room, most))
        await self._summaries.keep(conversation, tier.name, chat.hashes[older], fitted.folded, summary)
        return fitted

    def misfit(self, messages: Sequence[Message], tier: Tier, output: int) -> Misfit | None:
        """Whether the chat can't be made to fit; see `terms.Fitter`."""
        if tier.window is None:
            return None
        chat, most = _Chat(tuple(messages), self._counter, tier), tier.window - output
        fits = chat.least <= most or chat.tokens <= most  # in this order: a long chat is not gone through for it
        return None if fits else _misfit(chat.least, tier.window, output)

    def _look(self, messages: tuple[Message, ...], tier: Tier, output: int) -> Fitted | Misfit | tuple[_Chat, int]:
        """The chat as it is where it fits or never will; else what is to be folded, and into how many tokens."""
        chat = _Chat(messages, self._counter, tier)
        if tier.window is None:
            return Fitted(messages, chat.tokens)
        most = tier.window - output
        wanted = min(most, int(self._fold_at() * tier.window))
        if chat.tokens <= wanted:
            return Fitted(messages, chat.tokens)
        if chat.older and chat.least <= most and not (chat.tokens <= most and chat.is_folded):
            chat.measure()
            return chat, wanted if chat.least <= wanted else most
        return Fitted(messages, chat.tokens) if chat.tokens <= most else _misfit(chat.least, tier.window, output)

    def _begun(self, chat: _Chat, made: Mapping[str, Summary], most: int) -> Fitted | int:
        """The chat with a summary that there is; where none is short enough, how many turns the latest one is of."""
        begun = 0
        for older, key in enumerate(chat.hashes):
            if key in made:
                if chat.size(older, made[key]) <= most:
                    fitted = self._fitted(chat, older, made[key])
                    if fitted.tokens <= most:
                        return fitted
                begun = older if older < chat.older else begun
        return begun

    def _enough(self, chat: _Chat, begun: int, most: int) -> tuple[int, int]:
        """How many turns to fold so that it lasts for a while, and the tokens that their summary may take."""
        room = max(_LEAST, min(_MOST, most // _SHARE))
        # The more is folded, the less is left: the first number that is enough is looked for by halves.
        numbers = range(begun + 1, chat.older)
        older = begun + 1 + bisect_left(numbers, x=True, key=lambda each: chat.size(each) + room <= _AFTER * most)
        return older, min(room, most - chat.size(older))

    def _cut(self, chat: _Chat, older: int, summary: Summary, room: int, most: int) -> tuple[Summary, Fitted]:
        """The summary, cut to what there is room for: a count of the whole is not always that of its parts."""
        fitted = self._fitted(chat, older, summary)
        while fitted.tokens > most:
            room -= fitted.tokens - most
            text = self._summariser.cut(summary.text, chat.tier, room) if room > 0 else ""
            summary = replace(summary, text=text)
            fitted = self._fitted(chat, older, summary)
        return summary, fitted

    def _fitted(self, chat: _Chat, older: int, summary: Summary) -> Fitted:
        sent = chat.folded(older, summary)
        note = ""
        if summary.made_by == EXTRACT:
            why = summary.problem or self._summariser.without_model() or "there was none when they were folded"
            note = f"older turns are folded to sentences of their own, not summarised by a model: {why}"
        return Fitted(sent, self._counter.tokens(sent, chat.tier), len(chat.spoken(0, older)), note)


def _misfit(least: int, window: int, output: int) -> Misfit:
    most = window - output
    if most <= 0:
        return Misfit(least, f"an answer of {output:,} tokens leaves nothing of a window of {window:,} for a question")
    return Misfit(
        least,
        f"what has to be sent as it is, the last turn above all, takes {least:,} tokens, {least - most:,} more "
        f"than the {most:,} that a window of {window:,} leaves beside an answer of {output:,}",
    )


class _Chat:
    """A chat as turns: each begins with a message of the user, and has all up to the next one.

    Args:
        messages: the chat.
        counter: counts its tokens.
        tier: where it is to be sent.

    Attributes:
        tier: as above.
        older: how many turns may be folded: all but the last one.
        is_folded: whether all that is older than the last turn is a summary.
        hashes: for each number of turns from the beginning on, what tells their content from any other.
    """

    def __init__(self, messages: tuple[Message, ...], counter: Counter, tier: Tier) -> None:
        self._messages = messages
        self._counter = counter
        self.tier = tier
        spoken = [at for at, message in enumerate(messages) if message["role"] != "system"]
        self._begins = [at for at in spoken if at == spoken[0] or messages[at]["role"] == "user"] or [len(messages)]
        self.older = len(self._begins) - 1
        first = messages[self._begins[0]]["content"] if self.older else ""
        self.is_folded = self.older == 1 and isinstance(first, str) and first.startswith(_HEAD)
        self.hashes: list[str] = [""]
        self._taken = [0]

    @cached_property
    def tokens(self) -> int:
        """The tokens of the whole."""
        return self._counter.tokens(self._messages, self.tier)

    @cached_property
    def least(self) -> int:
        """The tokens of what can't be folded, with the shortest summary of what can."""
        if not self.older:
            return self.tokens
        return self._counter.tokens(self.folded(self.older, _NOTHING), self.tier) + _LEAST

    def measure(self) -> None:
        """Go through what may be folded once: `hashes`, and what `size` needs."""
        after = ["", *hashes(self.spoken(0, self.older))]
        said = 0
        for number in range(self.older):
            turn = self.spoken(number, number + 1)
            said += len(turn)
            self.hashes.append(after[said])
            self._taken.append(self._taken[-1] + self._part(turn))

    def size(self, older: int, summary: Summary = _NOTHING) -> int:
        """The tokens with a summary in the place of so many turns, as the sum of the parts' tokens."""
        return self.tokens - self._taken[older] + self._part(_stand_in(summary))

    def _part(self, messages: Sequence[Message]) -> int:
        """The tokens of messages within a chat."""
        return self._counter.tokens(messages, self.tier) - self._counter.tokens((), self.tier)

    def spoken(self, begin: int, end: int) -> list[Message]:
        """What was said in turns, without system messages."""
        return [each for each in self._messages[self._begins[begin] : self._begins[end]] if each["role"] != "system"]

    def folded(self, older: int, summary: Summary) -> tuple[Message, ...]:
        """The messages with a summary in the place of so many turns."""
        begin = self._begins[older]
        systems = (each for each in self._messages[:begin] if each["role"] == "system")
        return (*systems, *_stand_in(summary), *self._messages[begin:])


def _stand_in(summary: Summary) -> tuple[Message, Message]:
    """The messages that stand for those that are folded."""
    how = "in sentences of its own" if summary.made_by == EXTRACT else "condensed"
    return (
        Message(role="user", content=f"{_HEAD}{how}]\n{summary.text}"),
        Message(role="assistant", content=_TAKEN),
    )
