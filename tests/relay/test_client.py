"""The ends over a real relay on loopback: cuts, restarts, refusals, and what stays secret."""

import asyncio
import contextlib
import logging
import os
import random
import socket
import subprocess
import sys
import threading

import httpx
import pytest
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from aiflow_jupyter.relay.capability import Secret
from aiflow_jupyter.relay.client import (
    Status,
    StreamConsumer,
    StreamLimits,
    StreamProducer,
    SyncProducer,
    create_channel,
)
from aiflow_jupyter.relay.crypto import new_secret
from aiflow_jupyter.relay.errors import (
    CapabilityRefused,
    ChannelFinished,
    Crowded,
    FrameAltered,
    FrameError,
    NoPeer,
    PlainRefused,
    RelayError,
    RelayLimit,
    RelayRefused,
    RelayUnreachable,
    RemoteFailure,
    StreamCancelled,
    ValueRefused,
    WrongChannel,
)
from aiflow_jupyter.relay.joining import loopback
from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.link import Link, address, delays, refuse
from aiflow_jupyter.relay.server import RelayServer

CHANNEL = "00" * 16


class Room:
    """A relay with one key, and ends that join it."""

    def __init__(self, relay, key):
        self.relay = relay
        self.key = key
        self.url = relay.url

    async def channel(self):
        return await create_channel(self.url, self.key)

    async def pair(self, **options):
        channel, secret = await self.channel(), new_secret()
        options = {"give_up": 10.0, **options}
        return (
            StreamProducer(options.pop("producer_url", channel.relay), channel.id, channel.producer, secret, **options),
            StreamConsumer(channel.relay, channel.id, channel.consumer, secret, **options),
        )


@pytest.fixture
async def room():
    keys = KeyStore()
    key = keys.add("tests")
    async with asyncio.timeout(60), RelayServer(keys) as relay:
        yield Room(relay, key)


async def collect(consumer):
    async with consumer:
        return [value async for value in consumer]


