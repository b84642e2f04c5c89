"""Summaries that were made: what was folded once is not folded again, for as long as its conversation is kept.

A summary goes by the content that it stands for and by the tier that it was made for. Those of a stored conversation
are in the file alone, and go with it; all others, and those that stand in for a failed model, are in memory alone, and
go with the process. Making one takes a while: it gets into the file only if all that it stands for is there still, and
was not forgotten meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.conversation.summary import Summary
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.terms import TierName

_REMEMBERED: Final = 512


def hashes(messages: Iterable[Message]) -> Iterator[str]:
    """After each message, what tells the content of all so far from any other."""
    chain = hashlib.sha256()
    for message in messages:
        chain.update(json.dumps(message, sort_keys=True).encode())
        yield chain.hexdigest()


class Summaries:
    """See the module.

    Args:
        database: the file; None for memory only.
    """

    def __init__(self, database: Database | None = None) -> None:
        self._database = database
        self._made: OrderedDict[tuple[str, str], Summary] = OrderedDict()

    async def find(self, conversation: str, tier: TierName, hashes: Sequence[str]) -> dict[str, Summary]:
        """The summaries that there are, by the hash of what they stand for.

        Args:
            conversation: the stored conversation that the chat is, empty for none.
            tier: for which tier.
            hashes: those that are looked for.
        """
        found = {each: self._made[tier, each] for each in hashes if (tier, each) in self._made}
        if conversation and self._database is not None:
            try:
                stored = await asyncio.to_thread(self._read, self._database, conversation, tier)
            except AiflowError:  # it is made anew: an answer is not lost for a cache
                stored = {}
            found.update((each, stored[each]) for each in hashes if each in stored)
        return found

    async def keep(self, conversation: str, tier: TierName, key: str, folded: int, summary: Summary) -> None:
        """Remember a summary; of `folded` messages."""
        if conversation and self._database is not None and not summary.problem:
            with suppress(AiflowError):  # as above
                if await asyncio.to_thread(self._write, self._database, conversation, tier, key, folded, summary):
                    return
        self._made[tier, key] = summary
        if len(self._made) > _REMEMBERED:
            self._made.popitem(last=False)

    def _read(self, database: Database, conversation: str, tier: TierName) -> dict[str, Summary]:
        with database.transaction() as work:
            rows = work.execute(
                "SELECT hash, text, made_by FROM summaries WHERE conversation = ? AND tier = ?", (conversation, tier)
            ).fetchall()
        return {key: Summary(text, made_by) for key, text, made_by in rows}

    def _write(
        self, database: Database, conversation: str, tier: TierName, key: str, folded: int, summary: Summary
    ) -> bool:
        """Put it into the file; whether what it stands for is there."""
        with database.transaction() as work:
            if next(islice(hashes(_spoken(work, conversation)), folded - 1, None), None) != key:
                return False
            work.execute(
                "INSERT OR REPLACE INTO summaries (conversation, tier, hash, folded, at, made_by, text) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (conversation, tier, key, folded, time.time(), summary.made_by, summary.text),
            )
        return True


def _spoken(work: sqlite3.Connection, conversation: str) -> Iterator[Message]:
    """What the file has of a conversation, without system messages."""
    rows = work.execute("SELECT messages FROM turns WHERE conversation = ? ORDER BY place, at, id", (conversation,))
    return (message for (messages,) in rows for message in json.loads(messages) if message["role"] != "system")
