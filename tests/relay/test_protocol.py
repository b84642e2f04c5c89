"""Two honest ends over lines that cut, lose and repeat."""

import os
import random

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lines import CHANNEL, SECRET, Line, joined

from aiflow_jupyter.relay.errors import (
    DeliveryUnknown,
    PeerLost,
    RelayError,
    SecondConsumer,
    SecondProducer,
    StateError,
    StreamCancelled,
    StreamStalled,
    ValueRefused,
)
from aiflow_jupyter.relay.frames import (
    HEADER,
    MAX_FRAME,
    MAX_VALUE,
    TAG_BYTES,
    Flag,
    Hint,
    State,
    Status,
    Type,
    pack_hint,
    pack_state,
)
from aiflow_jupyter.relay.protocol import Consumer, Producer, StreamLimits, pack


def kinds(frames):
    return [Type(frame[1]).name for frame in frames]


class TestMeeting:
    @pytest.mark.parametrize("order", [("producer", "consumer"), ("consumer", "producer")])
    def test_ends_meet_whoever_comes_first_and_though_the_first_hello_is_lost(self, order):
        line = Line()
        line.attach(order[0])
        line.down.clear()
        line.up.clear()
        line.attach(order[1])
        line.deliver()
        assert line.producer.joined
        assert line.consumer.joined

    def test_ends_meet_without_any_hint_when_every_hello_but_the_last_is_lost(self):
        line = Line()
        line.attach()
        line.down.clear()
        line.up.clear()
        line.wait(3)
        assert line.producer.joined

    def test_two_ends_do_not_greet_each_other_for_ever(self):
        line = joined()
        assert kinds(line.seen).count("OPEN") <= 2
        assert kinds(line.seen_up).count("OPEN") <= 2

    def test_the_first_token_needs_no_round_trip_after_the_consumers_hello(self):
        line = Line()
        line.attach("producer")
        line.producer.send(pack("first"), 0)
        line.attach("consumer")
        line.producer.receive(line.up.popleft(), 0)
        assert kinds(line.producer.data_to_send()) == ["OPEN", "DATA"]

    def test_an_end_that_is_alone_says_hello_seldom(self):
        line = Line()
        line.attach("consumer")
        line.consumer.receive(b"\x01\x00" + bytes(8) + bytes([Hint.ALONE]), 0)
        line.wait(60, deliver=False)
        assert len(line.seen_up) <= 6

    def test_a_second_producer_fails_by_name_at_both_ends(self):
        line = joined()
        line.send("a")
        line.deliver()
        twin = Producer(SECRET, CHANNEL)
        twin.attach(line.now)
        hello = twin.data_to_send()[0]
        with pytest.raises(SecondProducer):
            line.consumer.receive(hello, line.now)
        other = joined()
        other.attach("consumer")
        other.consumer.detach(other.now)
        other.consumer.attach(other.now)
        with pytest.raises(SecondProducer):
            twin.receive(other.producer._opening.__class__(SECRET, CHANNEL, b"C").pack(b"c" * 16, b"p" * 16), 0)

    def test_a_second_consumer_fails_by_name_at_both_ends(self):
        line = joined()
        restarted = Consumer(SECRET, CHANNEL)
        restarted.attach(line.now)
        hello = line.producer._opening.pack(line.producer._salt, line.producer._peer_salt)
        with pytest.raises(SecondConsumer):
            restarted.receive(hello, line.now)
        with pytest.raises(SecondConsumer):
            line.producer.receive(restarted.data_to_send()[0], line.now)

    def test_a_third_party_is_noticed_and_changes_nothing(self):
        line = joined()
        line.hint(Hint.CROWDED)
        assert line.producer.crowded
        assert line.consumer.crowded
        line.send("a")
        line.deliver()
        assert line.got == ["a"]


