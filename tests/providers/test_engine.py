"""The engine's child process when it does not start: every way has one readable error, and nothing is left running."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from aiflow_jupyter.errors import ModelMissing, ProviderError
from aiflow_jupyter.providers import engine as engine_module
from aiflow_jupyter.providers.embedded import EmbeddedModel
from aiflow_jupyter.providers.engine import Engine, free_threads
from aiflow_jupyter.providers.models import Model
from aiflow_jupyter.providers.thinking import template_for, thinking_grammar


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AIFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AIFLOW_MODEL", raising=False)
    return tmp_path / "cache"


def child(code: str, tmp_path) -> Engine:
    """An engine whose child runs `code`."""
    model = Model("m", tmp_path / "m.gguf", 1, "test")
    return Engine(model, 1, command=[sys.executable, "-c", f"import os, signal, sys, time\n{code}"])


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGILL)", "AVX2"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "out of memory"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("sys.exit(3)", "exit code 3"),
        ("print('nonsense'); sys.exit(4)", "exit code 4"),
        ("print('first\\nlast words', file=sys.stderr); sys.exit(1)", "last words"),
        ('print(\'{"error": "no good"}\', flush=True)', "no good"),
        (
            "sys.stdin.readline(); print(\"E load_model: failed to load model, 'm'\", file=sys.stderr); sys.exit(1)",
            "damaged",
        ),
        ("print(sys.stdin.readline(), file=sys.stderr); sys.exit(1)", "Its log ends"),
    ],
)
def test_child_that_does_not_start_says_why(code, says, tmp_path):
    engine = child(code, tmp_path)
    with pytest.raises(ProviderError) as caught:
        engine.start()
    assert says in str(caught.value)
    assert caught.value.unread
    assert engine.key.reveal() not in str(caught.value)
    assert not engine.alive
    engine.end()


def test_child_that_never_gets_ready_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "_START", 0.3)
    for code in ("time.sleep(60)", 'print(\'{"url": "http://127.0.0.1:9"}\', flush=True); time.sleep(60)'):
        engine = child(code, tmp_path)
        with pytest.raises(ProviderError, match=r"did not get ready within 0\.3 s"):
            engine.start()
        assert not engine.alive


def test_engine_that_is_ended_while_it_starts_does_not_stay(tmp_path):
    engine = child("time.sleep(60)", tmp_path)
    failed = []

    def start():
        with pytest.raises(ProviderError, match="closed while it was starting"):
            engine.start()
        failed.append(True)

    thread = threading.Thread(target=start)
    thread.start()
    while not engine.alive:
        time.sleep(0.01)
    engine.end()
    thread.join(5)
    assert failed
    assert not engine.alive


def test_key_is_in_no_argument_list_and_no_environment(tmp_path):
    if not Path("/proc").is_dir():
        pytest.skip("needs /proc")
    engine = child("time.sleep(60)", tmp_path)

    def start():
        with suppress(ProviderError):
            engine.start()

    thread = threading.Thread(target=start)
    thread.start()
    while not engine.alive:
        time.sleep(0.01)
    seen = b"".join(Path(f"/proc/{engine.pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    assert seen
    assert engine.key.reveal().encode() not in seen
    assert os.getsid(engine.pid) == engine.pid
    engine.end()
    thread.join(5)


def test_logs_of_failures_are_kept_but_not_without_bound(cache, tmp_path):
    for _ in range(12):
        with pytest.raises(ProviderError):
            child("sys.exit(1)", tmp_path).start()
    assert 1 <= len(list((cache / "logs").iterdir())) <= 8


def test_cache_that_cannot_be_written_does_not_hinder_the_engine(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AIFLOW_CACHE", str(tmp_path / "file"))
    with pytest.raises(ProviderError, match="exit code 1"):
        child("sys.exit(1)", tmp_path).start()


async def test_missing_model_and_missing_engine_say_what_to_install(tmp_path, monkeypatch):
    with pytest.raises(ModelMissing, match="aiflow models fetch"):
        await EmbeddedModel().start()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelMissing) as caught:
        await EmbeddedModel(Model("m", tmp_path / "m.gguf", 1, "test")).start()
    assert 'pip install "aiflow-jupyter[embedded]"' in caught.value.hint


@pytest.mark.parametrize(
    ("cores", "load", "quota", "expected"),
    [
        (1, 0.0, math.inf, 1),
        (2, 0.0, math.inf, 1),
        (4, 0.0, math.inf, 3),
        (4, 2.2, math.inf, 1),
        (64, 3.0, math.inf, 4),
        (64, 0.0, 2.0, 1),
        (64, 0.0, 0.5, 1),
        (8, 40.0, math.inf, 1),
    ],
)
def test_threads_leave_a_core_to_the_notebook(cores, load, quota, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load), raising=False)
    monkeypatch.setattr(engine_module, "_quota", lambda: quota)
    assert free_threads() == expected


def test_template_is_only_for_the_model_it_is_made_for():
    assert "<think>" in template_for("SmolLM2-135M-Instruct.Q4_1")
    assert template_for("qwen3-0.6b") is None


def test_range_of_sentences_has_to_be_one():
    for bad in ((0, 1), (2, 1)):
        with pytest.raises(ValueError, match="range of sentences"):
            thinking_grammar(answer=bad)
    with pytest.raises(TypeError):
        thinking_grammar()["grammar"] = ""


def test_log_begins_anew_once_it_is_long(tmp_path):
    code = (
        "import os; from aiflow_jupyter.providers import serve; serve._LOG_BYTES = 10\n"
        "os.write(2, b'short'); serve._bound_log(); os.write(2, b' and long'); serve._bound_log(); os.write(2, b'new')"
    )
    with (tmp_path / "log").open("ab") as log:
        subprocess.run([sys.executable, "-c", code], stderr=log, check=True)
    assert (tmp_path / "log").read_bytes() == b"new"
