"""The processes of the relay's measurement: a relay, a producer and a consumer, of this package or of streamrelay.

`python -m aiflow_jupyter.bench.relay_ends ROLE KIND` reads orders from standard input, one JSON object a line, and
answers each with JSON lines on standard output. It ends with its standard input.

A token is a stamp of CLOCK_MONOTONIC, which all processes of a machine share, a bar and six further characters.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import resource
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

from aiflow_jupyter.relay import loops
from aiflow_jupyter.relay.client import StreamConsumer, StreamLimits, StreamProducer
from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.limits import Limits
from aiflow_jupyter.relay.server import RelayServer
from aiflow_jupyter.relay.service import tls_context

Order = dict[str, Any]
Say = Callable[[dict[str, Any]], None]
PAD = "| hello"
# One value, one frame, in spite of a busy line: sealed at once, and no second one taken before the first is.
FRAME_BY_FRAME = StreamLimits(idle=-1.0, pending_bytes=1)
# A measurement opens more channels in a minute than a person would. Nothing that a frame meets is changed.
MANY = Limits(
    channels_per_key=4096,
    channels_per_minute=100_000,
    joins_per_minute=100_000,
    joins_per_minute_source=100_000,
    sockets_per_source=4096,
    handshakes=4096,
)


def stamp() -> str:
    """A token that says when it was made."""
    return f"{time.monotonic_ns():020d}{PAD}"


class Tally:
    """What a consumer notes of the tokens that it gets.

    Args:
        each: note every token's delay, not only how many there were.
        skip: leave out so many first tokens of each channel.
    """

    def __init__(self, *, each: bool, skip: int = 0) -> None:
        self.delays: list[float] = []
        self.count = 0
        self.first_sent = 0
        self.last_came = 0
        self.frames = 0
        self._each = each
        self._skip = skip

    def channel(self) -> Callable[[str], None]:
        """What to call with each token of one channel."""
        seen = 0
        delays, skip = self.delays, self._skip

        def first(token: str) -> None:
            if not self.first_sent:
                self.first_sent = int(token[:20])

        def note(token: str) -> None:
            nonlocal seen
            seen += 1
            self.count += 1
            if seen > skip:
                delays.append((time.monotonic_ns() - int(token[:20])) / 1e6)

        def count(token: str) -> None:
            if not self.count:
                first(token)
            self.count += 1

        return note if self._each else count

    def figures(self) -> dict[str, Any]:
        """The result, as JSON."""
        ordered = sorted(self.delays)
        found: dict[str, Any] = {"count": self.count, "frames": self.frames}
        if ordered:
            found |= {f"p{p}": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 3) for p in (50, 95, 99)}
            found["max"] = round(ordered[-1], 3)
        if self.first_sent:
            found["tokens_per_s"] = round(self.count / ((self.last_came - self.first_sent) / 1e9))
        return found


async def pace(rate: float, number: int, offset: float) -> AsyncIterator[None]:
    """Yield `number` times at `rate` a second, beginning `offset` seconds from now; late turns are made up for."""
    due = time.monotonic() + offset
    for _ in range(number):
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        yield
        due += 1 / rate


# This package's ends


async def our_producer(order: Order) -> None:
    """Send what an order says on all its channels."""
    limits = FRAME_BY_FRAME if order.get("frame_by_frame") else StreamLimits()
    channels = order["channels"]
    ready = asyncio.Barrier(len(channels))

    async def one(position: int, channel: dict[str, str]) -> None:
        early = stamp()  # of the time to the first token everything from here on is a part
        end = StreamProducer(
            order["url"], channel["id"], channel["producer"], bytes.fromhex(channel["secret"]), limits=limits
        )
        async with end as producer:
            if order["mode"] == "connect":
                await producer.send(early)
                return
            await producer.wait_for_consumer(60)
            await ready.wait()
            if order["mode"] == "burst":
                for _ in range(order["number"]):
                    await producer.send(stamp())
            else:
                async for _ in pace(order["rate"], order["number"], position / len(channels) / order["rate"]):
                    await producer.send(stamp())

    await asyncio.gather(*(one(position, channel) for position, channel in enumerate(channels)))


async def our_consumer(order: Order, say: Say) -> None:
    """Read all channels of an order to their ends."""
    tally = _tally(order)

    async def one(channel: dict[str, str]) -> None:
        end = StreamConsumer(order["url"], channel["id"], channel["consumer"], bytes.fromhex(channel["secret"]))
        async with end as consumer:
            note = tally.channel()
            async for token in consumer:
                note(token)
            tally.last_came = time.monotonic_ns()
            tally.frames += consumer.result.frames if consumer.result else 0

    reading = asyncio.gather(*map(one, order["channels"]))
    await asyncio.sleep(0)
    say({"ready": True})
    await reading
    say(tally.figures())


async def our_relay(order: Order, say: Say) -> None:
    """Serve until the process ends."""
    keys = KeyStore()
    key = keys.add("measurement")
    tls = tls_context(Path(order["certificate"]), Path(order["key"])) if order["certificate"] else None
    async with RelayServer(keys, limits=MANY, tls=tls) as server:
        say({"url": server.url, "key": key})
        await asyncio.get_running_loop().create_future()


# The peer's ends: its own classes, as its documentation has them used


def peer_producer(order: Order) -> None:
    """Send what an order says; one channel by the synchronous class, many by the asynchronous one."""
    peer = importlib.import_module("streamrelay")
    make = partial(peer.RelayProducer, encryption_key=order["key"], relay_secret=order["secret"])
    channels = order["channels"]
    if len(channels) > 1:
        asyncio.run(_peer_many(make, order))
        return
    early = stamp()
    with make(order["url"], channels[0]["id"]) as producer:
        if order["mode"] == "connect":
            producer.send_token(early)
            return
        time.sleep(0.05)  # the relay has looked at the secret
        due = time.monotonic()
        for _ in range(order["number"]):
            if order["mode"] == "pace":
                time.sleep(max(0.0, due - time.monotonic()))
                due += 1 / order["rate"]
            producer.send_token(stamp())


async def _peer_many(make: Callable[..., Any], order: Order) -> None:
    channels = order["channels"]
    ready = asyncio.Barrier(len(channels))

    async def one(position: int, channel: dict[str, str]) -> None:
        async with make(order["url"], channel["id"]) as producer:
            await ready.wait()
            async for _ in pace(order["rate"], order["number"], position / len(channels) / order["rate"]):
                await producer._async_send_raw({"type": "token", "content": stamp()})  # noqa: SLF001  # its only way

    await asyncio.gather(*(one(position, channel) for position, channel in enumerate(channels)))


def peer_consumer(order: Order, say: Say) -> None:
    """Read all channels of an order to their ends."""
    peer = importlib.import_module("streamrelay")
    make = partial(peer.RelayConsumer, encryption_key=order["key"], relay_secret=order["secret"])
    tally, channels = _tally(order), order["channels"]
    if len(channels) == 1:
        tokens = make(order["url"], channels[0]["id"]).stream()
        note = tally.channel()
        say({"ready": True})
        for token in tokens:
            note(token)
        tally.last_came = time.monotonic_ns()
    else:

        async def one(channel: dict[str, str]) -> None:
            note = tally.channel()
            async for token in make(order["url"], channel["id"]):
                note(token)
            tally.last_came = time.monotonic_ns()

        async def every() -> None:
            reading = asyncio.gather(*map(one, channels))
            await asyncio.sleep(0)
            say({"ready": True})
            await reading

        asyncio.run(every())
    tally.frames = tally.count
    say(tally.figures())


async def peer_relay(order: Order, say: Say) -> None:
    """Serve until the process ends. With certificates its listener, which knows no TLS, is given it."""
    server: Any = importlib.import_module("streamrelay.server")
    scheme = "ws"
    if order["certificate"]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(order["certificate"], order["key"])
        server.serve = partial(server.serve, ssl=context)
        scheme = "wss"
    serving = asyncio.ensure_future(
        server.start_relay(host="127.0.0.1", port=order["port"], secret=order["secret"], channel_timeout=3600)
    )
    for _ in range(100):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", order["port"])
            writer.close()
            break
        await asyncio.sleep(0.05)
    say({"url": f"{scheme}://127.0.0.1:{order['port']}"})
    await serving


# The process


def _tally(order: Order) -> Tally:
    return Tally(each=order["mode"] != "burst", skip=order.get("skip", 0))


def usage() -> dict[str, float]:
    """CPU seconds and memory of this process."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        memory = pages * resource.getpagesize()
    except OSError:
        memory = own.ru_maxrss * unit
    return {"cpu_s": own.ru_utime + own.ru_stime, "rss_mb": round(memory / 1e6, 1)}


def _answer_usage(orders: IO[str], say: Say) -> None:
    for _ in orders:
        say(usage())
    os._exit(0)


def main() -> None:
    """Do as ordered until there are no more orders."""
    role, kind = sys.argv[1:3]
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever a library prints is no answer

    def say(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    ours = kind == "aiflow"
    if role == "relay":
        order = json.loads(sys.stdin.readline())
        threading.Thread(target=_answer_usage, args=(sys.stdin, say), daemon=True).start()
        if ours:
            loops.run(our_relay(order, say))
        else:
            asyncio.run(peer_relay(order, say))
        return
    for line in sys.stdin:
        order = json.loads(line)
        if role == "producer":
            if ours:
                loops.run(our_producer(order))
            else:
                peer_producer(order)
            say({"done": True})
        elif ours:
            loops.run(our_consumer(order, say))
        else:
            peer_consumer(order, say)


if __name__ == "__main__":
    main()
