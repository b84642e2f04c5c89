"""The measurement of the runtime, small: every figure that it promises is there and makes sense."""

from __future__ import annotations

import json

from click.testing import CliRunner

from aiflow_jupyter.cli import main


def test_quick_measurement_has_every_figure():
    result = CliRunner().invoke(main, ["bench", "runtime", "--json", "--quick"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)
    for chains in ("hop_ratio", "async_hop_ratio", "run_hop_ratio"):
        assert set(figures.pop(chains)) == {"1", "3", "10"}
    queued = figures.pop("queued_hop_ratio_by_nodes")
    assert set(queued) == {"3", "10"}
    assert figures["queued_hop_ratio"] == max(queued.values())
    assert set(figures) == {
        "queued_hop_ratio",
        "turn_hop_ratio",
        "threaded_hop_us",
        "runs_ratio",
        "short_runs_ratio",
        "main_thread_share",
        "main_thread_worst_ms",
        "events_per_second",
        "bytes_per_idle_guardian",
        "rounds",
    }
    assert all(figure > 0 for figure in figures.values())
