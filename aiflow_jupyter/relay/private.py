"""Files that hold a secret: written whole or not at all, and read only if nobody else can read or write them."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from aiflow_jupyter.errors import ConfigError

EMPTY = "It can be deleted: nothing is in it. A new one is made then."
"""What to do about an empty file, such as a full disk used to leave, for those who make it when it is not there."""


def write_private(path: Path, text: str, *, replace: bool = False) -> bool:
    """Write a file that only its owner may read: whole, or not at all. Its folder is made where there is none.

    Args:
        path: the file.
        text: its content.
        replace: take the place of a file that is there; otherwise such a file is kept as it is.

    Returns:
        Whether it was written.

    Raises:
        ConfigError: it can't be written.
    """
    draft = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # with mode 0600
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            Path(draft).replace(path)
            return True
        return _place(Path(draft), path)
    except OSError as error:
        raise ConfigError(
            f"{path} can't be written: {error.strerror or error}",
            code="AF971",
            hint="Nothing was changed. Make room or name another place, and run it again.",
        ) from None
    finally:
        if draft is not None:
            with suppress(OSError):
                Path(draft).unlink(missing_ok=True)


def _place(draft: Path, path: Path) -> bool:
    """Give the draft its name, unless something has it."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if os.path.lexists(path):
            return False
        draft.replace(path)
    return True


def read_private(path: Path) -> str:
    """The text of a file that only its owner may read, and that is this process's own.

    Raises:
        ConfigError: it can't be read (`__cause__` is then the `OSError`, such as a `FileNotFoundError`), belongs to
            someone else, or others may read or write it.
    """
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())  # of the open file, so that nobody swaps it after the check
            if os.name == "posix":
                if status.st_mode & 0o077:
                    raise ConfigError(
                        f"{path} may be read or written by others",
                        code="AF971",
                        hint=f"Run: chmod 600 {path}. What others may have read is better made anew.",
                    )
                if status.st_uid != os.geteuid():
                    raise ConfigError(f"{path} belongs to another user", code="AF971", hint="Use a file of your own.")
            return file.read()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}", code="AF971") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text file", code="AF971") from None
