"""A question that is a turn of a conversation: what it is asked with, and that it is kept once its answer is whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from aiflow_jupyter.errors import AiflowError
    from aiflow_jupyter.notebook.answer import AnswerView
    from aiflow_jupyter.notebook.hosting import Host
    from aiflow_jupyter.runtime.run import Run
    from aiflow_jupyter.runtime.source import Message
    from aiflow_jupyter.tiers.conversation.turns import Cell, Turn
    from aiflow_jupyter.tiers.terms import Floor


class OpenTurn:
    """See the module.

    Args:
        host: has the conversations.
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
        problem: why the turn could not be kept, None if it was.

    Raises:
        CommandError: no conversation can have that name.
        ConfigError: the file can't be used.
    """

    def __init__(
        self,
        host: Host,
        name: str,
        question: str,
        *,
        system: str | None,
        store: bool,
        stay: Floor | None = None,
        cell: Cell | None = None,
    ) -> None:
        from aiflow_jupyter.tiers.conversation.turns import staying
        from aiflow_jupyter.tiers.terms import strictest

        self._conversations = host.conversations
        self._name = name
        self._question = question
        self._system = system
        self._store = store
        self._cell = cell or running_cell()
        asked = self._conversations.asked(name, question, system=system, cell=self._cell)
        self.messages: tuple[Message, ...] = asked.messages
        self.booked = name if store and asked.stored else ""
        self.stay: Floor = strictest(stay or "anywhere", asked.stay)
        self.notice = staying(asked, stay)
        self.problem: AiflowError | None = None

    async def keep(self, run: Run, view: AnswerView) -> None:
        """Keep the turn if its answer is whole; called on the loop when the run is over."""
        from aiflow_jupyter.errors import AiflowError

        if run.state != "done" or not run.answers:
            return
        answer = run.answers[0]
        try:
            await asyncio.to_thread(
                self._conversations.record,
                self._name,
                self._question,
                view.text,
                system=self._system,
                tier=answer.tier,
                model=answer.model,
                cell=self._cell,
                store=self._store,
                stay=self.stay,
            )
        except AiflowError as error:
            error.message = f"the answer came, but this turn of {self._name!r} could not be kept: {error.message}"
            self.problem = error


def running_cell(shell: Any = None) -> Cell:
    """The cell that runs, as far as its front end says which; the terminal's IPython and plain Python have none."""
    from IPython.core.getipython import get_ipython

    from aiflow_jupyter.tiers.conversation.turns import Cell

    shell = get_ipython() if shell is None else shell
    if getattr(shell, "kernel", None) is None:
        return Cell()
    parent = shell.get_parent()
    cell = (parent.get("metadata") or {}).get("cellId")
    execution = (parent.get("header") or {}).get("msg_id")
    return Cell(str(cell), str(execution)) if cell and execution else Cell()


def line(shell: Any, host: Host, options: argparse.Namespace) -> None:
    """Do what follows `%aiflow conversation`; see `tiers.conversation.actions`.

    Raises:
        CommandError: the words can't be understood, or there is no such conversation.
        ConfigError: the file can't be used, or the tier that is named is not configured.
    """
    from aiflow_jupyter.errors import plain
    from aiflow_jupyter.notebook.outputs import output_of
    from aiflow_jupyter.tiers.conversation import actions, printing
    from aiflow_jupyter.tiers.conversation.turns import chat

    book = host.conversations
    action, name, file = actions.understood(options.words)
    if action:
        text = actions.act(book, action, name, file)
    elif not name:
        text = printing.listing(book.overview())
    elif options.view:
        turns = book.known(name)
        # What is made of turns that are not to be stored is not to be, either.
        fitted = _fitted(host, chat(turns), options.view, name if all(turn.stored for turn in turns) else "")
        text = actions.viewed(book, name, fitted, diff=options.diff)
    else:
        turns = book.known(name)
        output_of(shell).show({"text/markdown": _markdown(turns), "text/plain": plain(printing.transcript(turns))})
        text = ""
    if text:
        print(plain(text))  # noqa: T201


def _fitted(host: Host, messages: Sequence[Message], tier: str, name: str) -> Any:
    """A chat as the router of this kernel would send it to a tier."""
    from aiflow_jupyter.errors import CommandError
    from aiflow_jupyter.notebook.hosting import wait_for

    view = getattr(host.source, "view", None)
    if view is None:
        raise CommandError("what answers in this kernel has no tiers", code="AF812")
    return wait_for(host.submit(view(messages, tier, name)))


def _markdown(turns: Sequence[Turn]) -> str:
    """A conversation for a front end; what a model or a file said in it acts in no way."""
    from aiflow_jupyter.notebook.sanitise import literal, sanitise
    from aiflow_jupyter.tiers.conversation.printing import heading, spoken

    said = []
    for number, turn in enumerate(turns, 1):
        said.append(f"**{literal(heading(number, turn))}**")
        said += [f"*{each['role']}*\n\n{sanitise(spoken(each))}" for each in turn.messages]
    return "\n\n".join(said)
