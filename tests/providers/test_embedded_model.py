"""The embedded model for real: its engine, its answers, and that nothing of it outlives its parent."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import aclosing
from dataclasses import replace

import httpx
import psutil
import pytest
from provider_replies import all_of, asked, text

from aiflow_jupyter.errors import ConfigError, ModelMissing, ProviderError, StreamCut
from aiflow_jupyter.events import Usage
from aiflow_jupyter.providers.embedded import EmbeddedModel
from aiflow_jupyter.providers.engine import Engine
from aiflow_jupyter.providers.models import Model
from aiflow_jupyter.providers.thinking import thinking_grammar
from aiflow_jupyter.runtime.source import Source

pytestmark = pytest.mark.model


@pytest.fixture
async def embedded(model):
    source = EmbeddedModel(model, threads=1)
    yield source
    await source.aclose()


async def eventually(condition, seconds=2.0):
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_answer_streams_token_by_token(embedded, model):
    assert isinstance(embedded, Source)
    events = await all_of(embedded, asked(temperature=0.0, max_tokens=40))
    tokens = [event for event in events if event.kind == "token"]
    assert len(tokens) > 10
    assert len({event.time for event in tokens}) > 10
    assert len({id(event.meta) for event in tokens}) == 1
    said = {"phase": "answer", "tier": "local", "model": model.name, "provider": "embedded", "badge": "demo model"}
    assert dict(tokens[0].meta) == said
    usage, finish = events[-2:]
    assert (usage.kind, finish.kind) == ("usage", "finish")
    assert isinstance(usage.payload, Usage)
    assert len(tokens) <= usage.payload.completion_tokens <= 40
    assert finish.payload.reason == ("length" if usage.payload.completion_tokens == 40 else "stop")
    assert len(text(events).split()) > 10


async def test_another_model_s_name_is_not_echoed_as_if_it_had_answered(embedded, model):
    with pytest.raises(ConfigError, match="gpt-9"):
        await all_of(embedded, asked(model="gpt-9", max_tokens=3))
    events = await all_of(embedded, asked(model=embedded.model, max_tokens=3))
    assert events[0].meta["model"] == model.name


async def busy(embedded) -> bool:
    return any(slot["is_processing"] for slot in await embedded.slots())


async def at_least(count, events) -> bool:
    return len(events) >= count


async def idle(embedded) -> bool:
    return not await busy(embedded)


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_reader_that_stops_frees_the_slot(embedded, how):
    request = asked(max_tokens=2000, extra={"ignore_eos": True})
    if how == "close":
        async with aclosing(embedded.stream(request)) as events:
            async for event in events:
                if event.sequence == 3:
                    assert await busy(embedded)
                    break
    else:
        task = asyncio.create_task(all_of(embedded, request))
        await eventually(lambda: busy(embedded), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await eventually(lambda: idle(embedded))


async def test_two_first_requests_start_one_engine_and_are_answered_side_by_side(model):
    started = []

    def starter(*args, **options):
        started.append(Engine(*args, **options))
        return started[-1]

    source = EmbeddedModel(model, threads=1, starter=starter)
    try:
        request = asked(max_tokens=40, extra={"ignore_eos": True})
        one, two = await asyncio.gather(all_of(source, request), all_of(source, request))
    finally:
        await source.aclose()
    assert len(started) == 1
    tokens = [[event.time for event in events if event.kind == "token"] for events in (one, two)]
    assert max(tokens[0][0], tokens[1][0]) < min(tokens[0][-1], tokens[1][-1])


async def test_thinking_grammar_gives_a_thought_and_then_an_answer(embedded):
    request = asked(temperature=0.0, max_tokens=600, extra=thinking_grammar(answer=(2, 3)))
    events = await all_of(embedded, request)
    phases = [event.phase for event in events if event.kind == "token"]
    assert phases == sorted(phases, reverse=True)  # "reasoning" first
    assert set(phases) == {"reasoning", "answer"}
    for phase in ("reasoning", "answer"):
        assert len(text(events, phase).split()) >= 6
        assert text(events, phase).strip()[-1] in ".!?"
        assert "think>" not in text(events, phase)
    assert events[-1].payload.reason == "stop"


async def test_without_the_grammar_there_is_no_reasoning(embedded):
    events = await all_of(embedded, asked(temperature=0.0, max_tokens=20))
    assert text(events, "reasoning") == ""


async def test_nothing_but_health_is_answered_without_the_key(embedded):
    await embedded.start()
    url = embedded._running[0].url
    async with httpx.AsyncClient(trust_env=False) as client:
        for path in ("/v1/models", "/slots", "/metrics", "/props"):
            assert (await client.get(url + path)).status_code == 401
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        for path in ("/v1/chat/completions", "/completion", "/v1/embeddings"):
            assert (await client.post(url + path, json=body)).status_code == 401
            assert (await client.post(url + path, json=body, headers={"authorization": "Bearer x"})).status_code == 401
        assert (await client.get(url + "/")).status_code in (401, 404)
    assert url.startswith("http://127.0.0.1:")


async def test_proxies_that_lead_nowhere_do_not_matter(model, monkeypatch):
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
        monkeypatch.setenv(variable.lower(), "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    source = EmbeddedModel(model, threads=1)
    try:
        assert text(await all_of(source, asked(max_tokens=3)))
    finally:
        await source.aclose()


async def test_key_and_engine_s_noise_stay_out_of_the_notebook(model, capfd, caplog):
    caplog.set_level(logging.DEBUG)
    source = EmbeddedModel(model, threads=1)
    await all_of(source, asked(max_tokens=3))
    key = source._running[0].key.reveal()
    await source.aclose()
    out, err = capfd.readouterr()
    assert "llama" not in out + err
    assert key not in out + err + caplog.text + repr(source) + repr(vars(source))


async def test_engine_that_died_between_two_requests_is_started_anew(embedded):
    await all_of(embedded, asked(max_tokens=2))
    first = embedded.pid
    os.kill(first, signal.SIGKILL)
    assert text(await all_of(embedded, asked(max_tokens=2)))
    assert embedded.pid not in (None, first)


async def test_answer_of_an_engine_that_dies_is_cut_and_says_what_to_do(embedded):
    got = []
    task = asyncio.create_task(all_of(embedded, asked(max_tokens=2000, extra={"ignore_eos": True}), got))
    await eventually(lambda: at_least(5, got), 30)
    os.kill(embedded.pid, signal.SIGKILL)
    with pytest.raises(StreamCut, match="was killed") as caught:
        await task
    assert len(got) >= 5
    assert "finish" not in [event.kind for event in got]
    assert "started anew" in caught.value.hint


async def test_interrupt_does_not_reach_the_engine(embedded):
    await embedded.start()
    pid = embedded.pid
    assert os.getpgid(pid) != os.getpgid(0)
    os.kill(pid, signal.SIGINT)
    assert text(await all_of(embedded, asked(max_tokens=2)))
    assert embedded.pid == pid


async def test_close_ends_the_engine_and_a_later_request_starts_one(embedded):
    await embedded.start()
    pid = embedded.pid
    await embedded.aclose()
    await embedded.aclose()
    assert gone(pid)
    assert embedded.pid is None
    assert text(await all_of(embedded, asked(max_tokens=2)))


async def test_engine_ends_with_its_provider(model):
    source = EmbeddedModel(model, threads=1)
    await source.start()
    pid = source.pid
    del source
    gc.collect()
    assert gone(pid)


def test_one_provider_answers_in_several_loops(model):
    source = EmbeddedModel(model, threads=1)
    got = []

    def ask():
        got.append(text(asyncio.run(all_of(source, asked(max_tokens=3, temperature=0.0)))))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ask()
    asyncio.run(source.aclose())
    assert len(got) == 3
    assert all(got)


PARENT = """
import asyncio, os, sys, time
from pathlib import Path
from aiflow_jupyter.providers.embedded import EmbeddedModel
from aiflow_jupyter.providers.engine import Engine
from aiflow_jupyter.providers.models import Model
path = Path(sys.argv[1])
async def main():
    source = EmbeddedModel(Model("m", path, 0, "test"), threads=1)
    await source.start()
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(20)  # holds what it inherited, like a pool's worker that outlives a killed kernel
        os._exit(0)
    print(source.pid, flush=True)
    if "exit" not in sys.argv:
        await asyncio.sleep(60)
    return source