class TestAStream:
    async def test_arrives_whole_and_both_ends_know(self, room):
        producer, consumer = await room.pair()
        reader = asyncio.create_task(collect(consumer))
        async with producer:
            await producer.wait_for_consumer(10)
            for n in range(3000):
                await producer.send(n)
        assert await reader == list(range(3000))
        assert consumer.result.status is Status.OK
        assert consumer.result.items == 3000

    async def test_is_acknowledged_before_its_consumer_lets_go_though_the_loop_stands_still_then(self, room):
        channel, secret = await room.channel(), new_secret()
        known = threading.Event()

        async def consume():
            got = await collect(StreamConsumer(channel.relay, channel.id, channel.consumer, secret))
            assert known.wait(10)  # blocks this loop until the producer knows
            return got

        reader = asyncio.create_task(asyncio.to_thread(asyncio.run, consume()))
        async with StreamProducer(channel.relay, channel.id, channel.producer, secret) as producer:
            await producer.send("a")
        known.set()
        assert await reader == ["a"]

    async def test_of_arrays_and_texts_arrives_as_it_was(self, room):
        values = [{"dtype": "<f8", "shape": [1000, 100], "data": os.urandom(800_000)}, "", "é", b""]
        producer, consumer = await room.pair(limits=StreamLimits(window_bytes=1 << 20))
        reader = asyncio.create_task(collect(consumer))
        async with producer:
            for value in values:
                await producer.send(value)
        assert await reader == values

    async def test_can_be_used_no_sooner_than_it_is_joined(self, room):
        producer, consumer = await room.pair()
        async with producer:
            with pytest.raises(NoPeer):
                await producer.wait_for_consumer(0.05)
            producer._machine.error = None
            reader = asyncio.create_task(collect(consumer))
            await producer.wait_for_consumer(10)
            await producer.send("now")
        assert await reader == ["now"]

    async def test_that_fails_at_its_source_fails_at_the_consumer_with_its_words(self, room):
        producer, consumer = await room.pair()

        async def work():
            async with producer:
                await producer.send("a")
                raise ZeroDivisionError("no such luck")

        worker = asyncio.create_task(work())
        async with consumer:
            values = aiter(consumer)
            assert await anext(values) == "a"
            with pytest.raises(RemoteFailure, match="no such luck"):
                await anext(values)
        with pytest.raises(ZeroDivisionError):
            await worker

    async def test_whose_source_is_stopped_ends_at_once_and_not_as_a_whole(self, room):
        producer, consumer = await room.pair()

        async def work():
            async with producer:
                await producer.send("a")
                await asyncio.sleep(60)

        worker = asyncio.create_task(work())
        async with consumer:
            values = aiter(consumer)
            assert await anext(values) == "a"
            worker.cancel()
            with pytest.raises(StreamCancelled, match="stopped"):
                await anext(values)
        with pytest.raises(asyncio.CancelledError):
            await worker

    async def test_that_fails_before_anybody_joined_does_not_wait_for_ever(self, room, monkeypatch):
        monkeypatch.setattr("aiflow_jupyter.relay.streams.GOODBYE", 0.05)
        producer, _ = await room.pair()
        with pytest.raises(ZeroDivisionError):
            async with producer:
                raise ZeroDivisionError

    async def test_that_is_cancelled_stops_its_source(self, room):
        producer, consumer = await room.pair()

        async def work():
            async with producer:
                while True:
                    await producer.send("more")
                    await asyncio.sleep(0.001)

        worker = asyncio.create_task(work())
        async with consumer:
            async for _ in consumer:
                await consumer.cancel()
        assert consumer.result.status is Status.CANCELLED
        with pytest.raises(StreamCancelled):
            await worker

    async def test_whose_consumer_leaves_early_stops_its_source(self, room):
        producer, consumer = await room.pair()
        async with producer:
            async with consumer:
                await producer.send("a")
                async for _ in consumer:
                    break
            await producer.wait_cancelled()
            with pytest.raises(StreamCancelled):
                await producer.send("b")

    async def test_that_outruns_its_consumer_waits(self, room):
        limits = StreamLimits(window_frames=32, window_bytes=64 * 1024)
        producer, consumer = await room.pair(limits=limits)
        sent = 0

        async def work():
            nonlocal sent
            async with producer:
                for _ in range(500):
                    await producer.send("x" * 2000)
                    sent += 1

        worker = asyncio.create_task(work())
        async with consumer:
            await consumer.wait_for_producer(10)
            await asyncio.sleep(0.3)
            assert sent * 2000 < limits.window_bytes + 2 * limits.pending_bytes
            got = [value async for value in consumer]
        await worker
        assert len(got) == 500

    async def test_of_a_value_that_does_not_travel_goes_on(self, room):
        producer, consumer = await room.pair()
        reader = asyncio.create_task(collect(consumer))
        async with producer:
            with pytest.raises(ValueRefused):
                await producer.send(object())
            await producer.send("fine")
        assert await reader == ["fine"]

    async def test_under_another_secret_is_refused(self, room):
        channel = await room.channel()
        producer = StreamProducer(channel.relay, channel.id, channel.producer, new_secret())
        consumer = StreamConsumer(channel.relay, channel.id, channel.consumer, new_secret())
        producer.start()
        with pytest.raises(FrameAltered):
            await collect(consumer)
        await producer.aclose()

    async def test_that_breaks_off_for_an_unknown_reason_says_where_and_quotes_nothing(self, room, monkeypatch, caplog):
        async def broken(_):
            raise ZeroDivisionError("CANARY")

        monkeypatch.setattr(Link, "connect", broken)
        _, consumer = await room.pair()
        with pytest.raises(
            RelayError, match=r"the stream broke off \(ZeroDivisionError at test_client\.py:\d+\)"
        ) as failed:
            await collect(consumer)
        assert isinstance(failed.value.__cause__, ZeroDivisionError)
        assert "ZeroDivisionError at test_client.py:" in caplog.text
        assert "CANARY" not in caplog.text

    async def test_of_a_plain_generator_arrives_whole(self, room):
        channel, secret = await room.channel(), new_secret()
        consumer = StreamConsumer(channel.relay, channel.id, channel.consumer, secret)

        def work():
            with SyncProducer(channel.relay, channel.id, channel.producer, secret) as out:
                out.wait_for_consumer(10)
                for n in range(20_000):
                    out.send(n)

        reader = asyncio.create_task(collect(consumer))
        await asyncio.to_thread(work)
        assert await reader == list(range(20_000))

    async def test_of_a_plain_generator_can_be_cancelled_and_can_fail(self, room):
        channel, secret = await room.channel(), new_secret()

        def work():
            with SyncProducer(channel.relay, channel.id, channel.producer, secret) as out:
                while True:
                    out.send("x" * 1000)

        worker = asyncio.create_task(asyncio.to_thread(work))
        async with StreamConsumer(channel.relay, channel.id, channel.consumer, secret) as consumer:
            async for _ in consumer:
                break
        with pytest.raises(StreamCancelled):
            await worker

        channel = await room.channel()

        def fail():
            with SyncProducer(channel.relay, channel.id, channel.producer, secret) as out:
                out.send("a")
                raise KeyError("gone")

        worker = asyncio.create_task(asyncio.to_thread(fail))
        with pytest.raises(RemoteFailure, match="KeyError"):
            await collect(StreamConsumer(channel.relay, channel.id, channel.consumer, secret))
        with pytest.raises(KeyError):
            await worker


