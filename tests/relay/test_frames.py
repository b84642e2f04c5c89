"""Whatever the bytes, parsing raises a `RelayError` or nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.relay.errors import RelayError
from aiflow_jupyter.relay.frames import (
    End,
    Flag,
    Kind,
    State,
    Status,
    header,
    pack_beat,
    pack_data,
    pack_end,
    pack_state,
    unpack_batch,
    unpack_beat,
    unpack_data,
    unpack_end,
    unpack_hint,
    unpack_state,
    unpack_value,
)

PARSERS = [header, unpack_data, unpack_batch, unpack_value, unpack_end, unpack_state, unpack_beat, unpack_hint]
u64 = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("parse", PARSERS)
@given(data=st.binary(max_size=600))
@settings(max_examples=300)
def test_any_bytes(parse, data):
    try:
        parse(data)
    except RelayError as error:
        assert error.code.startswith("AF92")


@pytest.mark.parametrize("parse", PARSERS)
@given(data=st.data())
@settings(max_examples=200)
def test_what_is_almost_right(parse, data):
    real = data.draw(
        st.sampled_from(
            [
                pack_end(End(Status.OK, 1, 2, bytes(32), "word"), 64),
                pack_state(State(1, 2, 3, Flag.CANCEL), 64),
                pack_beat(9, 64),
                pack_data(Kind.BATCH, b"\xdc\x00\x02\xa1a\xa1b", 64),
                b"\x01\x02" + bytes(8) + bytes(80),
            ]
        )
    )
    body = bytearray(real)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))]
    try:
        parse(bytes(body))
    except RelayError as error:
        assert error.code.startswith("AF92")


@given(st.sampled_from(Status), u64, u64, st.binary(min_size=32, max_size=32), st.text(), st.integers(0, 100))
def test_an_end_comes_back(status, items, frames, digest, message, pad):
    end = unpack_end(pack_end(End(status, items, frames, digest, message), pad))
    assert (end.status, end.items, end.frames, end.digest) == (status, items, frames, digest)
    assert message.encode("utf-8", "replace").startswith(end.message.encode())


@given(u64, u64, u64, st.integers(0, 7), st.integers(0, 100))
def test_a_state_comes_back(ack, frames, size, flags, pad):
    state = State(ack, frames, size, Flag(flags))
    assert unpack_state(pack_state(state, pad)) == state


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of four thousand million
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x91" * 5000,  # nested without end
        b"\xc7\x00\x05",  # an extension type of no bytes
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\x81\x01\x02",  # a map with a number as key
        b"\x81\x90\x02",
        b"\xa1\xff",  # text that is no UTF-8
        b"\xc1",
        b"\x01\x02",  # more than one value
        b"",
    ],
)
def test_msgpack_that_is_not_plain_data_is_refused(payload):
    with pytest.raises(RelayError) as caught:
        unpack_value(payload)
    assert caught.value.code == "AF926"


@pytest.mark.parametrize("payload", [b"\x90", b"\xa1a", b"\x01", b"\x80"])
def test_a_batch_is_a_list_of_at_least_one(payload):
    with pytest.raises(RelayError):
        unpack_batch(payload)
