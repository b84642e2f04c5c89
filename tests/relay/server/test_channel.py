"""Two ends of a channel: who is told what, who may come back, who is kept out, when it is over."""

from __future__ import annotations

import asyncio
import time

import pytest


async def test_opens_a_channel_with_a_capability_for_each_end_that_lasts_a_day(serve):
    client = await serve()
    answer = await client.post()
    assert answer.status_code == 201
    channel = answer.json()
    assert set(channel) == {"channel", "producer", "consumer", "not_after"}
    assert len(bytes.fromhex(channel["channel"])) == 16
    assert channel["producer"] != channel["consumer"]
    assert channel["producer"].isascii()
    assert abs(channel["not_after"] - time.time() - 24 * 3600) < 60


async def test_a_lifetime_is_what_was_asked_for_but_never_over_the_maximum(serve):
    client = await serve(max_lifetime=1000, wall=lambda: 5000.0)
    assert (await client.open(not_after=5500))["not_after"] == 5500
    assert (await client.open(not_after=5500.5))["not_after"] == 5500
    assert (await client.open(not_after=10**400))["not_after"] == 6000
    assert (await client.open())["not_after"] == 6000


async def test_every_channel_is_another(serve):
    client = await serve()
    assert len({(await client.open())["channel"] for _ in range(20)}) == 20


async def test_ends_hear_who_is_there_and_messages_pass_both_ways_unchanged(serve, tools):
    client = await serve()
    channel = await client.open()
    consumer = await client.join(channel, "consumer")
    assert consumer.subprotocol == "aiflow-relay.1"
    assert consumer.response.headers.get("Sec-WebSocket-Extensions") is None
    assert await tools.receive(consumer) == tools.ALONE
    producer = await client.join(channel, "producer")
    assert await tools.receive(producer) == tools.PRESENT
    assert await tools.receive(consumer) == tools.ATTACHED
    for size in (0, 1, 125, 126, 127, 4096, 16 * 1024 + 64):
        message = bytes(index % 251 for index in range(size))
        await producer.send(message)
        assert await tools.receive(consumer) == message
        await consumer.send(message)
        assert await tools.receive(producer) == message


async def test_a_message_in_fragments_arrives_whole(serve, tools):
    client = await serve()
    producer, consumer = await client.pair()
    await producer.send([b"ab", b"", b"cd"])
    assert await tools.receive(consumer) == b"abcd"


async def test_many_messages_keep_their_order(serve, tools):
    client = await serve()
    producer, consumer = await client.pair()
    messages = [index.to_bytes(4, "big") * (index % 300) for index in range(3000)]

    async def send():
        for message in messages:
            await producer.send(message)

    sending = asyncio.create_task(send())
    assert [await tools.receive(consumer) for _ in messages] == messages
    await sending


async def test_a_frame_for_an_absent_peer_is_dropped_and_not_kept(serve, tools):
    client = await serve()
    channel = await client.open()
    producer = await client.join(channel, "producer")
    await producer.send(b"nobody hears this")
    await tools.until(lambda: client.relay.metrics.dropped == 1)
    consumer = await client.join(channel, "consumer")
    await tools.receive(consumer)
    await producer.send(b"now")
    assert await tools.receive(consumer) == b"now"


async def test_the_other_end_hears_that_it_is_alone(serve, tools):
    client = await serve()
    producer, consumer = await client.pair()
    producer.transport.abort()
    assert await tools.receive(consumer) == tools.ALONE


async def test_the_same_join_token_replaces_the_old_socket(serve, tools):
    client = await serve()
    channel = await client.open()
    token = tools.join_token()
    old = await client.join(channel, "producer", token)
    consumer = await client.join(channel, "consumer")
    assert await tools.receive(consumer) == tools.PRESENT
    new = await client.join(channel, "producer", token)
    assert await tools.receive(new) == tools.PRESENT
    assert await tools.receive(consumer) == tools.ATTACHED
    assert await tools.closed(old) == 4009
    await new.send(b"from the new one")
    assert await tools.receive(consumer) == b"from the new one"
    await consumer.send(b"to the new one")
    assert await tools.receive(new) == b"to the new one"


async def test_a_lost_end_comes_back_with_its_join_token(serve, tools):
    client = await serve()
    channel = await client.open()
    token = tools.join_token()
    for _ in range(3):
        end = await client.join(channel, "consumer", token)
        assert await tools.receive(end) == tools.ALONE
        end.transport.abort()
        await end.wait_closed()


async def test_a_third_party_is_refused_and_both_ends_are_told(serve, tools):
    client = await serve()
    channel = await client.open()
    producer, consumer = await client.pair(channel)
    for role in ("producer", "consumer"):
        assert await client.refused(channel, role) == (409, "AF954")
        assert await tools.receive(producer) == tools.THIRD_PARTY
        assert await tools.receive(consumer) == tools.THIRD_PARTY
    await producer.send(b"undisturbed")
    assert await tools.receive(consumer) == b"undisturbed"


async def test_a_third_party_can_not_take_the_place_of_an_end_that_is_away(serve, tools):
    client = await serve()
    channel = await client.open()
    token = tools.join_token()
    end = await client.join(channel, "producer", token)
    await end.close()
    assert await client.refused(channel, "producer") == (409, "AF954")
    await client.join(channel, "producer", token)


