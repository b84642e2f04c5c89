"""The live picture of a run under its cell: a widget where a front end answers, text gauges where none does.

The kernel sends at most 30 frames a second and only what changed. When the run is over the output becomes static: the
graph with its last figures as data (for the JupyterLab extension), as SVG and as text, so that the saved notebook
shows it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiflow_jupyter.errors import plain
from aiflow_jupyter.notebook.frames import MIME, VERSION, Frames, Status, gauges_of, graph_of, ready
from aiflow_jupyter.notebook.outputs import is_kernel, output_of

if TYPE_CHECKING:
    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.notebook.widget import FlowWidget
    from aiflow_jupyter.runtime.metrics import RunStatus
    from aiflow_jupyter.runtime.run import Run

FRAME_S = 1 / 30
HELLO_TIMEOUT_S = 2.0
TEXT_EVERY_S = 0.5
MOST_SAID = 50
"""The last answers of a run whose waiting or remarks a picture tells."""

NO_VIEW = (
    "No live view answered. If no graph is drawn above: pip install aiflow-jupyter in the environment of the\n"
    "front end (jupyter lab), reload the page; `aiflow doctor` says more. Figures as text:"
)


def bundle_of(spec: GraphSpec, status: Status) -> dict[str, Any]:
    """The static form of a graph and its figures, in every form that a front end may take."""
    from aiflow_jupyter.graph.forms import picture

    graph = graph_of(spec)
    gauges = None if status["run"] == "ready" else gauges_of(status, graph)
    caption = "" if status["run"] == "ready" else f"{status['run']}, {status['elapsed']:.1f} s"
    return {
        MIME: {"version": VERSION, "graph": graph, "snapshot": status},
        "image/svg+xml": picture.svg(spec, gauges, caption),
        "text/plain": "\n".join([picture.text(spec, gauges, caption), *plain(status["message"]).splitlines()]) + "\n",
    }


def message_of(run: Run, status: RunStatus) -> str:
    """What is said with the picture: why the run failed and what mends that, else what its models are waited for.

    A run that is over keeps what there is to say of how an answer came, such as in one piece. Warnings stand below.
    """
    return "\n".join([*filter(None, [_said(run)]), *(f"warning: {warning}" for warning in status.warnings)])


def _said(run: Run) -> str:
    if run.error is not None:
        return "\n".join(part for part in (run.error.message, run.error.hint) if part)
    live = run.state in ("ready", "running")
    said = {f"{answer.node}: {answer.waiting if live else answer.remark}": None for answer in run.answers[-MOST_SAID:]}
    return "\n".join(words for words in said if not words.endswith(": "))


def show_graph(shell: Any, spec: GraphSpec) -> None:
    """Show a graph that does not run."""
    output_of(shell).show(bundle_of(spec, ready(spec)))


class FlowView:
    """One run's picture.

    Args:
        shell: the IPython shell whose cell runs.
        spec: the graph.
        run_id: the identifier that the run will have: a view knows it before the first frame.
        cancel: asks the run to stop and returns at once, as it is called while the cell blocks; whether there was one.
    """

    def __init__(self, shell: Any, spec: GraphSpec, run_id: str, cancel: Callable[[], bool]) -> None:
        self._spec = spec
        self._frames = Frames(ready(spec, run_id))
        self._answered = threading.Event()
        self._output = output_of(shell)
        self._text = output_of(shell)
        self._text_shown = False
        self._widget: FlowWidget | None = None
        if is_kernel(shell):
            from aiflow_jupyter.notebook.widget import FlowWidget, require_built

            require_built()
            self._widget = FlowWidget(graph_of(spec), self._frames.latest, self._hello, cancel)
            self._output.show(self._live_bundle(self._widget.model_id))

    async def follow(self, run: Run) -> None:
        """Send frames until the run is over, then leave the static picture; runs on the host's loop."""
        loop = asyncio.get_running_loop()
        tell = loop.time() + HELLO_TIMEOUT_S
        try:
            while run.state in ("ready", "running"):
                self._send(run)
                if self._widget is not None and not self._answered.is_set() and loop.time() > tell:
                    tell = loop.time() + TEXT_EVERY_S
                    self._show_text()
                await asyncio.sleep(FRAME_S)
        finally:
            self._send(run)
            self._rest()

    def abandon(self) -> None:
        """Show the graph as it is: the run could not be started."""
        self._rest()

    def _send(self, run: Run) -> None:
        status = run.status()
        frame = self._frames.frame(status, message_of(run, status), run.bottleneck)
        if frame is not None and self._widget is not None:
            self._widget.send(frame)

    def _rest(self) -> None:
        """Put the static picture in the place of the live one, which every front end shows, and let the widget go."""
        self._output.show(bundle_of(self._spec, self._frames.latest))
        if self._text_shown:
            self._text.show({"text/plain": ""})
        widget, self._widget = self._widget, None
        if widget is not None:
            widget.close()

    def _live_bundle(self, model_id: str) -> dict[str, Any]:
        """The widget, with pictures for those who can't show it; the data form would hide it, where both are known."""
        bundle = bundle_of(self._spec, self._frames.latest)
        del bundle[MIME]
        view = {"version_major": 2, "version_minor": 0, "model_id": model_id}
        return bundle | {"application/vnd.jupyter.widget-view+json": view}

    def _show_text(self) -> None:
        from aiflow_jupyter.graph.forms import picture

        status = self._frames.latest
        caption = f"{status['run']}, {status['elapsed']:.1f} s"
        gauges = gauges_of(status, graph_of(self._spec))
        self._text_shown = True
        text = "\n".join([NO_VIEW, picture.text(self._spec, gauges, caption), plain(status["message"])])
        self._text.show({"text/plain": text})

    def _hello(self) -> None:
        self._answered.set()
        widget = self._widget
        if widget is not None:
            widget.send(self._frames.snapshot())
