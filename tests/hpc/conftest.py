from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `stage`

from stage import FakeVllm, Stage

from aiflow_jupyter.hpc.remote import RelayAt
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.relay.crypto import WorkerKey
from aiflow_jupyter.relay.selfrelay import SelfRelay


@pytest.fixture
async def vllm():
    async with FakeVllm() as server:
        yield server


@pytest.fixture
async def relay():
    async with SelfRelay() as own:
        yield RelayAt(own.url, Secret(own.key))


@pytest.fixture
def key(monkeypatch):
    """The worker's key, in the environment of workers that run in a thread of this process."""
    made = WorkerKey.generate()
    monkeypatch.setenv("AIFLOW_WORKER_KEY", made.secret_text())
    return made


@pytest.fixture
async def threads():
    executor = ThreadPoolExecutor(4)
    yield executor
    await asyncio.to_thread(executor.shutdown)  # the relay that the workers say good-bye to is in this loop


@pytest.fixture
async def stage(vllm, relay, key, threads, monkeypatch):
    """A model server that plays vLLM, a relay, and workers in threads."""
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", vllm.url)
    return Stage(vllm, relay, key, threads)
