"""The worker runs where nothing is installed but the four packages it needs, from the package or from one file."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from stage import all_of, payloads

from aiflow_jupyter.hpc import worker
from aiflow_jupyter.hpc.bundle import NEEDS, worker_modules, write
from aiflow_jupyter.hpc.command import worker as command
from aiflow_jupyter.hpc.command import worker_key
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.relay.crypto import WorkerKey

ROOT = Path(worker.__file__).parents[2]
FOUR = ("websockets", "cryptography", "httpx", "msgpack")


def closure(names) -> set[str]:
    """Distributions and what they need."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another Python or system
        if name not in found:
            found.add(name)
            left += [re.split(r"[^A-Za-z0-9._-]", need)[0] for need in needs if "extra ==" not in need]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """A folder with the four packages and what they need, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    for name in closure(FOUR):
        for file in importlib.metadata.files(name) or []:
            source, target = Path(str(file.locate())), folder / file
            if ".." in file.parts or "__pycache__" in file.parts or not source.exists() or target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source.resolve())
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "aiflow-worker.pyz"
    write(path)
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The worker's modules of the package, without the rest of it."""
    folder = tmp_path_factory.mktemp("alone")
    for source in worker_modules().values():
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    return folder


def run_bare(command, path, stdin, key, **environment) -> str:
    """Run Python without site packages, user folder or the environment of this process."""
    done = subprocess.run(
        [sys.executable, "-S", "-B", *command],
        input=stdin.encode(),
        capture_output=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": os.pathsep.join(map(str, path)), "AIFLOW_WORKER_KEY": key.secret_text(), **environment},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


class Bare:
    """An executor that runs the worker in such a Python."""

    def __init__(self, command, path, key, **environment):
        self.arguments = command, path, key, environment

    def submit(self, fn, /, *args, **kwargs):
        from concurrent.futures import ThreadPoolExecutor

        command, path, key, environment = self.arguments
        pool = ThreadPoolExecutor(1)
        future = pool.submit(lambda: run_bare(command, path, args[0] + "\n", key, **environment))
        pool.shutdown(wait=False)
        return future


IMPORTED = "from aiflow_jupyter.hpc.worker import run; import sys; print(run(sys.stdin.read().strip()))"


@pytest.mark.parametrize("how", ["package", "bundle", "imported bundle"])
async def test_it_streams_with_the_four_packages_alone(stage, bare, bundle, alone, how):
    command, path = {
        "package": (["-m", "aiflow_jupyter.hpc.worker"], [alone, bare]),
        "bundle": ([str(bundle)], [bare]),
        "imported bundle": (["-c", IMPORTED], [bundle, bare]),
    }[how]
    executor = Bare(command, path, stage.key, AIFLOW_MODEL_SERVER=stage.vllm.url)
    assert await all_of(stage.ask(executor=executor)) == payloads("vllm")


def test_such_a_python_has_indeed_nothing_else(bare, key):
    code = "import importlib.util as u; print([n for n in ('pydantic', 'click', 'IPython', 'lark') if u.find_spec(n)])"
    assert run_bare(["-c", code], [bare], "", key).strip() == "[]"


def test_the_bundle_holds_what_the_worker_imports_and_no_more(bundle):
    names = set(zipfile.ZipFile(bundle).namelist())
    assert "aiflow_jupyter/hpc/worker.py" in names
    rooms = {name.split("/")[1] for name in names if name.count("/") == 2}
    assert rooms == {"hpc", "relay"}
    assert not [name for name in names if "server.py" in name and "modelserver" not in name]


def test_the_same_release_always_gives_the_same_bytes(bundle, tmp_path):
    write(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == bundle.read_bytes()
    assert os.access(bundle, os.X_OK)


def test_what_the_bundle_needs_the_package_needs_too():
    import tomllib

    file = ROOT / "pyproject.toml"
    if not file.exists():
        pytest.skip("runs beside the sources")
    named = {re.split(r"[<>=]", need)[0] for need in tomllib.loads(file.read_text())["project"]["dependencies"]}
    assert {re.split(r"[<>=]", need)[0] for need in NEEDS} <= named


def test_aiflow_worker_writes_the_bundle_and_prints_what_sets_up_a_cluster(tmp_path):
    runner = CliRunner()
    made = runner.invoke(command, ["--bundle", str(tmp_path / "w.pyz")])
    assert made.exit_code == 0
    assert (tmp_path / "w.pyz").exists()
    assert "worker_init: |" in runner.invoke(command, ["--print-config"]).output
    script = runner.invoke(command, ["--print-slurm"]).output
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    assert runner.invoke(command, []).exit_code == 2


def test_the_slurm_job_writes_a_file_that_the_worker_takes_and_removes_it_at_the_end(tmp_path, monkeypatch):
    script = CliRunner().invoke(command, ["--print-slurm"]).output
    (tmp_path / "bin").mkdir()
    vllm = tmp_path / "bin" / "vllm"
    vllm.write_text('#!/bin/sh\ncp -p "$AIFLOW_MODEL_SERVER_FILE" seen.json; echo "$@" > arguments\n')
    vllm.chmod(0o755)
    file = tmp_path / "aiflow" / "server.json"
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-s", "a/model"],
        input=script.encode(),
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path), "AIFLOW_MODEL_SERVER_FILE": str(file)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    monkeypatch.delenv("AIFLOW_MODEL_SERVER", raising=False)
    monkeypatch.setenv("AIFLOW_MODEL_SERVER_FILE", str(tmp_path / "seen.json"))
    found = worker.Server.find()
    assert found.url.endswith("/v1")
    assert len(found.key) > 30
    assert found.key not in (tmp_path / "arguments").read_text()
    assert not file.exists()


def test_aiflow_keys_worker_makes_a_key_once_and_prints_its_public_part(tmp_path):
    file = tmp_path / "deep" / "worker.key"
    first = CliRunner().invoke(worker_key, ["--file", str(file)])
    again = CliRunner().invoke(worker_key, ["--file", str(file)])
    assert first.exit_code == again.exit_code == 0
    public = first.stdout.strip().splitlines()[-1]
    assert public == again.stdout.strip().splitlines()[-1] == WorkerKey.load(file, env={}).public
    assert file.stat().st_mode & 0o777 == 0o600
    assert "secret" not in first.output


@pytest.mark.parametrize("what", ["folder", "pipe", "link to a file", "link to a device", "link to nothing"])
def test_a_bundle_takes_the_place_of_a_regular_file_only(tmp_path, what):
    path, target = tmp_path / "w.pyz", tmp_path / "target"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"link to a file": target, "link to a device": Path(os.devnull)}.get(what, tmp_path / "no"))
        target.write_text("mine")
    before = {file: file.lstat().st_mode for file in tmp_path.iterdir()}
    with pytest.raises(HpcError, match="no regular file") as refused:
        write(path)
    assert refused.value.code == "AF991"
    assert {file: file.lstat().st_mode for file in tmp_path.iterdir()} == before
    assert not target.exists() or target.read_text() == "mine"


def test_a_device_is_refused_by_the_command_and_an_older_bundle_replaced(tmp_path):
    refused = CliRunner().invoke(command, ["--bundle", os.devnull])
    assert isinstance(refused.exception, HpcError)
    assert not Path(os.devnull).is_file()
    (tmp_path / "w.pyz").write_text("old")
    assert CliRunner().invoke(command, ["--bundle", str(tmp_path / "w.pyz")]).exit_code == 0
    assert (tmp_path / "w.pyz").read_bytes().startswith(b"#!/usr/bin/env python3")
    assert len(list(tmp_path.iterdir())) == 1


async def test_the_worker_imports_nothing_that_the_cluster_lacks():
    code = "import sys; import aiflow_jupyter.hpc.worker; print('\\n'.join(sys.modules))"
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    loaded = set(done.stdout.decode().split())
    assert not [name for name in loaded if name.split(".")[0] in {"pydantic", "IPython", "lark", "httpx_sse"}]
    ours = {name.split(".")[1] for name in loaded if name.startswith("aiflow_jupyter.")}
    assert ours == {"errors", "hpc", "relay"}
