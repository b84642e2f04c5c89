"""`python -m aiflow_kernel -f CONNECTION_FILE`: what the kernelspec starts."""

from __future__ import annotations

from ipykernel.kernelapp import IPKernelApp

from aiflow_kernel.kernel import AiflowKernel


def main() -> None:
    """Serve one kernel."""
    IPKernelApp.launch_instance(kernel_class=AiflowKernel)


if __name__ == "__main__":
    main()
