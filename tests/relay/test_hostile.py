"""A relay that does what it likes: never a wrong, missing or repeated value as success.

Every attack ends in an error with a name or is healed by a resend; what was delivered is always a beginning of what was
sent, and an end is only reported when that was all of it.
"""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import CHANNEL, SECRET, Line, joined

from aiflow_jupyter.relay.crypto import Seal
from aiflow_jupyter.relay.errors import (
    FrameAltered,
    FrameError,
    PeerLost,
    RelayError,
    SecondProducer,
    StateError,
    VersionMismatch,
)
from aiflow_jupyter.relay.frames import (
    HEADER,
    MAX_FRAME,
    End,
    Flag,
    Hint,
    Kind,
    State,
    Status,
    Type,
    pack_batch,
    pack_data,
    pack_end,
    pack_hint,
    pack_state,
)
from aiflow_jupyter.relay.protocol import Consumer, Producer, pack

TEXT = ["The ", "dose ", "is ", "", "10 ", "mg"]


def under_way() -> Line:
    """The whole text and its end have been sent; nothing has arrived."""
    line = joined()
    for value in TEXT:
        line.now += 1
        line.send(value)
    line.end()
    assert len(line.down) == len(TEXT) + 1
    return line


def check(line: Line) -> None:
    assert line.got == line.sent[: len(line.got)]
    if line.consumer.over and line.consumer.end.status is Status.OK:
        line.take()
        assert line.got == line.sent


