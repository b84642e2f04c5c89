"""The short way past `websockets`: whatever comes, in whatever pieces, arrives as by the long one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from aiflow_jupyter.relay.cutter import Cutter, header, masked
from aiflow_jupyter.relay.errors import RelayError, RelayUnreachable
from aiflow_jupyter.relay.frames import MAX_FRAME
from aiflow_jupyter.relay.link import Link
from aiflow_jupyter.relay.wire import Wire

CHANNEL = "ab" * 16


def frame(data: bytes = b"", opcode: Opcode = Opcode.BINARY, *, fin: bool = True, mask: bool = False) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=mask)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[one:other] for one, other in pairwise(places)]


messages = st.one_of(st.binary(max_size=20), st.integers(100, 70_000).map(bytes))
streams = st.lists(
    st.one_of(
        messages.map(lambda data: [(Opcode.BINARY, data, True)]),
        st.binary(max_size=100).map(lambda data: [(Opcode.PING, data, True)]),
        st.binary(max_size=9).map(
            lambda data: [(Opcode.BINARY, data, False), (Opcode.PONG, b"", True), (Opcode.CONT, data, True)]
        ),
    ),
    max_size=6,
).map(lambda groups: [one for group in groups for one in group])


class TestCutter:
    @given(streams, st.lists(st.integers(0, 1 << 20), max_size=8), st.booleans())
    def test_finds_each_frame_however_the_line_cuts_them(self, frames, cuts, mask):
        cutter = Cutter(1 << 20, masked=mask)
        line = b"".join(frame(data, opcode, fin=fin, mask=mask) for opcode, data, fin in frames)
        got = [one for piece in pieces(line, cuts) for one in cutter.feed(piece)]
        assert [data for whole, data in got if whole] == [
            data for opcode, data, fin in frames if opcode is Opcode.BINARY and fin
        ]
        # What is not the common frame is the same for who reads it next.
        other = Protocol(Side.SERVER if mask else Side.CLIENT, state=State.OPEN)
        for whole, data in got:
            if not whole:
                other.receive_data(data)
        assert [(event.opcode, event.data) for event in other.events_received()] == [
            (opcode, data) for opcode, data, fin in frames if not (opcode is Opcode.BINARY and fin)
        ]
        assert [whole for whole, _ in got] == [opcode is Opcode.BINARY and fin for opcode, _, fin in frames]

    @given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
    def test_loses_no_byte_of_nonsense_and_keeps_little(self, data, cuts):
        cutter = Cutter(64, masked=True)
        for piece in pieces(data, cuts):
            for _ in cutter.feed(piece):
                pass
            assert len(cutter._rest) <= 64 + 14

    @pytest.mark.parametrize("mask", [False, True])
    def test_leaves_what_is_too_large_or_masked_wrongly_and_all_that_follows(self, mask):
        large = frame(bytes(200), mask=mask)
        cutter = Cutter(199, masked=mask)
        assert list(cutter.feed(large[:20])) == [(False, large[:20])]
        assert list(cutter.feed(large[20:])) == [(False, large[20:])]
        wrong = frame(b"abc", mask=not mask)
        assert list(Cutter(199, masked=mask).feed(wrong)) == [(False, wrong)]

    def test_leaves_a_message_within_another(self):
        broken = frame(b"a", fin=False) + frame(b"b")
        cutter = Cutter(9, masked=False)
        assert list(cutter.feed(broken[:3])) == [(False, broken[:3])]
        assert list(cutter.feed(broken[3:6])) == [(False, broken[3:6])]

    @pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
    def test_headers_are_those_of_websockets(self, size):
        data = bytes(size)
        assert header(size) + data == frame(data)
        ((whole, body),) = Cutter(1 << 20, masked=True).feed(masked(data, b"mask"))
        assert whole
        assert body == data


class Relay:
    """Answers a handshake, and then writes what it was given, in the pieces that it was given."""

    def __init__(self, after: bytes = b"", size: int = 1 << 20, serving=None) -> None:
        self.after, self.size = after, size
        self.got = bytearray()
        self.serving = serving or self.serve

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serving, "127.0.0.1", 0)
        self.link = Link(
            f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}", CHANNEL, "consumer", "capability"
        )
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def serve(self, reader, writer):
        line = await self.answer(reader) + self.after
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(line), self.size):
                writer.write(line[at : at + self.size])
                await writer.drain()
                await asyncio.sleep(0)
            while data := await reader.read(4096):
                self.got += data
                if 0x88 in data[:1]:  # a close
                    break
        writer.close()

    async def accept(self, reader, writer):
        writer.write(await self.answer(reader))

    async def answer(self, reader):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Sec-WebSocket-Key"))
        accepted = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest())
        return (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: aiflow-relay.1\r\nSec-WebSocket-Accept: " + accepted + b"\r\n\r\n"
        )


class TestWire:
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
    async def test_what_follows_the_handshake_at_once_is_not_lost(self, size):
        after = (
            frame(b"one") + frame(b"", Opcode.PING) + frame(b"tw", fin=False) + frame(b"o", Opcode.CONT) + frame(b"3")
        )
        async with Relay(after, size) as relay:
            wire = await relay.link.connect()
            got = []
            wire.listen(got.append)
            async with asyncio.timeout(10):
                while len(got) < 3 or not relay.got:
                    await asyncio.sleep(0.001)
            assert got == [b"one", b"two", b"3"]
            assert relay.got[0] == 0x8A  # the pong
            await wire.close()

    async def test_a_text_message_is_handed_on_as_none_that_can_be_meant(self):
        async with Relay(frame(b"text", Opcode.TEXT)) as relay:
            wire = await relay.link.connect()
            got = []
            wire.listen(got.append)
            async with asyncio.timeout(10):
                while not got:
                    await asyncio.sleep(0.001)
            assert isinstance(got[0], str)
            await wire.close()

    @pytest.mark.parametrize(
        ("after", "code"),
        [
            (frame(bytes(MAX_FRAME + 1)), 1009),
            (frame(b"a", mask=True), 1002),
            (frame(b"a", fin=False) + frame(b"b"), 1002),
            (frame(b"a", Opcode.CONT), 1002),
            (b"\xf2\x01a", 1002),
        ],
    )
    async def test_what_is_wrong_ends_the_connection_with_its_code(self, after, code):
        async with Relay(after) as relay:
            wire = await relay.link.connect()
            got = []
            wire.listen(got.append)
            async with asyncio.timeout(10):
                with pytest.raises(ConnectionClosed) as closed:
                    await wire.left()
            assert closed.value.sent.code == code
            assert got == []

    async def test_an_early_flood_is_not_kept(self):
        async with Relay(frame(b"x") * 1000) as relay:
            wire = await relay.link.connect()
            await asyncio.sleep(0.05)
            assert len(wire._early) <= 64
            await wire.close()

    async def test_after_stop_nothing_is_handed_on_and_the_error_is_raised(self):
        async with Relay(frame(b"one") + frame(b"two")) as relay:
            wire = await relay.link.connect()
            got = []

            def listener(message):
                got.append(message)
                wire.stop(RelayError("enough"))

            wire.listen(listener)
            async with asyncio.timeout(10):
                with pytest.raises(RelayError, match="enough"):
                    await wire.left()
            assert got == [b"one"]
            await wire.close()
            wire.write([b"into nowhere"])  # a line that closes loses what is written

    async def test_a_relay_that_answers_before_it_was_asked_is_asked_again_later(self):
        async def refuse(reader, writer):
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            link = Link(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", CHANNEL, "consumer", "capability")
            for _ in range(20):
                with pytest.raises(RelayUnreachable):
                    await link.connect()

        class Early(Wire):
            async def handshake(self, *args, **options):
                self.data_received(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
                await super().handshake(*args, **options)

        async with Relay(b"") as relay:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("aiflow_jupyter.relay.link.Wire", Early)
                with pytest.raises(RelayUnreachable):
                    await relay.link.connect()

    async def test_a_line_that_ends_with_something_still_to_be_written_is_left_as_any_other(self):
        full, read = asyncio.Event(), asyncio.Event()

        async def half_close(reader, writer):
            await relay.accept(reader, writer)
            await full.wait()
            writer.write_eof()
            await read.wait()
            await reader.read()
            writer.close()

        async with Relay(serving=half_close) as relay:
            wire = await relay.link.connect()
            wire.write([bytes(60_000)] * 200)  # more than a line takes that nobody reads
            full.set()
            async with asyncio.timeout(10):
                while wire.protocol.state is not State.CLOSED:
                    await asyncio.sleep(0.001)
                read.set()
                with pytest.raises(ConnectionClosed):
                    await wire.left()
                await wire.wait_closed()
                await wire.leave(4001)

    async def test_who_is_cancelled_while_a_relay_does_not_close_leaves_no_socket_behind(self):
        async def mute(reader, writer):
            await relay.accept(reader, writer)
            with contextlib.suppress(ConnectionError):
                while await reader.read(4096):
                    pass
            writer.close()

        async with Relay(serving=mute) as relay:
            wire = await relay.link.connect()
            leaving = asyncio.create_task(wire.leave(4001))
            while wire.protocol.state is State.OPEN:
                await asyncio.sleep(0)
            leaving.cancel()
            async with asyncio.timeout(10):
                with pytest.raises(asyncio.CancelledError):
                    await leaving
                await wire.wait_closed()

    async def test_a_line_that_is_gone_before_the_request_is_written_is_a_relay_that_is_not_reached(self):
        class Gone(Wire):
            def connection_made(self, transport):  # uvloop leaves it out for a line that is gone by then
                transport.abort()

            def connection_lost(self, error):
                pass

        taken = asyncio.Event()

        async def serve(_, writer):
            taken.set()
            writer.close()

        async with Relay(serving=serve) as relay:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("aiflow_jupyter.relay.link.Wire", Gone)
                with pytest.raises(RelayUnreachable):
                    await relay.link.connect()
            async with asyncio.timeout(10):
                await taken.wait()

    async def test_masks_each_message_anew(self):
        async with Relay(b"") as relay:
            wire = await relay.link.connect()
            for messages in ([b"one"], [], [b"two"], [b"three", b"four"]):
                wire.write(messages)
            async with asyncio.timeout(10):
                while len(relay.got) < 4 * 6 + 15:
                    await asyncio.sleep(0.001)
            line = bytes(relay.got)
            await wire.close()
        other = Protocol(Side.SERVER, state=State.OPEN)
        other.receive_data(line)
        assert [event.data for event in other.events_received()] == [b"one", b"two", b"three", b"four"]
        assert len({line[at : at + 4] for at in (2, 11, 20, 31)}) == 4
