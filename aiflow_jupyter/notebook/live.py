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

from aiflow_jupyter.notebook.frames import MIME, Frames, Status, gauges_of, graph_of, ready
from aiflow_jupyter.notebook.outputs import is_kernel, output_of

if TYPE_CHECKING:
    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.runtime.run import Run

FRAME_S = 1 / 30
HELLO_TIMEOUT_S = 2.0
TEXT_EVERY_S = 0.5

NO_VIEW = (
    "No live view answered. If no graph is drawn above: pip install aiflow-jupyter in the environment of the\n"
    "front end (jupyter lab), reload the page; `aiflow doctor` says more. Figures as text:"
)


def bundle_of(spec: GraphSpec, status: Status) -> dict[str, Any]:
    """The static form of a graph and its figures, in every form that a front end may take."""
    from aiflow_jupyter.graph import picture

    graph = graph_of(spec)
    gauges = None if status["run"] == "ready" else gauges_of(status, graph)
    caption = "" if status["run"] == "ready" else f"{status['run']}, {status['elapsed']:.1f} s"
    return {
        MIME: {"version": 1, "graph": graph, "snapshot": status},
        "image/svg+xml": picture.svg(spec, gauges, caption),
        "text/plain": picture.text(spec, gauges, caption) + "\n",
    }


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
        self._ready = ready(spec, run_id)
        self._graph = graph_of(spec)
        self._frames = Frames()
        self._answered = threading.Event()
        self._output = output_of(shell)
        self._text = output_of(shell)
        self._text_shown = False
        self._widget: Any = None
        if is_kernel(shell):
            from aiflow_jupyter.notebook.widget import FlowWidget, require_built

            require_built()
            self._widget = FlowWidget(self._graph, self._ready, self._hello, cancel)
            self._output.show(self._bundle(self._ready))

    async def follow(self, run: Run) -> None:
        """Send frames until the run is over, then leave the static picture; runs on the host's loop."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        told = 0.0
        try:
            while run.state in ("ready", "running"):
                self._send(run)
                now = loop.time()
                alone = self._widget is None or (not self._answered.is_set() and now > begun + HELLO_TIMEOUT_S)
                if alone and self._widget is not None and now > told + TEXT_EVERY_S:
                    told = now
                    self._show_text(run)
                await asyncio.sleep(FRAME_S)
        finally:
            self._finish(run)

    def abandon(self) -> None:
        """Show the graph as it is: the run could not be started."""
        self._output.show(bundle_of(self._spec, ready(self._spec)))

    def _send(self, run: Run) -> None:
        frame = self._frames.frame(run.status())
        if frame is not None and self._widget is not None:
            self._widget.send(frame)

    def _finish(self, run: Run) -> None:
        self._send(run)
        latest = self._frames.latest
        if latest is None:
            return
        if self._widget is not None:
            self._widget.snapshot = latest
            if self._text_shown:  # the static picture, which every front end shows, takes its place
                self._text.show({"text/plain": ""})
        self._output.show(self._bundle(latest, last=True))

    def _bundle(self, status: Status, *, last: bool = False) -> dict[str, Any]:
        """The widget while the run lives, with pictures for those who can't show it; the data form at the end."""
        bundle = bundle_of(self._spec, status)
        if self._widget is not None:
            if not last:
                del bundle[MIME]
            bundle["application/vnd.jupyter.widget-view+json"] = {
                "version_major": 2,
                "version_minor": 0,
                "model_id": self._widget.model_id,
            }
        return bundle

    def _show_text(self, run: Run) -> None:
        del run
        self._text_shown = True
        if self._frames.latest is not None:
            self._text.show(self._text_bundle(self._frames.latest))

    def _text_bundle(self, status: Status) -> dict[str, Any]:
        from aiflow_jupyter.graph import picture

        caption = f"{status['run']}, {status['elapsed']:.1f} s"
        return {"text/plain": f"{NO_VIEW}\n{picture.text(self._spec, gauges_of(status, self._graph), caption)}"}

    def _hello(self) -> None:
        self._answered.set()
        snapshot = self._frames.snapshot()
        if snapshot is None:
            snapshot = {"kind": "snapshot", **self._ready}
        if self._widget is not None:
            self._widget.send(snapshot)
