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
        "package": (["-m", "aiflow_jupyter.hpc", "run"], [alone, bare]),
        "bundle": ([str(bundle), "run"], [bare]),
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


def program(bundle, *words, path=(), **environment):
    """Run the bundle as somebody on a cluster does, without site packages."""
    return subprocess.run(
        [sys.executable, "-S", "-B", str(bundle), *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
        env={"PYTHONPATH": os.pathsep.join(map(str, path)), **environment},
    )


@pytest.mark.parametrize("words", [[], ["nope"], ["run", "x"], ["keys", "--nope"]])
def test_the_bundle_without_a_command_or_with_a_wrong_one_helps_on_stderr(bundle, words):
    done = program(bundle, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: python aiflow-worker.pyz")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["keys", "--help"], ["check", "--help"], ["run", "--help"]])
def test_the_bundle_explains_itself_where_nothing_is_installed(bundle, words):
    done = program(bundle, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize("command", ["keys", "run"])
def test_missing_packages_are_one_line_with_the_command_that_installs_them(bundle, command):
    done = program(bundle, command)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert all(need in line for need in NEEDS)
    assert "-m pip install" in line


def test_the_bundle_makes_a_key_and_another_one_only_if_told_to(bundle, bare, tmp_path):
    file = tmp_path / "deep" / "worker.key"

    def keys(*words):
        done = program(bundle, "keys", *words, path=[bare], AIFLOW_WORKER_KEY_FILE=str(file))
        assert done.returncode == 0, done.stderr
        assert "secret" not in done.stdout + done.stderr
        return done.stdout.strip()

    first = keys()
    assert first == keys() == WorkerKey.load(file, env={}).public
    assert file.stat().st_mode & 0o777 == 0o600
    second = keys("--force")
    assert second == WorkerKey.load(file, env={}).public != first


async def test_the_bundle_checks_all_that_a_worker_needs(bundle, bare, tmp_path, vllm, relay):
    file = tmp_path / "server.json"
    file.write_text(f'{{"url": "{vllm.url}", "key": "canary-of-the-server"}}')
    file.chmod(0o600)
    key = WorkerKey.generate()
    environment = {"AIFLOW_WORKER_KEY": key.secret_text(), "AIFLOW_MODEL_SERVER_FILE": str(file)}

    async def check(*words, path=(bare,), **changed):
        done = await asyncio.to_thread(program, bundle, "check", *words, path=path, **(environment | changed))
        assert "Traceback" not in done.stderr
        assert "canary" not in done.stdout + done.stderr
        assert key.secret_text() not in done.stdout + done.stderr
        return done.returncode, done.stdout

    code, said = await check("--relay", relay.url)
    assert code == 0, said
    assert key.public in said
    assert "first-model" in said
    assert f"{relay.url} is ready" in said
    assert (await check("--relay", "http://127.0.0.1:1"))[0] == 1
    code, said = await check(AIFLOW_WORKER_KEY="", HOME=str(tmp_path))
    assert (code, "aiflow-worker.pyz keys" in said) == (1, True)
    vllm.status = 401
    vllm.kind = "application/json"
    code, said = await check()
    assert (code, "refuses the key" in said) == (1, True)
    file.unlink()
    code, said = await check()
    assert (code, "says where it is" in said) == (1, True)
    code, said = await check(path=())
    assert (code, "not installed; needs msgpack" in said) == (1, True)


def test_an_older_python_is_told_so(bundle):
    main = zipfile.ZipFile(bundle).read("__main__.py").decode()
    told = f"import sys\nsys.version_info = (3, 9)\n{main}"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "this takes Python 3.11 or later" in done.stderr


def test_the_printed_configuration_uses_nothing_that_the_cluster_lacks():
    said = CliRunner().invoke(command, ["--print-config"]).output
    on_the_cluster = said[said.index("mkdir") :]
    assert "aiflow-worker.pyz keys" in on_the_cluster
    assert all(need in on_the_cluster for need in NEEDS)
    assert not re.search(r"^#\s+aiflow ", on_the_cluster, re.MULTILINE)


def test_a_bundle_makes_no_folder(tmp_path):
    refused = CliRunner().invoke(command, ["--bundle", str(tmp_path / "no" / "w.pyz")])
    assert isinstance(refused.exception, HpcError)
    assert "there is no folder" in refused.exception.message
    assert list(tmp_path.iterdir()) == []


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
    assert ours == {"environment", "errors", "hpc", "masking", "relay"}
