"""A worker's key pair in a file, made once: the same for `aiflow keys worker` and the worker's own program."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.relay.crypto import WorkerKey
from aiflow_jupyter.relay.private import EMPTY, write_private

PLACE = "~/.aiflow/worker.key"


def key_pair(file: Path | None = None, *, replace: bool = False) -> tuple[WorkerKey, list[str]]:
    """The key of a file, made if there is none, and what to tell whoever asked, line by line.

    Args:
        file: where the private key is; None for what `AIFLOW_WORKER_KEY_FILE` names, else the usual place.
        replace: make a new one in the place of an old one.

    Raises:
        ConfigError: there is no place for it, or it can't be written.
        KeyUnusable: the file that is there holds no key, or others may read it.
    """
    try:
        path = (file or Path(os.environ.get("AIFLOW_WORKER_KEY_FILE") or PLACE)).expanduser()
    except RuntimeError as error:  # a ~ without a home
        raise ConfigError(f"no place for the key: {error}", code="AF971") from None
    key, there = WorkerKey.generate(), os.path.lexists(path)
    if (there and not replace) or not write_private(path, key.secret_text() + "\n", replace=replace):
        with suppress(OSError):
            if path.is_file() and not path.stat().st_size:
                raise ConfigError(f"the key file {path} is empty", code="AF971", hint=EMPTY)
        key = WorkerKey.load(path, env={})
        return key, [f"the key in {path} is kept; --force makes a new one in its place"]
    told = [f"private key in {path}; in aiflow.toml of the notebook's machine, under [tiers.hpc]:"]
    told.append(f'worker_key = "{key.public}"')
    if there:
        told.append("The old key is gone: until that line is changed there, every request is refused (AF941).")
    return key, told