class TestEachAttack:
    @pytest.mark.parametrize("number", range(len(TEXT) + 1))
    def test_a_bit_flipped_anywhere_fails_or_is_healed(self, number):
        size = len(under_way().down[number])
        for at in range(size):
            line = under_way()
            frame = bytearray(line.down[number])
            frame[at] ^= 1 << (at % 8)
            line.down[number] = bytes(frame)
            try:
                line.settle(10)
            except (FrameAltered, FrameError, VersionMismatch):
                line.take()
                assert line.got == TEXT[: len(line.got)]
                assert not line.consumer.over
            else:
                assert line.got == TEXT
            # Only in the sequence may a flip look like a gap or a repetition, which a resend heals.
            assert not line.consumer.over or 1 <= at < HEADER.size

    @pytest.mark.parametrize("end", ["producer", "consumer"])
    def test_a_bit_flipped_in_a_hello_or_a_state_fails_or_changes_nothing(self, end):
        for at in range(200):
            line = Line()
            line.attach()
            queue = line.up if end == "producer" else line.down
            frame = bytearray(queue[0])
            if at >= len(frame):
                break
            frame[at] ^= 0x10
            queue[0] = bytes(frame)
            with pytest.raises((FrameAltered, FrameError, VersionMismatch)):
                line.deliver()

    @pytest.mark.parametrize("kept", range(len(TEXT) + 1))
    def test_a_stream_cut_short_is_never_whole(self, kept):
        line = under_way()
        while len(line.down) > kept:
            line.down.pop()
        frames = list(line.down)
        for frame in frames:
            line.consumer.receive(frame, line.now)
        line.take()
        line.consumer.detach(line.now)  # a clean close
        assert line.got == TEXT[:kept]
        assert not line.consumer.over
        line.consumer.attach(line.now)
        with pytest.raises(RelayError):
            line.silence(line.consumer, 60)

    def test_the_last_frames_held_back_for_ever_are_an_error(self):
        line = under_way()
        held = line.down.pop()
        line.deliver(6)
        for _ in range(40):
            line.now += 1
            try:
                line.consumer.tick(line.now)
            except RelayError:
                break
        else:
            pytest.fail("waits for ever")
        assert held not in line.down
        assert line.consumer.end is None

    @pytest.mark.parametrize("seed", range(20))
    def test_reordered_frames_are_put_right_by_a_resend(self, seed):
        line = under_way()
        frames = list(line.down)
        random.Random(seed).shuffle(frames)
        line.down.clear()
        line.down.extend(frames)
        line.settle()
        assert line.got == TEXT
        assert line.producer.over

    @pytest.mark.parametrize("number", range(len(TEXT) + 1))
    def test_a_dropped_frame_is_sent_again(self, number):
        line = under_way()
        del line.down[number]
        line.settle()
        assert line.got == TEXT
        assert line.consumer.over

    @pytest.mark.parametrize("number", range(len(TEXT) + 1))
    def test_a_repeated_frame_is_delivered_once(self, number):
        line = under_way()
        line.down.insert(number, line.down[number])
        line.down.append(line.down[number])
        line.settle()
        assert line.got == TEXT

    def test_a_frame_of_another_channel_or_epoch_or_stream_is_refused(self):
        for options in ({"channel": bytes(16)}, {"secret": bytes(32)}, {}):
            other = joined(**options)
            other.send("forged")
            line = under_way()
            line.down.appendleft(other.down[0])
            with pytest.raises(FrameAltered):
                line.deliver()
            assert line.got == []

    def test_a_whole_stream_of_an_earlier_pair_is_refused_by_a_new_consumer(self):
        earlier = under_way()
        earlier.deliver()
        late = Consumer(SECRET, CHANNEL)
        late.attach(0)
        hello, *frames = earlier.seen
        late.receive(hello, 0)  # of a producer that may come first: it fits everybody
        with pytest.raises(RelayError):
            late.receive(frames[0], 0)
        assert late.take(0) == []

    def test_an_earlier_hello_with_the_frames_after_it_yields_nothing(self):
        earlier = Line()
        earlier.attach("producer")
        hello = earlier.seen[0]  # before it knew a consumer: it fits everybody
        earlier.attach("consumer")
        earlier.deliver()
        earlier.producer.receive(earlier.consumer._opening.pack(earlier.consumer._salt, bytes(16)), 0)
        earlier.send("old")
        late = Consumer(SECRET, CHANNEL)
        late.attach(0)
        late.receive(hello, 0)
        with pytest.raises(FrameAltered):
            late.receive(next(f for f in earlier.seen if f[1] == Type.DATA), 0)

    def test_a_frame_sent_back_to_its_sender_is_refused(self):
        line = under_way()
        for frame in list(line.down):
            with pytest.raises(FrameError):
                under_way().producer.receive(frame, line.now)
        state = next(f for f in line.seen_up if f[1] == Type.STATE)
        with pytest.raises(FrameError):
            line.consumer.receive(state, line.now)
        hello = next(f for f in line.seen_up if f[1] == Type.OPEN)
        with pytest.raises(FrameAltered):
            joined().consumer.receive(hello, line.now)

    @pytest.mark.parametrize(
        "plain",
        [
            HEADER.pack(1, Type.DATA, 1) + pack_batch([pack("1000 ")], 64),
            HEADER.pack(1, Type.END, 1) + pack_end(End(Status.OK, 0, 0, bytes(32)), 64),
            b'{"type":"token","content":"1000 "}',
            HEADER.pack(1, 9, 1) + bytes(64),
        ],
    )
    def test_plaintext_is_never_accepted(self, plain):
        line = under_way()
        line.down.appendleft(plain)
        with pytest.raises(RelayError):
            line.deliver()
        assert line.got == []

    @pytest.mark.parametrize("seq", [1, 3, len(TEXT) + 1])
    def test_a_forged_end_is_refused(self, seq):
        line = under_way()
        forger = Seal(bytes(32), CHANNEL, b"P", bytes(16), bytes(16))
        line.deliver(seq - 1)
        forged = forger.seal(Type.END, line.consumer._next, pack_end(End(Status.OK, 0, 0, bytes(32)), 64))
        with pytest.raises(FrameAltered):
            line.consumer.receive(forged, line.now)

    def test_an_end_that_does_not_agree_with_the_stream_is_no_end(self):
        line = joined()
        line.send("a")
        line.deliver()
        for end in (
            End(Status.OK, 2, 1, line.producer._digest.digest()),
            End(Status.OK, 1, 2, line.producer._digest.digest()),
            End(Status.OK, 1, 1, bytes(32)),
        ):
            bad = joined()
            bad.send("a")
            bad.deliver()
            bad.producer._store(Type.END, pack_end(end, 64))
            with pytest.raises(RelayError) as caught:
                bad.deliver()
            assert caught.value.code == "AF925"
            assert not bad.consumer.over

    def test_an_end_within_a_value_is_no_end(self):
        line = joined()
        line.producer._store(Type.DATA, pack_data(Kind.PART, b"\xa4ha", 64))
        line.end()
        with pytest.raises(StateError):
            line.deliver()
        assert not line.consumer.over

    def test_a_value_that_breaks_off_into_another_is_refused(self):
        line = joined()
        line.producer._store(Type.DATA, pack_data(Kind.PART, b"\xa4ha", 64))
        line.send("other")
        with pytest.raises(StateError):
            line.deliver()

    def test_a_forged_cancel_or_acknowledgement_is_refused(self):
        line = under_way()
        forger = Seal(bytes(32), CHANNEL, b"C", bytes(16), bytes(16))
        forged = forger.seal(Type.STATE, 99, pack_state(State(8, 99, 99, Flag.CANCEL), 64))
        with pytest.raises(FrameAltered):
            line.producer.receive(forged, line.now)
        assert not line.producer.cancelled

    def test_an_old_state_again_changes_nothing(self):
        line = joined()
        old = next(f for f in line.seen_up if f[1] == Type.STATE)
        line.send("a")
        line.deliver()
        line.consumer._state(line.now)
        line.collect()
        line.deliver()
        before = (line.producer._base, line.producer._cursor)
        line.producer.receive(old, line.now)
        assert (line.producer._base, line.producer._cursor) == before

    def test_the_wrong_key_is_named_and_nothing_is_read(self):
        line = Line(consumer_secret=bytes(32))
        line.attach()
        with pytest.raises(FrameAltered):
            line.deliver()

    @pytest.mark.parametrize("message", [b"", b"\x01", bytes(10), bytes(11), bytes(MAX_FRAME + 1), bytes(1 << 20)])
    def test_messages_of_any_length_are_refused(self, message):
        for end in ("producer", "consumer"):
            line = joined()
            with pytest.raises(RelayError):
                getattr(line, end).receive(message, line.now)

    @pytest.mark.parametrize("version", [0, 2, 255])
    def test_another_version_is_named(self, version):
        line = under_way()
        with pytest.raises(VersionMismatch):
            line.consumer.receive(bytes([version]) + line.down[0][1:], line.now)

    @pytest.mark.parametrize("code", range(6))
    def test_forged_hints_cost_at_most_time(self, code):
        line = under_way()
        hint = pack_hint(Hint.ALONE)[:-1] + bytes([code])
        for _ in range(3):
            line.producer.receive(hint, line.now)
            line.consumer.receive(hint, line.now)
        line.settle(60)
        assert line.got == TEXT
        assert line.producer.over


