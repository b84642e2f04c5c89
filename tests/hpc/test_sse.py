"""The reader of server-sent events follows the standard, however the bytes are cut."""

from __future__ import annotations

import itertools

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import given
from hypothesis import strategies as st
from stage import recorded

from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.sse import Events


def read(pieces):
    events = Events()
    return [data for piece in pieces for data in events.feed(piece)]


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\n", ["a"]),
        (b"data: a\r\n\r\n", ["a"]),
        (b"data: a\r\r", ["a"]),
        (b"data:a\ndata:b\n\n", ["a\nb"]),
        (b"data:  two\n\n", [" two"]),
        (b": comment\n\ndata: a\n\n", ["a"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", ["a"]),
        (b"data\n\n", [""]),
        (b"data: cut off", []),
        (b"data: cut off\n", []),
        (b"data: \xe2\x80\xa8 no line end\n\n", ["\u2028 no line end"]),
        (b"data: \xff\n\n", ["\ufffd"]),
    ],
)
def test_each_form_of_the_standard_is_read(raw, events):
    assert read([raw]) == events


@given(
    st.lists(
        st.sampled_from(["data: a", "data:", "data:ä€😀", ": c", "event: e", "", "", "other", "data: b: c"]),
        max_size=12,
    ),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_the_same_events_come_however_the_bytes_are_cut(lines, end, cuts):
    raw = "".join(line + end for line in [*lines, ""]).encode()
    places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    pieces = [raw[a:b] for a, b in itertools.pairwise(places)]
    assert read(pieces) == read([raw]) == read([bytes([byte]) for byte in raw])


@pytest.mark.parametrize("name", ["vllm", "tools_vllm", "reasoning_vllm", "vllm_midstream_error", "xllamacpp"])
async def test_a_recorded_stream_gives_what_a_well_kept_library_reads_in_it(name):
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=recorded(name))
    theirs = [event.data async for event in EventSource(response).aiter_sse()]
    assert read([recorded(name)]) == theirs
    assert theirs


def test_an_event_without_an_end_is_refused_before_it_fills_the_memory():
    events = Events(longest=1000)
    with pytest.raises(HpcError, match="more than 1,000 bytes"):
        _ = [events.feed(b"data: " + b"x" * 20) for _ in range(100)]


def test_many_lines_without_an_event_are_refused_too():
    events = Events(longest=1000)
    with pytest.raises(HpcError, match="more than 1,000 bytes"):
        _ = [events.feed(b"data: " + b"x" * 20 + b"\n") for _ in range(100)]


def test_a_long_stream_of_short_events_is_no_long_event():
    events = Events(longest=1000)
    assert sum(len(events.feed(b"data: 0123456789\n\n")) for _ in range(1000)) == 1000


def test_data_lines_without_data_count_toward_the_longest_event():
    events = Events(longest=100)
    events.feed(b"data:\n" * 100)
    with pytest.raises(HpcError, match="more than 100"):
        events.feed(b"data:\n")


def test_many_short_events_are_no_long_one():
    events = Events(longest=10)
    assert len(events.feed(b"data: abc\n\n" * 100)) == 100