kept = asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["kill", "fork", "exit"])
def test_engine_ends_with_its_parent_however_that_ends(model, end):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(model.path), end], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    if end != "exit":
        assert not gone(pid)
        parent.kill()
    parent.wait(10)
    deadline = time.monotonic() + 5
    while not gone(pid):
        assert time.monotonic() < deadline, "the engine outlives its parent"
        time.sleep(0.02)


@pytest.mark.parametrize("damage", ["cut", "junk"])
async def test_damaged_model_file_is_one_readable_error(model, tmp_path, damage):
    path = tmp_path / "damaged.gguf"
    with model.path.open("rb") as file:
        path.write_bytes(file.read(20_000_000) if damage == "cut" else b"GGUF" + os.urandom(10_000))
    source = EmbeddedModel(Model("damaged", path, path.stat().st_size, "test"), threads=1)
    with pytest.raises(ModelMissing, match=r"can't load .*damaged\.gguf") as caught:
        await source.start()
    assert "failed to load model" in caught.value.hint
    assert source.pid is None


async def test_request_that_is_too_long_is_refused_and_the_next_is_answered(embedded):
    long = replace(asked(), messages=({"role": "user", "content": "sky " * 9000},))
    with pytest.raises(ProviderError, match="too long") as caught:
        await all_of(embedded, long)
    assert caught.value.code == "AF706"
    assert text(await all_of(embedded, asked(max_tokens=2)))


async def test_engine_ends_as_soon_as_its_standard_input_closes(embedded):
    await embedded.start()
    engine = embedded._running[0]
    engine._child.stdin.close()
    assert await asyncio.to_thread(engine.gone, 2.0)
    assert engine._child.returncode == 0


async def test_a_seed_makes_an_answer_repeatable_whatever_was_asked_before(embedded):
    asked_for = asked(seed=3, temperature=0.8, max_tokens=25)
    first = text(await all_of(embedded, asked_for))
    await all_of(embedded, asked(max_tokens=5))
    assert text(await all_of(embedded, asked_for)) == first
