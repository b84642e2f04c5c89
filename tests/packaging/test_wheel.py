"""One wheel brings it all: the library, the kernel half, the widget, the JupyterLab extension and the kernelspec."""

from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

CHECKOUT = Path(__file__).parents[2]
NEVER_SHIPPED = {"node_modules", "__pycache__", ".venv", ".git", ".ci"}

pytestmark = pytest.mark.packaging

# Runs inside the environment that has the wheel: there `aiflow` is the spec that the wheel installed.
RUN_IN_THE_AIFLOW_KERNEL = """
import queue, sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="aiflow", startup_timeout=60)
try:
    reply = client.execute_interactive(sys.argv[1], timeout=60)
    print("status:", reply["content"]["status"], reply["content"].get("evalue", ""))
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""


@pytest.fixture(scope="session")
def shipped(wheel) -> list[PurePosixPath]:
    """The files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [PurePosixPath(name) for name in archive.namelist()]


def test_the_wheel_holds_the_two_packages_and_nothing_else_at_its_top(shipped):
    tops = {path.parts[0] for path in shipped}
    assert {name for name in tops if not name.endswith((".dist-info", ".data"))} == {"aiflow_jupyter", "aiflow_kernel"}


def test_the_wheel_holds_no_tests_and_no_leavings(shipped):
    assert [path for path in shipped if NEVER_SHIPPED & set(path.parts)] == []
    assert [path for path in shipped if path.parts[0] == "tests"] == []
    assert [path for path in shipped if path.suffix in (".pyc", ".ts", ".map", ".tsbuildinfo")] == []


def test_no_file_is_in_the_wheel_twice(shipped):
    assert len(shipped) == len(set(shipped))


def test_the_wheel_holds_the_built_javascript_and_says_that_it_is_typed(shipped):
    names = {str(path) for path in shipped}
    assert {
        "aiflow_jupyter/static/widget.js",
        "aiflow_jupyter/static/widget.css",
        "aiflow_jupyter/py.typed",
    } <= names
    shared = {name.partition(".data/data/")[2] for name in names if ".data/data/" in name}
    assert {
        "share/jupyter/kernels/aiflow/kernel.json",
        "share/jupyter/labextensions/aiflow-jupyter/install.json",
        "share/jupyter/labextensions/aiflow-jupyter/package.json",
    } <= shared


def test_the_sdist_holds_what_the_wheel_is_built_from(sdist):
    with tarfile.open(sdist) as archive:
        paths = [PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()]
    names = {str(path) for path in paths}
    assert {"pyproject.toml", "js/package.json", "js/package-lock.json", "js/build.mjs", "LICENSE"} <= names
    assert [path for path in paths if NEVER_SHIPPED & set(path.parts)] == []


def test_the_command_and_both_parts_of_the_javascript_have_one_version(installed):
    version, lab_version = (
        json.loads((CHECKOUT / folder / "package.json").read_text("utf-8"))["version"] for folder in ("js", "js/lab")
    )
    assert lab_version == version
    assert version in installed.script("aiflow", "--version").split()


def test_the_packages_are_imported_from_where_they_were_installed(installed):
    for package in ("aiflow_jupyter", "aiflow_kernel"):
        origin = Path(installed.run("-c", f"import {package}; print({package}.__file__)").strip())
        assert origin.is_relative_to(installed.prefix)


def test_jupyter_finds_the_kernelspec(installed):
    # `jupyter kernelspec list`
    specs = json.loads(installed.run("-m", "jupyter_client.kernelspecapp", "list", "--json"))["kernelspecs"]
    assert Path(specs["aiflow"]["resource_dir"]) == installed.prefix / "share" / "jupyter" / "kernels" / "aiflow"
    assert specs["aiflow"]["spec"]["display_name"] == "Python 3 (AiFlow)"


def test_jupyter_finds_the_lab_extension_enabled_and_compatible(installed):
    # `jupyter labextension list`
    app = "import sys; sys.argv[1:] = ['list']; from jupyterlab.labextensions import main; sys.exit(main())"
    combined = f"import contextlib, sys\nwith contextlib.redirect_stderr(sys.stdout):\n    exec({app!r})"
    lines = installed.run("-c", combined).splitlines()
    assert str(installed.prefix / "share" / "jupyter" / "labextensions") in lines
    (line,) = [line for line in lines if "aiflow-jupyter v" in line]
    assert "enabled" in line
    assert "OK" in line


def test_the_installed_kernelspec_starts_a_kernel_that_has_the_package(installed):
    printed = installed.run("-c", RUN_IN_THE_AIFLOW_KERNEL, "import aiflow_jupyter; print(aiflow_jupyter.__file__)")
    assert str(installed.prefix) in printed
    assert "status: ok" in printed


def test_the_installed_kernelspec_knows_the_magic(installed):
    """The place for what a cell of the installed kernel must be able to do."""
    printed = installed.run(
        "-c", RUN_IN_THE_AIFLOW_KERNEL, "print('known:', get_ipython().find_cell_magic('aiflow') is not None)"
    )
    assert "known: True" in printed
