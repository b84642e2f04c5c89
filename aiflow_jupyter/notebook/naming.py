"""The name of the notebook that runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def notebook_name() -> str:
    """What the costs of this process are booked to, so that the budget of a notebook holds; empty where no kernel runs.

    The notebook's file as Jupyter's server or VS Code names it, else the kernel by its connection file: that outlives a
    restart.
    """
    from aiflow_jupyter.tiers.booking import notebook_of_session

    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    if (named := notebook_of_session()) or kernel is None:
        return named
    named = shell.user_ns.get("__vsc_ipynb_file__")
    if named and isinstance(named, str):
        return named
    file = Path(getattr(kernel.parent, "abs_connection_file", ""))  # a kernel within this process has no such file
    if not file.name:
        return str(kernel.ident)
    return file.stem if file.name.startswith("kernel-") else str(file)
