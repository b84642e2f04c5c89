"""The ends of a stream over WebSocket: thin shells with sockets, clocks and waiting around the machines of `protocol`.

    channel = await create_channel("https://relay.example.org", key)

    async with StreamProducer(channel.relay, channel.id, channel.producer, secret) as producer:     # on the cluster
        await producer.wait_for_consumer(30)
        async for token in tokens:
            await producer.send(token)

    async with StreamConsumer(channel.relay, channel.id, channel.consumer, secret) as consumer:     # here
        async for value in consumer:
            print(value, end="")

A lost connection, or a relay that restarts, is waited out for `give_up` seconds and repaired without loss or
repetition. `SyncProducer` is the producing end for plain generators.
"""

from aiflow_jupyter.relay.frames import End, Status
from aiflow_jupyter.relay.link import Channel, create_channel
from aiflow_jupyter.relay.protocol import StreamLimits
from aiflow_jupyter.relay.streams import StreamConsumer, StreamProducer
from aiflow_jupyter.relay.threads import SyncProducer

__all__ = [
    "Channel",
    "End",
    "Status",
    "StreamConsumer",
    "StreamLimits",
    "StreamProducer",
    "SyncProducer",
    "create_channel",
]