ATTACKS = ("flip", "cut", "drop", "double", "swap", "replay", "splice", "reflect", "garbage", "hint", "forge", "grow")
HONEST = ("send", "deliver", "reconnect", "wait", "hint", "drop", "double", "swap", "replay")


def play(line: Line, deed: str, rng: random.Random) -> None:
    """One deed: of the ends, of the line, or of a relay on what is under way."""
    if deed == "send":
        line.now += rng.choice([0, 1])
        line.send(f"{len(line.sent)} " * rng.randrange(3))
    elif deed == "deliver":
        line.deliver(rng.randrange(8), take=rng.random() < 0.8)
    elif deed == "reconnect":
        line.attach(rng.choice(["producer", "consumer", "both"]))
    elif deed == "wait":
        line.wait(rng.choice([0.5, 2, 6]), deliver=rng.random() < 0.5)
    elif deed == "hint":
        line.hint(rng.choice(list(Hint)))
    else:
        down = rng.random() < 0.7
        queue = line.down if down else line.up
        at = rng.randrange(len(queue)) if queue else 0
        if (foreign := smuggled(line, deed, rng, down=down)) is not None:
            queue.insert(at, foreign)
        elif queue:
            spoil(queue, at, deed, rng)


def smuggled(line: Line, deed: str, rng: random.Random, *, down: bool) -> bytes | None:
    """What a relay puts in: old, foreign, of the other direction, or its own."""
    same, other = (line.seen, line.seen_up) if down else (line.seen_up, line.seen)
    if deed == "replay":
        return rng.choice(same)
    if deed == "reflect":
        return rng.choice(other)
    if deed == "splice":
        away = joined()
        away.send("spliced")
        return rng.choice(away.seen if down else away.seen_up)
    if deed == "garbage":
        return rng.randbytes(rng.choice([0, 5, 11, 74, 90, 200]))
    if deed == "forge":
        return HEADER.pack(1, rng.choice(list(Type)), rng.randrange(8)) + pack_batch([pack("forged")], 64)
    return None


