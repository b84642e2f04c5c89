"""One table of properties for every provider: however a stream arrives, it is told whole, or as the part that it is."""

from __future__ import annotations

import codecs
import json
import tracemalloc

import httpx
import pytest
from conformance import (
    CHARACTERS,
    EVENTS,
    FAILED,
    FORMS,
    HPC,
    OLLAMA,
    OPENAI,
    PARSED,
    REPLAY,
    THOUGHT,
    Call,
    Dialect,
    Direct,
    End,
    Failure,
    Outcome,
    Replayed,
    Text,
    Thought,
    byte_by_byte,
    in_events,
    in_lines,
    in_two,
    is_beginning,
    outcome,
    thinned,
)
from provider_replies import WIRE, asked

from aiflow_jupyter.hpc.sse import LONGEST as LONGEST_OF_HPC
from aiflow_jupyter.providers.lines import LONGEST
from aiflow_jupyter.providers.replay import Replay
from aiflow_jupyter.runtime.replay.reading import read
from aiflow_jupyter.runtime.replay.recorder import Recorder
from aiflow_jupyter.runtime.replay.trace import TraceError

RECORDED = [pytest.param(dialect, name, id=f"{dialect}-{name}") for dialect in PARSED for name in dialect.recorded]


def test_every_recorded_stream_is_in_a_table():
    files = {path.name.split(".")[0] for path in WIRE.glob("*.txt")}
    assert files == {*OPENAI.recorded, *OLLAMA.recorded}
    assert {*FAILED} <= files
    assert len(OPENAI.recorded) == 9
    assert len(OLLAMA.recorded) == 4


# -- recorded streams


async def read_whole(dialect: Dialect, body: bytes) -> Outcome:
    return await outcome(dialect.source([body]))


@pytest.mark.parametrize(("dialect", "name"), RECORDED)
async def test_a_recorded_stream_is_whole_or_the_failure_that_it_was(dialect, name):
    came = await read_whole(dialect, dialect.load(name))
    assert came.code == ("AF707" if name in FAILED else None)
    assert "".join(came.text(phase) for phase in ("reasoning", "answer")) or came.spoken[2]


@pytest.mark.parametrize(("dialect", "name"), RECORDED)
async def test_a_stream_that_is_cut_at_any_byte_is_its_part_and_a_coded_error(dialect, name):
    body = thinned(dialect.load(name), dialect.separator)
    whole = await read_whole(dialect, body)
    before = Outcome((), "AF702")
    for end in range(len(body)):
        came = await read_whole(dialect, body[:end])
        assert is_beginning(before.spoken, came.spoken), end
        assert is_beginning(came.spoken, whole.spoken), end
        if came.whole or came.code == "AF707":  # its end had come: what else was to come is no part of the answer
            assert came.spoken == whole.spoken, end
            assert came.code == whole.code
        else:
            assert came.code == "AF702", end
            assert not before.whole, "a longer part is no less whole"
            assert "finish" not in [kind for kind, _, _ in came.rows]
        before = came
    assert (before.whole, before.spoken) == (whole.whole, whole.spoken)


@pytest.mark.parametrize("fails", [httpx.ReadError("reset"), httpx.RemoteProtocolError("incomplete chunked read")])
@pytest.mark.parametrize(("dialect", "name"), RECORDED)
async def test_a_connection_that_is_lost_is_as_one_that_ends(dialect, name, fails):
    body = thinned(dialect.load(name), dialect.separator)
    pieces = body.split(dialect.separator)
    for many in range(len(pieces)):
        part = dialect.separator.join([*pieces[:many], b""])
        ended, lost = await read_whole(dialect, part), await outcome(dialect.source([part], fails))
        if dialect is HPC and ended.whole and b"[DONE]" not in part:
            assert lost.code == "AF702"  # the worker knows no finish reason, and tells that the connection was lost
        else:
            assert (lost.code, lost.rows) == (ended.code, ended.rows), many


@pytest.mark.parametrize(("dialect", "name"), RECORDED)
async def test_where_the_network_cuts_a_stream_changes_nothing(dialect, name):
    for body in (dialect.load(name), dialect.load(name).replace(b"\n", b"\r\n")):
        whole = await read_whole(dialect, body)
        assert await outcome(dialect.source(byte_by_byte(body))) == whole
    body = thinned(dialect.load(name), dialect.separator)
    whole = await read_whole(dialect, body)
    for parts in in_two(body):
        assert await outcome(dialect.source(parts)) == whole, len(parts[0])


# -- the table of forms: what is said, and what a reader is to get


@pytest.fixture(params=PARSED, ids=str)
def dialect(request):
    return request.param


TABLE = [
    *(pytest.param(d, said(d), wanted(d), id=f"{d}-{name}") for d in PARSED for name, (said, wanted) in FORMS.items()),
    *(
        pytest.param(d, said, wanted, id=f"{d}-{name}")
        for d in (OPENAI, HPC)
        for name, (said, wanted) in EVENTS.items()
    ),
]


