"""The wheel, as a user would get it, in an environment that has never seen the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


def output_of(command: list[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """What `command` prints; fails the test with all of it if the command fails."""
    done = subprocess.run(command, check=False, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it; `cwd` is an empty folder outside the checkout."""

    prefix: Path
    cwd: Path

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    def run(self, *arguments: str) -> str:
        """Run this environment's Python with `arguments`; returns what it prints."""
        return self._run(str(self.python), *arguments)

    def script(self, name: str, *arguments: str) -> str:
        """Run a command that the wheel installed; returns what it prints."""
        return self._run(str(self.prefix / "bin" / name), *arguments)

    def _run(self, *command: str) -> str:
        dropped = ("JUPYTER", "IPYTHON", "PYTHON", "VIRTUAL_ENV")
        env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        env |= {"HOME": str(self.cwd), "PATH": f"{self.prefix / 'bin'}{os.pathsep}{env['PATH']}"}
        return output_of(list(command), cwd=self.cwd, env=env)


@pytest.fixture(scope="session")
def dist(require, tmp_path_factory) -> Path:
    """A folder with the sdist of the checkout, and the wheel built from that sdist, as an index gets them."""
    built = [CHECKOUT / "aiflow_jupyter" / part for part in ("static/widget.js", "labextension/package.json")]
    require("the built JavaScript", all(path.is_file() for path in built), "run `make .venv/.js`")
    folder = tmp_path_factory.mktemp("dist")
    output_of(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(CHECKOUT)],
        cwd=folder,
        # Without isolation the build finds its tools here; it must build no JavaScript, and reach for no index.
        env={**os.environ, "PIP_NO_INDEX": "1", "npm_config_offline": "true"},
    )
    return folder


@pytest.fixture(scope="session")
def wheel(dist) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def sdist(dist) -> Path:
    (sdist,) = dist.glob("*.tar.gz")
    return sdist


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Installed:
    """The wheel in a new environment, which borrows only the dependencies from the one that runs the tests.

    The line in `borrowed.pth` puts that one's packages last on the path, but not what *its* path files add, and so
    not the checkout.
    """
    folder = tmp_path_factory.mktemp("elsewhere")
    prefix, cwd = folder / "venv", folder / "empty"
    cwd.mkdir()
    output_of([sys.executable, "-m", "venv", "--without-pip", str(prefix)], cwd=folder)
    elsewhere = Installed(prefix, cwd)
    pip = [sys.executable, "-m", "pip", "--python", str(elsewhere.python)]
    output_of([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], cwd=cwd)
    site = Path(elsewhere.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return elsewhere
