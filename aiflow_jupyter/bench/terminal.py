"""A run in a terminal: the gauges of its nodes while it lives, and the demo's table at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from aiflow_jupyter.bench.demo import Report
    from aiflow_jupyter.runtime.metrics import NodeStatus
    from aiflow_jupyter.runtime.run import Run

BAR = 16
_STYLES = {"running": "bold", "blocked": "yellow", "failed": "bold red", "done": "dim", "cancelled": "dim"}


def gauges(nodes: tuple[NodeStatus, ...], elapsed: float) -> Table:
    """One row per node: state, queue as a bar and in numbers, peak, events, rate."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("node", "state", "queue", "", "peak", "events", "per s"):
        table.add_column(name, justify="right" if name in ("peak", "events", "per s") else "left")
    for node in nodes:
        filled = round(BAR * min(1.0, node.depth / node.queue))
        count = max(node.processed, node.emitted)
        table.add_row(
            Text(node.node),
            Text(node.state, style=_STYLES.get(node.state, "")),
            Text("█" * filled + "░" * (BAR - filled)),
            f"{node.depth}/{node.queue}",
            str(node.peak),
            str(count),
            f"{count / elapsed:.0f}" if elapsed else "",
        )
    return table


class LiveRun:
    """Shows a run's gauges, refreshed ten times a second, until it is left.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self._run: Run | None = None
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=10, transient=False)

    def watch(self, run: Run) -> None:
        """Show this run from now on."""
        self._run = run

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        if self._run is None:
            return Text("starting the embedded model …")
        status = self._run.status()
        return Group(
            Text(f"{status.name}: {status.state}, {status.elapsed_s:.1f} s"), gauges(status.nodes, status.elapsed_s)
        )


def summary(report: Report) -> Table:
    """The demo's figures."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()

    bounds = ", ".join(f"{n.node} {n.peak} of {n.queue}" for n in report.status.nodes)
    for name, value in (
        ("model", f"{report.model} ({report.provider}), {report.tokens} tokens"),
        ("model's first token", f"{report.model_ttft_s:.2f} s"),
        ("first token spoken", f"{report.ttfpt_s:.2f} s"),
        ("had it waited for the whole answer", f"{report.aggregate_ttfpt_s:.2f} s"),
        ("all spoken", f"{report.whole_s:.1f} s"),
        ("highest queue, of what was declared", bounds),
    ):
        table.add_row(name, value)
    return table
