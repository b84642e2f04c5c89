"""Answers: a question's text streams under its cell, ends with a badge, and stays as a `Reply`.

An answer is an ordinary run of a two-node graph, so asking has the same cancel, order and counters as any flow.
"""

from __future__ import annotations

import asyncio
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiflow_jupyter.errors import plain
from aiflow_jupyter.notebook.hosting import finish
from aiflow_jupyter.notebook.options import require_arguments
from aiflow_jupyter.notebook.sanitise import literal, quoted, sanitise

if TYPE_CHECKING:
    from aiflow_jupyter.errors import AiflowError
    from aiflow_jupyter.events import Event, Usage
    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.notebook.conversing import CellTurn
    from aiflow_jupyter.notebook.hosting import Host
    from aiflow_jupyter.notebook.outputs import Output
    from aiflow_jupyter.runtime.metrics import Answer, Decided
    from aiflow_jupyter.runtime.run import Result, Run

MOST_BYTES_PER_S = 200_000
SHORTEST_PAUSE_S = 0.05
WAITING_EVERY_S = 0.25
PART = "this is a part of the answer"


class Reply:
    """One answer: its text, who gave it, and its figures.

    Attributes:
        text: the answer, without what the model thought before.
        reasoning: what the model thought, empty for models that don't show it.
        result: the run's result with all figures.
    """

    def __init__(self, text: str, reasoning: str, result: Result) -> None:
        self.text = text
        self.reasoning = reasoning
        self.result = result
        self._shown = False

    @property
    def _answer(self) -> Answer:
        return self.result.answers[0]

    @property
    def tier(self) -> str:
        """Which tier answered."""
        return self._answer.tier

    @property
    def model(self) -> str:
        """Which model answered."""
        return self._answer.model

    @property
    def ttft(self) -> float | None:
        """Seconds until the provider's first delta."""
        return self._answer.ttft

    @property
    def usage(self) -> Usage | None:
        """Tokens as the provider counted them."""
        return self._answer.usage

    @property
    def complete(self) -> bool:
        """Whether this is the whole answer, and not the part that came before a failure or an interrupt."""
        return self.result.complete

    @property
    def batch(self) -> bool:
        """Whether the answer came in one piece, and not token by token."""
        return self._answer.batch

    @property
    def note(self) -> str:
        """What there is to say of how the answer came, such as a relay that could not be reached; mostly empty."""
        return self._answer.remark

    @property
    def decision(self) -> Decided | None:
        """The decision about who answers: `as_dict()` has all of it; None for a recorded answer."""
        return self._answer.decision

    @property
    def why(self) -> str:
        """Who answered and why, in words."""
        return plain(str(self.decision)) if self.decision is not None else "nobody had to decide"

    @property
    def badge(self) -> str:
        """Who answered and how fast, in one line, and whether it is a part of the answer."""
        return " · ".join(filter(None, [self._answer.badge(), "" if self.complete else PART]))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        start = self.text if len(self.text) <= 60 else f"{self.text[:57]}..."
        part = "" if self.complete else "part of a "
        return plain(f"<{part}Reply {start!r} ({self.badge})>")

    def _repr_markdown_(self) -> str:
        return sanitise(self.text)

    def shown(self) -> Reply:
        """Note that the text stands under the cell already, so that its value is not displayed once more."""
        self._shown = True
        return self

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._shown:
            self._shown = False
            return
        display({"text/markdown": self._repr_markdown_(), "text/plain": plain(self.text)}, raw=True)