@pytest.mark.parametrize("first", ["producer", "consumer"])
async def test_a_finished_channel_delivers_what_is_in_flight_and_is_never_used_again(serve, tools, first):
    client = await serve()
    channel = await client.open()
    tokens = {role: tools.join_token() for role in ("producer", "consumer")}
    one = await client.join(channel, first, tokens[first])
    second = "consumer" if first == "producer" else "producer"
    other = await client.join(channel, second, tokens[second])
    assert await tools.receive(other) == tools.PRESENT
    last = [bytes([index]) * 16000 for index in range(60)]
    for message in last:
        await one.send(message)
    await one.close(4001)
    assert [await tools.receive(other) for _ in last] == last
    assert await tools.closed(other) == 4010
    for role, token in tokens.items():
        assert await client.refused(channel, role, token) == (410, "AF955")
        assert await client.refused(channel, role) == (410, "AF955")
    assert len(client.relay.channels) == 0
    assert client.relay.metrics.channels_finished == 1
    assert client.relay.metrics.closes == {4010: 1}


async def test_an_end_that_does_not_leave_a_finished_channel_is_cut(serve, tools):
    client = await serve(close_timeout=0.05)
    channel = await client.open()
    reader, _ = await client.raw(client.handshake(channel, "producer"))  # answers no close
    await tools.until(lambda: client.relay.metrics.joins == 1)
    consumer = await client.join(channel, "consumer")
    await consumer.close(4001)
    await tools.until(lambda: not client.relay._sockets)
    assert (4010).to_bytes(2, "big") in await reader.read()


async def test_a_channel_that_both_ends_have_left_is_finished_after_a_while(serve, tools):
    client = await serve(abandon_timeout=0.2)
    channel, queued = await client.open(), await client.open()
    ends = [*await client.pair(channel), await client.join(queued, "consumer")]
    for end in ends:
        end.transport.abort()
    await tools.until(lambda: client.relay.metrics.channels_abandoned == 1)
    assert await client.refused(channel, "consumer") == (410, "AF955")
    # Nobody has come as its producer yet: that one may stand in a queue.
    assert len(client.relay.channels) == 1
    await client.join(queued, "producer")


async def test_a_channel_is_not_given_up_while_an_end_is_there_or_comes_back_in_time(serve, tools):
    client = await serve()
    channel, token = await client.open(), tools.join_token()
    producer = await client.join(channel, "producer", token)
    consumer = await client.join(channel, "consumer")
    await consumer.close()
    (open_,) = client.relay.channels._open.values()
    expire, wall = client.relay.channels.expire, channel["not_after"] - 10
    assert await tools.receive(producer) == tools.ALONE
    assert await tools.receive(producer) == tools.ATTACHED
    assert await tools.receive(producer) == tools.ALONE
    assert expire(wall, open_.left + 36000) == []
    await producer.close()
    await tools.until(lambda: not open_.ends)
    assert expire(wall, open_.left + 3599) == []
    assert expire(wall, open_.left + 3601) == [open_]


async def test_any_other_close_leaves_the_channel_to_be_joined_again(serve, tools):
    client = await serve()
    channel = await client.open()
    token = tools.join_token()
    for code in (1000, 1001, 4000, 4002):
        end = await client.join(channel, "producer", token)
        await end.close(code)
    await client.join(channel, "producer", token)


async def test_a_replaced_socket_can_not_finish_the_channel(serve, tools):
    client = await serve(close_timeout=30)
    channel = await client.open()
    token = tools.join_token()
    _, writer = await client.raw(client.handshake(channel, "producer", token))
    await tools.until(lambda: client.relay.metrics.joins == 1)
    new = await client.join(channel, "producer", token)
    # A close frame with code 4001, masked with zeros, on the old connection.
    writer.write(b"\x88\x82\0\0\0\0" + (4001).to_bytes(2, "big"))
    writer.close()
    await tools.until(lambda: len(client.relay._sockets) == 1)
    assert len(client.relay.channels) == 1
    consumer = await client.join(channel, "consumer")
    await tools.receive(consumer)
    await new.send(b"goes on")
    assert await tools.receive(consumer) == b"goes on"


async def test_an_expired_capability_is_refused_but_an_attached_channel_is_not_cut(serve, tools):
    now = [1000.0]
    client = await serve(wall=lambda: now[0], ping_interval=0.1, idle_timeout=20)
    channel = await client.open(not_after=2000)
    token = tools.join_token()
    producer = await client.join(channel, "producer", token)
    consumer = await client.join(channel, "consumer")
    await tools.receive(consumer)
    now[0] = 3000.0
    swept = asyncio.Event()
    expire = client.relay.channels.expire
    client.relay.channels.expire = lambda *times: (swept.set(), expire(*times))[1]
    await swept.wait()
    await producer.send(b"still here")
    assert await tools.receive(consumer) == b"still here"
    assert await client.refused(channel, "producer", token) == (401, "AF952")
    await producer.close()
    # The one that is left waits for nobody: the other can't come back.
    assert await tools.closed(consumer) == 4012
    await tools.until(lambda: len(client.relay.channels) == 0)


async def test_two_hundred_channels_at_once_keep_their_messages_apart(serve, tools):
    client = await serve(channels_per_minute=1000)
    channels = await asyncio.gather(*(client.open() for _ in range(200)))
    pairs = await asyncio.gather(*(client.pair(channel) for channel in channels))

    async def talk(index, producer, consumer):
        sent = [f"{index}:{count}".encode() for count in range(30)]

        async def produce():
            for message in sent:
                await producer.send(message)
                await asyncio.sleep(0)

        sending = asyncio.create_task(produce())
        assert [await tools.receive(consumer) for _ in sent] == sent
        await sending
        await consumer.send(f"{index}:thanks".encode())
        assert await tools.receive(producer) == f"{index}:thanks".encode()

    await asyncio.gather(*(talk(index, *pair) for index, pair in enumerate(pairs)))
    assert client.relay.metrics.frames == 200 * 31
    assert client.relay.metrics.dropped == 0
