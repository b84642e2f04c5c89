"""The door of the command `aiflow`: what it imports takes a moment, and an interrupt meanwhile is told in one word."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command; nothing is open before it has been imported, so that an interrupt ends the process at once."""
    before = signal.getsignal(signal.SIGINT)
    watched = before is signal.default_int_handler  # a shell's background job leaves interrupts alone
    if watched:
        signal.signal(signal.SIGINT, _end)
    from aiflow_jupyter.cli import main as command  # noqa: PLC0415 - what takes the moment

    if watched:
        signal.signal(signal.SIGINT, before)
    command()


def _end(_number: int, _frame: object) -> None:
    os.write(2, b"cancelled\n")
    os._exit(130)


if __name__ == "__main__":
    main()
