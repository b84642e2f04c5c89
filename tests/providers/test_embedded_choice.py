"""Which model the embedded provider answers with, decided without an engine."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
from provider_replies import all_of, asked, recorded

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.providers import models
from aiflow_jupyter.providers.embedded import EmbeddedModel
from aiflow_jupyter.runtime.metrics import Answer


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


async def said(reader, writer):
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + recorded("llama_server"))
    writer.close()


@pytest.mark.parametrize(("name", "demo"), [("llama-3.3-70b", False), ("SmolLM2-135M-Instruct", True)])
async def test_only_the_model_for_a_first_look_is_called_the_demo_model(tmp_path, monkeypatch, name, demo):
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 100)
    monkeypatch.setenv("AIFLOW_MODEL", str(path))
    server = await asyncio.start_server(said, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    source = EmbeddedModel(starter=lambda *_, **__: SimpleNamespace(**{**vars(engine()), "url": url}))
    answer = Answer("ask", "0", 0)
    for event in await all_of(source):
        answer.note(event)
    await source.aclose()
    server.close()
    assert answer.model
    assert (f"{answer.model} (demo model)" in answer.badge()) is demo