class TestValues:
    @pytest.mark.parametrize(
        "values",
        [
            ["", "", b"", [], {}, None, False, 0],
            ["ünï", "🜁" * 5000, "a" * 16383, "a" * 20000],
            [b"\x00" * 100_000, "after", {"dtype": "<f4", "shape": [2, 2], "data": bytes(16)}],
            [2**64 - 1, -(2**63), 1.5, float("inf")],
            ["x" * size for size in range(16290, 16330)],
        ],
    )
    def test_values_arrive_as_they_were(self, values):
        line = joined()
        for value in values:
            line.send(value)
        line.end()
        line.settle()
        assert line.got == values
        assert line.consumer.over
        assert line.producer.over
        assert line.consumer.end.items == len(values)

    @given(st.lists(st.binary(max_size=40_000), max_size=8), st.integers(0, 200))
    @settings(max_examples=60, deadline=None)
    def test_no_frame_is_longer_than_16_kib_whatever_the_values_and_the_padding(self, values, padding):
        line = joined(StreamLimits(pad=padding))
        for value in values:
            line.send(value)
        line.end()
        line.settle()
        assert line.got == values
        assert max(map(len, line.seen)) <= MAX_FRAME

    def test_a_frames_length_is_told_only_in_steps_of_64_bytes(self):
        line = joined()
        for size in range(100):
            line.send("x" * size)
            line.now += 1
        line.deliver()
        line.end(Status.ERROR, "because")
        line.settle()
        inner = {len(f) - HEADER.size - TAG_BYTES for f in line.seen + line.seen_up if f[1] > Type.OPEN}
        assert all(size % 64 == 0 for size in inner)

    def test_padding_can_be_turned_off(self):
        line = joined(StreamLimits(pad=0))
        line.send("x")
        assert len(line.down[0]) < 40

    @pytest.mark.parametrize("value", [object(), 2**64, {1, 2}, "\ud800", 1j])
    def test_what_does_not_travel_is_refused_before_it_is_sent(self, value):
        with pytest.raises(ValueRefused):
            pack(value)

    def test_a_value_beyond_the_limit_is_refused_at_both_ends(self):
        with pytest.raises(ValueRefused):
            pack(bytes(MAX_VALUE))
        line = joined(StreamLimits(window_bytes=32 << 20, resend_bytes=32 << 20, window_frames=10_000))
        line.producer.send(msgpack.packb(bytes(MAX_VALUE + 100_000)), line.now)
        with pytest.raises(ValueRefused, match="more than"):
            line.settle()

    def test_an_extension_type_is_refused_by_the_consumer(self):
        line = joined()
        line.producer.send(b"\xd4\x01x", line.now)
        with pytest.raises(ValueRefused):
            line.deliver()


class TestPacking:
    @given(st.text(max_size=300))
    @example("x" * 31)
    @example("x" * 32)
    @example("\N{GRINNING FACE}" * 63)
    @example("x" * 64)
    def test_a_short_text_is_packed_as_msgpack_does(self, text):
        assert pack(text) == msgpack.packb(text)

    @pytest.mark.parametrize("length", [1, 100])
    def test_a_text_that_is_no_unicode_is_refused(self, length):
        with pytest.raises(ValueRefused):
            pack("\ud800" * length)


class TestCoalescing:
    def test_an_idle_line_sends_at_once_and_a_busy_one_shares_frames(self):
        line = joined()
        line.send("first")
        assert kinds(line.down) == ["DATA"]
        for _ in range(100):
            line.send("more")
        assert kinds(line.down) == ["DATA"]
        line.producer.flush(line.now)
        line.collect()
        assert kinds(line.down) == ["DATA", "DATA"]
        line.deliver()
        assert len(line.got) == 101

    def test_while_the_line_is_written_to_nothing_is_sealed(self):
        line = joined()
        assert not line.producer.send(pack("x"), line.now, busy=True)
        assert line.producer.data_to_send() == []


class TestFlow:
    def test_a_consumer_a_thousand_times_slower_keeps_the_producers_buffer_within_its_bound(self):
        limits = StreamLimits()
        line, highest = joined(limits), 0
        queued = 0
        tokens = [f"token {n}" for n in range(20_000)]
        waiting = iter(tokens)
        for value in waiting:
            line.now += 0.0001
            while line.producer.full:
                line.now += 0.1
                line.got += line.consumer.take(line.now)  # one frame at a time
                line.collect()
                line.deliver(take=False)
                line.producer.flush(line.now)
            line.send(value)
            line.deliver(take=False)
            highest = max(highest, line.producer.buffered)
            queued = max(queued, len(line.consumer._queue))
        line.end()
        line.settle(600)
        assert line.got == tokens
        assert line.consumer.over
        assert highest <= limits.resend_bytes + limits.pending_bytes + MAX_FRAME
        assert queued <= limits.window_frames

    def test_nothing_is_sealed_beyond_credit(self):
        line = joined(StreamLimits(window_frames=32))
        for n in range(100):
            line.now += 1
            line.send(n)
            line.deliver(take=False)
        assert kinds(line.seen).count("DATA") == 32

    def test_nothing_is_sealed_beyond_the_resend_buffer(self):
        line = joined(StreamLimits(window_bytes=16 << 20, resend_bytes=64 * 1024))
        line.send(bytes(1 << 20))
        line.collect()
        assert line.producer._stored_bytes <= 64 * 1024

    def test_a_producer_that_ignores_credit_is_found_out(self):
        line = joined(StreamLimits(window_frames=32))
        line.producer._frame_limit = 10**6
        for n in range(100):
            line.now += 1
            line.send(n)
        with pytest.raises(StateError):
            line.deliver(take=False)

    def test_state_is_sent_each_quarter_window_and_not_more_often(self):
        line = joined()
        before = len(line.seen_up)
        for n in range(1000):
            line.now += 0.001
            line.send(n)
            line.deliver()
        assert len(line.seen_up) - before <= 1000 / 64 + 2


