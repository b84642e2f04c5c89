"""Fresh kernels for the tests of the kernel half."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import Kernel
from jupyter_client.kernelspec import KernelSpecManager


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """A fresh plain kernel, `python3`."""
    with Kernel("python3") as kernel:
        yield kernel


@pytest.fixture
def aiflow_kernel(require) -> Iterator[Kernel]:
    """A fresh kernel of the AiFlow kernelspec."""
    installed = "aiflow" in KernelSpecManager().find_kernel_specs()
    require("the AiFlow kernelspec", installed, "install the package (`make .venv/.installed`)")
    with Kernel("aiflow") as kernel:
        yield kernel
