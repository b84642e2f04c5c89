"""Which model the embedded provider answers with, decided without an engine."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from provider_replies import all_of, asked

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.providers import models
from aiflow_jupyter.providers.embedded import EmbeddedModel


@pytest.fixture
def gguf(tmp_path, monkeypatch):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 100)
    monkeypatch.setenv("AIFLOW_MODEL", str(path))
    return path


def engine(*_args, **_options):
    return SimpleNamespace(alive=True, pid=1, url="http://127.0.0.1:1", key=None, start=lambda: None, end=lambda: None)


async def test_the_running_engine_s_model_counts_also_when_its_file_is_gone(gguf):
    source = EmbeddedModel(starter=engine)
    await source.start()
    gguf.unlink()
    assert source.model == "tiny"
    with pytest.raises(ConfigError, match="'tiny' answers"):
        await all_of(source, asked(model="another"))
    await source.aclose()


async def test_files_are_looked_at_off_the_loop(gguf, monkeypatch):
    threads = []
    look = models.default_model
    monkeypatch.setattr(models, "default_model", lambda: threads.append(threading.current_thread()) or look())
    source = EmbeddedModel(starter=engine)
    with pytest.raises(ConfigError, match="'tiny' answers"):
        await all_of(source, asked(model="another"))
    await source.start()
    await source.aclose()
    assert len(threads) == 2
    assert threading.current_thread() not in threads
