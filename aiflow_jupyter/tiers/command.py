"""The commands of the tiers' room: `aiflow cost`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

GROUPS = ("tier", "model", "conversation", "notebook", "day")


@click.command()
@click.option("--by", type=click.Choice(GROUPS), default="tier", show_default=True, help="What to add up by.")
@click.option("--since", metavar="DAY", default="", help="Only from this day on, as 2026-01-31.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--release", metavar="ID", help="Free an answer's worst case, where its kernel is gone.")
def cost(*, by: str, since: str, as_json: bool, release: str | None) -> None:
    """What answers cost, and what is under way."""
    from aiflow_jupyter.tiers.costs import table  # noqa: PLC0415 - the command starts quickly
    from aiflow_jupyter.tiers.database import Database  # noqa: PLC0415
    from aiflow_jupyter.tiers.ledger import SqliteLedger  # noqa: PLC0415

    database = Database()
    ledger = SqliteLedger(database)
    if release is not None:
        if all(each.id != release for each in ledger.open()):
            raise click.UsageError(f"nothing is under way that is called {release!r}")
        ledger.release(release)
    rows, under_way = ledger.report(by, since=since), ledger.open()
    if database.moved is not None:
        click.echo(f"the file was damaged; it is kept as {database.moved}", err=True)
    if as_json:
        click.echo(json.dumps({"by": by, "rows": [asdict(row) for row in rows], "open": [asdict(o) for o in under_way]}))
    else:
        click.echo(table(rows, by, under_way))
