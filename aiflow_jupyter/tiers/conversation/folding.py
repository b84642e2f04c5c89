"""Folding: a chat that is too long for a tier's window is sent with a summary in the place of its older turns.

From a share of the window on (`fold_at`) older turns are folded. What stays as it is: every system message, and the
recent turns, at least the last one with all calls and results that belong to it. A turn is folded as a whole: a
question is never parted from its answer, nor a call from its results. The summary stands before the first turn that is
kept, as a question and an answer of its own, as not every model takes a system message there.

A summary is made of the one before it and of what is new since, and remembered by the content that it stands for: a
chat that has grown by a turn is mostly sent with the summary that there is. Enough is folded at a time that it lasts
for several turns. Each tier has its own, as windows differ.

    [system] [1] [2] [3] [4] [5] [6] [question]
    [system] [summary of 1-4]    [5] [6] [question]
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.conversation.cache import Summaries
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
        whole = tuple(messages)
        tokens = self._counter.tokens(whole, tier)
        if tier.window is None:
            return Fitted(whole, tokens)
        most = tier.window - output
        wanted = min(most, int(self._fold_at() * tier.window))
        if tokens <= wanted:
            return Fitted(whole, tokens)
        chat = _Chat(whole)
        least = self._least(chat, tier)
        if chat.older and least <= most and not (tokens <= most and chat.is_folded):
            return await self._folded(chat, tier, wanted if least <= wanted else most, floor, conversation)
        return Fitted(whole, tokens) if tokens <= most else _misfit(least, tier.window, output)

    def misfit(self, messages: Sequence[Message], tier: Tier, output: int) -> Misfit | None:
        """Whether the chat can't be made to fit; see `terms.Fitter`."""
        whole = tuple(messages)
        if tier.window is None or self._counter.tokens(whole, tier) <= tier.window - output:
            return None
        least = self._least(_Chat(whole), tier)
        return _misfit(least, tier.window, output) if least > tier.window - output else None

    def _least(self, chat: _Chat, tier: Tier) -> int:
        """The tokens of what can't be folded, with the shortest summary of what can."""
        if not chat.older:
            return self._counter.tokens(chat.folded(0, None), tier)
        return self._counter.tokens(chat.folded(chat.older, _NOTHING), tier) + _LEAST

    async def _folded(self, chat: _Chat, tier: Tier, most: int, floor: Floor, conversation: str) -> Fitted:
        """The chat in at most so many tokens, by a summary that there is or a new one."""
        made = await self._summaries.find(conversation, tier.name, chat.hashes)
        begun = 0
        for older, key in enumerate(chat.hashes):
            if key in made:
                fitted = self._fitted(chat, older, made[key], tier)
                if fitted.tokens <= most:
                    return fitted
                begun = older if older < chat.older else begun
        older, room = self._enough(chat, tier, begun, most)
        before = made[chat.hashes[begun]].text if begun else ""
        summary = await self._summariser.condense(before, chat.spoken(begun, older), tier, room, floor)
        fitted = self._fitted(chat, older, summary, tier)
        while fitted.tokens > most:  # a count of the whole is not always that of its parts
            room -= fitted.tokens - most
            summary = replace(summary, text=self._summariser.cut(summary.text, tier, room) if room > 0 else "")
            fitted = self._fitted(chat, older, summary, tier)
        await self._summaries.keep(conversation, tier.name, chat.hashes[older], fitted.folded, summary)
        return fitted

    def _enough(self, chat: _Chat, tier: Tier, begun: int, most: int) -> tuple[int, int]:
        """How many turns to fold so that it lasts for a while, and the tokens that their summary may take."""
        room = max(_LEAST, min(_MOST, most // _SHARE))

        def size(older: int) -> int:
            return self._counter.tokens(chat.folded(older, _NOTHING), tier)

        # The more is folded, the less is left: the first number that is enough is looked for by halves.
        numbers = range(begun + 1, chat.older)
        older = begun + 1 + bisect_left(numbers, x=True, key=lambda number: size(number) + room <= _AFTER * most)
        return older, min(room, most - size(older))

    def _fitted(self, chat: _Chat, older: int, summary: Summary, tier: Tier) -> Fitted:
        sent = chat.folded(older, summary)
        note = ""
        if summary.made_by == EXTRACT:
            note = "older turns are folded to sentences of their own, not summarised by a model"
            note += f": {summary.problem}" if summary.problem else ""
        return Fitted(sent, self._counter.tokens(sent, tier), len(chat.spoken(0, older)), note)


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

    Attributes:
        older: how many turns may be folded: all but the last one.
        hashes: for each number of turns from the beginning on, what tells their content from any other.
        is_folded: whether all that is older than the last turn is a summary.
    """

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self._messages = messages
        spoken = [at for at, message in enumerate(messages) if message["role"] != "system"]
        self._begins = [at for at in spoken if at == spoken[0] or messages[at]["role"] == "user"] or [len(messages)]
        self.older = len(self._begins) - 1
        first = messages[self._begins[0]]["content"] if self.older else ""
        self.is_folded = self.older == 1 and isinstance(first, str) and first.startswith(_HEAD)
        chain = hashlib.sha256()
        self.hashes = [""]
        for number in range(self.older):
            for message in self.spoken(number, number + 1):
                chain.update(json.dumps(message, sort_keys=True).encode())
            self.hashes.append(chain.hexdigest())

    def spoken(self, begin: int, end: int) -> list[Message]:
        """What was said in turns, without system messages."""
        return [each for each in self._messages[self._begins[begin] : self._begins[end]] if each["role"] != "system"]

    def folded(self, older: int, summary: Summary | None) -> tuple[Message, ...]:
        """The messages with a summary in the place of so many turns; with None, as they are."""
        if summary is None:
            return self._messages
        begin = self._begins[older]
        how = "in sentences of its own" if summary.made_by == EXTRACT else "condensed"
        return (
            *(each for each in self._messages[:begin] if each["role"] == "system"),
            Message(role="user", content=f"{_HEAD}{how}]\n{summary.text}"),
            Message(role="assistant", content=_TAKEN),
            *self._messages[begin:],
        )
