"""The kernel "Python 3 (AiFlow)": an IPython kernel in which `%%aiflow` needs no `%load_ext`."""

from __future__ import annotations

import inspect
from typing import Any

from ipykernel.ipkernel import IPythonKernel


class AiflowKernel(IPythonKernel):  # type: ignore[misc]
    """Loads the extension at start and stops the host at shutdown."""

    implementation = "aiflow"

    def start(self) -> None:
        """Start the kernel, then load the extension; not by IPython's list of them, so that %load_ext says nothing."""
        from aiflow_kernel.extension import load

        super().start()
        load(self.shell)

    async def do_shutdown(self, restart: bool) -> Any:
        """Stop the host, so that providers and their processes end before the kernel does."""
        from aiflow_kernel.host import current_host

        current_host().stop()
        result = super().do_shutdown(restart)
        return await result if inspect.isawaitable(result) else result
