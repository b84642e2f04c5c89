"""The store: every conversation in full, in the one SQLite file, until it is forgotten.

A turn is a question and its whole answer; a question that failed or was cancelled is none. Turns stand in the order of
their cells, as a notebook shows them:

- A cell that is run again replaces its turn, in its old place. It is asked with what stands before that place; the
  turns after it stay, also if their answers knew the old one. A cell that asks several times replaces all that it
  asked in an earlier execution.
- A turn that was asked with a privacy floor keeps it: whatever it is sent along with goes no further either.
- Without a cell (a terminal, a script, the command `aiflow ask`) a turn always goes to the end. A cell goes by its
  identifier alone, whichever kernel runs it: a copy of a notebook has the same ones, so give it another conversation.

What is not to be stored stands in this process's memory only, in its place among the others, and is asked with them.
Several processes may use one conversation at once: each turn is recorded in one transaction.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.terms import REACH, Floor, strictest

_NAME: Final = re.compile(r"[^\W_][\w .:-]{0,99}")
ACTIONS: Final = ("undo", "forget", "export", "import")
"""What may be done with a conversation; no conversation is called so."""
_COLUMNS: Final = "id, place, at, tier, model, cell, execution, messages, stay"


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a question was asked.

    Attributes:
        id: the cell's identifier; empty outside a notebook, or where its front end says none.
        execution: which execution of the cell it was.
    """

    id: str = ""
    execution: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer.

    Attributes:
        messages: in wire form; a system message that came with the question stands first.
        tier, model: who answered.
        at: when, in seconds since the epoch.
        cell: where it was asked.
        stored: whether it is in the file, or only in this process's memory.
        place: its place among the turns.
        id: what tells it from the others in its place.
        stay: how far its text may go, with every later turn that is asked with it.
    """

    messages: tuple[Message, ...]
    tier: str = ""
    model: str = ""
    at: float = 0.0
    cell: Cell = Cell()
    stored: bool = True
    place: int = 0
    id: int = 0
    stay: Floor = "anywhere"


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


@dataclass(frozen=True, slots=True)
class Asked:
    """What a question is asked with.

    Attributes:
        messages: the whole chat, the question last.
        stored: whether all of it may stand in the file: what is made of it (a summary) may then, too.
        stay: how far the turns before it may go, which holds for the question then.
    """

    messages: tuple[Message, ...]
    stored: bool
    stay: Floor = "anywhere"


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

    def asked(self, name: str, question: str, *, system: str | None = None, cell: Cell = Cell()) -> Asked:
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
        before = _before(self.turns(name), cell)
        return Asked(
            chat(before, asking(question, system)),
            all(turn.stored for turn in before),
            strictest(*(turn.stay for turn in before)),
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
        cell: Cell = Cell(),
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
                own = [turn for turn in turns if cell.id and turn.cell.id == cell.id]
                now = [turn for turn in own if turn.cell.execution == cell.execution]
                place = now[-1].place if now else own[0].place if own else _end(turns)
                gone = [turn for turn in own if turn not in now]
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
        before = sum(len(_spoken(turn.messages)) for turn in turns[: turns.index(gone[0])])
        work.execute("DELETE FROM summaries WHERE conversation = ? AND folded > ?", (name, before))


def staying(asked: Asked, stay: Floor | None) -> str:
    """What to say where earlier turns hold a question back that itself might go further; empty where they don't."""
    if strictest(stay or "anywhere", asked.stay) == (stay or "anywhere"):
        return ""
    return (
        f"asked with --stay {asked.stay}, as an earlier turn of this conversation was: its text is sent along, and "
        "goes no further"
    )


def asking(question: str, system: str | None) -> tuple[Message, ...]:
    """The messages of a question, with a system message before it where there is one."""
    asked = Message(role="user", content=question)
    return (Message(role="system", content=system), asked) if system else (asked,)


def chat(turns: Sequence[Turn], new: Sequence[Message] = ()) -> tuple[Message, ...]:
    """The messages of turns as they are sent: the last system message that was given first, then all others."""
    messages = [*(each for turn in turns for each in turn.messages), *new]
    system = [each for each in messages if each["role"] == "system"][-1:]
    return (*system, *_spoken(messages))


def require_name(name: str) -> None:
    """Check a conversation's name.

    Raises:
        CommandError: no conversation can have it.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name != name.strip() or name in ACTIONS:
        shown = repr(name)[:60]
        raise CommandError(
            f"{shown} is no name of a conversation",
            code="AF770",
            hint="up to 100 letters, digits, spaces and . : _ -, beginning with a letter or digit; "
            f"not {', '.join(ACTIONS)}",
        )


def _spoken(messages: Sequence[Message]) -> list[Message]:
    return [each for each in messages if each["role"] != "system"]


def _end(turns: Sequence[Turn]) -> int:
    return max((turn.place for turn in turns), default=0) + 1


def _before(turns: Sequence[Turn], cell: Cell) -> list[Turn]:
    """The turns that a cell's question follows on."""
    own = [turn for turn in turns if cell.id and turn.cell.id == cell.id]
    if not own:
        return list(turns)
    now = [turn for turn in own if turn.cell.execution == cell.execution]
    if now:
        return list(turns[: turns.index(now[-1]) + 1])
    return list(turns[: turns.index(own[0])])


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
