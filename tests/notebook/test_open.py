"""A run that is opened with no value, and is offered its first one later."""

from __future__ import annotations

import pytest

from aiflow_jupyter.errors import CommandError


@pytest.mark.parametrize("cell", ["%aiflow run flow --open -o job", "%%aiflow run flow --open -o job\n\n"])
def test_a_run_is_opened_with_no_value_and_offered_some_later(shell, cell):
    shell.ran("def double(n: int) -> int: return 2 * n")
    shell.ran("%%aiflow graph flow\ninject d: int\nd = map(double)\nout = sink(var='out')\nd -> out")
    assert shell.ran(cell).success
    job = shell.user_ns["job"]
    assert (job.status().state, job.done()) == ("running", False)
    job.offer("d", 1)
    job.offer("d", 2)
    job.close_inputs()
    assert job.result()["out"] == [2, 4]


@pytest.mark.parametrize("end", ["close_inputs", "drain", "cancel"])
def test_an_open_run_that_is_offered_nothing_ends_when_it_is_told(shell, end):
    shell.ran("%%aiflow graph flow\nask = generate()\nout = sink(var='out')\nask -> out")
    shell.ran("%aiflow run flow --open -o job")
    job = shell.user_ns["job"]
    getattr(job, end)()
    if end != "cancel":
        assert job.result().text == ""
    assert job.status().state == ("cancelled" if end == "cancel" else "done")


def test_only_an_open_run_needs_no_value(shell):
    shell.ran("%%aiflow graph flow\nask = generate()\nout = sink(var='out')\nask -> out")
    for cell in ("%aiflow run flow", "%%aiflow run flow -b\n\n", "%aiflow run flow --open --to nowhere"):
        assert isinstance(shell.ran(cell).error_in_exec, CommandError)