class AnswerView:
    """Streams an answer's text to an output, less often the longer it is: each update sends the whole text.

    Args:
        output: where it is shown; None to gather the text only.
    """

    def __init__(self, output: Output | None) -> None:
        self._output = output
        self._answer: list[tuple[str, str]] = []
        self._reasoning: list[tuple[str, str]] = []
        self._new = asyncio.Event()
        self._note = ""
        self._remark = ""
        self._waiting = ""

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(piece for _, piece in self._answer)

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(piece for _, piece in self._reasoning)

    def feed(self, event: Event) -> None:
        """Take in one event; called on the host's loop."""
        if event.kind in ("restart", "retract"):  # what came of that answer is void
            from aiflow_jupyter.events import descends

            for pieces in (self._answer, self._reasoning):
                pieces[:] = [each for each in pieces if not descends(each[0], event.lineage)]
            self._new.set()
        elif isinstance(event.payload, str):
            pieces = self._reasoning if event.phase == "reasoning" else self._answer
            pieces.append((event.lineage, event.payload))
            self._new.set()

    def end(self, note: str) -> None:
        """Set the line below the text; shown with the last update."""
        self._note = note

    async def follow(self, run: Run) -> None:
        """Show the text as it comes, until the run is over; then once more, with the badge.

        If that breaks, the answer is shown once as plain text when it is complete, before the error goes on.
        """
        try:
            await self._follow(run)
        except Exception:
            await _over(run)
            self._conclude(run)
            self._note = self._note or ending(run)
            with suppress(Exception):
                self._show_plainly()
            raise

    async def _follow(self, run: Run) -> None:
        over = asyncio.ensure_future(_over(run))
        try:
            while not over.done():
                new = asyncio.ensure_future(self._new.wait())
                look = None if self._new.is_set() else WAITING_EVERY_S
                await asyncio.wait({over, new}, return_when=asyncio.FIRST_COMPLETED, timeout=look)
                new.cancel()
                self._wait_for(run)
                if self._new.is_set() and not over.done():
                    self._new.clear()
                    size = self.show()
                    pause = max(SHORTEST_PAUSE_S, size / MOST_BYTES_PER_S)
                    await asyncio.wait({over}, timeout=pause)
        finally:
            over.cancel()
        self._conclude(run)
        self.show()

    def _conclude(self, run: Run) -> None:
        """Set the lines below the text, in the place of what was waited for."""
        came = bool(self._answer or self._reasoning)
        if run.state == "done" or came:
            self._note = self._note or ending(run)
        elif self._waiting:
            self._note = f"{run.state} while waiting: {self._waiting}"
        elif run.state == "cancelled":
            self._note = "cancelled before anything came"
        self._waiting = ""
        self._remark = run.answers[0].remark if run.answers and came else ""

    def _wait_for(self, run: Run) -> None:
        """Show what is being waited for."""
        waiting = run.answers[-1].waiting if run.answers else ""
        if waiting != self._waiting:
            self._waiting = waiting
            self.show()

    def show(self) -> int:
        """Show what there is; gives the size of what was sent, in bytes."""
        if self._output is None:
            return 0
        bundle = self.bundle()
        self._output.show(bundle)
        return sum(len(value.encode("utf-8", "replace")) for value in bundle.values())

    def _show_plainly(self) -> None:
        if self._output is not None:
            self._output.show({"text/plain": self._flat()})

    def _flat(self) -> str:
        """The whole as plain text. What comes later is added at the end, as a terminal only goes forward."""
        reasoning = self.reasoning.strip()
        flat = "\n\n".join(part for part in (reasoning and f"[reasoning] {reasoning}", self.text) if part)
        notes = "".join(f"[{note}]\n" for note in (self._note, self._remark) if note)
        return plain(f"{flat}\n\n{notes}" if notes else flat)

    def bundle(self) -> dict[str, str]:
        """The text as Markdown and plain text, the reasoning as a quotation before it, the note after it."""
        text, reasoning = self.text, self.reasoning.strip()
        parts = [sanitise(text)] if text else []
        if reasoning:
            parts.insert(0, f"> *Reasoning*\n>\n{quoted(reasoning)}")
        if self._waiting and not self._note:
            parts.append(f"*{literal(self._waiting)} …*")
        parts += [f"<small>{literal(note)}</small>" for note in (self._note, self._remark) if note]
        return {"text/markdown": "\n\n".join(parts), "text/plain": self._flat()}


def ending(run: Run) -> str:
    """The line below an answer: the badge, or how it broke off."""
    badge = run.answers[0].badge() if run.answers else ""
    if run.state == "done":
        return badge
    how = "cancelled" if run.state == "cancelled" else f"broken off: {cause_of(run.error).message}"
    return f"{badge} · {how} · {PART}" if badge else how


def cause_of(error: AiflowError | None) -> AiflowError:
    """What a question failed of: in a graph of the kernel's own making the node's name says nothing."""
    from aiflow_jupyter.errors import AiflowError

    assert error is not None
    return error.__cause__ if isinstance(error.__cause__, AiflowError) else error


async def _over(run: Run) -> None:
    from aiflow_jupyter.errors import AiflowError

    with suppress(AiflowError):  # the cell raises it; here it only says that the run is over
        await run.wait()


def question(**arguments: Any) -> GraphSpec:
    """The graph of a plain question; arguments as `generate` takes them."""
    from aiflow_jupyter.graph.spec import EdgeSpec, GraphSpec, NodeSpec
    from aiflow_jupyter.notebook.flows import require_checked

    args = {name: value for name, value in arguments.items() if value is not None}
    nodes = {
        "ask": NodeSpec(operator="generate", args=args),
        "answer": NodeSpec(operator="sink", args={"display": True}),
    }
    spec = GraphSpec(name="question", nodes=nodes, edges=[EdgeSpec(source="ask", target="answer")])
    require_checked(spec, {})
    return spec


def ask(host: Host, prompt: str, *, conversation: str | None = None, store: bool = True, **arguments: Any) -> Reply:
    """Ask and wait, showing nothing; see `aiflow_jupyter.ask`."""
    from aiflow_jupyter.errors import CommandError, RunError

    if not isinstance(prompt, str):
        raise CommandError(
            f"the question is no text but {type(prompt).__name__}", code="AF802", hint='ask("Why is the sky blue?")'
        )
    if not prompt.strip():
        raise CommandError("the question is empty", code="AF802")
    require_arguments(arguments)
    view = AnswerView(None)
    turn: CellTurn | None = None
    value: Any = prompt
    if conversation is not None:
        from aiflow_jupyter.notebook.conversing import CellTurn, running_cell

        turn = CellTurn(
            host.conversations,
            conversation,
            prompt,
            system=arguments.pop("system", None),
            store=store,
            stay=arguments.get("stay"),
            cell=running_cell(),
        )
        value, arguments["stay"] = turn.messages, turn.stay
        if turn.notice:
            warnings.warn(turn.notice, stacklevel=3)

    async def beside(run: Run) -> None:
        await _over(run)
        if turn is not None:
            await turn.keep(run, view)

    booked = turn.booked if turn is not None else ""
    try:
        result = finish(host.start(question(**arguments), value, show=view.feed, beside=beside, conversation=booked))
    except RunError as error:
        raise cause_of(error) from None
    if turn is not None and turn.problem is not None:
        raise turn.problem
    return Reply(view.text, view.reasoning, result)
