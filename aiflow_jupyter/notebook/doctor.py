"""`aiflow doctor`: what is found, what is missing, and the command that mends it."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.hpc.findings import Finding as Finding  # noqa: PLC0414

_PACKAGES = ("ipykernel", "ipywidgets", "anywidget", "jupyterlab", "httpx")


def examine() -> list[Finding]:
    """Look at everything that `%%aiflow` needs. Nothing is started; only configured servers and Globus are asked."""
    return [finding for look in _LOOKS for finding in look()]


def _python() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} at {sys.executable}")
    for package in _PACKAGES:
        try:
            yield Finding(package, version(package))
        except PackageNotFoundError:
            yield Finding(package, "not installed", wrong=True, mend=f"{sys.executable} -m pip install {package}")


def _processor() -> Iterator[Finding]:
    """The engine's wheel is built for processors with AVX2, FMA and F16C; `/proc/cpuinfo` says, on Linux."""
    if platform.machine() not in ("x86_64", "AMD64"):
        yield Finding("processor", platform.machine())
        return
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        yield Finding("processor", f"{platform.machine()}; whether it has AVX2 can't be told here")
        return
    lacking = [flag for flag in ("avx2", "fma", "f16c") if flag not in flags]
    if lacking:
        yield Finding(
            "processor",
            f"no {', '.join(lacking)}",
            wrong=True,
            mend="the embedded model can't run here; use a machine from 2015 or later",
        )
    else:
        yield Finding("processor", f"{platform.machine()} with AVX2, {os.cpu_count()} cores")


def _model() -> Iterator[Finding]:
    if importlib.util.find_spec("xllamacpp") is None:
        yield Finding(
            "engine",
            "xllamacpp is not installed",
            wrong=True,
            mend=f"{sys.executable} -m pip install 'aiflow-jupyter[embedded]'",
        )
    else:
        yield Finding("engine", f"xllamacpp {version('xllamacpp')}")
    from aiflow_jupyter.providers import models

    try:
        model = models.default_model()
    except AiflowError as error:
        yield Finding("model", error.message, wrong=True, mend=error.hint)
        return
    if model is None:
        yield Finding("model", "none", wrong=True, mend="aiflow models fetch")
    else:
        yield Finding("model", f"{model.name} ({model.size / 1e6:.0f} MB) at {model.path}")


def _widget() -> Iterator[Finding]:
    from aiflow_jupyter.notebook.widget import built

    yield (
        Finding("widget", "built")
        if built()
        else Finding("widget", "its JavaScript is missing", wrong=True, mend="in a checkout: make lab; else reinstall")
    )


def _jupyter() -> Iterator[Finding]:
    """Whether this environment's Jupyter sees the extension and the kernel, and whether it is the one on the PATH."""
    from jupyter_core.paths import jupyter_path

    places = [Path(path) for path in jupyter_path()]
    for what, inside, mend in (
        (
            "lab extension",
            Path("labextensions", "aiflow-jupyter", "package.json"),
            "no highlighting and a slower Cancel",
        ),
        ("kernelspec", Path("kernels", "aiflow", "kernel.json"), "use any Python kernel and %load_ext aiflow_jupyter"),
    ):
        found = next((place / inside for place in places if (place / inside).is_file()), None)
        if found is not None:
            yield Finding(what, f"at {found.parent}")
        else:
            yield Finding(
                what, f"not where Jupyter looks ({mend})", mend=f"{sys.executable} -m pip install aiflow-jupyter"
            )
    command = shutil.which("jupyter")
    if command is None:
        yield Finding("front end", "no `jupyter` on the PATH", mend="start it with: aiflow lab")
    elif not _ours(command):
        yield Finding(
            "front end",
            f"`jupyter` on the PATH is {command}, of another environment than this one",
            mend="start it with `aiflow lab`, or pip install aiflow-jupyter there too, to see the live graph",
        )
    else:
        yield Finding("front end", command)


def _ours(command: str) -> bool:
    """Whether a `jupyter` is of this environment: it stands beside this interpreter, or one that does runs it.

    The interpreters themselves say nothing: an environment has several names for one, several environments share one.
    """
    here = Path(sys.executable).parent.resolve()
    if here in (Path(command).parent.resolve(), Path(command).resolve().parent):
        return True
    try:
        with Path(command).open("rb") as script:
            head = script.read(2_000).decode(errors="replace").split("\n")[:2]  # the second where a shell starts it
    except OSError:
        return False
    interpreter = _INTERPRETER.search("\n".join(head))
    return interpreter is not None and Path(interpreter[1]).resolve() == here


_INTERPRETER = re.compile(r"(/[^\"'\n]*)/python[\d.]*")


def _proxies() -> Iterator[Finding]:
    proxies = {name: value for name, value in urllib.request.getproxies().items() if name in ("http", "https", "all")}
    if proxies:
        yield Finding(
            "proxies", f"set for {', '.join(sorted(proxies))}; models on this machine are reached without them"
        )
    else:
        yield Finding("proxies", "none")


def _node() -> Iterator[Finding]:
    """Only a checkout needs Node, to build the JavaScript."""
    if not (Path(__file__).parents[2] / "js" / "package.json").is_file():
        return
    node = shutil.which("node")
    if node is None:
        yield Finding("node", "not found; a checkout needs it to build", mend="install Node.js 20 or newer")
        return
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    yield Finding("node", done.stdout.strip())


def _tiers() -> Iterator[Finding]:
    from aiflow_jupyter.tiers.checks import examine as tiers

    with ThreadPoolExecutor(1) as apart:  # a kernel's thread has a loop that runs already
        yield from apart.submit(tiers).result()


def report(findings: list[Finding]) -> str:
    """The findings as text, and a last line that says whether something is wrong."""
    wrong = [finding.what for finding in findings if finding.wrong]
    last = f"to mend: {', '.join(wrong)}" if wrong else "all there"
    return "\n".join([*(finding.line() for finding in findings), "", last])


_LOOKS: tuple[Callable[[], Iterable[Finding]], ...] = (
    *(_python, _processor, _model, _widget, _jupyter, _proxies, _node),
    _tiers,
)