def spoil(queue: deque[bytes], at: int, deed: str, rng: random.Random) -> None:
    """What a relay does to a message under way."""
    frame = bytearray(queue[at])
    if deed == "flip" and frame:
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
    elif deed == "cut" and frame:
        del frame[rng.randrange(len(frame)) :]
    elif deed == "grow":
        frame += rng.randbytes(rng.choice([1, 16, 64]))
    queue[at] = bytes(frame)
    if deed == "drop":
        del queue[at]
    elif deed == "double":
        queue.insert(at, queue[at])
    elif deed == "swap":
        queue.rotate(rng.randrange(3))


class TestAnyMixture:
    @given(st.lists(st.sampled_from(ATTACKS + HONEST * 2), max_size=40), st.randoms(use_true_random=False))
    @settings(max_examples=400, deadline=None)
    def test_what_is_delivered_is_a_beginning_of_the_truth_and_an_end_means_all_of_it(self, deeds, rng):
        line = joined()
        try:
            for deed in deeds:
                play(line, deed, rng)
                check(line)
            line.end()
            line.attach()
            line.settle(60)
        except RelayError as error:
            assert error.code.startswith("AF9")
            assert error in (line.producer.error, line.consumer.error) or error.code == "AF934"
            line.take()
        else:
            assert line.consumer.over
            assert line.got == line.sent
        check(line)

    @given(st.lists(st.sampled_from(HONEST), max_size=60), st.randoms(use_true_random=False))
    @settings(max_examples=300, deadline=None)
    def test_what_no_forger_did_is_always_healed(self, deeds, rng):
        line = joined()
        for deed in deeds:
            play(line, deed, rng)
            check(line)
        line.end()
        line.attach()
        line.settle(60)
        assert line.got == line.sent
        assert line.consumer.over
        assert line.producer.over

    @given(
        st.sampled_from(["producer", "consumer"]), st.binary(max_size=400) | st.binary(min_size=16000, max_size=17000)
    )
    @settings(max_examples=300, deadline=None)
    def test_any_bytes_raise_a_relay_error_or_nothing(self, end, message):
        for line in (Line(), joined(), under_way()):
            line.attach()
            for body in (message, b"\x01" + message[1:], HEADER.pack(1, len(message) % 7, 1) + message):
                try:
                    getattr(line, end).receive(body, line.now)
                except RelayError:
                    break
            line.take()
            assert line.got == []


def test_a_producer_that_was_started_twice_can_not_mix_its_stream_with_the_first():
    line = under_way()
    twin = Producer(SECRET, CHANNEL)
    twin.attach(0)
    twin.receive(line.consumer._opening.pack(line.consumer._salt, bytes(16)), 0)
    twin.send(pack("other"), 0)
    hello, data = twin.data_to_send()[-2:]
    with pytest.raises(FrameAltered):
        under_way().consumer.receive(data, line.now)
    with pytest.raises(SecondProducer):
        line.consumer.receive(hello, line.now)


def test_a_relay_that_cuts_every_connection_before_anything_gets_through_is_an_error_in_the_end():
    line = under_way()
    line.deliver(2)

    def cut_for_ever():
        for _ in range(200):
            line.attach("consumer")
            line.down.clear()
            line.now += 1
            line.consumer.tick(line.now)

    with pytest.raises(PeerLost):
        cut_for_ever()
