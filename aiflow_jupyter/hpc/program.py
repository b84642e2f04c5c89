"""The worker's own small program, for a cluster where `aiflow` is not: keys, a check, and a task by hand.

`python aiflow-worker.pyz` is this, and so is `python -m aiflow_jupyter.hpc` where the package is installed without what
its notebook half needs. It imports the standard library alone until it knows that the four packages are there.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from typing import NoReturn

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.hpc import checks
from aiflow_jupyter.hpc.findings import Finding

_WRONG = 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_help(sys.stderr)
        self.exit(_WRONG, f"\n{self.prog}: {message}\n")


def _parser() -> _Parser:
    name = Path(sys.argv[0]).name
    prog = f"python {name}" if name.endswith(".pyz") else "python -m aiflow_jupyter.hpc"
    parser = _Parser(
        prog=prog,
        description="The worker of aiflow-jupyter's hpc tier: it asks the cluster's model server and streams the\n"
        "answer through a relay to the notebook. Executors start it by themselves; what is here sets it up.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"It takes Python 3.11 or later, and\n  {checks.install()}",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    keys = commands.add_parser(
        "keys",
        help="make this worker's key pair, once, and print its public key",
        description="Make the key pair that requests are sealed for, once, and print the public key, for aiflow.toml "
        "on the notebook's machine. The private one stays in a file of mode 0600.",
    )
    keys.add_argument("--file", type=Path, help="the private key's file (default: ~/.aiflow/worker.key)")
    keys.add_argument("--force", action="store_true", help="make a new one in the place of an old one")
    check = commands.add_parser(
        "check",
        help="look at all that the worker needs, and say what is missing",
        description="Look at packages, key, model server and, where its address is given, the relay.",
    )
    check.add_argument("--relay", metavar="URL", help="the relay's address, https://...")
    commands.add_parser(
        "run",
        help="do one task: its argument from standard input, its result to standard output",
        description="Do one task, by hand: its argument is read from standard input, its result written to standard "
        "output, its log to standard error.",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return _WRONG
    if options.command == "check":
        return _check(options.relay)
    if missing := checks.lacking():
        print(f"missing here: {', '.join(missing)}; run: {checks.install(sys.executable)}", file=sys.stderr)  # noqa: T201
        return 1
    try:
        if options.command == "keys":
            return _keys(options.file, replace=options.force)
        return _run()
    except AiflowError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1


def _keys(file: Path | None, *, replace: bool) -> int:
    from aiflow_jupyter.hpc.keyfile import key_pair  # noqa: PLC0415

    key, told = key_pair(file, replace=replace)
    print("\n".join(told), file=sys.stderr)  # noqa: T201
    print(key.public)  # noqa: T201
    return 0


def _run() -> int:
    from aiflow_jupyter.hpc import worker  # noqa: PLC0415

    worker.log_to_stderr()
    if sys.stdin.isatty():
        print("reading a task from standard input; --help says what else there is", file=sys.stderr)  # noqa: T201
    print(worker.run(sys.stdin.read().strip()))  # noqa: T201
    return 0


def _check(relay: str | None) -> int:
    findings = [Finding("python", f"{platform.python_version()} at {sys.executable}"), *checks.packages()]
    if not checks.lacking():
        findings += _reached(relay)
    for finding in findings:
        print(finding.line())  # noqa: T201
    return int(any(finding.wrong for finding in findings))


def _reached(relay: str | None) -> list[Finding]:
    """What only the four packages can look at, all at once."""
    import asyncio  # noqa: PLC0415

    from aiflow_jupyter.hpc.modelserver import NotReadyError, Server  # noqa: PLC0415
    from aiflow_jupyter.hpc.worker import worker_key  # noqa: PLC0415

    try:
        where = "AIFLOW_WORKER_KEY" if os.environ.get("AIFLOW_WORKER_KEY") else "in its file"
        found = [Finding("worker key", f"{worker_key().public} ({where})")]
    except AiflowError as error:
        found = [Finding("worker key", error.message, wrong=True, mend=f"{_parser().prog} keys")]

    async def look() -> list[Finding]:
        looks = []
        try:
            server = Server.find()
            found.append(Finding("server named", server.place))
            looks.append(checks.model_server(server))
        except NotReadyError as error:
            mend = "The job that starts the model server writes the file: aiflow worker --print-slurm"
            found.append(Finding("server named", str(error), wrong=True, mend=mend))
        except AiflowError as error:
            found.append(Finding("server named", error.message, wrong=True, mend=error.hint))
        if relay is not None:
            looks.append(checks.relay(relay))
        return list(await asyncio.gather(*looks))

    found += asyncio.run(look())
    if relay is None:
        found.append(Finding("relay", "not looked at", mend="--relay URL, the address in aiflow.toml, looks at it"))
    return found
