"""A real JupyterLab on one notebook, as its user sees it.

`LabServer` is a private server: a free port, a random token, an empty home and configuration, nothing that asks the
internet for news. `Lab` is the notebook opened in a browser's page. Cells run through Lab's own commands, because
clicks and key presses race with the focus; everything that shows is read from the page, as a user would.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from playwright.sync_api import Locator, Page

STARTUP: Final = 60.0
CELL: Final = 60.0
NOTEBOOK: Final = "notebook.ipynb"

# A browser in a container: no sandbox for root, no GPU, small /dev/shm, and no calls home.
CHROMIUM_FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
VIEWPORT: Final = {"width": 1280, "height": 900}

_QUIET: Final = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False},
}

_READY: Final = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return Boolean(context?.isReady) && context.session?.kernel?.status === "idle";
}"""
_RUN: Final = """index => {
  const app = window.jupyterapp;
  const notebook = app.shell.currentWidget.content;
  notebook.activeCellIndex = index;
  notebook.deselectAll();
  window.ranCell = false;
  void app.commands.execute("notebook:run-cell").then(() => { window.ranCell = true; });
}"""
_OUTPUTS: Final = "index => window.jupyterapp.shell.currentWidget.content.widgets[index].model.outputs.toJSON()"
_SET_SOURCE: Final = """([index, source]) => {
  window.jupyterapp.shell.currentWidget.content.widgets[index].model.sharedModel.setSource(source);
}"""
# A cell that waits for its turn, or runs, shows `*`; the kernel's own state is of all cells.
_QUIET_KERNEL: Final = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  const waiting = panel.content.widgets.some(
    cell => cell.model.type === "code" && cell.promptNode.textContent.includes("*"));
  return !waiting && panel.sessionContext.session?.kernel?.status === "idle";
}"""


def notebook_of(cells: Sequence[str], kernel: str) -> dict[str, Any]:
    """A notebook of code cells for the kernelspec `kernel`."""
    return {
        "cells": [
            {
                "cell_type": "code",
                "id": f"cell-{index}",
                "metadata": {},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
            for index, source in enumerate(cells)
        ],
        "metadata": {"kernelspec": _kernelspec(kernel)},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


class LabServer:
    """A JupyterLab server in a process group of its own; a context manager.

    Args:
        notebook: the sources of its cells, or an .ipynb that is copied.
        folder: an empty folder for the server's home, configuration, log and notebook.
        kernel: the kernelspec that the notebook opens with; of an .ipynb, None keeps its own.
        settings: overrides of Lab's settings, by file (`@jupyterlab/apputils-extension/....jupyterlab-settings`).
        env: additions to the environment of the server and its kernels.
    """

    def __init__(
        self,
        notebook: Sequence[str] | Path,
        folder: Path,
        *,
        kernel: str | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.root = folder / "notebooks"
        self.notebook = self.root / NOTEBOOK
        self.root.mkdir(parents=True)
        if isinstance(notebook, Path):
            shutil.copy(notebook, self.notebook)
            if kernel is not None:
                content = json.loads(self.notebook.read_text("utf-8"))
                content["metadata"]["kernelspec"] = _kernelspec(kernel)
                self.notebook.write_text(json.dumps(content), "utf-8")
        else:
            self.notebook.write_text(json.dumps(notebook_of(notebook, kernel or "python3")), "utf-8")
        for file, overrides in {**_QUIET, **(settings or {})}.items():
            path = folder / "config" / "lab" / "user-settings" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(overrides), "utf-8")
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
        self._env |= {
            "HOME": str(folder),
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_PREFER_ENV_PATH": "1",
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            **_caches(),
            **(env or {}),
        }
        self.token = secrets.token_hex(16)
        self.port = 0
        self._log_path = folder / "lab.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Of the notebook alone (single-document mode), with no layout from before."""
        return f"http://127.0.0.1:{self.port}/doc/tree/{NOTEBOOK}?token={self.token}&reset"

    @property
    def log(self) -> str:
        """What the server and its kernels printed."""
        return self._log_path.read_text("utf-8", "replace") if self._log_path.exists() else ""

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            RuntimeError: it ended, or did not answer in time; the message carries its log.
        """
        self.port = _free_port()
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
            f"--port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.root}",
            f"--IdentityProvider.token={self.token}",
            "--LabApp.news_url=",
            "--LabApp.expose_app_in_browser=True",
        ]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._env, cwd=self.root, stdout=log, stderr=log, start_new_session=True
            )
        status = f"http://127.0.0.1:{self.port}/api/status?token={self.token}"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + STARTUP
        while True:
            try:
                direct.open(status, timeout=5).close()
            except OSError:
                ended = self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    self.stop()
                    how = "ended" if ended else "did not answer"
                    raise RuntimeError(f"JupyterLab {how}:\n{self.log}") from None
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        """End the server and all that it started; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class Lab:
    """The notebook of a `LabServer`, open in `page`."""

    def __init__(self, server: LabServer, page: Page) -> None:
        self.server = server
        self.page = page

    def open(self) -> None:
        """Load the notebook and wait for its kernel: what is run before that is lost."""
        self.page.goto(self.server.url)
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=STARTUP * 1000)
        self.page.wait_for_function(_READY, timeout=STARTUP * 1000)

    def reload(self) -> None:
        """Load the page anew, as F5 does; the kernel lives on."""
        self.page.reload()
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=STARTUP * 1000)
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.isReady", timeout=STARTUP * 1000
        )

    def cell(self, index: int) -> Locator:
        """The cell at `index`, from 0."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def output(self, index: int) -> Locator:
        """What stands under the cell at `index`."""
        return self.cell(index).locator(".jp-OutputArea-output")

    def outputs_json(self, index: int) -> list[dict[str, Any]]:
        """The outputs of the cell at `index` in the notebook's format, as they would be saved now."""
        outputs: list[dict[str, Any]] = self.page.evaluate(_OUTPUTS, index)
        return outputs

    def set_source(self, index: int, source: str) -> None:
        """Replace the text of the cell at `index`."""
        self.page.evaluate(_SET_SOURCE, [index, source])

    def run_cell(self, index: int, *, wait: bool = False, timeout: float = CELL) -> None:
        """Run the cell at `index`; returns at once unless it is to `wait`."""
        self.page.evaluate(_RUN, index)
        if wait:
            self.page.wait_for_function("() => window.ranCell", timeout=timeout * 1000)
            self.wait_idle(timeout)

    def wait_idle(self, timeout: float = CELL) -> None:
        """Wait until no cell waits or runs and the kernel is idle."""
        self.page.wait_for_function(_QUIET_KERNEL, timeout=timeout * 1000)

    def interrupt(self) -> None:
        """Interrupt the kernel as the toolbar's Stop does."""
        self.command("notebook:interrupt-kernel")

    def command(self, name: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Execute one of Lab's commands and wait for it."""
        self.page.evaluate(
            "([name, arguments]) => window.jupyterapp.commands.execute(name, arguments).then(() => null)",
            [name, dict(arguments or {})],
        )

    def save(self) -> dict[str, Any]:
        """Save the notebook; returns what is in the file."""
        self.command("docmanager:save")
        saved: dict[str, Any] = json.loads(self.server.notebook.read_text("utf-8"))
        return saved

    def screenshot(self, path: Path) -> Path:
        """Save a picture of the page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path)
        return path


def _kernelspec(name: str) -> dict[str, str]:
    return {"name": name, "display_name": name, "language": "python"}


def _caches() -> dict[str, str]:
    """The real cache of models, which an empty home would hide."""
    from aiflow_jupyter.providers.models import cache_folder

    return {"AIFLOW_CACHE": str(cache_folder())}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
