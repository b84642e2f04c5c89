"""The round trip with a real model: llama.cpp's server plays vLLM."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from stage import on_this_machine

from aiflow_jupyter.providers.embedded import EmbeddedModel
from aiflow_jupyter.runtime.source import Request

pytestmark = pytest.mark.model


@pytest.fixture
async def embedded(model):
    provider = EmbeddedModel(model)
    await provider.start()
    yield provider
    await provider.aclose()


@pytest.fixture
async def hpc(embedded):
    engine, _client = await embedded._ready()
    provider = on_this_machine(engine.url, engine.key, timeouts=None)
    yield provider
    await provider.aclose()


def asked(text, **fields) -> Request:
    return Request(({"role": "user", "content": text},), tier="hpc", **fields)


async def test_the_cluster_gives_the_answer_that_the_model_gives_at_home(embedded, hpc):
    fresh = {"cache_prompt": False}  # with its cache the model's arithmetic differs from one run to the next
    request = asked("Name three colours.", temperature=0.0, seed=1, max_tokens=24, extra=fresh)
    _engine, client = await embedded._ready()
    at_home = [event async for event in client.stream(request)]
    there = [event async for event in hpc.stream(request)]
    assert _text(there) == _text(at_home)
    assert there[-1].payload.reason == at_home[-1].payload.reason
    assert there[-1].payload.usage.completion_tokens == at_home[-1].payload.usage.completion_tokens
    assert {event.meta["tier"] for event in there} == {"hpc"}


async def test_leaving_frees_the_model(embedded, hpc):
    endless = {"ignore_eos": True}  # a small model may well stop at once, before anybody looks at its slots
    async with aclosing(hpc.stream(asked("Count to a thousand.", max_tokens=2000, extra=endless))) as events:
        await anext(events)
        assert any(slot["is_processing"] for slot in await embedded.slots())
    async with asyncio.timeout(60):
        while any(slot["is_processing"] for slot in await embedded.slots()):
            await asyncio.sleep(0.05)


async def test_a_request_beyond_the_model_s_window_is_told_in_the_server_s_words(hpc):
    with pytest.raises(Exception, match="the model server refused the request") as failed:
        _ = [event async for event in hpc.stream(asked("word " * 30_000))]
    assert failed.value.code == "AF706"


def _text(events) -> str:
    return "".join(event.payload for event in events if event.kind == "token")