class TestResume:
    @pytest.mark.parametrize("end", ["producer", "consumer", "both"])
    @pytest.mark.parametrize("cut", range(16))
    def test_a_cut_at_any_frame_is_repaired(self, cut, end):
        line = joined()
        for n in range(6):
            line.now += 1
            line.send(n)
        line.end()
        line.deliver(cut)
        line.attach(end)
        line.settle()
        assert line.got == line.sent
        assert line.consumer.over
        assert line.producer.over

    @pytest.mark.parametrize("end", ["producer", "consumer"])
    def test_a_reconnection_is_repaired_without_waiting(self, end):
        line = joined()
        line.send("a")
        line.attach(end)
        if end == "consumer":
            line.consumer.receive(pack_hint(Hint.PRESENT), line.now)
        line.deliver()
        assert line.got == ["a"]

    def test_a_producer_holds_when_its_peer_is_away_and_goes_on_from_what_arrived(self):
        line = joined()
        line.hint(Hint.ALONE)
        line.send("a")
        assert line.down == type(line.down)()
        line.consumer.receive(pack_hint(Hint.ATTACHED), line.now)
        line.deliver()
        assert line.got == ["a"]

    @pytest.mark.parametrize("ack", [0, 1, 4, 99])
    def test_an_acknowledgement_of_what_was_never_sent_or_is_long_gone_is_a_contradiction(self, ack):
        line = joined()
        line.send("a")
        line.send("b")
        line.deliver()
        line.consumer._state(line.now)
        line.deliver()
        forged = pack_state(State(ack, 500, 500_000, Flag.NONE), 64)
        frame = line.consumer._seal.seal(Type.STATE, line.consumer._state_seq + 1, forged)
        with pytest.raises(StateError):
            line.producer.receive(frame, line.now)

    def test_a_resend_repeats_the_stored_bytes(self):
        line = joined()
        line.send("once")
        first = line.down[-1]
        for _ in range(3):
            line.attach("producer")
            line.deliver(1)
            line.producer.receive(line.up.popleft(), line.now) if line.up else None
            line.collect()
        assert {f for f in line.seen if f[1] == Type.DATA} == {first}

    @given(st.randoms(use_true_random=False))
    @settings(max_examples=150, deadline=None)
    def test_a_line_that_loses_repeats_and_reorders_still_delivers_everything_once(self, rng: random.Random):
        line = joined()
        for n in range(rng.randrange(40)):
            line.now += rng.choice([0, 0, 1])
            line.send(n)
            for queue in (line.down, line.up):
                chance = rng.random()
                if queue and chance < 0.2:
                    del queue[rng.randrange(len(queue))]
                elif queue and chance < 0.4:
                    queue.insert(rng.randrange(len(queue) + 1), rng.choice(list(queue)))
                elif chance < 0.5:
                    items = list(queue)
                    rng.shuffle(items)
                    queue.clear()
                    queue.extend(items)
            if rng.random() < 0.1:
                line.attach(rng.choice(["producer", "consumer", "both"]))
            line.deliver(rng.randrange(6))
        line.end()
        if rng.random() < 0.5:
            line.down.clear()
        line.settle(60)
        assert line.got == line.sent
        assert line.consumer.over
        assert line.producer.over

    def test_a_lost_tail_is_noticed_without_a_hint_or_a_reconnection(self):
        line = joined()
        line.send("a")
        line.end()
        line.down.clear()
        line.settle(5)
        assert line.got == ["a"]
        assert line.producer.over

    def test_a_lost_last_acknowledgement_is_repeated(self):
        line = joined()
        line.end()
        line.deliver(1)
        line.up.clear()
        line.settle(5)
        assert line.producer.over

    def test_a_consumer_that_sleeps_ten_minutes_comes_back(self):
        limits = StreamLimits(linger=3600)
        line = joined(limits)
        for n in range(50):
            line.now += 1
            line.send(n)
        asleep, line.consumer.tick = line.consumer.next_timer, lambda now: None
        line.consumer.next_timer = lambda: None
        line.wait(600, deliver=False)
        line.down.clear()
        line.up.clear()
        del line.consumer.tick
        line.consumer.next_timer = asleep
        line.consumer.tick(line.now)  # does not blame the producer for its own sleep
        line.collect()
        line.end()
        line.settle(60)
        assert line.got == line.sent
        assert line.producer.over


