"""Trust in projects' files: which `aiflow.toml` the user has looked at, each by its place and the hash of its content.

A trusted file may say what otherwise only the user's own may: addresses, key names, relay and worker keys. One letter
that changes ends the trust. The list is a file of mode 0600 in the user's config folder, wherever `AIFLOW_CONFIG`
points: a repository can't bring one along.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final, Literal

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.relay.private import read_private, write_private

State = Literal["trusted", "changed", "unknown", "gone"]
_STORE: Final = "trusted.json"


def store() -> Path:
    """The file that holds the list."""
    from platformdirs import user_config_path  # noqa: PLC0415

    return user_config_path("aiflow-jupyter", appauthor=False) / _STORE


def state(path: Path, data: bytes) -> State:
    """Whether a file with this content is trusted, was with another one, or never.

    Raises:
        ConfigError: the list can't be read, or others could have written it.
    """
    known = _read().get(str(path.resolve()))
    return "unknown" if known is None else "trusted" if known == _hash(data) else "changed"


def trust(path: Path, data: bytes) -> None:
    """Trust a file with exactly this content.

    Raises:
        ConfigError: the list can't be read or written.
    """
    _write({**_read(), str(path.resolve()): _hash(data)})


def remove(path: Path) -> bool:
    """Trust a file no more; whether it was on the list.

    Raises:
        ConfigError: the list can't be read or written.
    """
    known = _read()
    found = known.pop(str(path.resolve()), None) is not None
    if found:
        _write(known)
    return found


def listed() -> dict[Path, State]:
    """The files on the list, and whether they are still what was trusted.

    Raises:
        ConfigError: the list can't be read.
    """
    return {Path(name): _now(Path(name), known) for name, known in sorted(_read().items())}


def _now(path: Path, known: str) -> State:
    try:
        return "trusted" if _hash(path.read_bytes()) == known else "changed"
    except OSError:
        return "gone"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read() -> dict[str, str]:
    path = store()
    try:
        known = json.loads(read_private(path))
        if not isinstance(known, dict) or not all(isinstance(value, str) for value in known.values()):
            raise ValueError("it is no list of files")  # noqa: TRY301 - as if it were no JSON
    except ConfigError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return {}
        raise ConfigError(
            f"what is trusted can't be told: {error.message}", code="AF728", hint=error.hint or f"ls -l {path}"
        ) from None
    except (ValueError, RecursionError):
        hint = f"Delete it and trust the files again: rm {path}"
        raise ConfigError(f"{path} is damaged, so nothing is trusted", code="AF728", hint=hint) from None
    return known


def _write(known: dict[str, str]) -> None:
    write_private(store(), json.dumps(known, indent=1) + "\n", replace=True)
