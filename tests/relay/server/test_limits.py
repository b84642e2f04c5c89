"""Each limit binds, says so, and binds nobody else."""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import suppress

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.limits import Bucket, RateWindow, source_of


def refusal(answer):
    assert int(answer.headers["Retry-After"]) >= 1
    return answer.status_code, answer.json()["error"]["code"]


async def test_channels_of_a_key_are_limited_until_one_is_finished(serve, tools):
    client = await serve(channels_per_key=2)
    channel = await client.open()
    await client.open()
    assert refusal(await client.post()) == (429, "AF956")
    end = await client.join(channel, "consumer")
    await end.close(4001)
    await tools.until(lambda: len(client.relay.channels) == 1)
    await client.open()


async def test_channels_of_a_key_are_free_again_when_they_expire(serve, tools):
    now = [1000.0]
    client = await serve(channels_per_key=1, wall=lambda: now[0], ping_interval=0.1)
    await client.open(not_after=1500)
    now[0] = 1501.0
    await tools.until(lambda: len(client.relay.channels) == 0)
    await client.open()


async def test_a_full_key_is_told_when_its_next_channel_is_freed(serve, tools):
    now = [1000.0]
    client = await serve(channels_per_key=2, wall=lambda: now[0], abandon_timeout=300)
    streaming, other = await client.open(not_after=5000), await client.open(not_after=1700)
    wait = lambda answer: int(answer.headers["Retry-After"])
    full = await client.post()
    assert wait(full) == 705  # when the second expires, and until that is noticed
    assert "limit; finish some. The next one that nobody comes back to is freed in 705 s." in full.text
    producer, consumer = await client.pair(other)
    assert wait(await client.post()) == 4005  # a stream that runs is not cut
    await client.pair(streaming)
    full = await client.post()
    assert (full.status_code, "Retry-After" in full.headers, "freed" in full.text) == (429, False, False)
    for end in (producer, consumer):
        await end.close()
    await tools.until(lambda: len(client.relay._sockets) == 2)
    assert 295 < wait(await client.post()) <= 305  # both have left it


async def test_a_key_may_have_limits_of_its_own_that_bind_no_other_key(serve, tools):
    keys = KeyStore()
    narrow, none = keys.add("narrow", channels=1, joins_per_minute=1), keys.add("none", channels=0)
    client = await serve(keys=keys)
    channel = (await client.post(narrow)).json()
    assert refusal(await client.post(narrow)) == (429, "AF956")
    assert (await client.post(none)).json()["error"]["code"] == "AF956"
    await client.join(channel, "producer")
    assert await client.refused(channel, "consumer") == (429, "AF956")
    await client.pair()


async def test_posts_of_a_key_are_limited(serve):
    keys = KeyStore()
    other = keys.add("other")
    client = await serve(keys=keys, channels_per_minute=3)
    for _ in range(3):
        await client.open()
    assert refusal(await client.post()) == (429, "AF956")
    assert (await client.post(other)).status_code == 201


async def test_the_relay_is_full_at_some_point_and_not_ready_then(serve):
    client = await serve(channels=2)
    assert (await client.request("GET", "/readyz")).status_code == 200
    await client.open()
    await client.open()
    assert refusal(await client.post()) == (503, "AF958")
    assert refusal(await client.request("GET", "/readyz")) == (503, "AF958")
    assert (await client.request("GET", "/healthz")).status_code == 200


async def test_joins_of_a_channel_are_limited(serve, tools):
    client = await serve(joins_per_minute_channel=3)
    channel, token = await client.open(), tools.join_token()
    for _ in range(3):
        await client.join(channel, "producer", token)
    assert await client.refused(channel, "producer", token) == (429, "AF956")
    await client.pair()


async def test_a_third_party_can_not_use_up_the_joins_of_the_ends(serve, tools):
    client = await serve(joins_per_minute_channel=3, joins_per_minute=4)
    channel, token = await client.open(), tools.join_token()
    await client.join(channel, "producer", token)
    assert [(await client.refused(channel, "producer"))[0] for _ in range(5)] == [409, 409, 409, 429, 429]
    await client.join(channel, "producer", token)


async def test_requests_of_an_address_are_limited(serve):
    client = await serve(joins_per_minute_source=3)
    for _ in range(3):
        await client.open()
    assert refusal(await client.post()) == (429, "AF956")


async def test_guessing_is_slowed_down_but_who_has_a_right_to_enter_does(serve):
    client = await serve(refusals_per_minute_source=3)
    channel = await client.open()
    for _ in range(3):
        assert (await client.post("afr_guess")).status_code == 401
    assert refusal(await client.post("afr_guess")) == (429, "AF956")
    assert await client.refused({**channel, "producer": "A" * 88}, "producer") == (429, "AF956")
    await client.pair(channel)


