"""How long `%load_ext aiflow_jupyter` takes, beside what importing ipywidgets takes, each in fresh processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any

_LOAD = """
import time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
start = time.perf_counter()
shell.run_line_magic("load_ext", "aiflow_jupyter")
assert "aiflow" in shell.magics_manager.magics["cell"]
print((time.perf_counter() - start) * 1e3)
"""
_IPYWIDGETS = """
import time
from IPython.core.interactiveshell import InteractiveShell
start = time.perf_counter()
import ipywidgets
print((time.perf_counter() - start) * 1e3)
"""


def measure(rounds: int = 5) -> dict[str, Any]:
    """Medians in milliseconds over interleaved rounds, after one round that warms the cache."""
    times: dict[str, list[float]] = {"load_ext_ms": [], "import_ipywidgets_ms": []}
    for number in range(rounds + 1):
        for name, code in (("load_ext_ms", _LOAD), ("import_ipywidgets_ms", _IPYWIDGETS)):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
            if number:
                times[name].append(float(done.stdout.split()[-1]))
    return {name: round(statistics.median(values), 1) for name, values in times.items()} | {"rounds": rounds}
