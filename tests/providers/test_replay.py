"""A recorded trace as a provider, and graphs run on it on a virtual clock."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import virtual
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import META, MS, Scripted, request, shape, trace_of

import aiflow_jupyter
from aiflow_jupyter.errors import CommandError, GraphError, ProviderError, RunError, StreamCut
from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.graph.builder import Flow
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import SIGNATURES, generate, route, sink
from aiflow_jupyter.providers.replay import Replay, replay, replayed
from aiflow_jupyter.runtime.replay.faults import Burst, Cut, Fail, Slow, Stall, disturbed, read_faults
from aiflow_jupyter.runtime.replay.reading import read
from aiflow_jupyter.runtime.replay.recorder import Recorder
from aiflow_jupyter.runtime.replay.trace import Broken, Trace, TraceError
from aiflow_jupyter.runtime.source import Source

HERE = Path(__file__).parent
S = 1_000 * MS


def spec_of(text, name="g"):
    return parse(text, name, SIGNATURES).spec


SPEECH = spec_of("""
ask    = generate()
speech = map(speak)       [queue=8]
out    = sink(var="out")
ask -> speech -> out
""")


def speak(text):
    return text


def node(run, name):
    return next(each for each in run.status().nodes if each.node == name)


def taken(trace, *requests, speed=1.0, pause=0.0, faults=()):
    """What a replay gives on a virtual loop, as (time since the request, kind, payload, stamp since the request)."""

    async def story(loop):
        source = Replay(trace, speed, faults=faults, clock=loop.clock)
        assert isinstance(source, Source)
        rows = []
        for each in requests or (request(),):
            began = loop.now_ns
            try:
                async for event in source.stream(each):
                    rows.append((loop.now_ns - began, event.kind, event.payload, event.time - began))
                    await asyncio.sleep(pause)
            except ProviderError as error:
                rows.append((loop.now_ns - began, "raised", error.code, 0))
        return rows

    return virtual.run(story)


# -- a provider


def test_events_come_when_they_did_and_are_stamped_with_that():
    trace = trace_of(shape(3, 500 * MS, 900 * MS))
    assert [row[0] for row in taken(trace)] == [500 * MS, 700 * MS, 900 * MS, 900 * MS]
    assert [row[0] for row in taken(trace, speed=4)] == [125 * MS, 175 * MS, 225 * MS, 225 * MS]
    assert [row[0] for row in taken(trace, speed=None)] == [0] * 4
    late = taken(trace, pause=1.0)
    assert [row[0] for row in late] == [500 * MS, 1_500 * MS, 2_500 * MS, 3_500 * MS]
    assert [row[3] for row in late] == [500 * MS, 700 * MS, 900 * MS, 900 * MS], "when due, not when taken"


def test_answers_are_found_by_the_question_then_by_the_node_then_by_their_turn():
    def answer(number, prompt, node):
        return replace(shape(1, MS, MS, number=number, prompt=prompt, node=node))

    trace = trace_of(answer(0, "a", "x"), answer(1, "b", "x"), answer(2, "a", "y"), answer(3, "c", "z"))

    def numbered(exchange):
        events = (replace(exchange.events[0], payload=str(exchange.number)), *exchange.events[1:])
        return replace(exchange, events=events)

    trace = replace(trace, exchanges=tuple(map(numbered, trace.exchanges)))
    asked = [request("b"), request("a"), request("?", node="z"), request("a"), request("a")]
    rows = [row[2] for row in taken(trace, *asked) if row[1] in ("token", "raised")]
    assert rows == ["1", "0", "3", "2", "AF744"]


def test_what_was_recorded_is_the_same_when_a_replay_of_it_is_recorded():
    trace = trace_of(shape(5, 300 * MS, 900 * MS, prompt="Why?"))

    async def story(loop):
        file = io.StringIO()
        recorder = Recorder(Replay(trace, clock=loop.clock), file, clock=loop.clock)
        assert recorder.stamps
        async for _ in recorder.stream(request()):
            await asyncio.sleep(0.25)
        return read(file.getvalue().encode())

    again = virtual.run(story).exchanges[0]
    assert (again.events, again.hash) == (trace.exchanges[0].events, trace.exchanges[0].hash)


@pytest.mark.parametrize("how", ["error", "closed", "lost"])
def test_an_answer_that_broke_off_breaks_off_again_and_at_its_time(how):
    exchange = shape(3, 100 * MS, 300 * MS)
    error = ("StreamCut", "AF702", "lost", "")
    trace = trace_of(replace(exchange, events=exchange.events[:2], broken=Broken(250 * MS, how, error)))
    rows = taken(trace)
    assert rows[-1][:3] == (250 * MS, "raised", "AF702")
    assert len(rows) == 3
    with pytest.raises(RunError, match="AF702"):
        replay(SPEECH, trace, functions={"speak": speak})


def test_in_real_time_nothing_comes_before_its_time():
    trace = trace_of(shape(4, 60 * MS, 120 * MS))

    async def story():
        began = time.perf_counter_ns()
        async with aclosing(Replay(trace).stream(request())) as events:
            async for event in events:
                assert time.perf_counter_ns() >= event.time
        return event.time - began

    assert asyncio.run(story()) >= 120 * MS


def test_a_speed_has_to_be_one():
    for speed in (0, -1, float("nan"), float("inf")):
        with pytest.raises(CommandError, match="AF746"):
            Replay(trace_of(), speed)


# -- the published arithmetic: one server, 80 ms for each token

PUBLISHED = {  # tokens, time to the first one, end of the generation, as means of the three published data sets
    "routing": (231, 1_071_900_000, 5_415_000_000),
    "retrieval": (127, 911_500_000, 3_321_500_000),
    "ollama": (224, 137_900_000, 4_049_200_000),
}
SERVICE = 80 * MS


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_replay_is_a_one_server_queue_to_the_nanosecond(name):
    tokens, ttft, end = PUBLISHED[name]
    trace = trace_of(shape(tokens, ttft, end))
    run = replayed(SPEECH, trace, service={"speech": 0.08}, functions={"speak": speak})
    status = run.status()
    speech = node(run, "speech")
    assert round(status.ttft_s * 1e9) == ttft
    assert round(node(run, "out").first_s * 1e9) - ttft == SERVICE  # TTFPT - TTFT = 80.0 ms
    assert round(status.elapsed_s * 1e9) == ttft + tokens * SERVICE
    assert (speech.peak, speech.most, speech.processed) == (8, 9, tokens)
    arrivals = [event.at for event in trace.exchanges[0].events if event.kind == "token"]
    behind = [ttft + n * SERVICE - at for n, at in enumerate(arrivals)]
    assert behind == sorted(behind), "it grows with every token"
    assert speech.lag_s == pytest.approx(sum(behind) / tokens / 1e9, rel=1e-12)
    assert speech.wait_s / tokens <= 8 * 0.08, "what waits in a bounded queue waits a bounded time: the rest is lag"
    assert run.bottleneck().node == "speech"


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_answer_that_comes_as_a_whole_takes_the_generation_longer(name):
    tokens, ttft, end = PUBLISHED[name]
    trace = trace_of(shape(tokens, ttft, end))
    run = replayed(SPEECH, trace, faults=[Burst()], service={"speech": 0.08}, functions={"speak": speak})
    assert round(node(run, "out").first_s * 1e9) == end + SERVICE
    assert round(run.status().elapsed_s * 1e9) == end + tokens * SERVICE


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(0, 500), st.integers(0, 100), st.integers(1, 12), st.integers(1, 3))
def test_any_even_stream_is_served_as_lindley_says(tokens, ttft, gap, queue, workers):
    trace = trace_of(shape(tokens, ttft * MS, (ttft + gap * (tokens - 1)) * MS))
    text = f'ask = generate()\nspeech = map(speak) [queue={queue}, workers={workers}]\nout = sink(var="out")'
    spec = spec_of(f"{text}\nask -> speech -> out")
    run = replayed(spec, trace, service={"speech": 0.03}, functions={"speak": speak})
    free, behind = [0] * workers, 0
    for event in trace.exchanges[0].events[:-1]:
        start = max(event.at, min(free))
        behind += start - event.at
        free[free.index(min(free))] = start + 30 * MS
    assert round(run.status().elapsed_s * 1e9) == max(free)
    speech = node(run, "speech")
    assert round(speech.lag_s * tokens * 1e9) == behind
    assert speech.peak <= queue
    assert run.result()["out"] == "".join(f"t{n} " for n in range(tokens))


# -- the same is the same

RICH = """
ask    = generate()
clean  = map(tidy)                  [workers=3, retry=3, backoff=0.05]
parts  = segment(by="sentence")
speech = map(speak)                 [queue=2, overflow=drop_oldest]
out    = sink(var="out")
all    = sink(var="all")
ask -> clean -> parts -> speech -> out
ask -> all
"""
SCRIPT = [Stall(at=0.4, seconds=0.7), Slow(node="speech", factor=1.5, spread=0.8), Fail(node="clean", call=5, times=2)]
TIMES = {"speech": 0.2, "clean": 0.013}


def figures(seed=0, faults=SCRIPT):
    exchange = shape(60, 300 * MS, 2_000 * MS)
    events = tuple(replace(e, payload=f"t{n}. ") if e.kind == "token" else e for n, e in enumerate(exchange.events))
    trace = trace_of(replace(exchange, events=events))
    functions = {"tidy": str.strip, "speak": speak}
    run = replayed(
        spec_of(RICH),
        trace,
        faults=faults,
        service=TIMES,
        functions={**functions, "tidy": lambda text: text},
        seed=seed,
    )
    answers = [(a.started, a.first, a.last, a.pieces) for a in run.answers]
    return json.dumps([asdict(run.status()), {k: list(v) for k, v in run.variables.items()}, answers], default=list)


def test_twice_the_same_gives_the_same_to_the_bit_and_another_seed_does_not():
    first = figures()
    assert first == figures()
    assert first != figures(seed=1)
    status = json.loads(first)[0]
    by_node = {each["node"]: each for each in status["nodes"]}
    assert by_node["clean"]["retries"] == 2
    assert by_node["speech"]["dropped"] > 0


def test_another_process_gives_the_same_too():
    paths = [str(HERE), str(HERE.parent), str(HERE.parent / "runtime")]
    code = f"import sys; sys.path[:0] = {paths}; import test_replay; print(test_replay.figures())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.strip() == figures()


def test_a_replay_starts_no_thread_and_takes_no_real_wait():
    seen = []

    def where(text):
        seen.append(threading.current_thread() is threading.main_thread())
        return text

    before = threading.active_count()
    trace = trace_of(shape(50, 3_600 * S, 7_200 * S))
    result = replay(SPEECH, trace, service={"speech": 1_000.0}, functions={"speak": where})
    assert seen == [True] * 50
    assert threading.active_count() == before
    assert result.status.elapsed_s == 3_600 + 50_000


def test_it_runs_where_another_loop_runs_as_in_a_notebook():
    async def cell():
        return replay(SPEECH, trace_of(shape(3, MS, MS)), functions={"speak": speak})

    assert asyncio.run(cell())["out"] == "t0 t1 t2 "


def test_generators_coroutines_and_inline_functions_take_their_time_too():
    def words(text):
        yield text
        yield "!"

    async def later(text):
        await asyncio.sleep(0.5)
        return text

    text = """
    ask = generate()
    w = flat_map(words)
    l = map(later)
    i = map(quick, inline=true)
    out = sink(function=note)
    ask -> w -> l -> i -> out
    """
    noted = []
    run = replayed(
        spec_of(text),
        trace_of(shape(1, S, S)),
        service={"w": 1.0, "l": 0.25, "i": 0.125, "out": 2.0},
        functions={"words": words, "later": later, "quick": speak, "note": noted.append},
    )
    assert run.error is None
    assert noted == ["t0 ", "!"]
    # the second word is through `l` and `i` while the first one is in `out`
    assert run.status().elapsed_s == 1.0 + 1.0 + 0.75 + 0.125 + 2.0 + 2.0
    assert node(run, "i").service_s == 0.25


def test_what_undoes_a_failed_call_needs_no_thread():
    undone = []
    text = 'ask = generate()\ns = map(speak) [effect=non_idempotent, compensate=undo, retry=2]\nout = sink(var="out")'
    result = replay(
        spec_of(f"{text}\nask -> s -> out"),
        trace_of(shape(2, MS, MS)),
        faults=[Fail(node="s", call=1, error="ValueError")],
        functions={"speak": speak, "undo": lambda payload, error=None: undone.append((payload, type(error)))},
    )
    assert undone == [("t0 ", ValueError)]
    assert result["out"] == "t0 t1 "


def test_what_was_asked_is_asked_again_where_it_was_recorded():
    asked = []

    def note(text):
        asked.append(text)
        return text

    text = 'first = map(note)\nask = generate(system="Be brief.")\nout = sink(var="out")\nfirst -> ask -> out'
    exchange = shape(1, MS, MS)
    replay(spec_of(text), trace_of(exchange), functions={"note": note})
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"})
    replay(spec_of(text), trace_of(replace(exchange, messages=messages)), functions={"note": note})
    replay(spec_of(text), trace_of(exchange), functions={"note": note}, value="How?")
    assert asked == ["(what was asked was not recorded)", "Why?", "How?"]


def test_a_flow_runs_on_the_file_of_a_trace(tmp_path):
    path = tmp_path / "run.jsonl"

    async def record(loop):
        recorder = Recorder(Replay(trace_of(shape(2, S, 2 * S)), clock=loop.clock), path, clock=loop.clock)
        async for _ in recorder.stream(request()):
            pass
        recorder.close()

    virtual.run(record)
    flow = aiflow_jupyter.Flow("talk")
    ask = flow.add("ask", aiflow_jupyter.generate())
    speech = flow.add("speech", aiflow_jupyter.map(speak))
    ask >> speech >> flow.add("out", aiflow_jupyter.sink(var="out"))
    result = aiflow_jupyter.replay(flow, path, service={"speech": 0.5})
    assert result["out"] == "t0 t1 "
    assert result.status.elapsed_s == 2.5
    with pytest.raises(TraceError, match="AF740"):
        aiflow_jupyter.replay(flow, tmp_path / "none")


def test_a_graph_that_waits_for_ever_is_told():
    async def never(text):
        await asyncio.Event().wait()

    with pytest.raises(RunError, match="AF614"):
        replay(SPEECH, trace_of(shape(1, MS, MS)), functions={"speak": never})


def test_in_real_time_the_same_graph_runs_in_threads():
    names = set()

    def where(text):
        names.add(threading.current_thread().name)
        return text

    result = replay(
        SPEECH, trace_of(shape(4, MS, 4 * MS)), service={"speech": 0.02}, functions={"speak": where}, clock="real"
    )
    assert names == {"aiflow:speech"}
    assert result.status.elapsed_s >= 0.08
    assert result["out"] == "t0 t1 t2 t3 "


# -- faults

TEN = trace_of(shape(10, 1_000 * MS, 1_900 * MS))


def times(*faults):
    (exchange,) = disturbed(TEN, faults).exchanges
    return [event.at // MS for event in exchange.events], exchange.broken


def test_a_stall_delays_all_that_follows():
    assert times(Stall(at=1.3, seconds=2.0)) == (
        [1000, 1100, 1200, 3300, 3400, 3500, 3600, 3700, 3800, 3900, 3900],
        None,
    )
    assert times(Stall(at=5.0, seconds=2.0)) == times()


def test_a_burst_gathers_what_was_due():
    assert times(Burst(at=1.3, seconds=0.3))[0] == [1000, 1100, 1200, 1600, 1600, 1600, 1600, 1700, 1800, 1900, 1900]
    assert times(Burst())[0] == [1900] * 11


def test_faults_act_on_what_those_before_left():
    outage = times(Stall(at=1.05, seconds=1.0), Burst(at=1.05, seconds=1.5))[0]
    assert outage == [1000, *[2550] * 5, 2600, 2700, 2800, 2900, 2900]


@pytest.mark.parametrize(
    ("cut", "left", "when"),
    [(Cut(at=1.25), 3, 1250), (Cut(events=2), 2, 1100), (Cut(events=0), 0, 0), (Cut(at=1.05, events=5), 1, 1050)],
)
def test_a_cut_loses_the_rest(cut, left, when):
    kept, broken = times(cut)
    assert len(kept) == left
    assert (broken.at // MS, broken.how) == (when, "error")
    assert isinstance(broken.raised(), StreamCut)


def test_a_cut_after_the_end_changes_nothing():
    assert times(Cut(at=60)) == times(Cut(events=11)) == times()
    (early,) = disturbed(
        trace_of(replace(TEN.exchanges[0], events=(), broken=Broken(5 * MS, "closed"))), [Cut(at=1)]
    ).exchanges
    assert early.broken.how == "closed"


def test_a_fault_is_of_one_request_or_of_all():
    two = trace_of(shape(2, MS, MS), shape(2, MS, MS, number=1))
    hit = disturbed(two, [Stall(at=0, seconds=1, request=1)])
    assert [each.events[0].at for each in hit.exchanges] == [MS, 1_001 * MS]
    with pytest.raises(TraceError, match=r"AF745.*request 2"):
        disturbed(two, [Stall(at=0, seconds=1, request=2)])


def test_a_stall_in_a_run_shows_in_its_figures():
    result = replay(SPEECH, TEN, faults=[Stall(at=1.5, seconds=3)], functions={"speak": speak})
    assert result.status.elapsed_s == 4.9
    cut = replayed(SPEECH, TEN, faults=[Cut(events=4)], functions={"speak": speak})
    assert cut.state == "failed"
    assert cut.error.code == "AF702"
    assert list(cut.variables["out"]) == ["t0 ", "t1 ", "t2 "], "what came before; the fourth came at the same time"


def test_a_slow_node_and_one_that_fails():
    slow = replay(
        SPEECH, TEN, faults=[Slow(node="speech", factor=3)], service={"speech": 0.08}, functions={"speak": speak}
    )
    assert slow.status.elapsed_s == pytest.approx(1.0 + 10 * 0.24)
    failed = replayed(SPEECH, TEN, faults=[Fail(node="speech", call=3)], functions={"speak": speak})
    assert (failed.error.node, failed.error.sequence) == ("speech", 2)
    assert "RuntimeError" in failed.error.message


def test_times_that_spread_have_the_mean_that_was_declared():
    many = trace_of(shape(4_000, MS, MS))
    run = replayed(
        SPEECH,
        many,
        faults=[Slow(node="speech", factor=2, spread=0.5)],
        service={"speech": 0.1},
        functions={"speak": speak},
    )
    assert node(run, "speech").service_s / 4_000 == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"service": {"spech": 1}}, "spech"),
        ({"service": {"speech": -1}}, "-1"),
        ({"service": {"speech": float("nan")}}, "nan"),
        ({"faults": [Fail(node="spech", call=1)]}, "spech"),
        ({"faults": [Slow(node="speech", factor=2)]}, "no service time"),
    ],
)
def test_a_fault_or_a_time_that_fits_no_node_is_told(arguments, said):
    with pytest.raises(TraceError, match="AF745") as caught:
        replay(SPEECH, TEN, functions={"speak": speak}, **arguments)
    assert said in caught.value.message


def test_a_graph_is_checked_first():
    with pytest.raises(GraphError, match="speak"):
        replay(SPEECH, TEN)


def test_what_is_wrong_with_an_edge_of_a_flow_is_said_in_the_words_of_the_flow():
    flow = Flow("talk")
    lane = flow.add("lane", route(by="phase"))
    flow.add("ask", generate()) >> lane
    lane["nowhere"] >> flow.add("out", sink(var="out"))
    with pytest.raises(GraphError) as raised:
        replay(flow, TEN)
    said = "\n".join(raised.value.lines())
    assert 'at edge lane["nowhere"] >> out' in said
    assert "/edges" not in said


def test_a_script_is_read_from_json():
    script = [Stall(at=1.0, seconds=2.0, request=0), Burst(), Cut(events=3), *SCRIPT]
    assert read_faults(json.dumps([fault.model_dump() for fault in script])) == script
    assert read_faults('[{"fault": "stall", "at": 1, "seconds": 2}]') == [Stall(at=1, seconds=2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "JSON"),
        ("{}", "array"),
        ('[{"at": 1}]', "fault"),
        ('[{"fault": "flood"}]', "flood"),
        ('[{"fault": "stall", "at": -1, "seconds": 1}]', "0.stall.at"),
        ('[{"fault": "stall", "at": 1, "seconds": NaN}]', "0.stall.seconds"),
        ('[{"fault": "stall", "at": 1, "seconds": 1, "node": "x"}]', "node"),
        ('[{"fault": "cut"}]', "events"),
        ('[{"fault": "fail", "node": "x", "call": 0}]', "call"),
        ('[{"fault": "fail", "node": "x", "call": 1, "error": "SystemExit"}]', "SystemExit"),
        ('[{"fault": "fail", "node": "x", "call": 1, "error": "print"}]', "print"),
        ('[{"fault": "fail", "node": "x", "call": 1, "error": "UnicodeDecodeError"}]', "UnicodeDecodeError"),
        (" " * 1_000_001, "characters"),
    ],
)
def test_what_is_no_script_is_told(text, said):
    with pytest.raises(TraceError, match="AF745") as caught:
        read_faults(text)
    assert said in caught.value.message


def test_a_recorded_run_replays_with_its_own_figures():
    """Recorded from a source that answers in real time, then run again on a virtual clock."""
    file = io.StringIO()

    class Live(Scripted):
        async def stream(self, request):
            for each in range(5):
                await asyncio.sleep(0.01)
                yield Event("token", str(each), time=time.perf_counter_ns(), sequence=each, meta=META)
            yield Event("finish", Finish(), time=time.perf_counter_ns(), sequence=5, meta=META)

    async def record():
        async for _ in Recorder(Live(), file).stream(request()):
            pass

    asyncio.run(record())
    trace = read(file.getvalue().encode())
    assert isinstance(trace, Trace)
    run = replayed(SPEECH, trace, functions={"speak": speak})
    assert round(run.status().ttft_s * 1e9) == trace.exchanges[0].ttft_ns
    assert round(run.status().elapsed_s * 1e9) == trace.exchanges[0].duration_ns
    assert run.result()["out"] == "01234"
