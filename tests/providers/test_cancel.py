"""Cancelling a run stops the model: its server, which is a real one, goes idle long before the answer would have ended.

What tells is what the server counts, not a clock: how many tokens it made when it is idle again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import httpx
import pytest
from ollama_shim import OllamaShim
from stage import on_this_machine

from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.providers.embedded import EmbeddedModel
from aiflow_jupyter.providers.ollama import Ollama
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.source import Request

pytestmark = pytest.mark.model

LONG = 6000
"""Tokens that the answer would have: more than a minute's work for the engine on one thread."""
MOST = 1500
"""Tokens in which it has to have stopped; it makes some tens until it is cancelled."""


class Endless:
    """A source whose answers go on."""

    def __init__(self, source) -> None:
        self.source = source

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        longer = replace(request, max_tokens=LONG, extra={"ignore_eos": True})
        events = self.source.stream(longer)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()


class Engine:
    """What the server of the embedded model says of itself."""

    def __init__(self, embedded: EmbeddedModel) -> None:
        self._embedded = embedded
        self.at, _client = embedded._running
        self._client = httpx.AsyncClient(
            base_url=self.at.url, headers={"Authorization": f"Bearer {self.at.key.reveal()}"}, trust_env=False
        )

    async def decoded(self) -> int:
        """Tokens of the answers that are on their way; 0 where it is idle."""
        busy = [slot for slot in await self._embedded.slots() if slot["is_processing"]]
        return sum(1 + slot["next_token"][0]["n_decoded"] for slot in busy)

    async def made(self) -> int:
        """Tokens of all answers that have ended."""
        said = (await self._client.get("/metrics")).text
        return int(re.search(r"^llamacpp:tokens_predicted_total (\d+)", said, re.MULTILINE)[1])

    async def until(self, condition) -> None:
        async with asyncio.timeout(120):
            while not condition(await self.decoded()):
                await asyncio.sleep(0.002)


@pytest.fixture
async def engine(embedded):
    found = Engine(embedded)
    yield found
    await found._client.aclose()


@pytest.fixture(params=["openai", "ollama", "embedded", "hpc"])
async def source(request, embedded, engine):
    async with AsyncExitStack() as stack:
        match request.param:
            case "embedded":
                yield embedded
            case "openai":
                client = OpenAICompatible(f"{engine.at.url}/v1", model="m", key=engine.at.key)
                stack.push_async_callback(client.aclose)
                await client.count("a", "m")  # as the router does before it asks: it learns whose server that is
                yield client
            case "ollama":
                shim = await stack.enter_async_context(OllamaShim(engine.at.url, engine.at.key, "m"))
                yield Ollama(shim.url, "m")
            case "hpc":
                tier = on_this_machine(engine.at.url, engine.at.key, timeouts=None)
                stack.push_async_callback(tier.aclose)
                yield tier


async def test_cancelling_a_run_stops_the_model(source, engine):
    before = await engine.made()
    spec = parse('ask = generate()\nout = sink(var="x")\nask -> out', "g", SIGNATURES).spec
    run = Run(spec, OPERATORS, Scheduler(asyncio.get_running_loop()), source=Endless(source))
    await run.start("Count to a million.")
    await engine.until(lambda decoded: decoded > 5)
    await run.cancel()
    await engine.until(lambda decoded: not decoded)
    assert run.state == "cancelled"
    assert 5 < await engine.made() - before < MOST


@pytest.mark.parametrize("source", ["openai", "ollama", "embedded"], indirect=True)
async def test_leaving_while_the_prompt_is_read_stops_the_model_too(source, engine):
    """Nothing has come, and nothing is to come; the prompt is some ten seconds' work."""
    before = await engine.made()
    question = f"{type(source).__name__} asks: " + "Tell me more of the sky. " * 250  # nothing of it is in a cache
    long = Request(({"role": "user", "content": question},), tier="local")

    async def read():
        async for _ in Endless(source).stream(long):
            break

    asking = asyncio.create_task(read())
    await engine.until(bool)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await engine.until(lambda decoded: not decoded)
    assert await engine.made() == before