class Cutter:
    """A TCP line to the relay that breaks every so many bytes."""

    def __init__(self, port, rng):
        self.target = port
        self.rng = rng
        self.cuts = 0
        self.calm = False

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.join, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def join(self, reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        left = [1 << 60 if self.calm else self.rng.randrange(400, 20_000)]

        async def pump(source, sink):
            with contextlib.suppress(OSError):
                while (data := await source.read(4096)) and left[0] > 0:
                    left[0] -= len(data)
                    sink.write(data[: len(data) if left[0] > 0 else max(len(data) + left[0], 0)])
                    await sink.drain()
            for end in (writer, far_writer):
                end.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        self.cuts += 1


class Gate(Cutter):
    """A line that is whole until it is shut, and again once it is opened."""

    def __init__(self, port):
        super().__init__(port, random.Random(0))
        self.calm = self.open = True
        self.through = []

    async def join(self, reader, writer):
        if not self.open:
            writer.close()
            return
        self.through.append(writer)
        await super().join(reader, writer)

    def shut(self):
        self.open = False
        for writer in self.through:
            writer.transport.abort()


class TestALineThatBreaks:
    @pytest.mark.parametrize("seed", range(4))
    async def test_every_few_kilobytes_loses_and_repeats_nothing(self, room, seed):
        async with Cutter(room.relay.port, random.Random(seed)) as cutter:
            channel, secret = await room.channel(), new_secret()
            producer = StreamProducer(cutter.url, channel.id, channel.producer, secret)
            consumer = StreamConsumer(cutter.url, channel.id, channel.consumer, secret)
            reader = asyncio.create_task(collect(consumer))
            async with producer:
                for n in range(2000):
                    await producer.send(f"token {n} ")
                    if n % 50 == 0:
                        await asyncio.sleep(0.002)
            assert await reader == [f"token {n} " for n in range(2000)]
            assert cutter.cuts > 2

    async def test_because_the_relay_restarts_is_repaired(self):
        keys, secret_of_relay = KeyStore(), Secret.fresh()
        key = keys.add("tests")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        relay = RelayServer(keys, port=port, secret=secret_of_relay)
        await relay.start()
        try:
            channel, secret = await create_channel(relay.url, key), new_secret()
            producer = StreamProducer(channel.relay, channel.id, channel.producer, secret)
            reader = asyncio.create_task(collect(StreamConsumer(channel.relay, channel.id, channel.consumer, secret)))
            async with producer:
                await producer.wait_for_consumer(10)
                for n in range(600):
                    await producer.send(n)
                    await asyncio.sleep(0.0005)
                    if n % 200 == 100:
                        await relay.abort()
                        relay = RelayServer(keys, port=port, secret=secret_of_relay)
                        await relay.start()
            assert await reader == list(range(600))
        finally:
            await relay.close()

    async def test_and_never_comes_back_is_an_error_after_the_deadline(self, room):
        producer, consumer = await room.pair(give_up=0.3)
        async with consumer:
            await producer.wait_for_consumer(10)
            await room.relay.abort()
            with pytest.raises(RelayUnreachable, match=r"tried for 0\.3 s"):
                await producer.end()
            with pytest.raises(RelayUnreachable):
                [value async for value in consumer]
            await producer.aclose()

    async def test_was_never_there(self):
        with pytest.raises(RelayUnreachable):
            await create_channel("http://127.0.0.1:9", "key")
        with pytest.raises(RelayUnreachable):
            await collect(StreamConsumer("http://127.0.0.1:9", CHANNEL, "capability", new_secret(), give_up=0.1))


class TestRefusals:
    async def test_a_key_that_is_unknown(self, room):
        with pytest.raises(CapabilityRefused):
            await create_channel(room.url, "no such key")

    async def test_a_capability_that_is_none_or_for_the_other_end(self, room):
        channel = await room.channel()
        with pytest.raises(CapabilityRefused):
            await collect(StreamConsumer(channel.relay, channel.id, "nonsense", new_secret()))
        with pytest.raises((WrongChannel, CapabilityRefused)):
            await collect(StreamConsumer(channel.relay, channel.id, channel.producer, new_secret()))

    async def test_a_consumer_that_leaves_before_anyone_came_finishes_the_channel(self, room):
        producer, consumer = await room.pair(give_up=3.0)
        consumer.start()
        with contextlib.suppress(RelayError):
            await consumer.wait_for_producer(0.3)
        await consumer.aclose()
        with pytest.raises(ChannelFinished):
            async with producer:
                await producer.wait_for_consumer(10)

    async def test_a_consumer_that_leaves_while_it_still_connects_finishes_the_channel(self, room):
        producer, consumer = await room.pair(give_up=3.0)
        consumer.start()
        await consumer.aclose()
        with pytest.raises(ChannelFinished):
            async with producer:
                await producer.wait_for_consumer(10)

    async def test_waiting_in_vain_leaves_nothing_behind(self, room):
        _, consumer = await room.pair(give_up=3.0)
        async with consumer:
            for _ in range(3):
                with pytest.raises(NoPeer):
                    await consumer.wait_for_producer(0.01)
            assert consumer._waiters == []

    async def test_a_consumer_that_has_all_leaves_as_soon_as_its_producer_has_finished_the_channel(
        self, room, monkeypatch
    ):
        monkeypatch.setattr("aiflow_jupyter.relay.streams.GOODBYE", 3600.0)
        producer, consumer = await room.pair()
        reader = asyncio.create_task(collect(consumer))
        async with producer:
            await producer.send("all")
        assert await reader == ["all"]
        await consumer._task
        assert consumer.error is None
        assert (room.relay.metrics.joins, room.relay.metrics.refusals) == (2, {})  # nor did it try to come back

    async def test_a_producer_that_fails_ends_its_consumer_at_once_with_what_came_as_a_part(self, room):
        producer, consumer = await room.pair()
        async with consumer:
            await producer.wait_for_consumer(10)
            await producer.send("a part")
            values = aiter(consumer)
            assert await anext(values) == "a part"
            producer._socket.stop(FrameError("what it received was no frame"))
            with pytest.raises(ChannelFinished, match="other end"):
                await anext(values)
        with pytest.raises(FrameError):
            await producer.end()

    async def test_a_consumer_that_fails_cancels_its_producer(self, room):
        producer, consumer = await room.pair()
        async with consumer:
            await producer.wait_for_consumer(10)
            consumer._take(b"\x01\x09 no frame of this version")
            with pytest.raises(FrameError):
                await anext(aiter(consumer))
            await producer.wait_cancelled()
            with pytest.raises(StreamCancelled):  # and not that the delivery is unknown
                await producer.end()
            await producer.aclose()

    @pytest.mark.parametrize(
        ("code", "kind", "words"),
        [
            (1009, RelayLimit, "no message of this size"),
            (4010, ChannelFinished, "the other end finished"),
            (4012, ChannelFinished, "expired"),
        ],
    )
    async def test_a_close_that_says_that_it_is_over_is_an_error_with_a_name(self, code, kind, words):
        joins = 0

        async def close(socket):
            nonlocal joins
            joins += 1
            await socket.close(code)

        async with serve(close, "127.0.0.1", 0, subprotocols=["aiflow-relay.1"]) as other:
            url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
            async with StreamConsumer(url, CHANNEL, "capability", new_secret()) as consumer:
                with pytest.raises(kind, match=words):
                    await consumer.wait_for_producer(10)
        assert joins == 1

    @pytest.mark.parametrize("code", [1000, 1001, 1011, 4009, 4011])
    async def test_any_other_close_is_waited_out(self, code):
        joins = 0

        async def close(socket):
            nonlocal joins
            joins += 1
            await socket.close(code if joins < 3 else 4010)

        async with serve(close, "127.0.0.1", 0, subprotocols=["aiflow-relay.1"]) as other:
            url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
            async with StreamConsumer(url, CHANNEL, "capability", new_secret()) as consumer:
                with pytest.raises(ChannelFinished):
                    await consumer.wait_for_producer(10)
        assert joins == 3

    async def test_a_message_that_is_too_large_for_an_end_is_not_the_relays_limit(self):
        joins = 0

        async def send(socket):
            nonlocal joins
            joins += 1
            if joins == 1:
                await socket.send(bytes(20_000))
                await socket.wait_closed()
            else:
                await socket.close(4010)

        async with serve(send, "127.0.0.1", 0, subprotocols=["aiflow-relay.1"]) as other:
            url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
            async with StreamConsumer(url, CHANNEL, "capability", new_secret()) as consumer:
                with pytest.raises(ChannelFinished):
                    await consumer.wait_for_producer(10)
        assert joins == 2

    async def test_a_cancel_reaches_a_producer_whose_line_comes_back_after_its_consumer_has_left(self, room):
        async with Gate(room.relay.port) as gate:
            producer, consumer = await room.pair(producer_url=gate.url)
            async with producer:
                reader = asyncio.create_task(anext(aiter(consumer)))
                await producer.send("first")
                assert await reader == "first"
                gate.shut()
                await consumer.aclose()  # the producer can't be told now
                assert not producer.cancelled
                gate.open = True
                await producer.wait_cancelled()

    async def test_a_third_party_is_refused_and_the_ends_are_told(self, room, caplog):
        producer, consumer = await room.pair()
        caplog.set_level(logging.WARNING)
        async with producer, consumer:
            await producer.wait_for_consumer(10)
            thief = StreamConsumer(room.url, producer_channel(producer), capability(consumer), new_secret())
            with pytest.raises(Crowded):
                await collect(thief)
            await producer.send("still whole")
            await producer.end()
            assert [value async for value in consumer] == ["still whole"]
        assert "third party" in caplog.text

    async def test_a_channel_that_is_finished(self, room):
        producer, consumer = await room.pair()
        reader = asyncio.create_task(collect(consumer))
        async with producer:
            pass
        await reader
        again = StreamConsumer(room.url, producer_channel(producer), capability(consumer), new_secret())
        with pytest.raises(ChannelFinished):
            await collect(again)

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (401, CapabilityRefused),
            (403, WrongChannel),
            (409, Crowded),
            (410, ChannelFinished),
            (429, RelayLimit),
            (503, RelayUnreachable),
            (302, RelayRefused),
            (404, RelayRefused),
            (500, RelayRefused),
        ],
    )
    @pytest.mark.parametrize("body", [b"", b"<html>", b'{"error": {"code": "x", "message": "said so"}}', b"[" * 5000])
    def test_each_answer_has_an_error_that_says_what_to_do(self, status, kind, body):
        with pytest.raises(kind) as caught:
            refuse(status, body, "7")
        assert caught.value.hint
        assert caught.value.code.startswith("AF91")
        assert ("said so" in str(caught.value)) == (b"said so" in body)

    async def test_a_server_that_speaks_something_else(self):
        async def handler(socket):
            await socket.wait_closed()

        async with serve(handler, "127.0.0.1", 0) as other:
            url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
            with pytest.raises(RelayRefused):
                await collect(StreamConsumer(url, CHANNEL, "capability", new_secret()))
            with pytest.raises((RelayUnreachable, RelayRefused)):
                await create_channel(url, "key")

    async def test_a_relay_that_sends_text(self):
        async def handler(socket):
            with contextlib.suppress(ConnectionClosed):
                await socket.send('{"type":"token","content":"1000 "}')
                await socket.wait_closed()

        async with serve(handler, "127.0.0.1", 0, subprotocols=["aiflow-relay.1"]) as other:
            url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
            with pytest.raises(FrameError):
                await collect(StreamConsumer(url, CHANNEL, "capability", new_secret()))

    async def test_a_redirect_is_not_followed(self):
        joins = []

        def redirect(connection, request):
            joins.append(request.path)
            response = connection.respond(302, "")
            response.headers["Location"] = "/elsewhere"
            return response

        async with serve(lambda _: None, "127.0.0.1", 0, process_request=redirect) as other:
            url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
            with pytest.raises(RelayRefused):
                await collect(StreamConsumer(url, CHANNEL, "capability", new_secret()))
        assert joins == [f"/channels/{CHANNEL}/consumer"]

    @pytest.mark.parametrize("relay", ["http://relay.example.org", "ws://10.0.0.1", "http://localhost.example.org"])
    async def test_no_tls_to_another_machine(self, relay):
        with pytest.raises(PlainRefused):
            StreamProducer(relay, CHANNEL, "capability", new_secret())
        with pytest.raises(PlainRefused):
            await create_channel(relay, "key")
        StreamProducer(relay, CHANNEL, "capability", new_secret(), allow_plain=True)

    @pytest.mark.parametrize(
        "relay", ["", "relay", "ftp://a", "https://", "https://u:p@a", "https://a?b", "http://[", "https://a:b"]
    )
    def test_what_is_no_address(self, relay):
        with pytest.raises(RelayError):
            address(relay)