async def test_sockets_of_an_address_are_limited(serve, tools):
    client = await serve(sockets_per_source=2)
    channel = await client.open()
    producer, _ = await client.pair(channel)
    assert await client.refused(channel, "producer") == (429, "AF956")
    assert refusal(await client.post()) == (429, "AF956")
    await producer.close()
    await tools.until(lambda: len(client.relay._sockets) == 1)
    assert await client.refused(channel, "producer") == (409, "AF954")


async def test_sockets_of_the_relay_are_limited(serve, tools):
    client = await serve(sockets=3)
    channel = await client.open()
    await tools.until(lambda: not client.relay._connections)
    await client.pair(channel)
    _, writer = await client.raw(b"GET /heal")
    await tools.until(lambda: len(client.relay._connections) == 1)
    assert refusal(await client.request("GET", "/healthz")) == (503, "AF958")
    writer.close()
    await tools.until(lambda: not client.relay._connections)
    assert (await client.request("GET", "/healthz")).status_code == 200


async def test_half_requests_are_limited_and_do_not_keep_others_out_for_long(serve, tools):
    client = await serve(handshakes=2)
    slow = [await client.raw(b"GET /healthz HTTP/1.1\r\nHost: ") for _ in range(2)]
    await tools.until(lambda: len(client.relay._connections) == 2)
    halves = list(client.relay._connections)
    assert refusal(await client.request("GET", "/healthz")) == (503, "AF958")
    for connection in halves:
        connection._too_late()  # as its timer does
    for reader, writer in slow:
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()
    await tools.until(lambda: not client.relay._handshakes)
    assert (await client.request("GET", "/healthz")).status_code == 200


async def test_a_fast_sender_is_read_more_slowly_and_loses_nothing(serve, tools):
    client = await serve(bytes_per_second=400_000, burst=50_000)
    producer, consumer = await client.pair()
    messages = [bytes([index]) * 10_000 for index in range(20)]
    for message in messages:
        await producer.send(message)
    assert [await tools.receive(consumer) for _ in messages] == messages
    # 200 kB at 400 kB/s with a burst of 50 kB: the last read may pass ahead of its time, the others were paid for.
    assert client.relay.metrics.paused_seconds > 0


async def test_a_silent_socket_is_closed_and_its_peer_is_told(serve, tools):
    client = await serve()
    channel = await client.open()
    _, writer = await client.raw(client.handshake(channel, "consumer"))  # which never answers a ping
    await tools.until(lambda: client.relay.metrics.joins == 1)
    (silent,) = client.relay._sockets
    producer = await client.join(channel, "producer")
    assert await tools.receive(producer) == tools.PRESENT
    silent.check(silent.heard + 44)
    assert client.relay.metrics.closes == {}
    silent.check(silent.heard + 46)
    assert await tools.receive(producer) == tools.ALONE
    assert client.relay.metrics.closes == {1011: 1}
    writer.close()


async def test_a_socket_that_answers_pings_may_wait_alone(serve, tools):
    client = await serve()
    channel = await client.open()
    producer = await client.join(channel, "producer")
    assert await tools.receive(producer) == tools.ALONE
    (socket,) = client.relay._sockets
    for _ in range(5):
        before = socket.heard = socket.heard - 1  # a loop's clock may tick as slowly as each millisecond
        socket._pinged = before - 15
        socket.check(before + 44)
        await tools.until(lambda: socket.heard > before)  # noqa: B023
    assert client.relay.metrics.closes == {}
    await client.join(channel, "consumer")
    assert await tools.receive(producer) == tools.ATTACHED


async def stall(client, tools, megabytes):
    """A producer that offers megabytes to a consumer that reads nothing; what it offers, and the consumer."""
    channel = await client.open()
    reader, writer = await client.raw(client.handshake(channel, "consumer"), buffer=4096)
    await tools.until(lambda: client.relay.metrics.joins == 1)
    producer = await client.join(channel, "producer")
    assert await tools.receive(producer) == tools.PRESENT

    async def offer():
        for index in range(megabytes * 64):
            await producer.send(index.to_bytes(4, "big") * 4096)

    return asyncio.create_task(offer()), (reader, writer), producer


