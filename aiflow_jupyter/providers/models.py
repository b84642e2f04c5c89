"""The store of model files: which GGUF the embedded model serves, and how it gets onto this machine.

A cache folder (`AIFLOW_CACHE`, else the user's own for `aiflow-jupyter`) holds the one small model that `fetch`
brings, and a list of other files that the user `add`ed, which stay where they are. `AIFLOW_MODEL` names a file that
goes before both. How a model is brought is `fetching.py`'s.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiflow_jupyter.errors import ModelMissing

Progress = Callable[[str, int, int], None]
"""Told a phase (`downloading`, `unpacking`, `ready`), how many bytes are there, and how many there will be."""

FETCH: Final = "aiflow models fetch"
_MAGIC: Final = b"GGUF"


@dataclass(frozen=True, slots=True)
class Model:
    """A model file on this machine.

    Attributes:
        name: what it is called in requests and events.
        path: the GGUF file.
        size: in bytes.
        source: where it came from.
        licence: its SPDX identifier, empty where unknown.
    """

    name: str
    path: Path
    size: int
    source: str
    licence: str = ""

    @property
    def is_demo(self) -> bool:
        """Whether it is the small model that `fetch` brings: enough for a first look, and to be trusted with little."""
        from aiflow_jupyter.providers.fetching import SMOLLM2  # noqa: PLC0415

        return self.name in {SMOLLM2.name, Path(SMOLLM2.file).stem}


def cache_folder() -> Path:
    """The folder that holds models and logs; it may not exist yet."""
    if folder := os.environ.get("AIFLOW_CACHE"):
        return Path(folder).expanduser()
    import platformdirs  # noqa: PLC0415

    return Path(platformdirs.user_cache_dir("aiflow-jupyter"))


def default_model() -> Model | None:
    """The model to serve where none is named: `AIFLOW_MODEL`, else the fetched one, else the last one added.

    Raises:
        ModelMissing: `AIFLOW_MODEL` is set and names no GGUF file.
    """
    if path := os.environ.get("AIFLOW_MODEL"):
        return _described(Path(path).expanduser(), "AIFLOW_MODEL")
    return next(iter(list_models()), None)


def find(name: str) -> Model:
    """The model called `name`.

    Raises:
        ModelMissing: there is none of that name.
    """
    models = list_models()
    for model in models:
        if model.name == name:
            return model
    known = ", ".join(model.name for model in models) or "none yet"
    raise ModelMissing(
        f"no model is called {name!r}", hint=f"On this machine: {known}. `{FETCH}` brings the small one."
    )


def list_models() -> list[Model]:
    """The models on this machine: the fetched one first, then those added whose files are still there, latest first."""
    first = fetched()
    return [*([first] if first else []), *reversed(_added())]


def fetched() -> Model | None:
    """The small model, if it was fetched."""
    from aiflow_jupyter.providers import fetching  # noqa: PLC0415

    return fetching.present(fetching.SMOLLM2, cache_folder())


def fetch(progress: Progress | None = None) -> Model:
    """Bring the small model (98 MB) onto this machine; at once if it is there already. Blocks: call it off the loop.

    Raises:
        ModelMissing: it could not be brought or stored, or is not the file it should be.
    """
    from aiflow_jupyter.providers import fetching  # noqa: PLC0415

    return fetching.fetch(fetching.SMOLLM2, cache_folder(), progress)


def add(path: str | os.PathLike[str]) -> Model:
    """Put a GGUF file on the list under its own name; the file stays where it is.

    Raises:
        ModelMissing: there is no such file, it is no GGUF, or the list can't be written.
    """
    model = _described(Path(path).expanduser().resolve(), "added")
    paths = [known for known in _listed() if known.stem != model.name]
    _write_list([*paths, model.path])
    return model


def remove(name: str) -> None:
    """Delete the fetched model, or take an added one off the list (its file stays).

    Raises:
        ModelMissing: there is none of that name, or it can't be removed.
    """
    from aiflow_jupyter.providers import fetching  # noqa: PLC0415

    paths = _listed()
    kept = [path for path in paths if path.stem != name]
    if len(kept) < len(paths):
        _write_list(kept)
    elif name == fetching.SMOLLM2.name and fetched():
        fetching.delete(fetching.SMOLLM2, cache_folder())
    else:
        find(name)


def _described(path: Path, source: str) -> Model:
    """The model in the file at `path`, which is checked to be a GGUF."""
    try:
        size, magic = _beginning(path)
    except (OSError, ValueError) as error:
        raise ModelMissing(
            f"the model file {path} can't be read: {getattr(error, 'strerror', None) or error}",
            hint=f"Name an existing GGUF file, or run `{FETCH}` for the small model.",
        ) from error
    if magic != _MAGIC:
        raise ModelMissing(
            f"{path} is not a GGUF model", hint="The embedded model serves GGUF files, as llama.cpp does."
        )
    return Model(path.stem, path, size, source)


def _beginning(path: Path) -> tuple[int, bytes]:
    """The size and the first bytes of an ordinary file; a pipe is not opened, which would wait for a writer."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError("it is no ordinary file")
    with path.open("rb") as file:
        return about.st_size, file.read(len(_MAGIC))


def _added() -> list[Model]:
    models = []
    for path in _listed():
        try:
            models.append(_described(path, "added"))
        except ModelMissing:  # deleted or on a drive that is away: it comes back with its file
            continue
    return models


def _listed() -> list[Path]:
    file = cache_folder() / "added.json"
    try:
        return _paths(file.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise ModelMissing(
            f"the list of models {file} can't be read: {getattr(error, 'strerror', None) or error}",
            hint="Mend or delete that file; then add your models again: aiflow models add FILE",
        ) from error


def _paths(text: str) -> list[Path]:
    paths = json.loads(text)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError("it is no list of paths")
    return [Path(path) for path in paths]


def _write_list(paths: list[Path]) -> None:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "added.json", json.dumps([str(path) for path in paths], indent=1))
    except OSError as error:
        raise ModelMissing(
            f"the list of models in {folder} can't be written: {error.strerror or error}",
            hint="Set AIFLOW_CACHE to a folder that you may write to.",
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that readers see all of the old or all of the new."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
