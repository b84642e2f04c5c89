"""Conversations in a notebook: a cell's question as a turn, and the line `%aiflow conversation`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.tiers.conversation.open_turn import OpenTurn
from aiflow_jupyter.tiers.conversation.turns import Cell, Turn

if TYPE_CHECKING:
    import argparse

    from aiflow_jupyter.notebook.answer import AnswerView
    from aiflow_jupyter.notebook.hosting import Host
    from aiflow_jupyter.runtime.run import Run
    from aiflow_jupyter.runtime.source import Message


class CellTurn(OpenTurn):
    """An open turn that is kept when its run is over.

    Attributes:
        problem: why it could not be kept, None if it was.
    """

    problem: AiflowError | None = None

    async def keep(self, run: Run, view: AnswerView) -> None:
        """Keep the turn if its answer is whole; called on the loop when the run is over."""
        if run.state != "done" or not run.answers:
            return
        answer = run.answers[0]
        try:
            await asyncio.to_thread(self.record, view.text, answer.tier, answer.model)
        except AiflowError as error:
            self.problem = error


def running_cell(shell: Any = None) -> Cell:
    """The cell that runs, as far as its front end says which; the terminal's IPython and plain Python have none."""
    from IPython.core.getipython import get_ipython

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
    action, name, file = actions.understood(options.words, options.view, diff=options.diff)
    if action:
        text = actions.act(book, action, name, file)
    elif not name:
        text = printing.listing(book.overview())
    elif options.view:
        turns = book.known(name)
        # What is made of turns that are not to be stored is not to be, either.
        fitted = _fitted(host, chat(turns), options.view, name if all(turn.stored for turn in turns) else "")
        text = actions.viewed(turns, options.view, fitted, diff=options.diff)
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
