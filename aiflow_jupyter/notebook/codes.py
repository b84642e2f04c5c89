"""The codes of the notebook and of the command line, and with them those of all rooms: `aiflow codes AF702`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import click

from aiflow_jupyter.errors import CommandError

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AF800": "a cell or a command can't be understood",
        "AF801": "a command, an option or its value is unknown, or can't be so",
        "AF802": "a question is empty or no text",
        "AF803": "a cell names a variable that is not there, or whose value can't be made a text",
        "AF804": "no run is called so",
        "AF805": "what is to be run, replayed or read is none, or none is called so",
        "AF806": "a value is to be put into a node that is no input, or it was not said into which",
        "AF807": "a node can't take the value that is put into it",
        "AF808": "a file that a command names can't be read or written",
        "AF809": "a graph's JSON is too large to be read",
        "AF810": "the widget's JavaScript is not built",
        "AF811": "JupyterLab can't be opened on the quickstart",
        "AF812": "the tiers can't be looked at",
        "AF820": "what a measurement compares with is not installed",
        "AF821": "a measurement went wrong, so that its figures would say nothing",
        "AF830": "a file of queries for the judge can't be read, or has none",
        "AF831": "a line of a file of queries is wrong",
    }
)
"""What each code says."""


def every() -> dict[str, str]:
    """What each code of the library says, in order."""
    from aiflow_jupyter.graph import codes as graph
    from aiflow_jupyter.hpc import codes as hpc
    from aiflow_jupyter.operators import codes as operators
    from aiflow_jupyter.providers import codes as providers
    from aiflow_jupyter.relay import codes as relay
    from aiflow_jupyter.runtime import codes as runtime
    from aiflow_jupyter.tiers import codes as tiers

    checks = {code: f"{'warning: ' * (severity == 'warning')}{said}" for code, (severity, said) in graph.CODES.items()}
    rooms = (runtime, operators, providers, relay, hpc, tiers)
    return dict(
        sorted({**checks, **CODES, **{code: said for room in rooms for code, said in room.CODES.items()}}.items())
    )


@click.command("codes")
@click.argument("code", default="")
def command(code: str) -> None:
    """Print what an error's CODE says; the beginning of one, as AF7, prints all that begin so."""
    found = {each: said for each, said in every().items() if each.startswith(code.upper())}
    if not found:
        raise CommandError(f"no code is {code!r}", code="AF801", hint="aiflow codes lists them")
    for each, said in found.items():
        click.echo(f"{each}  {said}")
