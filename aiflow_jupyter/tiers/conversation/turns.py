"""Turns: what a conversation is made of, in which order they stand, and what a question is asked with.

A turn is a question and its whole answer; a question that failed or was cancelled is none. Turns stand in the order of
their cells, as a notebook shows them:

- A cell that is run again replaces its turn, in its old place. It is asked with what stands before that place; the
  turns after it stay, also if their answers knew the old one. A cell that asks several times replaces all that it
  asked in an earlier execution.
- A turn that was asked with a privacy floor keeps it: whatever it is sent along with goes no further either.
- Without a cell (a terminal, a script, the command `aiflow ask`) a turn always goes to the end. A cell goes by its
  identifier alone, whichever kernel runs it: a copy of a notebook has the same ones, so give it another conversation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.terms import Floor

_NAME: Final = re.compile(r"[^\W_][\w .:-]{0,99}")
ACTIONS: Final = ("undo", "forget", "export", "import")
"""What may be done with a conversation; no conversation is called so."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a question was asked.

    Attributes:
        id: the cell's identifier; empty outside a notebook, or where its front end says none.
        execution: which execution of the cell it was.
    """

    id: str = ""
    execution: str = ""


NO_CELL: Final = Cell()


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
    cell: Cell = NO_CELL
    stored: bool = True
    place: int = 0
    id: int = 0
    stay: Floor = "anywhere"


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


def asking(question: str, system: str | None) -> tuple[Message, ...]:
    """The messages of a question, with a system message before it where there is one."""
    asked = Message(role="user", content=question)
    return (Message(role="system", content=system), asked) if system else (asked,)


def chat(turns: Sequence[Turn], new: Sequence[Message] = ()) -> tuple[Message, ...]:
    """The messages of turns as they are sent: the last system message that was given first, then all others."""
    messages = [*(each for turn in turns for each in turn.messages), *new]
    system = [each for each in messages if each["role"] == "system"][-1:]
    return (*system, *spoken(messages))


def spoken(messages: Sequence[Message]) -> list[Message]:
    """What was said, without system messages."""
    return [each for each in messages if each["role"] != "system"]


def before(turns: Sequence[Turn], cell: Cell) -> list[Turn]:
    """The turns that a cell's question follows on."""
    own, now = _of(turns, cell)
    if not own:
        return list(turns)
    return list(turns[: turns.index(now[-1]) + 1] if now else turns[: turns.index(own[0])])


def placed(turns: Sequence[Turn], cell: Cell) -> tuple[int, list[Turn]]:
    """The place of a cell's new turn, and the turns that it replaces."""
    own, now = _of(turns, cell)
    end = max((turn.place for turn in turns), default=0) + 1
    place = now[-1].place if now else own[0].place if own else end
    return place, [turn for turn in own if turn not in now]


def _of(turns: Sequence[Turn], cell: Cell) -> tuple[list[Turn], list[Turn]]:
    """A cell's turns, and those of them that its present execution asked."""
    own = [turn for turn in turns if cell.id and turn.cell.id == cell.id]
    return own, [turn for turn in own if turn.cell.execution == cell.execution]


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
