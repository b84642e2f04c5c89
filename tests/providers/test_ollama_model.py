"""Ollama by its official client, with a real model behind a shim of its API (`ollama_shim.py` says what that is)."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta

import ollama
import pytest
from ollama_shim import OllamaShim
from provider_replies import all_of, asked, text

from aiflow_jupyter.errors import ProviderError
from aiflow_jupyter.providers.ollama import Ollama
from aiflow_jupyter.runtime.source import Message, Request, Source

pytestmark = pytest.mark.model

NAME = "smollm2-135m"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
async def shim(embedded):
    await embedded.start()
    engine, _client = embedded._running
    async with OllamaShim(engine.url, engine.key, NAME) as server:
        yield server


@pytest.fixture
def source(shim):
    return Ollama(shim.url, NAME, window=2048, keep_alive="10m")


async def test_an_answer_streams_and_is_the_one_that_the_model_gives(source, embedded):
    assert isinstance(source, Source)
    request = asked(temperature=0.0, seed=1, max_tokens=40)
    events = await all_of(source, request)
    tokens = [event for event in events if event.kind == "token"]
    assert len({event.time for event in tokens}) == len(tokens) > 10
    assert dict(tokens[0].meta) == {"phase": "answer", "tier": "local", "model": NAME, "provider": "ollama"}
    usage, finish = events[-2:]
    assert len(tokens) <= usage.payload.completion_tokens <= 40
    assert usage.payload.prompt_tokens > 10
    assert finish.payload.reason == ("length" if usage.payload.completion_tokens == 40 else "stop")
    _engine, client = embedded._running
    at_home = asked(temperature=0.0, seed=1, max_tokens=40, extra={"cache_prompt": False})
    assert text(events) == text(await all_of(client, at_home))


async def test_the_window_and_how_long_the_model_stays_are_what_the_server_loads_it_with(source, shim):
    await all_of(source, asked(max_tokens=2))
    assert shim.asked[-1]["options"]["num_ctx"] == 2048
    (loaded,) = (await ollama.AsyncClient(shim.url).ps()).models
    assert loaded.context_length == 2048
    assert timedelta(minutes=9) < loaded.expires_at - datetime.now(UTC) <= timedelta(minutes=10)
    await all_of(Ollama(shim.url, NAME, keep_alive=-1), asked(max_tokens=2))
    assert "num_ctx" not in shim.asked[-1]["options"]
    (loaded,) = (await ollama.AsyncClient(shim.url).ps()).models
    assert loaded.expires_at - datetime.now(UTC) > timedelta(days=365)


@pytest.mark.parametrize("think", [True, False, None])
async def test_thinking_is_switched_on_off_or_left_to_the_model(source, shim, think):
    events = await all_of(source, asked(temperature=0.0, seed=1, max_tokens=400 if think else 20, think=think))
    phases = [event.phase for event in events if event.kind == "token"]
    assert shim.asked[-1].get("think") is think
    assert set(phases) == ({"reasoning", "answer"} if think else {"answer"})
    assert phases == sorted(phases, reverse=True)  # "reasoning" first
    assert "think>" not in text(events) + text(events, "reasoning")


async def test_functions_and_what_came_of_calls_are_passed_on(source, shim):
    called = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Łódź"}'}}
    request = Request(
        (
            Message(role="user", content="How warm is it in Łódź?"),
            Message(role="assistant", content="", tool_calls=[called]),
            Message(role="tool", content="20 degrees", name="weather", tool_call_id="call_1"),
        ),
        max_tokens=5,
        tools=(WEATHER,),
    )
    assert text(await all_of(source, request))
    (sent,) = shim.asked[-1]["tools"]
    assert sent["function"]["name"] == "weather"
    assert sent["function"]["parameters"]["required"] == ["city"]
    _, call, result = shim.asked[-1]["messages"]
    assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Łódź"}}
    assert (result["role"], result["tool_name"]) == ("tool", "weather")


async def test_a_model_that_is_not_there_says_how_to_get_it(shim):
    source = Ollama(shim.url, "llama9")
    with pytest.raises(ProviderError, match="ollama pull llama9") as caught:
        await all_of(source)
    assert caught.value.code == "AF704"
    assert shim.asked == []


async def test_models_are_listed_and_shown(source, shim):
    assert await source.models() == [f"{NAME}:latest"]
    shown = await ollama.AsyncClient(shim.url).show(NAME)
    assert shown.modelinfo["llama.context_length"] == 8192


async def test_a_request_beyond_the_window_is_told_in_the_server_s_words(source):
    long = Request((Message(role="user", content="sky " * 9000),))
    with pytest.raises(ProviderError, match="context size") as caught:
        await all_of(source, long)
    assert caught.value.code == "AF706"


async def test_a_runner_that_dies_in_the_middle_is_the_servers_failure_with_what_came(source, embedded):
    got = []
    asking = asyncio.create_task(all_of(source, asked(max_tokens=4000, extra={"ignore_eos": True}), got))
    async with asyncio.timeout(60):
        while len(got) < 5:
            await asyncio.sleep(0.01)
    os.kill(embedded.pid, signal.SIGKILL)
    with pytest.raises(ProviderError, match="while running the model") as caught:
        await asking
    assert caught.value.code == "AF707"
    assert len(got) >= 5
    assert {event.kind for event in got} == {"token"}
