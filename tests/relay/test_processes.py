"""Three real processes, producer, relay and consumer: what a slow or a killed one does to the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from aiflow_jupyter.relay.crypto import new_secret

RELAY = """
import asyncio, sys
from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.server import RelayServer
async def main():
    keys = KeyStore()
    key = keys.add("tests")
    async with RelayServer(keys) as relay:
        print(relay.url, key, flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""
PRODUCER = """
import asyncio, json, sys
from aiflow_jupyter.relay.client import StreamLimits, StreamProducer
from aiflow_jupyter.relay.errors import RelayError
async def main():
    order = json.loads(sys.stdin.readline())
    end = StreamProducer(order["relay"], order["id"], order["producer"], bytes.fromhex(order["secret"]),
                         limits=StreamLimits(linger=order["linger"], lost=order["linger"]))
    try:
        async with end:
            await end.wait_for_consumer(30)
            for n in range(order["tokens"]):
                await end.send(f"token {n} ")
        print("sent", flush=True)
    except RelayError as error:
        print(error.code, flush=True)
asyncio.run(main())
"""
CONSUMER = """
import asyncio, json, sys
from aiflow_jupyter.relay.client import StreamConsumer
async def main():
    order = json.loads(sys.stdin.readline())
    async with StreamConsumer(order["relay"], order["id"], order["consumer"], bytes.fromhex(order["secret"])) as end:
        count = 0
        async for value in end:
            assert value == f"token {count} ", value
            count += 1
            if count % order["every"] == 0:
                print(count, flush=True)
            if count % 20 == 0:
                await asyncio.sleep(order["pause"])
        print("whole", count, flush=True)
asyncio.run(main())
"""


class Process:
    def __init__(self, code: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, order: dict) -> None:
        self.child.stdin.write(json.dumps(order) + "\n")
        self.child.stdin.flush()

    def line(self) -> str:
        return self.child.stdout.readline().strip()

    @property
    def memory(self) -> int:
        return psutil.Process(self.child.pid).memory_info().rss


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started = [Process(code) for code in (RELAY, PRODUCER, CONSUMER)]
    yield started
    for process in started:
        process.child.kill()
        process.child.wait()
        process.child.stdin.close()
        process.child.stdout.close()


async def begin(processes: list[Process], **order) -> None:
    from aiflow_jupyter.relay.client import create_channel

    relay, producer, consumer = processes
    url, key = relay.line().split()
    channel = await create_channel(url, key)
    order |= {
        "relay": channel.relay,
        "id": channel.id,
        "producer": channel.producer,
        "consumer": channel.consumer,
        "secret": new_secret().hex(),
    }
    producer.tell(order)
    consumer.tell(order)


async def test_twenty_thousand_tokens_for_a_slow_consumer_leave_the_memory_of_all_three_flat(processes):
    await begin(processes, tokens=20_000, pause=0.01, every=2_000, linger=120)
    consumer = processes[2]
    assert consumer.line() == "2000"  # all is loaded and the windows are full
    before = [process.memory for process in processes]
    said = consumer.line()
    while not said.startswith("whole"):
        grown = [now.memory - then for now, then in zip(processes, before, strict=True)]
        assert max(grown) < 12_000_000, grown
        said = consumer.line()
    assert said == "whole 20000"
    assert processes[1].line() == "sent"


async def test_a_consumer_that_is_killed_is_named_to_its_producer_after_its_linger(processes):
    await begin(processes, tokens=1_000_000, pause=0.0, every=1_000, linger=3)
    consumer = processes[2]
    assert consumer.line() == "1000"
    consumer.child.kill()
    assert processes[1].line().startswith("AF9")