async def test_a_stalled_consumer_stalls_its_producer_and_costs_bounded_memory(serve, tools):
    client = await serve(bytes_per_second=2**40, burst=2**40)
    before = psutil.Process().memory_info().rss
    offering, (reader, writer), _ = await stall(client, tools, megabytes=48)
    sockets = client.relay._sockets
    await tools.until(lambda: any(socket.full for socket in sockets))
    peak = 0
    # Bytes forwarded stand still although most of the offer is outstanding.
    seen = -1
    while seen != client.relay.metrics.bytes:
        seen = client.relay.metrics.bytes
        for _ in range(40):
            await asyncio.sleep(0.005)
            peak = max(peak, sum(socket.transport.get_write_buffer_size() for socket in sockets))
    assert not offering.done()
    assert seen < 24 * 2**20
    # The buffer, and at most one read of asyncio's size on top.
    assert 0 < peak <= client.relay.limits.buffer + 256 * 1024 + 64 * 1024
    assert psutil.Process().memory_info().rss - before < 24 * 2**20
    # The consumer wakes up: everything comes, in order.
    reader._limit = 2**20
    count = 0
    async with asyncio.timeout(60):
        await reader.readuntil(b"\r\n\r\n")
        while count < 48 * 64:
            first, second = await reader.readexactly(2)
            size = second if second < 126 else int.from_bytes(await reader.readexactly(2), "big")
            body = await reader.readexactly(size)
            if first == 0x82 and size > 11:
                assert body == count.to_bytes(4, "big") * 4096
                count += 1
    await offering
    assert client.relay.metrics.dropped == 0
    assert client.relay.metrics.paused_seconds > 0
    writer.close()


async def test_a_stalled_consumer_is_closed_in_the_end_and_the_producer_lives_on(serve, tools):
    client = await serve(close_timeout=3600, bytes_per_second=2**40)
    offering, (_, writer), producer = await stall(client, tools, megabytes=48)
    await tools.until(lambda: any(socket.full for socket in client.relay._sockets))
    stalled, sender = sorted(client.relay._sockets, key=lambda socket: socket.role)
    await tools.until(lambda: sender._paused)
    # Neither is to blame for its silence: one is not read, the pong of the other waits behind what it doesn't take.
    for socket in (stalled, sender):
        socket.check(stalled._stalled_since + 100)
    assert client.relay.metrics.closes == {}
    stalled.check(stalled._stalled_since + 121)
    async with asyncio.timeout(30):
        await offering  # at once, and what is for nobody is dropped
    assert client.relay.metrics.closes == {4011: 1}
    assert client.relay.metrics.dropped > 0
    assert await tools.receive(producer) == tools.ALONE
    writer.close()


async def test_a_consumer_that_takes_little_is_slow_and_not_stalled(serve, tools):
    client = await serve(bytes_per_second=2**40)
    offering, (_, writer), _ = await stall(client, tools, megabytes=48)
    await tools.until(lambda: any(socket.full for socket in client.relay._sockets))
    (stalled,) = (socket for socket in client.relay._sockets if socket.full)
    stalled._stalled_at += 1  # it took a byte since the last look
    later = stalled._stalled_since + 121
    stalled.check(later)
    assert client.relay.metrics.closes == {}
    assert stalled._stalled_since == later
    offering.cancel()
    writer.close()
    with suppress(asyncio.CancelledError, ConnectionClosed):
        await offering


async def test_a_stalled_channel_does_not_hold_up_another(serve, tools):
    client = await serve(bytes_per_second=2**40)
    offering, (_, writer), _ = await stall(client, tools, megabytes=48)
    await tools.until(lambda: any(socket.full for socket in client.relay._sockets))
    producer, consumer = await client.pair()
    for index in range(100):
        await producer.send(bytes([index]))
        assert await tools.receive(consumer) == bytes([index])
    offering.cancel()
    writer.close()
    with suppress(asyncio.CancelledError, ConnectionClosed):
        await offering


async def test_a_consumer_that_comes_back_is_not_held_up_by_its_old_socket(serve, tools):
    client = await serve(bytes_per_second=2**40, close_timeout=0.2)
    channel, token = await client.open(), tools.join_token()
    _, writer = await client.raw(client.handshake(channel, "consumer", token), buffer=4096)
    await tools.until(lambda: client.relay.metrics.joins == 1)
    producer = await client.join(channel, "producer")
    await tools.receive(producer)

    async def offer():
        for _ in range(64 * 64):
            await producer.send(bytes(16000))
        await producer.send(b"last")

    offering = asyncio.create_task(offer())
    await tools.until(lambda: any(socket.full for socket in client.relay._sockets))
    consumer = await client.join(channel, "consumer", token)
    while await tools.receive(consumer) != b"last":
        pass
    await offering
    writer.close()


