"""Several processes at once, as several kernels are."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.process import BaseProcess


def run_at_once(processes: Sequence[BaseProcess]) -> None:
    """Start all, wait for all, and see that none failed."""
    for each in processes:
        each.start()
    for each in processes:
        each.join(60)
    assert [each.exitcode for each in processes] == [0] * len(processes)
