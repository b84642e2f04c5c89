"""The magics: `%%aiflow` asks, defines graphs and runs them; `%aiflow` sees to runs.

A cell is synchronous: it waits in slices while the host's loop works, so interrupts, `%%time` and nbclient all behave.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from aiflow_jupyter.errors import AiflowError, CommandError, GraphError, RunError, plain
from aiflow_jupyter.notebook import options as cell_options
from aiflow_jupyter.notebook.hosting import one_line, wait_for
from aiflow_jupyter.notebook.lines import explained, parse_line
from aiflow_jupyter.notebook.tracing import NextRun

if TYPE_CHECKING:
    from aiflow_jupyter.graph.forms.language import Parsed
    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.notebook.answer import Reply
    from aiflow_jupyter.notebook.conversing import CellTurn
    from aiflow_jupyter.notebook.hosting import Handle, Host, Listed
    from aiflow_jupyter.runtime.run import Result, Run

_HISTORY = re.compile(r"In|Out|_{1,3}|_\d+|_i{1,3}|_i\d+|_[dio]h")
"""What IPython keeps of earlier cells and sets anew with each."""

ASKED = 60
"""Letters of a question that `%aiflow runs` shows."""
LOOK_S = 10.0
"""Seconds that a look at the tiers may take, some more than it has deadlines for."""
MOST_WARNINGS = 5
"""Warnings of a graph that a cell shows; `aiflow check` shows all."""


@magics_class
class AiflowMagics(Magics):  # type: ignore[misc]
    """`%aiflow` and `%%aiflow`.

    Args:
        shell: the IPython shell.
        host: what starts runs.
    """

    def __init__(self, shell: Any, host: Host) -> None:
        super().__init__(shell)
        self._host = host
        self._graphs: dict[str, Parsed] = {}
        self._asked: dict[str, str] = {}
        self._next_run = NextRun()

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_cell_magic  # type: ignore[untyped-decorator]
    def aiflow(self, line: str, cell: str | None = None) -> Any:
        """Ask a model, define a graph, or run one.

            %%aiflow [--tier T] [--stay FLOOR] [--fallback] [--explain] [--model M] [--system TEXT] [--temperature X]
                     [--max-tokens N] [--seed N] [-c NAME] [--no-store] [-o NAME] [--why] [-b] [--raw]
            Why is the sky blue?

            %%aiflow graph NAME
            ask = generate()
            out = sink(display=true)
            ask -> out

            %%aiflow run NAME [--to NODE] [--open] [-o NAME] [--why] [-b] [--raw]
            what goes to the graph's input; with --open it may come later, by offer(): %aiflow run NAME --open -o job

            %aiflow runs | cancel [ID] | why [RUN] | tiers | graphs | graph NAME [--as FORM] | doctor | login
                     | trace record FILE | trace replay FILE | help [COMMAND]
                     | conversation [NAME] [--view TIER] [--diff] | conversation undo NAME | ...

        `--help` behind a command says what that takes. In a body, {{name}} inserts the value of a variable; all other
        braces are text.
        """
        try:
            if cell is None:
                options = parse_line(line)
                return self._run(options, None) if options.command == "run" else self._line(options)
            options = cell_options.parse_cell_line(line)
            if options.command == "help":
                return self._line(options)
            if options.command == "graph":
                return self._define(options.name, cell)
            body = cell.strip("\n") if options.raw else cell_options.insert(cell.strip("\n"), self._variables())
            if not body.strip() and getattr(options, "open", False):
                return self._run(options, None)
            if not body.strip():
                raise CommandError(
                    "the cell is empty", code="AF802", hint="write the question into the lines below the first"
                )
            return self._run(options, body) if options.command == "run" else self._ask(options, body)
        except AiflowError as error:
            # The traceback through this package tells a user nothing; the cause stays for %debug.
            raise error.with_traceback(None) from error.__cause__
        except KeyboardInterrupt as interrupt:
            raise one_line(interrupt) from None

    # -- cells

    def _define(self, name: str, text: str) -> None:
        from aiflow_jupyter.graph.checks.checking import examine
        from aiflow_jupyter.graph.forms.language import read
        from aiflow_jupyter.notebook.live import show_graph
        from aiflow_jupyter.operators import SIGNATURES

        # A cell that is run again means the new graph: the old one goes, also when the new one is wrong.
        self._graphs.pop(name, None)
        parsed = read(text, name, SIGNATURES)
        findings = examine(parsed.spec, SIGNATURES, self._functions(parsed.spec), parsed)
        if findings.errors:
            raise GraphError(findings.errors, title=name)
        self._graphs[name] = parsed
        show_graph(self.shell, parsed.spec)
        for warning in findings.warnings[:MOST_WARNINGS]:
            first, *rest = warning.lines()
            print("\n".join([f"warning {first.removeprefix('GraphProblem ')}", *rest]))  # noqa: T201
        if len(findings.warnings) > MOST_WARNINGS:
            print(f"and {len(findings.warnings) - MOST_WARNINGS} more warnings")  # noqa: T201

    def _run(self, options: argparse.Namespace, body: str | None) -> Any:
        """Run a graph; without a body it is open, and waits for what is offered."""
        from aiflow_jupyter.graph.checks.checking import require
        from aiflow_jupyter.notebook.answer import AnswerView
        from aiflow_jupyter.notebook.flows import delegated, require_input
        from aiflow_jupyter.notebook.live import FlowView
        from aiflow_jupyter.notebook.outputs import output_of
        from aiflow_jupyter.operators import SIGNATURES
        from aiflow_jupyter.runtime.run import NO_VALUE, fresh_id

        parsed, functions = self._graph(options.name)
        spec = parsed.spec
        flows, functions = delegated(spec, functions, self._known)
        require(spec, SIGNATURES, functions, parsed, flows=flows)
        if body is not None or options.to is not None:
            require_input(spec, options.to, body)
        options.background = options.background or options.open
        run_id = fresh_id()
        flow_view = FlowView(self.shell, spec, run_id, lambda: self._cancel_soon(run_id))
        shows = any(node.args.get("display") for node in spec.nodes.values())
        text_view = AnswerView(output_of(self.shell)) if shows else None

        async def beside(run: Run) -> None:
            import asyncio

            await asyncio.gather(flow_view.follow(run), *([text_view.follow(run)] if text_view else []))

        wrap, tell = self._next_run.take(spec)
        try:
            handle = self._host.start(
                spec,
                NO_VALUE if body is None else body,
                functions=functions,
                flows=flows,
                show=text_view.feed if text_view else None,
                to=options.to,
                leave_open=options.open,
                beside=beside,
                run_id=run_id,
                wrap=wrap,
            )
        except BaseException:
            flow_view.abandon()
            raise
        self._remember(run_id, body or "")

        def text() -> str:
            return text_view.text if text_view else ""

        def value(result: Result) -> Result:
            result.displayed = text()
            return result

        try:
            return self._conclude(options, handle, value, lambda: value(handle.run.result()), text)
        finally:
            tell()

    def _ask(self, options: argparse.Namespace, body: str) -> Any:
        from aiflow_jupyter.notebook.answer import AnswerView, Reply, cause_of, question
        from aiflow_jupyter.notebook.outputs import output_of

        turn = self._turn(options, body)
        if options.explain:
            print(plain(self._explained(options, body, turn)))  # noqa: T201
            return None
        spec = question(
            tier=options.tier,
            stay=options.stay if turn is None else turn.stay,
            fallback=options.fallback or None,
            model=options.model,
            system=options.system if turn is None else None,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            seed=options.seed,
        )
        view = AnswerView(output_of(self.shell))

        async def beside(run: Run) -> None:
            await view.follow(run)
            if turn is not None:
                await turn.keep(run, view)

        wrap, tell = self._next_run.take(spec)
        handle = self._host.start(
            spec,
            body if turn is None else turn.messages,
            show=view.feed,
            beside=beside,
            wrap=wrap,
            conversation=turn.booked if turn is not None else "",
        )
        self._remember(handle.id, f"{options.tier}: {body}")

        def reply(result: Result) -> Reply:
            # What was asked in the background stands under another cell: here it is displayed like any value.
            made = Reply(view.text, view.reasoning, result)
            if turn is not None and turn.problem is not None:
                if options.out:
                    self.shell.user_ns[options.out] = made
                raise turn.problem
            return made if options.background else made.shown()

        def part() -> Reply | None:
            return Reply(view.text, view.reasoning, handle.run.result()) if view.text or view.reasoning else None

        try:
            return self._conclude(options, handle, reply, part, lambda: view.text)
        except RunError as error:
            raise cause_of(error) from None
        finally:
            tell()

    def _explained(self, options: argparse.Namespace, body: str, turn: CellTurn | None) -> str:
        """Who would answer a question, and why."""
        from aiflow_jupyter.tiers.conversation.turns import asking

        explain = getattr(self._host.source, "explain", None)
        if explain is None:
            return "what answers in this kernel has no tiers to choose from"
        fields = {
            "tier": options.tier,
            "stay": (options.stay or "anywhere") if turn is None else turn.stay,
            "fallback": options.fallback,
            "model": options.model,
            "max_tokens": options.max_tokens,
            "conversation": turn.booked if turn is not None else "",
        }
        messages = turn.messages if turn is not None else asking(body, options.system)
        return str(wait_for(self._host.submit(explain(messages, **fields)), LOOK_S))

    def _turn(self, options: argparse.Namespace, body: str) -> CellTurn | None:
        """The turn of a conversation that a cell's question is, None if it names none."""
        if options.conversation is None:
            return None
        from aiflow_jupyter.notebook.conversing import CellTurn, running_cell

        if not options.explain:
            self._next_run.require_asked()
        turn = CellTurn(
            self._host.conversations,
            options.conversation,
            body,
            system=options.system,
            store=not options.no_store,
            stay=options.stay,
            cell=running_cell(self.shell),
        )
        if turn.notice:
            print(plain(turn.notice))  # noqa: T201
        return turn

    def _conclude(
        self,
        options: argparse.Namespace,
        handle: Handle,
        value: Callable[[Any], Any],
        part: Callable[[], Any],
        text: Callable[[], str],
    ) -> Any:
        """Wait for the run, or leave it in the background; bind what `-o` names, or the part that came of it."""
        from aiflow_jupyter.notebook.hosting import Background, finish

        if options.background:
            result: Any = Background(handle, value, text)
        else:
            try:
                finished = finish(handle)
            except (AiflowError, KeyboardInterrupt):
                if options.out:
                    self._bind_part(options.out, part())
                raise
            result = value(finished)
        if options.out:
            self.shell.user_ns[options.out] = result
        if options.why:
            print(plain(self._why(handle.id)))  # noqa: T201
        return result

    def _bind_part(self, name: str, part: Any) -> None:
        """Leave no earlier cell's value in a variable that this cell was to set, and say what is in it instead."""
        if part is not None:
            self.shell.user_ns[name] = part
            print(f"{name} holds the part that came (complete=False)")  # noqa: T201
        elif self.shell.user_ns.pop(name, None) is not None:
            print(f"{name} is unset: nothing came")  # noqa: T201

    def _remember(self, run_id: str, asked: str) -> None:
        """Note what a run was asked, for as long as it is listed."""
        listed = {handle.id for handle in self._host.handles()}
        self._asked = {name: text for name, text in self._asked.items() if name in listed}
        self._asked[run_id] = " ".join(asked[: 4 * ASKED].split())[:ASKED]

    # -- lines

    def _line(self, options: argparse.Namespace) -> None:
        shows: dict[str, Callable[[argparse.Namespace], None]] = {
            "graph": self._print_graph,
            "login": lambda _: self._login(),
            "cost": self._cost,
            "conversation": self._conversation,
        }
        says: dict[str, Callable[[argparse.Namespace], str]] = {
            "runs": lambda _: self._runs_text(),
            "cancel": lambda options: self._cancel(options.run),
            "why": lambda options: self._why(options.run),
            "tiers": lambda _: self._tiers_text(),
            "graphs": lambda _: "\n".join(sorted(self._graphs)) or "no graph is defined yet",
            "trace": self._next_run.line,
            "doctor": lambda _: self._doctor_text(),
            "help": lambda options: explained(options.about),
        }
        if options.command in shows:
            shows[options.command](options)
        else:
            print(plain(says[options.command](options)))  # noqa: T201

    def _conversation(self, options: argparse.Namespace) -> None:
        from aiflow_jupyter.notebook.conversing import line

        line(self.shell, self._host, options)

    def _doctor_text(self) -> str:
        from aiflow_jupyter.notebook.doctor import examine, report

        return report(examine())

    def _print_graph(self, options: argparse.Namespace) -> None:
        """Print a graph in one of its forms; as a picture it is shown."""
        from aiflow_jupyter.graph.forms.conversion import printed
        from aiflow_jupyter.notebook.live import show_graph
        from aiflow_jupyter.operators import SIGNATURES

        parsed, _ = self._graph(options.name)
        if options.form == "svg":
            show_graph(self.shell, parsed.spec)
        else:
            print(printed(parsed, options.form, SIGNATURES), end="")  # noqa: T201

    def _cost(self, options: argparse.Namespace) -> None:
        """Show what answers cost, as a table and a picture."""
        from aiflow_jupyter.notebook.naming import notebook_name
        from aiflow_jupyter.tiers.config import load
        from aiflow_jupyter.tiers.costs import svg, told
        from aiflow_jupyter.tiers.database import Database
        from aiflow_jupyter.tiers.ledger import SqliteLedger

        ledger = SqliteLedger(Database(), lambda: load().budget.limits)
        text, rows = told(ledger, options.by, options.since, notebook_name())
        if rows:
            self.shell.display_pub.publish({"image/svg+xml": svg(rows, options.by)})
        print(plain(text))  # noqa: T201

    def _tiers_text(self) -> str:
        """Each tier as the router of this kernel sees it."""
        look = getattr(self._host.source, "look", None)
        if look is None:
            return "what answers in this kernel has no tiers"
        return str(wait_for(self._host.submit(look()), LOOK_S))

    def _login(self) -> None:
        """Log in to Globus, here on the main thread: it may ask for a code."""
        from aiflow_jupyter.hpc.globus import login

        login()
        print("logged in to Globus")  # noqa: T201

    def _runs_text(self) -> str:
        rows = []
        for handle in sorted(self._host.handles(), key=lambda run: run.begun, reverse=True):
            status = handle.status()
            begun = time.strftime("%H:%M:%S", time.localtime(handle.begun))
            asked = f"  {self._asked.get(handle.id, '')}".rstrip()
            rows.append(
                f"{handle.id}  {begun}  {status.word:<9}  {status.elapsed_s:6.1f} s  {handle.name}{asked}"
                f"{f'  {status.message}' if status.message and status.state == 'failed' else ''}"
            )
        return "\n".join(rows) or "no run yet"

    def _why(self, word: str | None) -> str:
        """Who was to answer each question of a run, and why."""
        runs = [run for run in self._host.handles() if word is None or _is(run, word)]
        if not runs:
            what = f"no run is called {word!r}" if word is not None else "there was no run yet"
            raise CommandError(what, code="AF804", hint="%aiflow runs lists them")
        answers = list(runs[-1].answers)
        if not answers:
            return f"{runs[-1].id} {runs[-1].name}: nothing was asked in it"
        nobody = "nobody decided: it was answered from a recording, or it is not known yet"
        texts = [str(answer.decision) if answer.decision is not None else nobody for answer in answers]
        if len(texts) > 1:
            texts = [f"{answer.lineage}\n{text}" for answer, text in zip(answers, texts, strict=True)]
        return "\n\n".join(texts)

    def _cancel(self, word: str | None) -> str:
        runs = self._host.handles()
        if word is not None:
            runs = [run for run in runs if _is(run, word)]
            if not runs:
                raise CommandError(f"no run is called {word!r}", code="AF804", hint="%aiflow runs lists them")
        live = [handle for run in runs if (handle := self._host.find(run.id)) is not None]
        if not live:
            return "nothing to cancel: the run is over" if word else "nothing to cancel: no run is live"
        handle = live[-1]
        stopped = handle.cancel()
        still = handle.run.still_running
        if not stopped:
            return f"{handle.id} {handle.name}: told to stop, but {handle.holder()}"
        left = f"; still in a call of yours, which can't be stopped: {', '.join(still)}" if still else ""
        return f"{handle.id} {handle.name}: cancelled{left}"

    def _cancel_soon(self, run_id: str) -> bool:
        handle = self._host.find(run_id)
        return handle is not None and handle.cancel_soon()

    # -- what cells share

    def _graph(self, name: str) -> tuple[Parsed, dict[str, Any]]:
        """A graph of a cell, or a `Flow` of that name, with the functions that it may call."""
        from aiflow_jupyter.graph.builder import Flow
        from aiflow_jupyter.graph.parsed import Built
        from aiflow_jupyter.graph.problems import nearest

        flow = self.shell.user_ns.get(name)
        if name not in self._graphs and isinstance(flow, Flow):
            return Built(flow.spec), self._functions(flow.spec) | flow.functions
        if name not in self._graphs:
            hint = nearest(name, self._graphs) if self._graphs else f"define it first: %%aiflow graph {name}"
            raise CommandError(f"no graph is called {name!r}", code="AF805", hint=hint)
        return self._graphs[name], self._functions(self._graphs[name].spec)

    def _known(self, name: str) -> tuple[GraphSpec, Mapping[str, Any]] | None:
        """A graph that another one delegates to, with what it may name."""
        try:
            parsed, functions = self._graph(name)
        except CommandError:
            return None
        return parsed.spec, functions

    def _variables(self) -> Mapping[str, Any]:
        """The user's variables, without what IPython itself puts there."""
        hidden = self.shell.user_ns_hidden
        space = self.shell.user_ns
        return {
            name: value
            for name, value in space.items()
            if not _HISTORY.fullmatch(name) and (name not in hidden or hidden[name] is not value)
        }

    def _functions(self, spec: GraphSpec) -> dict[str, Any]:
        """The user's functions and other callables by name, and whatever else the graph names, as they are now."""
        named = {each for node in spec.nodes.values() for each in node.args.values() if isinstance(each, str)}
        return {
            name: value
            for name, value in self._variables().items()
            if name.isidentifier() and (callable(value) or name in named)
        }


def _is(run: Listed, word: str) -> bool:
    """Whether a run is the one that somebody means."""
    return word in (run.id, run.name) or run.id.startswith(word)
