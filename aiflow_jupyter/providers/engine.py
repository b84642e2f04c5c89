"""The engine of the embedded model as its parent sees it: started, asked whether it lives, ended.

All of it blocks and none of it belongs to an event loop, so that one engine can serve several loops; call `start`
off the loop. The child leads a session of its own (an interrupt of the notebook is none of its business), gets its
settings and its key by standard input, and logs into a file of bounded size whose end is quoted when it fails.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aiflow_jupyter.errors import ModelMissing, ProviderError
from aiflow_jupyter.providers.models import Model, cache_folder
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.providers.thinking import template_for

SLOTS: Final = 2
CONTEXT: Final = 16_384
_START: Final = 120.0
_TAIL: Final = 6
_LOGS: Final = 8
_CHILD: Final = Path(__file__).with_name("serve.py")


class Engine:
    """One child process that serves one model.

    Args:
        model: what it serves.
        threads: compute threads.
        log: where it logs; None for a file of its own in the cache folder.
        command: what is run instead of the serving module (tests).

    Attributes:
        key: what every request must carry.
        url: where it listens, empty until it does.
    """

    def __init__(
        self, model: Model, threads: int, *, log: Path | None = None, command: Sequence[str] | None = None
    ) -> None:
        self.model = model
        self.threads = threads
        self.key = Secret(secrets.token_urlsafe(32))
        self.url = ""
        self._log = log
        self._own_log = log is None
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._deadline = 0.0
        self._ended = threading.Event()

    @property
    def alive(self) -> bool:
        """Whether the child runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Start the child and wait until it can answer.

        Raises:
            ModelMissing: llama.cpp is not installed, or can't load the model.
            ProviderError: the child ended or did not get ready; the message quotes its log.
        """
        if self._command is None and importlib.util.find_spec("xllamacpp") is None:
            raise ModelMissing(
                "the engine of the embedded model, xllamacpp, is not installed",
                code="AF711",
                hint='pip install "aiflow-jupyter[embedded]"',
            )
        self._log = self._log or _fresh_log()
        with self._log.open("ab") as log:
            log.truncate(0)
            self._child = subprocess.Popen(  # noqa: S603
                self._command or [sys.executable, "-P", str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._deadline = time.monotonic() + _START
        # The child's first line may never come: ending the child ends the wait for it.
        late = threading.Timer(_START, self._child.kill)
        late.daemon = True
        late.start()
        try:
            self.url = self._greeting()
            self._wait_until_ready()
        except BaseException:
            self._kill()
            raise
        finally:
            late.cancel()

    def end(self) -> None:
        """End the child at once; may be called from any thread, and again."""
        self._ended.set()
        self._kill()

    def gone(self, within: float) -> bool:
        """Whether the child has ended or ends `within` seconds: its connections break a little before it is gone."""
        if self._child is None:
            return True
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(within)
        return self._child.poll() is not None

    def why(self) -> str:
        """How the child ended, in words; empty while it runs."""
        code = self._child.poll() if self._child is not None else None
        return "" if code is None else _ending(code)

    def _kill(self) -> None:
        child = self._child
        # After a fork this object exists twice; the child is the original's.
        if child is None or os.getpid() != self._owner:
            return
        if child.poll() is None:
            child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if self._own_log and self._log is not None and self._ended.is_set():
            with suppress(OSError):
                self._log.unlink()

    def _greeting(self) -> str:
        """Hand the child its settings and read the address it listens at."""
        child = self._child
        if self._ended.is_set() or child is None or child.stdin is None or child.stdout is None:
            raise self._failed({})  # `end` came before there was a child
        settings = {
            "model": str(self.model.path),
            "name": self.model.name,
            "key": self.key.reveal(),
            "threads": self.threads,
            "context": CONTEXT,
            "slots": SLOTS,
            "template": template_for(self.model.name),
            "parent": os.getpid(),
        }
        line = b""
        with suppress(OSError, ValueError):  # a child that has ended says so by its silence
            child.stdin.write(json.dumps(settings).encode() + b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
        try:
            greeting = json.loads(line)
        except ValueError:
            greeting = {}
        if "url" not in greeting:
            raise self._failed(greeting)
        return str(greeting["url"])

    def _wait_until_ready(self) -> None:
        import httpx  # noqa: PLC0415

        with httpx.Client(trust_env=False, timeout=5.0, limits=httpx.Limits(max_keepalive_connections=0)) as client:
            while self.alive and time.monotonic() < self._deadline:
                with suppress(httpx.TransportError):
                    if client.get(f"{self.url}/health").status_code == 200:
                        return
                time.sleep(0.02)
        raise self._failed({})

    def _failed(self, greeting: dict[str, Any]) -> ProviderError:
        """The error for a child that did not get ready, with the end of its log."""
        if self._ended.is_set():
            return ProviderError("the embedded model was closed while it was starting", code="AF701", unread=True)
        child = self._child
        code = None
        late = time.monotonic() >= self._deadline
        if child is not None:
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(timeout=2.0)
        tail = self._tail()
        if "failed to load model" in tail or "error" in greeting:
            return ModelMissing(
                f"llama.cpp can't load {self.model.path} ({greeting.get('error') or 'see its log'})",
                code="AF714",
                hint=f"The file may be damaged or cut short, or need more memory than is free. Its log ends:\n{tail}",
            )
        how = f"did not get ready within {_START:g} s" if late or code is None else _ending(code)
        illegal = code == -getattr(signal, "SIGILL", 0)
        needs = "The engine needs a processor with AVX2 and FMA: use another provider here.\n" if illegal else ""
        return ProviderError(
            f"the engine of the embedded model {how} while it was starting",
            code="AF715",
            hint=needs + (f"Its log ends:\n{tail}" if tail else "Its log is empty."),
            unread=True,
        )

    def _tail(self) -> str:
        try:
            lines = self._log.read_text("utf-8", "replace").splitlines() if self._log is not None else []
        except OSError:
            return ""
        return self.key.redact("\n".join(lines[-_TAIL:]))


def free_threads() -> int:
    """How many compute threads the engine gets: the free cores but one, between 1 and 4.

    The engine's threads wait for each other by spinning, so that one thread too many costs more than it brings. On 2
    cores, 1 thread gives 80 tokens/s whether or not something else is busy; 2 threads give 110 on a quiet machine
    and 30 next to one busy process, and a kernel with a browser beside it is one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    free = min(cores - load, _quota())
    return max(1, min(4, math.floor(free) - 1))


def _quota() -> float:
    """The cores that a container's limit leaves (cgroup v2), infinite without one."""
    try:
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        return math.inf if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        return math.inf


def _ending(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == getattr(signal, "SIGILL", 0):
        return "ended on an instruction that this processor lacks (SIGILL)"
    if -code == getattr(signal, "SIGKILL", 0):
        return "was killed (the machine may be out of memory)"
    with suppress(ValueError):
        return f"crashed ({signal.Signals(-code).name})"
    return f"crashed (signal {-code})"


def _fresh_log() -> Path:
    """A new log file in the cache folder, where only the last few are kept; elsewhere if that can't be written."""
    folder = cache_folder() / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix="engine-", suffix=".log")
        for old in sorted(folder.glob("engine-*.log"), key=_written)[:-_LOGS]:
            old.unlink(missing_ok=True)
    except OSError:
        handle, name = tempfile.mkstemp(prefix="aiflow-engine-", suffix=".log")
    os.close(handle)
    return Path(name)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