def producer_channel(end):
    return end._link._uri.split("/")[-2]


def capability(end):
    return end._link._headers["Authorization"].removeprefix("Bearer ")


class TestSecrets:
    async def test_none_is_in_a_repr_an_error_or_a_log(self, room, caplog, monkeypatch):
        caplog.set_level(logging.DEBUG)
        for name in list(logging.root.manager.loggerDict):
            monkeypatch.setattr(logging.getLogger(name), "level", logging.DEBUG)
        channel, secret = await room.channel(), new_secret()
        producer = StreamProducer(channel.relay, channel.id, channel.producer, secret)
        consumer = StreamConsumer(channel.relay, channel.id, channel.consumer, secret)
        texts = [repr(end) for end in (producer, consumer, producer._link, producer._machine, channel)]
        reader = asyncio.create_task(collect(consumer))
        async with producer:
            await producer.send("canary in the stream")
        await reader
        everything = "\n".join([*texts, caplog.text])
        join = producer._link._headers["Aiflow-Join"]
        for canary in (room.key, channel.producer, channel.consumer, join, secret.hex(), "canary in the stream"):
            assert canary not in everything


class TestTheWay:
    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "a.localhost"])
    def test_loopback_ignores_proxies(self, host):
        assert loopback(host)
        relay = f"http://[{host}]:1" if ":" in host else f"http://{host}:1"
        assert Link(relay, CHANNEL, "producer", "c")._proxy is None

    @pytest.mark.parametrize("host", ["example.org", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org"])
    def test_elsewhere_proxies_are_honoured(self, host):
        assert not loopback(host)
        assert Link(f"https://{host}", CHANNEL, "producer", "c")._proxy is True

    async def test_tokens_do_not_wait_for_acknowledgements_of_tcp(self, room):
        producer, _ = await room.pair()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(producer.aclose)
            producer.start()
            while producer._socket is None:
                await asyncio.sleep(0.005)
            line = producer._socket.transport.get_extra_info("socket")
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def test_waits_grow_from_20_milliseconds_to_2_seconds_with_full_jitter(self):
        class Highest(random.Random):
            def uniform(self, a, b):
                assert a == 0
                return b

        waits = delays(Highest())
        assert [next(waits) for _ in range(9)] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.0, 2.0]

    async def test_a_channel_is_asked_for_as_agreed(self):
        seen = {}

        async def answer(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            seen["head"], seen["body"] = head, await reader.readexactly(size)
            body = b'{"channel": "%s", "producer": "p", "consumer": "c", "not_after": 5}' % (b"ab" * 16)
            writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base/"
            channel = await create_channel(url, "a-key", 99)
        assert seen["head"].startswith(b"POST /base/channels HTTP/1.1")
        assert b"authorization: bearer a-key" in seen["head"].lower()
        assert httpx.Response(200, content=seen["body"]).json() == {"not_after": 99}
        assert (channel.id, channel.not_after, channel.relay) == ("ab" * 16, 5, url[:-1])

    def test_the_room_needs_nothing_of_the_others(self):
        code = (
            "import sys, aiflow_jupyter.relay.client; "
            "bad = {'pydantic', 'IPython', 'lark', 'anywidget', 'click', 'starlette', 'httpx'} & set(sys.modules); "
            "assert not bad, bad; "
            "mine = [m for m in sys.modules if m.startswith('aiflow_jupyter.')]; "
            "assert all(m.split('.')[1] in {'relay', 'errors', 'events', 'environment'} for m in mine), mine"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
