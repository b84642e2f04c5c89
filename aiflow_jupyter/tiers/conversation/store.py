"""The store: every conversation in full, in the one SQLite file, until it is forgotten.

What is not to be stored stands in this process's memory only, in its place among the others, and is asked with them.
Several processes may use one conversation at once: each turn is recorded in one transaction.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.conversation.turns import (
    NO_CELL,
    Asked,
    Cell,
    Turn,
    asking,
    before,
    chat,
    placed,
    require_name,
    spoken,
)
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.terms import REACH, Floor, strictest

_COLUMNS: Final = "id, place, at, tier, model, cell, execution, messages, stay"


@dataclass(frozen=True, slots=True)
class Overview:
    """One conversation in the list of all.

    Attributes:
        turns: how many.
        unstored: how many of them are only in this process's memory.
        begun, last: when the first and the last one were, in seconds since the epoch.
    """

    name: str
    turns: int
    unstored: int
    begun: float
    last: float


class Conversations:
    """See the module. May be used from any thread.

    Args:
        database: the file.
        clock: seconds since the epoch.
    """

    def __init__(self, database: Database | None = None, clock: Callable[[], float] = time.time) -> None:
        self.database = database or Database()
        self._clock = clock
        self._lock = threading.RLock()
        self._unstored: dict[str, list[Turn]] = {}
        self._numbers = 0

    # -- what there is

    def turns(self, name: str) -> list[Turn]:
        """The turns in their order; none for a name that is not known.

        Raises:
            CommandError: no conversation can have that name.
            ConfigError: the file can't be used.
        """
        require_name(name)
        with self._lock, self.database.transaction() as work:
            return self._turns(work, name)

    def known(self, name: str) -> list[Turn]:
        """As `turns`, but of a conversation that there is.

        Raises:
            CommandError: there is none of that name.
            ConfigError: the file can't be used.
        """
        return _known(name, self.turns(name))

    def last_tier(self, name: str) -> str:
        """Who answered the last turn that is stored; empty for no turn.

        Raises:
            ConfigError: the file can't be used.
        """
        with self.database.transaction() as work:
            found = work.execute(
                "SELECT tier FROM turns WHERE conversation = ? ORDER BY place DESC, at DESC, id DESC LIMIT 1", (name,)
            ).fetchone()
        return found[0] if found is not None else ""

    def overview(self) -> list[Overview]:
        """All conversations, the one with the newest turn first."""
        with self._lock:
            with self.database.transaction() as work:
                rows = work.execute(
                    "SELECT conversation, COUNT(*), MIN(at), MAX(at) FROM turns GROUP BY conversation"
                ).fetchall()
            found = {name: Overview(name, turns, 0, begun, last) for name, turns, begun, last in rows}
            for name, own in self._unstored.items():
                begun, last = min(turn.at for turn in own), max(turn.at for turn in own)
                had = found.get(name, Overview(name, 0, 0, begun, last))
                found[name] = Overview(name, had.turns + len(own), len(own), min(had.begun, begun), max(had.last, last))
        return sorted(found.values(), key=lambda each: (-each.last, each.name))

    # -- asking

    def asked(self, name: str, question: str, *, system: str | None = None, cell: Cell = NO_CELL) -> Asked:
        """What a question is asked with: the turns before it and itself.

        Args:
            name: the conversation; one that is not known begins.
            question: the new turn's text.
            system: the system message from now on; None for the last one that was given.
            cell: where it is asked.

        Raises:
            CommandError: no conversation can have that name.
            ConfigError: the file can't be used.
        """
        turns = before(self.turns(name), cell)
        return Asked(
            chat(turns, asking(question, system)),
            all(turn.stored for turn in turns),
            strictest(*(turn.stay for turn in turns)),
        )

    def record(
        self,
        name: str,
        question: str,
        answer: str,
        *,
        system: str | None = None,
        tier: str = "",
        model: str = "",
        cell: Cell = NO_CELL,
        store: bool = True,
        stay: Floor = "anywhere",
    ) -> None:
        """Keep a question and its whole answer, in the place of what its cell asked before.

        Args:
            name: the conversation.
            question: what was asked.
            answer: all that came.
            system: the system message that came with the question, if one did.
            tier: who answered.
            model: with which model.
            cell: where it was asked.
            store: in the file, or only in this process's memory; then what the file has of the cell goes, too.
            stay: how far the text may go from now on.

        Raises:
            CommandError: no conversation can have that name.
            ConfigError: the file can't be used; nothing has changed.
        """
        require_name(name)
        messages = (*asking(question, system), Message(role="assistant", content=answer))
        with self._lock:
            with self.database.transaction() as work:
                turns = self._turns(work, name)
                place, gone = placed(turns, cell)
                self._numbers += 1
                new = Turn(messages, tier, model, self._clock(), cell, store, place, self._numbers, stay)
                _delete(work, name, turns, gone)
                if store:
                    _insert(work, name, new)
            self._in_memory(name, gone, () if store else (new,))

    # -- what users do with one

    def undo(self, name: str) -> Turn:
        """Take the last turn away; gives it.

        Raises:
            CommandError: there is no such conversation.
            ConfigError: the file can't be used.
        """
        require_name(name)
        with self._lock:
            with self.database.transaction() as work:
                turns = _known(name, self._turns(work, name))
                _delete(work, name, turns, turns[-1:])
            self._in_memory(name, turns[-1:])
        return turns[-1]

    def forget(self, name: str) -> int:
        """Delete a conversation and all that was made of it, overwritten in the file; gives how many turns it had.

        What it cost stays in the ledger, under its name.

        Raises:
            CommandError: there is no such conversation.
            ConfigError: the file can't be used.
        """
        require_name(name)
        with self._lock:
            with self.database.transaction() as work:
                turns = self._turns(work, name)
                work.execute("DELETE FROM turns WHERE conversation = ?", (name,))
                made = work.execute("DELETE FROM summaries WHERE conversation = ?", (name,)).rowcount
            self._unstored.pop(name, None)
        self.database.clear_log()
        return len(turns if made else _known(name, turns))

    def add(self, name: str, turns: Sequence[Turn]) -> None:
        """Begin a conversation with turns from elsewhere, all of them or none.

        Raises:
            CommandError: there is one of that name already.
            ConfigError: the file can't be used.
        """
        require_name(name)
        with self._lock, self.database.transaction() as work:
            if self._turns(work, name):
                raise CommandError(
                    f"there is a conversation {name!r} already",
                    code="AF773",
                    hint=f"import it by another name, or forget that one: %aiflow conversation forget {name}",
                )
            for place, turn in enumerate(turns, 1):
                _insert(work, name, replace(turn, place=place))

    # -- rows

    def _turns(self, work: sqlite3.Connection, name: str) -> list[Turn]:
        rows = work.execute(f"SELECT {_COLUMNS} FROM turns WHERE conversation = ?", (name,)).fetchall()  # noqa: S608 - a constant
        turns = [_turn(*row) for row in rows] + self._unstored.get(name, [])
        return sorted(turns, key=lambda turn: (turn.place, turn.at, turn.id))

    def _in_memory(self, name: str, gone: Sequence[Turn], new: Sequence[Turn] = ()) -> None:
        """Change the turns that are not stored, once the file has changed."""
        left = [*(turn for turn in self._unstored.pop(name, []) if turn not in gone), *new]
        if left:
            self._unstored[name] = left


def _insert(work: sqlite3.Connection, name: str, turn: Turn) -> None:
    work.execute(
        "INSERT INTO turns (conversation, place, at, tier, model, cell, execution, messages, stay) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            name,
            turn.place,
            turn.at,
            turn.tier,
            turn.model,
            turn.cell.id,
            turn.cell.execution,
            json.dumps(turn.messages),
            turn.stay,
        ),
    )


def _known(name: str, turns: list[Turn]) -> list[Turn]:
    if not turns:
        raise CommandError(f"no conversation is called {name!r}", code="AF770", hint="%aiflow conversation lists them")
    return turns


def _delete(work: sqlite3.Connection, name: str, turns: Sequence[Turn], gone: Sequence[Turn]) -> None:
    """Delete turns, and the summaries of what they were a part of."""
    if gone:
        work.executemany("DELETE FROM turns WHERE id = ?", [(turn.id,) for turn in gone if turn.stored])
        left = sum(len(spoken(turn.messages)) for turn in turns[: turns.index(gone[0])])
        work.execute("DELETE FROM summaries WHERE conversation = ? AND folded > ?", (name, left))


def _turn(
    number: int,
    place: int,
    at: float,
    tier: str,
    model: str,
    cell: str,
    execution: str,
    messages: str,
    stay: str,
) -> Turn:
    said: list[Any] = json.loads(messages)
    floor: Floor = next((each for each in REACH if each == stay), "local")
    return Turn(tuple(said), tier, model, at, Cell(cell, execution), True, place, number, floor)  # noqa: FBT003