class TestEnds:
    def test_an_error_travels_with_its_message(self):
        line = joined()
        line.send("a")
        line.end(Status.ERROR, "ValueError: é" + "x" * 5000)
        line.settle()
        assert line.consumer.end.status is Status.ERROR
        assert line.consumer.end.message.startswith("ValueError: é")

    def test_nothing_follows_an_end(self):
        line = joined()
        line.end()
        with pytest.raises(RelayError) as caught:
            line.send("x")
        assert caught.value.code == "AF902"

    @pytest.mark.parametrize("lost", [0, 1, 3])
    def test_a_cancel_takes_effect_though_it_is_lost_some_times(self, lost):
        line = joined()
        for n in range(5000):
            line.send(n)
        line.consumer.cancel(line.now)
        line.collect()
        for _ in range(lost):
            line.up.clear()
            line.wait(1.1, deliver=False)
            line.up.clear()
        line.settle()
        assert line.producer.cancelled
        assert line.producer.over
        assert line.consumer.end.status is Status.CANCELLED
        with pytest.raises(StreamCancelled):
            line.send("more")

    def test_a_cancel_within_a_large_value_ends_the_stream(self):
        line = joined()
        line.send(bytes(4_000_000))
        line.deliver(10, take=False)
        line.consumer.cancel(line.now)
        line.settle()
        assert line.producer.over
        assert line.got == []

    def test_a_cancel_before_anybody_joined_takes_effect_later(self):
        line = Line()
        line.consumer.cancel(0)
        line.attach()
        line.deliver()
        assert line.producer.cancelled

    def test_a_silent_producer_is_given_up_after_15_seconds_and_what_arrived_can_be_taken(self):
        line = joined()
        line.send("a")
        line.consumer.receive(line.down.popleft(), line.now)
        with pytest.raises(PeerLost):
            line.silence(line.consumer, 30)
        assert line.consumer.take(line.now) == ["a"]
        assert not line.consumer.over

    def test_a_producer_that_thinks_for_an_hour_is_not_given_up(self):
        line = joined()
        line.wait(3600)
        line.send("at last")
        line.deliver()
        assert line.got == ["at last"]

    def test_a_silent_consumer_is_given_up_after_its_linger(self):
        line = joined(StreamLimits(linger=20))
        with pytest.raises(PeerLost):
            line.silence(line.producer, 30)

    def test_an_end_without_its_acknowledgement_is_said_to_be_unknown(self):
        line = joined()
        line.end()
        with pytest.raises(DeliveryUnknown):
            line.silence(line.producer, 200)

    def test_a_line_that_lets_only_signs_of_life_through_fails(self):
        line = joined()
        line.send("a")

        def only_beats():
            for _ in range(60):
                line.silence(line.producer, 1)
                line.consumer.tick(line.now)
                for frame in line.producer.data_to_send():
                    if frame[1] == Type.BEAT:
                        line.consumer.receive(frame, line.now)
                for frame in line.consumer.data_to_send():
                    line.producer.receive(frame, line.now)

        with pytest.raises(StreamStalled):
            only_beats()

    def test_reconnections_without_end_and_without_anything_new_fail(self):
        line = joined(StreamLimits(resumes=5))
        line.send("a")
        for _ in range(5):
            line.attach("consumer")
        with pytest.raises(StreamStalled):
            line.attach("consumer")

    def test_a_failed_end_raises_the_same_error_from_then_on(self):
        line = joined()
        with pytest.raises(RelayError) as first:
            line.consumer.receive(b"", line.now)
        with pytest.raises(RelayError) as second:
            line.consumer.tick(line.now)
        assert first.value is second.value

    def test_a_consumer_that_fails_stops_the_source(self):
        line = joined()
        with pytest.raises(RelayError):
            line.consumer.receive(os.urandom(30), line.now)
        line.collect()
        line.producer.receive(line.up.popleft(), line.now)
        assert line.producer.cancelled


@pytest.mark.parametrize(
    "bad", [{"window_frames": 1}, {"window_bytes": 1}, {"resend_bytes": 1}, {"pad": -1}, {"pad": 2000}, {"beat": 0}]
)
def test_limits_that_can_not_work_are_refused(bad):
    with pytest.raises(RelayError):
        StreamLimits(**bad)
