"""The worker as one file for a cluster where nothing of this package is installed.

The file is a zip application: `python aiflow-worker.pyz` is the worker's own program (`program`), and with
`PYTHONPATH=aiflow-worker.pyz` a job imports `aiflow_jupyter.hpc.worker` from it. It holds what these import of this
package and no more; Python 3.11 or later has to be there, with websockets, cryptography (47 or later, for HPKE), httpx
and msgpack. The same release always gives the same bytes.
"""

from __future__ import annotations

import ast
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aiflow_jupyter.hpc import program, worker
from aiflow_jupyter.hpc.checks import NEEDS as NEEDS  # noqa: PLC0414
from aiflow_jupyter.hpc.errors import HpcError

_ROOT: Final = Path(worker.__file__).parents[2]
_PACKAGE: Final = "aiflow_jupyter"
_MAIN: Final = f"""import sys

if sys.version_info < (3, 11):
    sys.exit("this takes Python 3.11 or later, and " + sys.executable + " is " + sys.version.split()[0])

from {program.__name__} import main

sys.exit(main())
"""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip file knows


def write(path: Path) -> list[str]:
    """Write the bundle; returns the names of the modules in it.

    Raises:
        HpcError: something other than a regular file is there.
        OSError: it can't be written there.
    """
    path = path.parent.resolve() / path.name
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise HpcError(
            f"{path} is there, and is no regular file",
            code="AF991",
            hint="Name a new file, or a bundle that may be replaced; a link is not followed.",
        )
    modules = worker_modules()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    draft = Path(name)
    try:
        # Stored, not deflated: the bytes then depend on no library's version.
        with os.fdopen(handle, "w+b") as file:
            file.write(b"#!/usr/bin/env python3\n")
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as bundle:
                _add(bundle, "__main__.py", _MAIN.encode())
                for source in modules.values():
                    _add(bundle, source.relative_to(_ROOT).as_posix(), source.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o755)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return list(modules)


def worker_modules() -> dict[str, Path]:
    """The modules of this package that the worker needs, by name, in order."""
    found: dict[str, Path] = {}
    left = [worker.__name__, program.__name__]
    while left:
        name = left.pop()
        source = _source(name)
        if name in found or source is None:
            continue
        found[name] = source
        left += [name.rpartition(".")[0]] if "." in name else []
        # The package's own front door names everything, and imports it when first asked.
        left += list(_imports(source)) if name != _PACKAGE else []
    return dict(sorted(found.items()))


def _imports(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(_PACKAGE))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _source(name: str) -> Path | None:
    """The file of a module; None for a name that is no module, as a class of one."""
    place = _ROOT / name.replace(".", os.sep)
    return next((file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()), None)


def _add(bundle: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # the same bytes whatever the system
    bundle.writestr(entry, content)