@pytest.mark.parametrize(("dialect", "said", "wanted"), TABLE)
async def test_every_form_is_read_the_same_however_it_arrives(dialect, said, wanted):
    body = dialect.say(said)
    whole = Outcome(wanted)
    for form in (body, codecs.BOM_UTF8 + body, body.replace(b"\n", b"\r\n"), body.replace(b"\n", b"\r")):
        assert await read_whole(dialect, form) == whole
        assert await outcome(dialect.source(byte_by_byte(form))) == whole
    for parts in in_two(body):
        assert await outcome(dialect.source(parts)) == whole, len(parts[0])


@pytest.mark.parametrize(("dialect", "said", "wanted"), TABLE)
async def test_every_form_is_a_part_and_an_error_where_it_is_cut(dialect, said, wanted):
    body, whole = codecs.BOM_UTF8 + dialect.say(said), Outcome(wanted)
    for end in range(len(body)):
        came = await read_whole(dialect, body[:end])
        if came.whole:
            assert came.spoken == whole.spoken, end
        else:
            assert came.code == "AF702", end
            assert is_beginning(came.spoken, whole.spoken), end
            assert "finish" not in [kind for kind, _, _ in came.rows]


async def test_all_that_came_before_a_cut_is_given(dialect):
    said = [Thought("a"), Thought("ü"), Text("c"), Text("🌍"), Text("e")]
    for many in range(len(said) + 1):
        came = await read_whole(dialect, dialect.say(said[:many]) + dialect.say([Text("cut")])[:-3])
        shown = "".join(piece.text for piece in said[:many])
        assert (came.code, came.text("reasoning") + came.text("answer")) == ("AF702", shown)


@pytest.mark.parametrize("said", [[], [Text("a"), Thought("b")]], ids=["at once", "after some text"])
async def test_an_error_object_in_a_stream_of_200_is_the_servers_failure(dialect, said):
    body = dialect.say([*said, Failure("out of memory")])
    for parts in ([body], byte_by_byte(body)):
        came = await outcome(dialect.source(parts))
        assert came.code == "AF707"
        assert "out of memory" in came.said
        assert len(came.rows) == len(said)


# -- tags in the text

TAGGED = {
    THOUGHT: ("Hm, 1 < 2 </thin is none ü.\n", "It is <think> blue."),
    " \n<think></think>Yes.": ("", "Yes."),
    "<think>It goes on": ("It goes on", ""),
    "<think>It ends in the middle of </thi": ("It ends in the middle of </thi", ""),
    "<thinking> is no such tag.": ("", "<thinking> is no such tag."),
    "<": ("", "<"),
    "  ": ("", "  "),
    "a <think>b</think>": ("", "a <think>b</think>"),
    "Stray.</think> It stays.": ("", "Stray.</think> It stays."),
    " " * 100 + "x": ("", " " * 100 + "x"),
    "": ("", ""),
}


@pytest.mark.parametrize("content", TAGGED)
async def test_a_thought_between_tags_is_told_from_the_answer_wherever_they_are_cut(dialect, content):
    cuts = [[content[:at], content[at:]] for at in range(len(content) + 1)]
    for pieces in [[content], list(content), *cuts]:
        came = await read_whole(dialect, dialect.say([*map(Text, pieces), End()]))
        assert came.whole
        assert (came.text("reasoning"), came.text("answer")) == TAGGED[content], pieces


@pytest.mark.parametrize("dialect", [OPENAI, OLLAMA], ids=str)
@pytest.mark.parametrize("content", [THOUGHT, "<think>It ends in the middle of </thi", "<thi", "  "])
async def test_a_cut_gives_also_what_may_have_been_the_beginning_of_a_tag(dialect, content):
    for ending in ([], [Failure("stopped")]):
        for end in range(len(content) + 1):
            came = await read_whole(dialect, dialect.say([Text(content[:end]), *ending]))
            assert came.code == ("AF707" if ending else "AF702")
            told = await read_whole(dialect, dialect.say([Text(content[:end]), End()]))
            assert came.spoken == told.spoken


async def test_a_call_comes_after_the_text_before_it(dialect):
    came = await read_whole(dialect, dialect.say([Text("<"), Call(0, "f", "{}"), Text("think>"), End("tool_calls")]))
    shown = [(kind, payload) for kind, _, payload in came.rows if kind == "token"]
    assert shown == [("token", "<"), ("token", "think>")]
    assert came.rows[0][0] == "token"
    assert came.rows[1][0] == "tool_fragment"


# -- lines of any length


@pytest.fixture
def longest(dialect):
    return LONGEST_OF_HPC if dialect is HPC else LONGEST


def long_line(dialect: Dialect, size: int) -> bytes:
    return dialect.say([Text("x" * size)])


async def test_a_line_of_ten_megabytes_is_an_error_and_takes_no_more_memory_than_it_may(dialect, longest):
    begin, line = dialect.say([Text("a")]), long_line(dialect, max(10_000_000, longest + 100_000))
    parts = [begin, *(line[at : at + 65_536] for at in range(0, len(line), 65_536)), dialect.say([End()])]
    tracemalloc.start()
    try:
        came = await outcome(dialect.source(parts))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert came.code == "AF708"
    assert f"more than {longest:,} bytes" in came.said
    assert came.text("answer") == "a"
    assert most < 4 * longest


