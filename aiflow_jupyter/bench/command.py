"""`aiflow bench`: the measurements by name, each as a table or as one JSON object."""

# ruff: noqa: PLC0415 - imported when used, so that the command starts quickly
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def group(first_model: Callable[[], object]) -> click.Group:
    """The command, with what fetches the small model for the measurements that ask one."""
    bench = click.Group("bench", help="Measurements, each side by side with what it is compared with.")
    for command in (bench_import, bench_runtime, bench_relay, bench_dual_channel, bench_judge):
        bench.add_command(command)

    @bench.command(name="context")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.option("--quick", is_flag=True, help="One short conversation: to see that it works.")
    @click.option(
        "--window", type=click.IntRange(1_024, 8_192), default=2_048, show_default=True, help="Of the local tier."
    )
    def bench_context(*, as_json: bool, quick: bool, window: int) -> None:
        """Long conversations: easy questions stay on the local tier, and what is left of the early turns (minutes)."""
        from dataclasses import replace

        from aiflow_jupyter.bench import context

        first_model()
        size = replace(context.QUICK if quick else context.FULL, window=window)
        _print(context.measure(size, _tell), as_json=as_json)

    return bench


@click.command(name="import")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--rounds", type=click.IntRange(1, 50), default=5, help="How many fresh processes of each.")
def bench_import(*, as_json: bool, rounds: int) -> None:
    """How long `%load_ext` takes, beside importing ipywidgets."""
    from aiflow_jupyter.bench.imports import measure

    _print(measure(rounds), as_json=as_json)


@click.command(name="runtime")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quick", is_flag=True, help="Much less of everything: to see that it works, not how fast it is.")
def bench_runtime(*, as_json: bool, quick: bool) -> None:
    """What a hop and a run cost, beside the same work written by hand with asyncio (about a minute)."""
    from aiflow_jupyter.bench import runtime

    _print(runtime.measure(runtime.QUICK if quick else None), as_json=as_json)


@click.command(name="relay")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--against", type=click.Choice(["streamrelay"]), help="Measure this one beside it, in turns.")
@click.option("--quick", is_flag=True, help="Much less of everything: to see that it works, not how fast it is.")
def bench_relay(*, as_json: bool, against: str | None, quick: bool) -> None:
    """What a token costs on its way through a relay on loopback (about 7 minutes beside a peer)."""
    from aiflow_jupyter.bench import relay

    figures = relay.measure(against=against, size=relay.QUICK if quick else None, tell=_tell)
    click.echo(json.dumps(figures) if as_json else "\n".join(relay.table(figures)))


@click.command(name="dual-channel")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--rounds", type=click.IntRange(1, 50), default=3, help="How often each way is taken.")
@click.option("--quick", is_flag=True, help="A short answer: to see that it works, not how fast it is.")
def bench_dual_channel(*, as_json: bool, rounds: int, quick: bool) -> None:
    """Time to the first token, streamed and in one piece, on the published timing shape (about 80 seconds)."""
    from aiflow_jupyter.bench import dual_channel

    shape = dual_channel.QUICK if quick else None
    figures = dual_channel.measure(shape=shape, rounds=1 if quick else rounds, tell=_tell)
    click.echo(json.dumps(figures) if as_json else "\n".join(dual_channel.table(figures)))


@click.command(name="judge")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    help='Lines such as {"text": ..., "ground_truth": "LOW"}; or MEDIUM, HIGH.',
)
@click.option(
    "--judge",
    "name",
    default="classifier",
    show_default=True,
    help="As in the settings: classifier, rules, fixed:LABEL or llm:TIER, whose model is paid for like any other.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench_judge(*, data: Path, name: str, as_json: bool) -> None:
    """How well a judge rates queries that somebody else labelled."""
    from aiflow_jupyter.bench import judge

    report = judge.measure(data, name, _tell)
    click.echo(json.dumps(report) if as_json else "\n".join(judge.table(report)))


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _print(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(figures))
    else:
        for name, value in figures.items():
            click.echo(f"{name:<24} {value}")
