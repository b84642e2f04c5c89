"""A turn whose answer is still to come: what its question is asked with, and what is kept once the answer is whole."""

from __future__ import annotations

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.conversation.store import Conversations
from aiflow_jupyter.tiers.conversation.turns import NO_CELL, Cell
from aiflow_jupyter.tiers.terms import Floor, strictest


class OpenTurn:
    """See the module.

    Args:
        book: the conversations.
        name: the conversation.
        question: what is asked.
        system: the system message from now on; None for the last one that was given.
        store: whether the turn is kept on the disk, or only in this process's memory.
        stay: how far its text may go; None for anywhere.
        cell: where it is asked.

    Attributes:
        messages: the whole chat, the question last.
        booked: the conversation's name as the router and the ledger are told it: empty where something of the chat is
            not to be stored, so that no trace of it gets to the disk.
        stay: how far the whole chat may go: what is said here, and what earlier turns were asked with.
        notice: what the user has to know of that; mostly empty.

    Raises:
        CommandError: no conversation can have that name.
        ConfigError: the file can't be used.
    """

    def __init__(
        self,
        book: Conversations,
        name: str,
        question: str,
        *,
        system: str | None,
        store: bool,
        stay: Floor | None,
        cell: Cell = NO_CELL,
    ) -> None:
        self._book = book
        self._name = name
        self._question = question
        self._system = system
        self._store = store
        self._cell = cell
        asked = book.asked(name, question, system=system, cell=cell)
        self.messages: tuple[Message, ...] = asked.messages
        self.booked = name if store and asked.stored else ""
        self.stay: Floor = strictest(stay or "anywhere", asked.stay)
        self.notice = ""
        if self.stay != (stay or "anywhere"):
            self.notice = (
                f"asked with --stay {self.stay}, as an earlier turn of this conversation was: its text is sent along, "
                "and goes no further"
            )

    def record(self, answer: str, tier: str, model: str) -> None:
        """Keep the turn with its whole answer, and who gave that; see `Conversations.record`.

        Raises:
            ConfigError: the file can't be used; nothing has changed.
        """
        try:
            self._book.record(
                self._name,
                self._question,
                answer,
                system=self._system,
                tier=tier,
                model=model,
                cell=self._cell,
                store=self._store,
                stay=self.stay,
            )
        except AiflowError as error:
            error.message = f"the answer came, but this turn of {self._name!r} could not be kept: {error.message}"
            raise