async def test_a_line_without_an_end_is_read_no_further_than_its_bound(dialect, longest):
    served = []

    def endless():
        yield long_line(dialect, 1)[:-30]
        while True:
            served.append(65_536)
            yield b"x" * 65_536

    came = await outcome(dialect.source(endless()))
    assert came.code == "AF708"
    assert sum(served) <= longest + 65_536


async def test_a_long_line_within_the_bound_is_one_piece(dialect, longest):
    size = longest - 1000
    body = long_line(dialect, size) + dialect.say([End()])
    came = await outcome(dialect.source([body[at : at + 65_536] for at in range(0, len(body), 65_536)]))
    assert came.whole
    assert len(came.text("answer")) == size


@pytest.mark.parametrize("dialect", [OPENAI, HPC], ids=str)
async def test_one_piece_on_lines_without_end_is_bounded_too(dialect, longest):
    served = []

    def endless():
        while True:
            served.append(65_536)
            yield b"data:" + b"x" * 65_530 + b"\n"

    assert (await outcome(dialect.source(endless()))).code == "AF708"
    assert sum(served) <= longest + 2 * 65_536


@pytest.mark.parametrize("dialect", [OPENAI, HPC], ids=str)
async def test_comments_are_no_part_of_any_piece_however_many_come(dialect, longest):
    comments = (b": " + b"x" * 65_533 + b"\n" for _ in range(longest // 65_536 + 2))
    came = await outcome(dialect.source([*comments, b"\n", dialect.say([Text("a"), End()])]))
    assert came.spoken == ("", "a", ())


# -- what is none of it


@pytest.mark.parametrize(
    "garbage",
    [b"<html>log in</html>\n\n", b"[1, 2]\n\n", b"5\n\n", b"{oops\n\n", b"[" * 100_000 + b"\n\n", b"\xff\xfe\n\n"],
)
async def test_what_is_no_piece_is_an_error_and_never_skipped(dialect, garbage):
    line = garbage if dialect is OLLAMA else b"data: " + garbage
    came = await read_whole(dialect, dialect.say([Text("a")]) + line + dialect.say([End()]))
    assert came.code == "AF708"
    assert came.text("answer") == "a"


async def test_nothing_is_read_behind_the_end(dialect):
    body = dialect.say([Text("a"), End(), Text("more"), Failure("late")])
    assert (await read_whole(dialect, body)).spoken == ("", "a", ())
    assert (await outcome(dialect.source([body], httpx.ReadError("gone")))).whole


async def test_blank_lines_in_ndjson_are_nothing():
    body = in_lines([Text("a"), b"\n", b" \r\n", End()])
    assert (await read_whole(OLLAMA, body)).spoken == ("", "a", ())


# -- a recording


@pytest.mark.parametrize("name", REPLAY.recorded)
async def test_a_recording_tells_the_same_as_the_stream_whole_or_cut(name):
    body = thinned(REPLAY.load(name), REPLAY.separator)
    pieces = body.split(REPLAY.separator)
    for many in range(len(pieces) + 1):
        part = REPLAY.separator.join([*pieces[:many], b""])
        assert await outcome(Replayed(Direct([part]))) == await outcome(Direct([part]))


async def test_a_recording_is_cut_at_any_byte_as_a_stream_is(tmp_path):
    file = tmp_path / "run.jsonl"
    recorder = Recorder(Direct([in_events([Thought("a"), Text(CHARACTERS), End()])]), file, clock=lambda: 0)
    whole = await outcome(recorder)
    recorder.close()
    data = file.read_bytes()
    began = data.index(b"\n", data.index(b"\n") + 1)  # behind the header, and the line that asks
    codes = set()
    for end in range(len(data)):
        if end < len(data) - 1 and not data[:end].endswith(b"\n") and not _ends(data[:end]):
            with pytest.raises(TraceError) as cut:
                read(data[:end])
            assert cut.value.code in ("AF740", "AF741", "AF742"), end
        if end <= began:
            continue
        came = await outcome(Replay(read(data[:end], partial=True), None))
        codes.add(came.code)
        assert is_beginning(came.spoken, whole.spoken)
        assert came.whole == (came == whole)
        assert came.code in ("AF702", None), end
    assert codes == {"AF702", None}
    assert await outcome(Replay(read(data), None)) == whole


def _ends(data: bytes) -> bool:
    """Whether what was recorded ends with a whole line, though its end is missing."""
    try:
        json.loads(data.rpartition(b"\n")[2])
    except ValueError:
        return False
    return True


async def test_a_request_is_not_needed_to_be_the_recorded_one():
    recorded = Replayed(Direct([in_events([Text("a"), End()])]))
    assert (await outcome(recorded, asked(model="other"))).spoken == ("", "a", ())
