"""The embedded model's server on its own: it plays the cluster's, for a try of the hpc tier on one machine.

It says where it is as a job on a cluster would: in a 0600 file with address and key, which the worker reads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.modelserver import FILE
from aiflow_jupyter.providers.engine import Engine, free_threads
from aiflow_jupyter.providers.models import Model
from aiflow_jupyter.relay.private import write_private


def serve(model: Model, file: Path | None, ready: Callable[[str, Path], None], *, tied: bool) -> None:
    """Serve until an interrupt or SIGTERM comes; the file goes when the server does.

    Args:
        model: what is served.
        file: where address and key are written; None for what `AIFLOW_MODEL_SERVER_FILE` names, else the usual place.
        ready: called with the address and the file, once it answers.
        tied: end with standard input too, as whoever started it does.

    Raises:
        HpcError: there is such a file already.
        ProviderError: the server can't be started.
        ConfigError: the file can't be written.
    """
    path = (file or Path(os.environ.get("AIFLOW_MODEL_SERVER_FILE") or FILE)).expanduser()
    if os.path.lexists(path):
        raise HpcError(
            f"{path} is there: another model server says by it where it is",
            code="AF991",
            hint="Delete it if none runs, or name another file: --file, and AIFLOW_MODEL_SERVER_FILE for the worker.",
        )
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    engine = Engine(model, free_threads())
    if tied:
        threading.Thread(target=_watch, args=(over,), daemon=True).start()
    written = False
    try:
        engine.start()
        written = write_private(path, json.dumps({"url": f"{engine.url}/v1", "key": engine.key.reveal()}) + "\n")
        ready(f"{engine.url}/v1", path)
        while not over.wait(0.5) and engine.alive:
            pass
    finally:
        engine.end()
        if written:
            with suppress(OSError):
                path.unlink()


def _watch(over: threading.Event) -> None:
    with suppress(OSError, ValueError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    over.set()
