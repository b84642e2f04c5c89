"""The child process of the embedded model: llama.cpp's own server over one GGUF file, on the loopback.

Started as `python -m aiflow_jupyter.providers.serve` (or by its path: it imports nothing of this package). It reads
one line of JSON from standard input, the settings below, so that the key is in no argument list and no environment.
It writes one line of JSON to standard output, `{"url": ...}` once it listens or `{"error": ...}` if it can't, and
all that llama.cpp logs to standard error. It ends when its standard input closes, which happens however its parent
ends, and ignores interrupts, which a terminal or a notebook sends to everyone.

Settings: `model` (path), `name`, `key` (every request but `/health` is refused without it), `threads`, `context`
(tokens, shared by the `slots`), `slots` (answers at once), `template` (null for the model's own), `parent` (process).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any, Final

_PATIENCE: Final = 0.5
_LOG_BYTES: Final = 1 << 20
_CACHE_MIB: Final = 256
_LONGEST: Final = 2048
_BATCH: Final = 64
"""Tokens of a prompt that are read in one go. Only between two does the server see that a reader has left, or let
another's answer go on; on a processor more of them at once make it no quicker (measured from 2048 down to 64)."""


def main() -> int:
    """Serve until standard input closes; 1 if the server could not start."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a native library prints stays out of the one line that the parent reads
    settings = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    try:
        server = _server(settings)
    except Exception as error:  # noqa: BLE001  (reported to the parent, who words it)
        answer.write(json.dumps({"error": str(error)}) + "\n")
        answer.close()
        return 1
    answer.write(json.dumps({"url": server.listening_address}) + "\n")
    answer.flush()
    while os.name == "nt" or os.getppid() == settings["parent"]:
        # A fork of the parent may still hold the other end of standard input; the parent's number tells the truth.
        time.sleep(_PATIENCE)
        _bound_log()
    os._exit(0)


def _server(settings: dict[str, Any]) -> Any:
    import xllamacpp  # noqa: PLC0415  (seconds where the disk is cold, and the parent waits for the first line)

    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["name"]}
    params.api_keys = [settings["key"]]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["context"]
    params.n_predict = _LONGEST  # a small model may ramble on without an end; a request can ask for more
    params.n_batch = params.n_ubatch = _BATCH
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.use_jinja = params.endpoint_metrics = params.endpoint_slots = params.offline = True
    params.ui = False
    params.cache_ram_mib = _CACHE_MIB  # prompts of past answers; the default of 8 GiB is not a notebook's
    if settings["template"]:
        params.chat_template = settings["template"]
    return xllamacpp.Server(params)


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _bound_log() -> None:
    """Begin the log anew once it is long; standard error is open for appending, so the next line is its first."""
    try:
        if os.fstat(2).st_size > _LOG_BYTES:
            os.ftruncate(2, 0)
    except OSError:  # standard error is no file (run by hand)
        return


if __name__ == "__main__":
    sys.exit(main())