async def test_a_producer_that_comes_back_is_held_up_like_the_one_before(serve, tools):
    client = await serve(close_timeout=3600, bytes_per_second=2**40)
    channel, token = await client.open(), tools.join_token()
    _, writer = await client.raw(client.handshake(channel, "consumer"), buffer=4096)
    await tools.until(lambda: client.relay.metrics.joins == 1)
    producer = await client.join(channel, "producer", token)

    async def offer():
        with suppress(ConnectionClosed):
            while True:
                await producer.send(bytes(16000))

    offering = asyncio.create_task(offer())
    (old,) = (socket for socket in client.relay._sockets if socket.role == "producer")
    await tools.until(lambda: old._paused)
    await client.join(channel, "producer", token)
    await tools.until(lambda: old not in client.relay._sockets)
    await offering
    (new,) = (socket for socket in client.relay._sockets if socket.role == "producer")
    assert new._paused
    assert not new.transport.is_reading()
    writer.close()


async def test_a_sender_that_is_held_up_still_gets_its_close_answered(serve, tools):
    client = await serve(close_timeout=3600, bytes_per_second=2**40)
    offering, (_, writer), producer = await stall(client, tools, megabytes=48)
    (sender,) = (socket for socket in client.relay._sockets if socket.role == "producer")
    await tools.until(lambda: sender._paused)
    sender.dismiss(1001, "")
    assert await tools.closed(producer) == 1001
    await tools.until(lambda: sender not in client.relay._sockets)
    with suppress(ConnectionClosed):
        await offering
    writer.close()


async def test_pings_of_someone_who_does_not_read_pile_up_nothing(serve, tools):
    client = await serve(bytes_per_second=2**40)
    channel = await client.open()
    _, writer = await client.raw(client.handshake(channel, "consumer"), buffer=4096)
    await tools.until(lambda: client.relay.metrics.joins == 1)
    (socket,) = client.relay._sockets
    ping = b"\x89\xfd" + bytes(4) + bytes(125)
    async with asyncio.timeout(60):
        for _ in range(400):
            writer.write(ping * 500)
            await writer.drain()
    assert socket.full
    assert socket.transport.get_write_buffer_size() <= client.relay.limits.buffer + 1024
    writer.close()


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 5000)), max_size=60))
def test_a_bucket_never_lets_more_pass_than_its_burst_and_rate(takes):
    bucket, now, taken = Bucket(1000.0, 5000, 0.0), 0.0, 0
    for pause, size in takes:
        now += pause
        wait = bucket.take(size, now)
        taken += size
        now += wait
        assert taken <= 5000 + 1000 * now + 1e-3


@given(st.integers(1, 20), st.lists(st.floats(0, 70), min_size=1, max_size=100))
def test_a_rate_window_is_never_exceeded_twofold_and_its_wait_is_enough(limit, pauses):
    window, now, passed = RateWindow(), 0.0, []
    for pause in pauses:
        now += pause
        wait = window.wait("name", limit, now)
        if wait:
            assert 0 < wait <= 120
            assert window.wait("name", limit, now + wait + 1e-6) == 0
            continue
        window.count("name", now)
        passed.append(now)
        assert sum(1 for then in passed if now - then < 60) <= 2 * limit


def test_a_rate_window_remembers_a_bounded_number_of_names():
    window = RateWindow(names=10)
    for name in range(1000):
        window.count(name, 0.0)
    assert len(window._counts) == 10


PROXIES = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("::1/128"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "source"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.7", "192.0.2.1"),  # a stranger's header is not believed
        ("10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.7", "198.51.100.7"),  # what the client wrote itself is not believed
        ("10.0.0.1", "203.0.113.9, 198.51.100.7, 10.0.0.2", "198.51.100.7"),
        ("10.0.0.1", "198.51.100.7, garbage", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3", "10.0.0.3"),
        ("::1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8::1", None, "2001:db8::/64"),
        ("::ffff:192.0.2.1", None, "192.0.2.1"),
        ("::ffff:10.0.0.1", "192.0.2.9", "192.0.2.9"),
        ("", None, "unknown"),
    ],
)
def test_the_source_is_the_address_that_a_trusted_proxy_saw(peer, forwarded, source):
    assert source_of(peer, forwarded, PROXIES) == source


async def test_addresses_behind_a_trusted_proxy_are_told_apart(serve):
    client = await serve(behind_proxy=True, joins_per_minute_source=1)
    for address in ("192.0.2.1", "192.0.2.2"):
        assert (await client.post(headers={"X-Forwarded-For": address})).status_code == 201
        assert (await client.post(headers={"X-Forwarded-For": address})).status_code == 429


async def test_addresses_claimed_by_a_stranger_are_not_believed(serve):
    client = await serve(joins_per_minute_source=1)
    assert (await client.post(headers={"X-Forwarded-For": "192.0.2.1"})).status_code == 201
    assert (await client.post(headers={"X-Forwarded-For": "192.0.2.2"})).status_code == 429
