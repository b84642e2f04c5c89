"""The command `aiflow conversation`."""

# ruff: noqa: PLC0415 - imported when used, so that the command starts quickly
from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from aiflow_jupyter.errors import plain
from aiflow_jupyter.runtime.source import TIERS

if TYPE_CHECKING:
    from aiflow_jupyter.tiers.terms import TierName

WithRouter = Callable[[Callable[[Any], Coroutine[Any, Any, Any]]], Any]


def command(with_router: WithRouter) -> click.Command:
    """The command; `with_router` runs a job with the configured router, for the view of a tier."""

    @click.command()
    @click.argument("words", metavar="[NAME]", nargs=-1)
    @click.option("--view", "tier", type=click.Choice(TIERS[1:]), help="As this tier is sent it.")
    @click.option("--diff", is_flag=True, help="What folding takes away and puts in its place; with --view.")
    def conversation(words: tuple[str, ...], tier: TierName | None, *, diff: bool) -> None:
        """All conversations that are kept, or one in full.

        `undo NAME` takes its last turn away, `forget NAME` deletes it, `export NAME FILE` writes it to a file of JSON
        lines, and `import NAME FILE` begins one from such a file.
        """
        from aiflow_jupyter.tiers.conversation import actions, printing
        from aiflow_jupyter.tiers.conversation.store import Conversations
        from aiflow_jupyter.tiers.conversation.turns import chat

        action, name, file = actions.understood(words, tier, diff=diff)
        book = Conversations()
        if action:
            text = actions.act(book, action, name, file)
        elif not name:
            text = printing.listing(book.overview())
        elif tier is None:
            text = printing.transcript(book.known(name))
        else:
            turns = book.known(name)
            fitted = with_router(lambda router: router.view(chat(turns), tier, name))
            text = actions.viewed(turns, tier, fitted, diff=diff)
        click.echo(plain(text))

    return conversation
