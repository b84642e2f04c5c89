"""What starts the worker: any `concurrent.futures.Executor`, given `worker.run` and a task's argument.

`LocalExecutor` runs each task in a process of this machine. `globus_executor` (in `globus`) starts them on a cluster.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from aiflow_jupyter.hpc import modelserver, worker
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.globus import globus_executor
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.relay.crypto import WorkerKey

__all__ = ["LocalExecutor", "globus_executor"]

# What a worker needs of this process's environment. The rest may hold keys that are none of its business.
_INHERITED: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONHOME", "SYSTEMROOT"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "AIFLOW_MODEL_SERVER_FILE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    "AIFLOW_RELAY_LOOP",
)
_ROOT: Final = Path(worker.__file__).parents[2]
_TAIL: Final = 400


class LocalExecutor(Executor):
    """Runs the worker in a process of this machine, one per task.

    The child leads a session of its own and dies with this process, with `shutdown`, and when its future is cancelled.
    The worker's private key is in the environment of that child alone; task and model server's key reach it through
    its standard input.

    Args:
        key: the worker's private key.
        server: the model server's address, None for what the worker's environment says.
        server_key: the model server's key.
        spare: keep one worker started and waiting, so that a task finds its imports done.
    """

    def __init__(
        self, key: WorkerKey, server: str | None = None, server_key: Secret | None = None, *, spare: bool = True
    ) -> None:
        self._key = key
        self._server = {"url": server, "key": server_key.reveal() if server_key else ""} if server else None
        self._spare = spare
        self._lock = threading.Lock()
        self._waiting: _Child | None = None
        self._children: set[_Child] = set()
        self._closed = False
        self._owner = os.getpid()

    @property
    def public_key(self) -> str:
        """What tasks have to be sealed for."""
        return self._key.public

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that have a task."""
        with self._lock:
            return [child.process.pid for child in self._children]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start the worker on the task `args[0]`; `fn` is `worker.run`.

        Raises:
            HpcError: this executor is closed, is asked for something else, knows no model server, or can't start a
                process.
        """
        if fn is not worker.run or len(args) != 1 or kwargs:
            raise HpcError("a local worker runs `worker.run` and nothing else", code="AF991")
        if self._server is None:
            _need_server_file()
        with self._lock:
            if self._closed:
                raise HpcError("the executor is closed", code="AF996")
            child, self._waiting = self._waiting, None
            if child is not None and child.process.poll() is not None:
                child.close()
                child = None
            child = child or _Child(self._key)
            self._children.add(child)
        future: Future[Any] = Future()
        # Until it is done the future stays pending, so that it can be cancelled at any time.
        future.add_done_callback(lambda _: child.kill())
        order = json.dumps({"argument": args[0], "server": self._server})
        threading.Thread(target=self._serve, args=(child, order, future), name="aiflow worker", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """End every worker at once; a task that was running fails."""
        if os.getpid() != self._owner:
            return  # after a fork this object exists twice; the children are the original's
        with self._lock:
            self._closed = True
            ending, spare = list(self._children), self._waiting
            self._waiting = None
        for child in ending:
            child.kill()
        if spare is not None:  # the others are closed by who serves them
            spare.kill()
            spare.close()
        if wait:
            for child in ending:
                child.process.wait()

    def _serve(self, child: _Child, order: str, future: Future[Any]) -> None:
        """Hand the child its task and wait for its result; runs in a thread of its own."""
        try:
            result = child.ask(order)
            child.process.wait()
            if future.set_running_or_notify_cancel():
                if result:
                    future.set_result(result)
                else:
                    future.set_exception(HpcError(f"the local worker {child.how()}", hint=child.tail()))
        finally:
            child.kill()
            child.close()
            with self._lock:
                self._children.discard(child)
            self.prepare()

    def prepare(self) -> None:
        """Have a worker waiting for the next task, its imports done."""
        with self._lock, suppress(HpcError):
            if self._spare and not self._closed and self._waiting is None:
                self._waiting = _Child(self._key)


def _need_server_file() -> None:
    """Here, unlike in a job on a cluster, nothing is still on its way that would write the file."""
    path = Path(os.environ.get("AIFLOW_MODEL_SERVER_FILE") or modelserver.FILE).expanduser()
    if not path.exists():
        raise HpcError(
            f"nothing says where the model server is: no address is set, and there is no {path}",
            code="AF991",
            hint='Set its address in aiflow.toml, under [tiers.hpc]: model_server = "http://127.0.0.1:8000/v1". '
            "For a try, `aiflow models serve` plays the cluster's server, and is found without one.",
        )


class _Child:
    """One worker process."""

    def __init__(self, key: WorkerKey) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment |= {"AIFLOW_WORKER_KEY": key.secret_text(), "PYTHONPATH": str(_ROOT)}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "aiflow_jupyter.hpc.worker", "--tied"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise HpcError(f"a local worker can't be started: {error.strerror}") from None

    def ask(self, order: str) -> str:
        """Hand over the task and read the result; empty if the process ended without one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError, ValueError):
            self.process.stdin.write(order.encode() + b"\n")
            self.process.stdin.flush()
            return self.process.stdout.read().decode("utf-8", "replace").strip()
        return ""

    def kill(self) -> None:
        """End the process and what it started."""
        if self.process.poll() is None:
            with suppress(OSError):
                if hasattr(os, "killpg"):
                    os.killpg(self.process.pid, signal.SIGKILL)
                else:
                    self.process.kill()

    def close(self) -> None:
        """Let go of the process's pipes, and reap it."""
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._log.close()

    def how(self) -> str:
        """How the process ended."""
        code = self.process.returncode
        return f"was killed (signal {-code})" if code is not None and code < 0 else f"ended with exit code {code}"

    def tail(self) -> str:
        """The end of its log, which holds neither prompt nor answer."""
        with suppress(OSError, ValueError):
            size = self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, size - _TAIL))
            return self._log.read().decode("utf-8", "replace").strip()
        return ""
