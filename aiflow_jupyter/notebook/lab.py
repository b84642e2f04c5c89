"""`aiflow lab`: JupyterLab on the quickstart notebook."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from aiflow_jupyter.errors import CommandError

NOTEBOOK = Path("examples", "quickstart.ipynb")
_PACKAGE = Path(__file__).parents[1]


def shipped() -> Path:
    """The quickstart as it was installed: beside the package in a checkout, inside it in a wheel."""
    for folder in (_PACKAGE, _PACKAGE.parent):
        if (folder / NOTEBOOK).is_file():
            return folder / NOTEBOOK
    raise CommandError(
        "the quickstart notebook is missing from this installation",
        code="AF811",
        hint="reinstall: pip install --force-reinstall aiflow-jupyter",
    )


def open_lab(arguments: Sequence[str]) -> int:
    """Become JupyterLab, opened on `examples/quickstart.ipynb` of the working directory, written there if it is not.

    A process that is replaced leaves none behind, whatever ends it. Windows has no such thing: there JupyterLab is a
    process of its own.

    Args:
        arguments: further options for JupyterLab, as `--port=8899` or `--port 8899`.

    Returns:
        JupyterLab's exit code, on Windows.

    Raises:
        CommandError: JupyterLab is not installed, the notebook can't be copied, or an argument is no option.
    """
    for before, stray in zip(["", *arguments], arguments, strict=False):
        if stray.startswith("-") or (before.startswith("-") and "=" not in before):  # a value behind its option
            continue
        raise CommandError(f"unexpected argument {stray!r}", code="AF811", hint=f"aiflow lab opens {NOTEBOOK}")
    if importlib.util.find_spec("jupyterlab") is None:
        raise CommandError("JupyterLab is not installed here", code="AF811", hint="pip install jupyterlab")
    if not NOTEBOOK.is_file():
        try:
            NOTEBOOK.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(shipped(), NOTEBOOK)
        except OSError as error:
            raise CommandError(
                f"{NOTEBOOK} can't be written: {error.strerror}",
                code="AF811",
                hint="change to a folder that you may write to",
            ) from error
        click.echo(f"the quickstart was written to {NOTEBOOK.absolute()}; it is yours to change", err=True)
    # The kernelspec starts `python`: this interpreter's folder comes first, whether or not its environment is active.
    environment = dict(os.environ, PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    opens = f"--LabApp.default_url=/lab/tree/{NOTEBOOK.as_posix()}"
    command = [sys.executable, "-m", "jupyterlab", opens, *arguments]
    if sys.platform != "win32":
        sys.stdout.flush()
        os.execve(command[0], command, environment)  # noqa: S606
    return subprocess.call(command, env=environment)  # noqa: S603
