"""What is recorded of a run, and how a trace is read again."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import META, MS, Scripted, request

from aiflow_jupyter.errors import ProviderError, StreamCut
from aiflow_jupyter.events import Event, Finish, ToolFragment, Usage
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.runtime.replay.reading import load, read
from aiflow_jupyter.runtime.replay.recorder import Recorder
from aiflow_jupyter.runtime.replay.trace import MOST_LINE, TraceError, hash_of
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler

SPEC = parse('ask = generate(tier="local")\nout = sink(var="out")\nask -> out', "flow", SIGNATURES).spec
KEY = "sk-hidden-0123456789"


class Clock:
    """Counts milliseconds from a second on."""

    def __init__(self) -> None:
        self.now = 1_000 * MS

    def __call__(self) -> int:
        self.now += MS
        return self.now


def token(text, time=0, phase="answer"):
    return Event("token", text, time=time, meta=META | {"phase": phase})


def recorded(source, *requests, stop_after=None, **options):
    """The trace of some requests, one after another, and its text."""
    file = io.StringIO()
    recorder = Recorder(source, file, clock=Clock(), **options)
    got = []

    async def ask():
        for each in requests or (request(),):
            try:
                async with aclosing(recorder.stream(each)) as events:
                    async for event in events:
                        got.append(event)
                        if stop_after is not None and len(got) >= stop_after:
                            break
            except Exception as error:  # noqa: BLE001 - the tests look at what was recorded
                got.append(error)

    asyncio.run(ask())
    return read(file.getvalue().encode()), got, file.getvalue(), recorder


FINISH = Event("finish", Finish("stop", Usage(3, 2)), meta=META)


def test_an_answer_is_read_as_it_was_recorded_and_passes_unchanged():
    fragment = Event("tool_fragment", ToolFragment(0, "c1", "look", '{"a"'), meta=META)
    usage = Event("usage", Usage(3, 2, 1), meta=META)
    given_ = [token("hm", phase="reasoning"), token("Be\ud83d"), token("\n日本"), fragment, usage, FINISH]
    trace, got, text, _ = recorded(Scripted(*given_), request(node="ask", tier="local", model="x"), spec=SPEC)
    assert got == given_
    (exchange,) = trace.exchanges
    assert [(e.kind, e.payload) for e in exchange.events] == [(e.kind, e.payload) for e in given_]
    assert [e.meta for e in exchange.events] == [e.meta for e in given_]
    assert (exchange.node, exchange.tier, exchange.model, exchange.ending) == ("ask", "local", "x", "finish")
    assert (exchange.tokens, exchange.usage) == (2, Usage(3, 2))
    assert (trace.graph, trace.spec, trace.start) == ("flow", SPEC, 1_001 * MS)
    assert text.count("provider") == 1, "what did not change is not written again"


def test_times_are_those_of_the_events_and_never_go_back():
    trace, *_ = recorded(Scripted(token("a", 1_002_500_000), token("b", 900 * MS), token("c"), FINISH))
    exchange = trace.exchanges[0]
    assert exchange.at == MS
    first, second, third, finish = (event.at for event in exchange.events)
    assert (first, second) == (1_500_000, 1_500_000)
    assert third < finish
    assert exchange.ttft_ns == 500_000
    assert exchange.duration_ns == finish - MS


def test_messages_are_hashed_and_in_full_only_where_asked_for():
    trace, _, text, _ = recorded(Scripted(FINISH), request("a secret matter"))
    assert "secret" not in text
    assert trace.exchanges[0].hash == hash_of(request("a secret matter").messages) != hash_of(request("b").messages)
    trace, _, text, _ = recorded(Scripted(FINISH), request("a secret matter"), messages=True)
    assert trace.exchanges[0].messages == request("a secret matter").messages


@pytest.mark.parametrize(
    ("script", "stop_after", "ending", "code", "said"),
    [
        ([token("a"), StreamCut("lost", hint="again")], None, "error", "AF702", "lost"),
        ([ProviderError("refused", code="AF705")], None, "error", "AF705", "refused"),
        ([token("a"), OSError(KEY)], None, "error", "AF702", "OSError"),
        ([token("a")], None, "error", "AF702", "without its finish"),
        ([token("a"), token("b"), FINISH], 1, "closed", "AF702", "left"),
    ],
)
def test_an_answer_that_broke_off_is_recorded_as_such(script, stop_after, ending, code, said):
    source = Scripted(*script)
    trace, _, text, _ = recorded(source, stop_after=stop_after)
    assert source.closed == 1
    exchange = trace.exchanges[0]
    assert exchange.ending == ending
    error = exchange.broken.raised()
    assert isinstance(error, ProviderError)
    assert error.code == code
    assert said in error.message
    assert KEY not in text


def test_an_answer_that_was_left_after_its_finish_is_whole():
    trace, *_ = recorded(Scripted(token("a"), FINISH), stop_after=2)
    assert trace.exchanges[0].ending == "finish"


def test_concurrent_answers_are_told_apart():
    file = io.StringIO()
    recorder = Recorder(Scripted(*(token(str(n)) for n in range(5)), FINISH), file)

    async def ask(prompt):
        async with aclosing(recorder.stream(request(prompt))) as events:
            async for _ in events:
                await asyncio.sleep(0)

    async def both():
        await asyncio.gather(ask("a"), ask("b"))

    asyncio.run(both())
    numbers = [json.loads(line).get("request") for line in file.getvalue().splitlines()[1:]]
    assert numbers != sorted(numbers)
    trace = read(file.getvalue().encode())
    assert [each.hash for each in trace.exchanges] == [hash_of(request(p).messages) for p in "ab"]
    assert [[e.payload for e in each.events[:-1]] for each in trace.exchanges] == [list("01234")] * 2


def test_no_secret_of_a_request_or_source_gets_into_the_file():
    ask = request(extra={"headers": KEY}, report=lambda text: None)
    event = Event("token", "x", meta=META | {"authorization": KEY})
    _, _, text, _ = recorded(Scripted(event, FINISH), ask, messages=True)
    assert KEY not in text


def test_the_file_is_private_and_never_takes_the_place_of_another(tmp_path):
    path = tmp_path / "run.jsonl"
    before = os.umask(0)
    try:
        recorder = Recorder(Scripted(FINISH), path)
    finally:
        os.umask(before)
    recorder.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(TraceError, match=r"AF740.*there already"):
        Recorder(Scripted(), path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TraceError, match="AF740"):
        Recorder(Scripted(), link)
    with pytest.raises(TraceError, match="AF740"):
        Recorder(Scripted(), tmp_path / "no" / "folder")
    with pytest.raises(TraceError, match="AF740"):
        Recorder(Scripted(), "a\0b")


def test_what_is_recorded_is_bounded_and_the_stream_goes_on():
    trace, got, text, recorder = recorded(Scripted(*(token("x" * 100) for _ in range(100)), FINISH), most_bytes=3_000)
    assert len(got) == 101
    assert len(text) <= 3_000
    assert trace.full
    assert recorder.problem.code == "AF740"
    assert trace.exchanges[0].ending == "lost"
    assert 5 < len(trace.exchanges[0].events) < 100


@pytest.mark.parametrize("odd", [token("x" * MOST_LINE), Event("value", object()), Event("usage", object())])
def test_what_can_not_be_recorded_ends_the_recording_not_the_stream(odd):
    trace, got, _, recorder = recorded(Scripted(token("a"), odd, FINISH))
    assert len(got) == 3
    assert trace.full
    assert recorder.problem is not None
    assert [event.payload for event in trace.exchanges[0].events] == ["a"]


def test_a_full_disk_ends_the_recording_not_the_stream():
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        recorder = Recorder(Scripted(token("a"), FINISH), full)

        async def ask():
            return [event.kind async for event in recorder.stream(request())]

        assert asyncio.run(ask()) == ["token", "finish"]
        assert "No space left" in recorder.problem.message
        with pytest.raises(OSError, match="No space"):
            full.close()


CRASH = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[2])
from traces import Scripted, META, request
from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.replay.recorder import Recorder

async def main():
    recorder = Recorder(Scripted(*(Event("token", str(n), meta=META) for n in range(50))), sys.argv[1])
    async for event in recorder.stream(request()):
        if event.payload == "20":
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_crash_loses_nothing_that_was_passed_on(tmp_path):
    path = tmp_path / "run.jsonl"
    done = subprocess.run([sys.executable, "-c", CRASH, str(path), str(Path(__file__).parent)], check=False)
    assert done.returncode == -signal.SIGKILL
    (exchange,) = load(path).exchanges
    assert [event.payload for event in exchange.events] == [str(n) for n in range(21)]
    assert exchange.ending == "lost"


def test_a_run_is_recorded_with_the_node_that_asked():
    file = io.StringIO()

    async def story():
        recorder = Recorder(Scripted(token("Hi"), FINISH), file, spec=SPEC)
        return await Run(SPEC, OPERATORS, Scheduler(asyncio.get_running_loop()), source=recorder).run("Why?")

    assert asyncio.run(story())["out"] == "Hi"
    assert read(file.getvalue().encode()).exchanges[0].node == "ask"


# -- what is no trace

_, _, GOOD, _ = recorded(Scripted(token("a"), token("b"), FINISH))
LINES = GOOD.splitlines()
HEADER, ASKED, TOKEN = (json.loads(line) for line in LINES[:3])


def lines(*each):
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in each).encode()


BAD = {
    "empty": (b"", 1, "AF741", "empty"),
    "no header": (lines(ASKED), 1, "AF741", "header"),
    "another version": (lines(HEADER | {"aiflow_trace": 2}), 1, "AF743", "version 2"),
    "a version of another type": (lines(HEADER | {"aiflow_trace": True}), 1, "AF743", "True"),
    "an unknown key in the header": (lines(HEADER | {"key": "x"}), 1, "AF741", "key"),
    "no graph": (lines(HEADER | {"spec": {"name": "g", "nodes": {"1": 2}}}), 1, "AF741", "graph"),
    "a list": (lines(HEADER, [1]), 2, "AF741", "object"),
    "an empty line": (lines(HEADER, ""), 2, "AF741", "empty"),
    "not JSON": (lines(HEADER, "{'a': 1}"), 2, "AF741", "JSON"),
    "not a number": (lines(HEADER, '{"kind": "full", "at": NaN}'), 2, "AF741", "NaN"),
    "too many digits": (lines(HEADER, '{"kind": "full", "at": ' + "9" * 5_000 + "}"), 2, "AF741", "JSON"),
    "a huge time": (lines(HEADER, {"kind": "full", "at": 1 << 70}), 2, "AF741", "at"),
    "too deep": (lines(HEADER, "[" * 100_000 + "]" * 100_000), 2, "AF741", "JSON"),
    "not UTF-8": (lines(HEADER) + b'"\xff"\n', 2, "AF741", "UTF-8"),
    "a NUL": (lines(HEADER, ASKED, "\0\0\0"), 3, "AF741", "NUL"),
    "a long line": (lines(HEADER, ASKED, TOKEN | {"payload": "x" * 1_000_000}), 3, "AF741", "1,000,"),
    "an unknown kind": (lines(HEADER, TOKEN | {"kind": "speech"}), 2, "AF741", "'speech'"),
    "a kind of another type": (lines(HEADER, TOKEN | {"kind": ["token"]}), 2, "AF741", "token"),
    "no kind": (lines(HEADER, {"at": 1}), 2, "AF741", "None"),
    "a key twice": (lines(HEADER, ASKED, '{"kind":"closed","request":0,"at":1000000,"at":1}'), 3, "AF741", "'at'"),
    "an unknown key": (lines(HEADER, ASKED, TOKEN | {"authorization": "x"}), 3, "AF741", "authorization"),
    "a missing key": (lines(HEADER, {"kind": "request"}), 2, "AF741", "request"),
    "a negative time": (lines(HEADER, ASKED | {"at": -1}), 2, "AF741", "at"),
    "a broken time": (lines(HEADER, ASKED | {"at": 1.5}), 2, "AF741", "at"),
    "a time that goes back": (lines(HEADER, ASKED, TOKEN | {"at": 0}), 3, "AF741", "back"),
    "a wrong payload": (lines(HEADER, ASKED, TOKEN | {"payload": 1}), 3, "AF741", "payload"),
    "a wrong phase": (lines(HEADER, ASKED, TOKEN | {"phase": "dream"}), 3, "AF741", "phase"),
    "no hash": (lines(HEADER, ASKED | {"hash": "0" * 63 + "g"}), 2, "AF741", "hash"),
    "an answer to nothing": (lines(HEADER, TOKEN), 2, "AF741", "not asked"),
    "a request out of turn": (lines(HEADER, ASKED | {"request": 1}), 2, "AF741", "request 1"),
    "more after the finish": (lines(*LINES, TOKEN | {"at": 1 << 40}), 6, "AF741", "ended"),
    "more after the end": (lines(HEADER, {"kind": "full", "at": 1}, ASKED), 3, "AF741", "full"),
    "cut off": (GOOD.encode()[:-5], 5, "AF742", "cut off"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_trace_is_told_with_its_line(name):
    data, line, code, said = BAD[name]
    with pytest.raises(TraceError) as caught:
        read(data)
    assert (caught.value.line, caught.value.code) == (line, code)
    assert said in caught.value.message + caught.value.hint
    assert len(str(caught.value)) < 600


def test_a_last_line_that_is_cut_off_is_left_out_only_where_asked():
    data = GOOD.encode()
    whole = read(data)
    assert not whole.truncated
    assert read(data.removesuffix(b"\n")) == whole, "it has all of its line"
    for cut in range(len(data) - len(LINES[-1]), len(data) - 2):
        trace = read(data[:cut], partial=True)
        assert len(trace.exchanges[0].events) == 2
        assert trace.exchanges[0].ending == "lost"
    assert trace.truncated
    with pytest.raises(TraceError, match="AF742"):
        read(data[:20], partial=True)


def test_a_file_that_can_not_be_read_is_told(tmp_path):
    for path in (tmp_path, tmp_path / "none", "a\0b"):
        with pytest.raises(TraceError, match="AF740"):
            load(path)


@given(st.integers(0, len(GOOD) - 1), st.binary(max_size=3), st.integers(0, 9))
def test_a_damaged_trace_is_read_or_told_with_a_line_and_never_raises_anything_else(place, put, away):
    data = GOOD.encode()
    damaged = data[:place] + put + data[place + away :]
    for partial in (False, True):
        try:
            read(damaged, partial=partial)
        except TraceError as error:
            assert error.line >= 1
            assert error.code in ("AF741", "AF742", "AF743")


text = st.text(st.characters(), max_size=20)


@given(st.lists(st.tuples(text, st.sampled_from(["answer", "reasoning"])), max_size=10))
def test_any_text_comes_back(pieces):
    trace, *_ = recorded(Scripted(*(token(payload, phase=phase) for payload, phase in pieces), FINISH))
    assert [(e.payload, e.meta["phase"]) for e in trace.exchanges[0].events[:-1]] == pieces
