"""`aiflow trace`: record an answer with its times, show a trace, run a graph on one.

No code is run for a replay: what is no operator is taken to be a function that gives back what it is given, and takes
the time that `--service` declares.
"""

# ruff: noqa: PLC0415 - imported when used, so that the command starts quickly
from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from aiflow_jupyter.errors import CommandError, plain
from aiflow_jupyter.runtime.source import FLOORS, TIERS

if TYPE_CHECKING:
    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.runtime.bottleneck import Bottleneck
    from aiflow_jupyter.runtime.metrics import NodeStatus
    from aiflow_jupyter.runtime.replay.trace import Exchange, Trace
    from aiflow_jupyter.runtime.run import Run
    from aiflow_jupyter.runtime.source import Message, Provider, Source

_PATH = click.Path(path_type=Path, dir_okay=False)
_PARTIAL = click.option("--partial", is_flag=True, help="Leave out a last line that was cut off.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


F = TypeVar("F", bound=Callable[..., Any])


class WithRouter(Protocol):
    """Runs a job on a loop of its own with the configured router."""

    def __call__(self, job: Callable[[Provider], Coroutine[Any, Any, str]], /) -> str:
        """What the job gives."""


_QUESTION = (
    click.option("--tier", type=click.Choice(TIERS), default="auto", help="Who answers."),
    click.option(
        "--stay",
        type=click.Choice(FLOORS),
        default="anywhere",
        help="How far the text may go; nothing overrides it.",
    ),
    click.option("--fallback", is_flag=True, help="Another tier may answer where the named one fails."),
    click.option("--model", default=None, help="The model's name, for tiers that have several."),
    click.option("--system", default=None, help="A system message before the question."),
    click.option(
        "--temperature", type=click.FloatRange(0, 10), default=None, help="0 for the likeliest token each time."
    ),
    click.option(
        "--max-tokens", type=click.IntRange(1, 1_000_000), default=None, help="The most tokens of the answer."
    ),
    click.option("--seed", type=int, default=None, help="Makes sampling repeatable."),
)


def question_options(command: F) -> F:
    """Give a command the options of a question: `system`, and the others by their names in a `Request`."""
    for option in reversed(_QUESTION):
        command = option(command)
    return command


def _question(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    """The question of an argument; that of standard input where it is `-`, or where there is none and a pipe is."""
    piped = sys.stdin is not None and not sys.stdin.isatty()
    if value == "-" or (value is None and piped):
        from aiflow_jupyter.graph.command import content

        value = content(Path("-")).strip("\n")
    if value is None:
        raise click.UsageError("name a QUESTION, or - for standard input")
    if not value.strip():
        raise click.UsageError("the question is empty")
    return value


question_argument = click.argument("question", required=False, callback=_question)
"""The question of a command, or `-` for standard input."""


Ask = Callable[["Source", "tuple[Message, ...]", Mapping[str, Any]], Awaitable[str]]
"""Asks with the fields of a `Request`, shows the answer and what is waited for, and gives the text."""


def command(with_router: WithRouter, ask: Ask) -> click.Command:
    """The command, with what runs a job that asks a model, and what asks."""

    @click.group()
    def trace() -> None:
        """Recorded answers: record one with its times, show it, and run graphs on it."""

    @trace.command()
    @question_argument
    @click.option("-o", "--out", type=_PATH, required=True, help="The file to make; it must not be there.")
    @question_options
    @click.option("--messages", is_flag=True, help="Record the question itself, not only its hash.")
    def record(question: str, out: Path, system: str | None, *, messages: bool, **options: Any) -> None:
        """Ask a question (- is standard input), print the answer, and record it to a file."""
        from aiflow_jupyter.runtime.replay.reading import load
        from aiflow_jupyter.runtime.replay.recorder import Recorder
        from aiflow_jupyter.tiers.conversation.turns import asking

        async def job(router: Provider) -> str:
            recorder = Recorder(router, out, messages=messages)
            try:
                await ask(recorder, asking(question, system), options)
            finally:
                recorder.close()
            if recorder.problem is not None:
                raise recorder.problem
            return f"{out}: {_line(load(out).exchanges[0])}"

        click.echo(plain(with_router(job)), err=True)

    @trace.command()
    @click.argument("file", type=_PATH)
    @_PARTIAL
    @_JSON
    def show(file: Path, *, partial: bool, as_json: bool) -> None:
        """Show what a trace holds: requests, tokens, time to the first token, duration."""
        from aiflow_jupyter.runtime.replay.reading import load

        found = load(file, partial=partial)
        click.echo(json.dumps(_summary(found)) if as_json else plain("\n".join(_lines(found))))

    @trace.command()
    @click.argument("file", type=_PATH)
    @click.option("--graph", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), required=True,
                  help="Cell text or JSON.")  # fmt: skip
    @click.option(
        "--speed", type=click.FloatRange(0.001, 1e9), default=None, help="How many times faster.  [default: 1]"
    )
    @click.option("--virtual", is_flag=True, help="On a virtual clock: at once, and the same each time.")
    @click.option("--service", multiple=True, metavar="NODE=SECONDS", help="What one call of a node takes.")
    @click.option("--faults", type=_PATH, default=None, help="A script of faults, as JSON.")
    @click.option("--seed", type=int, default=0, help="Of what is random in it.")
    @_PARTIAL
    @_JSON
    def replay(file: Path, graph: Path, **options: Any) -> None:
        """Run a graph on a trace, and print each node's figures and the bottleneck."""
        _replay(file, graph, **options)

    return trace


# -- show


def _summary(trace: Trace) -> dict[str, Any]:
    return {
        "graph": trace.graph,
        "begun": trace.begun,
        "library": trace.library,
        "whole": not trace.truncated and not trace.full,
        "requests": [_of(each) for each in trace.exchanges],
    }


def _of(exchange: Exchange) -> dict[str, Any]:
    ttft = exchange.ttft_ns
    by = next((event.meta for event in exchange.events if event.meta), {})
    return {
        "request": exchange.number,
        "at_s": exchange.at / 1e9,
        "node": exchange.node,
        "tier": by.get("tier") or exchange.tier,
        "model": by.get("model") or exchange.model or "",
        "tokens": exchange.tokens,
        "ttft_s": None if ttft is None else ttft / 1e9,
        "duration_s": exchange.duration_ns / 1e9,
        "ending": exchange.ending,
    }


def _line(exchange: Exchange) -> str:
    row = _of(exchange)
    ttft = "no token" if row["ttft_s"] is None else f"first token {row['ttft_s']:.3f} s"
    who = " · ".join(part for part in (row["node"], row["tier"], row["model"]) if part)
    ending = "" if row["ending"] == "finish" else f" · broke off ({row['ending']})"
    return f"{who} · {row['tokens']} tokens · {ttft} · {row['duration_s']:.3f} s{ending}"


def _lines(trace: Trace) -> list[str]:
    about = [part for part in (trace.graph, trace.begun, trace.library and f"version {trace.library}") if part]
    rows = [" · ".join(about)] if about else []
    rows += [f"{each.number}  at {each.at / 1e9:.3f} s  {_line(each)}" for each in trace.exchanges]
    if trace.truncated:
        rows.append("the last line was cut off, and is left out")
    if trace.full:
        rows.append("not everything was recorded")
    return rows or ["no request"]


# -- replay


def _replay(
    file: Path,
    graph: Path,
    *,
    speed: float | None,
    virtual: bool,
    service: tuple[str, ...],
    faults: Path | None,
    seed: int,
    partial: bool,
    as_json: bool,
) -> None:
    from aiflow_jupyter.graph.command import assumed, loaded
    from aiflow_jupyter.operators import SIGNATURES
    from aiflow_jupyter.providers.replay import replayed
    from aiflow_jupyter.runtime.replay.faults import MOST_SCRIPT, read_faults
    from aiflow_jupyter.runtime.replay.reading import load

    if virtual and speed is not None:
        raise click.UsageError("a virtual clock has no speed: give --virtual or --speed")
    trace = load(file, partial=partial)
    spec = loaded(graph, None, SIGNATURES).spec
    names = assumed(spec, SIGNATURES)
    script = read_faults(_text(faults, MOST_SCRIPT)) if faults is not None else []
    run = replayed(
        spec,
        trace,
        faults=script,
        service=dict(map(_service, service)),
        functions=dict.fromkeys(names, _same),
        clock="virtual" if virtual else "real",
        speed=speed or 1.0,
        seed=seed,
    )
    bottleneck = run.bottleneck()
    if as_json:
        click.echo(json.dumps(_figures(run, bottleneck, spec)))
    else:
        if names:
            click.echo(plain(f"taken to give back what they are given: {', '.join(names)}"), err=True)
        click.echo(plain("\n".join(_table(run, bottleneck))))
    if run.error is not None:
        raise run.error


def _same(payload: Any) -> Any:
    """Stands for a function of the user's."""
    return payload


def _service(declared: str) -> tuple[str, float]:
    node, _, seconds = declared.partition("=")
    try:
        return node, float(seconds)
    except ValueError:
        raise CommandError(
            f"--service {declared!r} is no NODE=SECONDS", code="AF801", hint="as in --service speech=0.08"
        ) from None


def _text(path: Path, most: int) -> str:
    """The text of a file, of which no more is read than shows that it is too long."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise CommandError(f"{path} can't be read: {reason}", code="AF808", hint="name a script of faults") from None


def _figures(run: Run, bottleneck: Bottleneck | None, spec: GraphSpec) -> dict[str, Any]:
    status = run.status()
    return {
        "graph": spec.name,
        "state": status.state,
        "elapsed_s": status.elapsed_s,
        "ttft_s": status.ttft_s,
        "message": status.message,
        "nodes": [asdict(node) for node in status.nodes],
        "bottleneck": None if bottleneck is None else asdict(bottleneck),
    }


_COLUMNS: Mapping[str, Callable[[NodeStatus], str]] = {
    "node": lambda n: n.node,
    "events": lambda n: f"{n.processed:,}",
    "peak": lambda n: f"{n.peak}/{n.queue}",
    "dropped": lambda n: f"{n.dropped:,}",
    "retries": lambda n: f"{n.retries:,}",
    "errors": lambda n: f"{n.errors:,}",
    "first s": lambda n: "N/A" if n.first_s is None else f"{n.first_s:.3f}",
    "wait s": lambda n: f"{n.wait_s / max(n.processed, 1):.3f}",
    "lag s": lambda n: "N/A" if n.lag_s is None else f"{n.lag_s:.3f}",
    "busy": lambda n: f"{n.busy:.0%}",
    "blocked": lambda n: f"{n.blocked:.0%}",
    "idle": lambda n: f"{n.idle:.0%}",
}
"""`wait s` is the mean time in the queue, `lag s` that since an event's arrival from the model."""


def _table(run: Run, bottleneck: Bottleneck | None) -> list[str]:
    status = run.status()
    rows = [list(_COLUMNS), *([show(node) for show in _COLUMNS.values()] for node in status.nodes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ttft = "no token" if status.ttft_s is None else f"first token {status.ttft_s:.3f} s"
    lines = [f"{status.name}: {status.state} in {status.elapsed_s:.3f} s, {ttft}", ""]
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]))
    return [*lines, "", str(bottleneck) if bottleneck is not None else "no node holds another up"]
