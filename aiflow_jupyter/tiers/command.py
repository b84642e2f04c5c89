"""The commands of the tiers' room: `aiflow tiers`, `aiflow trust`, `aiflow cost`."""

# ruff: noqa: PLC0415 - imported when used, so that the command starts quickly
from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import cast

import click

from aiflow_jupyter.tiers.terms import GROUPS, Group


@click.command()
@click.option("--by", type=click.Choice(GROUPS), default="tier", show_default=True, help="What to add up by.")
@click.option("--since", metavar="DAY", default="", help="Only from this day on: 2026-01-31, today, yesterday, 7d.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--release", metavar="ID", help="Free an answer's worst case, where its kernel is gone.")
def cost(*, by: str, since: str, as_json: bool, release: str | None) -> None:
    """What answers cost, what is under way, and what is left of each budget.

    The budget of a notebook is for notebooks: what is asked in a terminal is booked to none.
    """
    from aiflow_jupyter.tiers.booking import notebook_of_session
    from aiflow_jupyter.tiers.config import load
    from aiflow_jupyter.tiers.costs import told
    from aiflow_jupyter.tiers.database import Database
    from aiflow_jupyter.tiers.ledger import SqliteLedger

    ledger = SqliteLedger(Database(), lambda: load().budget.limits)
    if release is not None:
        if all(each.id != release for each in ledger.open()):
            raise click.UsageError(f"nothing is under way that is called {release!r}")
        ledger.release(release)
    text, rows = told(ledger, cast("Group", by), since, notebook_of_session())
    if as_json:
        budgets = [asdict(each) for each in ledger.left(notebook_of_session())]
        shown = {"rows": [asdict(row) for row in rows], "open": [asdict(each) for each in ledger.open()]}
        click.echo(json.dumps({"by": by, **shown, "budgets": budgets}))
    else:
        click.echo(text)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tiers(*, as_json: bool) -> None:
    """Each tier: who answers, its window and price, whether it answers now, and whether its key is there."""
    from aiflow_jupyter.tiers.configured import ConfiguredRouter
    from aiflow_jupyter.tiers.overview import Overview

    async def look() -> Overview:
        router = ConfiguredRouter()
        try:
            return await router.look()
        finally:
            await router.aclose()

    seen = asyncio.run(look())
    click.echo(json.dumps(seen.as_dict(), indent=2) if as_json else str(seen))


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=None, required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--list", "list_", is_flag=True, help="List the files that are trusted.")
@click.option("--remove", is_flag=True, help="Trust the file no more.")
def trust(path: Path | None, *, yes: bool, list_: bool, remove: bool) -> None:
    """Let a project's aiflow.toml say what otherwise only your own may: addresses, key names, relay and worker keys.

    It shows what that would be, and asks. A file that changes afterwards has to be trusted anew.
    """
    from aiflow_jupyter.errors import ConfigError, plain
    from aiflow_jupyter.tiers import trust as trusted
    from aiflow_jupyter.tiers.config import FILE

    if list_ and (path is not None or remove or yes):
        raise click.UsageError("--list stands alone")
    if list_:
        rows = [f"{state:<8} {plain(str(each))}" for each, state in trusted.listed().items()]
        click.echo("\n".join(rows) or "no project's file is trusted")
        return
    try:
        file = (path or Path()).absolute()
    except FileNotFoundError:
        raise ConfigError("the working folder is gone", code="AF723", hint="cd to one that is there") from None
    file = file / FILE if file.is_dir() else file
    if remove:
        click.echo(f"{file.resolve()} {'is trusted no more' if trusted.remove(file) else 'was not trusted'}")
        return
    _trust(file, yes=yes)


def _trust(file: Path, *, yes: bool) -> None:
    """Show what a file would be allowed, ask, and note exactly what was shown."""
    from aiflow_jupyter.errors import ConfigError, plain
    from aiflow_jupyter.tiers import trust
    from aiflow_jupyter.tiers.config import examine, named

    if not file.is_file():
        raise ConfigError(f"{file.absolute()} is not there", code="AF723", hint="aiflow trust PATH names another file")
    data, wanted = examine(file)
    if not wanted:
        click.echo(f"{file.resolve()} needs no trust: it only chooses")
        return
    if trust.state(file, data) == "trusted":
        click.echo(f"{file.resolve()} is trusted already")
        return
    click.echo(f"{file.resolve()} would be allowed to set, as if it were your own file:\n")
    for path, value in wanted:
        click.echo(f"  {plain(named(path))} = {plain(json.dumps(value, default=str, ensure_ascii=False))}{_of(path)}")
    click.echo("\nWhoever wrote it decides where your questions go, and with which of your keys.")
    if not yes:
        click.confirm("Trust this file, as it is now?", abort=True)
    trust.trust(file, data)
    click.echo("trusted, until it changes")


_MEANS = {
    "url": "questions of this tier go there",
    "relay": "answers of the cluster pass there",
    "key_env": "this variable's content is sent along",
    "key_file": "this file's content is sent along",
    "relay_key_env": "this variable's content is sent to the relay",
    "relay_key_file": "this file's content is sent to the relay",
    "model_server_key_env": "this variable's content is sent to the model server",
    "factory": "this code runs in your kernel",
    "worker_key": "whoever has its other half reads your questions",
    "executor": "this starts the worker",
}
"""What the settings mean that are worth a second look."""


def _of(path: tuple[str, ...]) -> str:
    return f"   ({_MEANS[path[-1]]})" if path[-1] in _MEANS else ""
