"""`aiflow trace`, as its own process."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aiflow_jupyter import cli, trace_command
from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import SIGNATURES
from aiflow_jupyter.runtime.replay.trace import hash_of

COMMAND = Path(sys.executable).with_name("aiflow")
GRAPH = """
ask    = generate()
speech = map(speak)   [queue=8]
out    = sink(var="out")
ask -> speech -> out
"""


def aiflow(*arguments, **env):
    return subprocess.run(
        [str(COMMAND), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
        check=False,
    )


@pytest.fixture
def trace(tmp_path):
    """An answer of 50 tokens, one each 20 ms from 0.5 s on."""
    header = {"aiflow_trace": 1, "graph": "g", "spec": parse(GRAPH, "g", SIGNATURES).spec.to_json(), "start": 5}
    rows = [header | {"begun": "2026-03-01T09:30:00+00:00", "library": "0.1.0"}]
    asked = {"kind": "request", "request": 0, "at": 0, "hash": hash_of([]), "tier": "auto", "model": None}
    rows.append(asked | {"node": "ask"})
    by = {"tier": "local", "model": "small", "provider": "test"}
    for number in range(50):
        row = {"kind": "token", "request": 0, "at": 500_000_000 + 20_000_000 * number, "payload": f"t{number} "}
        rows.append(row | {"phase": "answer"} | ({"by": by} if not number else {}))
    usage = dict.fromkeys(("prompt_tokens", "reasoning_tokens", "cached_tokens")) | {"completion_tokens": 50}
    rows.append({"kind": "finish", "request": 0, "at": 1_500_000_000, "payload": {"reason": "stop", "usage": usage}})
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "g.aiflow"
    path.write_text(GRAPH)
    return path


def test_show_tells_requests_tokens_and_times(trace):
    shown = aiflow("trace", "show", trace)
    assert shown.returncode == 0, shown.stderr
    assert "ask · local · small · 50 tokens · first token 0.500 s · 1.500 s" in shown.stdout
    (row,) = json.loads(aiflow("trace", "show", "--json", trace).stdout)["requests"]
    assert (row["tokens"], row["ttft_s"], row["duration_s"], row["ending"]) == (50, 0.5, 1.5, "finish")


def test_replay_on_a_virtual_clock_prints_the_figures_and_the_bottleneck(trace, graph):
    arguments = ("trace", "replay", trace, "--graph", graph, "--virtual", "--service", "speech=0.08")
    done = aiflow(*arguments)
    assert done.returncode == 0, done.stderr
    assert "g: done in 4.500 s, first token 0.500 s" in done.stdout
    assert "speech is the bottleneck" in done.stdout
    assert "speak" in done.stderr
    first, second = (aiflow(*arguments, "--json", PYTHONHASHSEED=seed) for seed in "12")
    assert first.stdout == second.stdout
    figures = json.loads(first.stdout)
    speech = next(node for node in figures["nodes"] if node["node"] == "speech")
    assert (figures["elapsed_s"], speech["peak"], figures["bottleneck"]["node"]) == (4.5, 8, "speech")
    assert speech["lag_s"] == pytest.approx(49 / 2 * 0.06)


def test_replay_in_real_time(trace, graph):
    done = aiflow("trace", "replay", trace, "--graph", graph, "--speed", "20", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["elapsed_s"] >= 0.075


def test_replay_with_faults_prints_the_figures_also_of_a_run_that_fails(trace, graph, tmp_path):
    script = tmp_path / "faults.json"
    script.write_text('[{"fault": "stall", "at": 0.7, "seconds": 2}, {"fault": "cut", "events": 30}]')
    done = aiflow("trace", "replay", trace, "--graph", graph, "--virtual", "--faults", script, "--json")
    assert done.returncode == 1
    assert "AF702" in done.stderr
    figures = json.loads(done.stdout)
    assert (figures["state"], figures["elapsed_s"]) == ("failed", 0.5 + 29 * 0.02 + 2)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--service", "speech"], "AF801"),
        (["--service", "spech=1"], "AF745"),
        (["--faults", "GRAPH"], "AF745"),
        (["--faults", "NONE"], "AF808"),
        (["--faults", "/dev/zero"], "AF745"),
        (["--graph", "TRACE"], "AF"),
        (["--graph", "NONE"], "AF808"),
    ],
)
def test_mistakes_are_told_with_a_code_and_no_traceback(trace, graph, tmp_path, arguments, code):
    paths = {"GRAPH": graph, "TRACE": trace, "NONE": tmp_path / "none"}
    given = [paths.get(word, word) for word in arguments]
    done = aiflow("trace", "replay", trace, "--virtual", "--graph", graph, *given)
    assert done.returncode == 1
    assert code in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_that_is_cut_off_is_told_and_read_where_asked(trace):
    trace.write_bytes(trace.read_bytes()[:-9])
    done = aiflow("trace", "show", trace)
    assert done.returncode == 1
    assert "AF742" in done.stderr
    assert "line 53" in done.stderr
    shown = aiflow("trace", "show", "--partial", trace)
    assert "cut off" in shown.stdout
    assert "broke off (lost)" in shown.stdout


def test_words_of_a_trace_do_not_steer_the_terminal(trace):
    trace.write_text(trace.read_text().replace('"small"', '"\\u001b[2Jsmall"'))
    shown = aiflow("trace", "show", trace)
    assert "\x1b" not in shown.stdout
    assert "small" in shown.stdout


def test_record_takes_every_option_of_a_question(tmp_path):
    asked = []

    class Source:
        async def stream(self, request):
            asked.append(request)
            request.report("worker up")
            yield Event("token", "Hi", meta={"phase": "answer"})
            yield Event("finish", Finish("stop"))

    record = trace_command.command(lambda job: asyncio.run(job(Source())), cli._ask)
    line = "--tier local --stay institution --fallback --model m --system Briefly"
    line += " --temperature 0.5 --max-tokens 9 --seed 3"
    done = CliRunner().invoke(record, ["record", "-o", str(tmp_path / "new.jsonl"), *line.split(), "Why?"])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("worker up ...\n")
    (request,) = asked
    assert [message["content"] for message in request.messages] == ["Briefly", "Why?"]
    told = (request.tier, request.stay, request.fallback, request.model, request.temperature, request.max_tokens)
    assert (*told, request.seed) == ("local", "institution", True, "m", 0.5, 9, 3)


def test_ask_and_record_have_the_same_options_of_a_question():
    group = trace_command.command(lambda job: asyncio.run(job(None)), cli._ask)
    own = {"out", "messages", "why", "explain", "conversation", "no_store", "help"}
    ask, record = ({each.name for each in command.params} - own for command in (cli.ask, group.commands["record"]))
    assert ask == record
    assert {"max_tokens", "temperature", "seed", "model"} < ask


HANGS = """
import asyncio, os, signal, time
from aiflow_jupyter import cli

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

async def job(router):
    interrupt()
    try:
        await asyncio.sleep(60)
    finally:
        {closing}

@cli.main.command()
def hang():
    {command}

cli.main(["hang"])
"""


@pytest.mark.parametrize(
    ("command", "closing", "said"),
    [
        ("cli._with_router(job)", "await asyncio.sleep(0)", "cancelled"),
        ("cli._with_router(job)", "interrupt()", "cancelled at once; what was open was not closed"),
        ("interrupt(); time.sleep(60)", "...", "cancelled"),
    ],
)
def test_the_first_interrupt_closes_what_is_open_and_a_second_one_waits_for_nothing(command, closing, said):
    code = HANGS.format(command=command, closing=closing)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, said)


@pytest.mark.model
def test_record_a_real_answer_and_replay_it(model, tmp_path, graph):
    path = tmp_path / "new.jsonl"
    done = aiflow("trace", "record", "-o", path, "--tier", "local", "Why is the sky blue?")
    assert done.returncode == 0, done.stderr
    assert "first token" in done.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "sky" not in path.read_text().splitlines()[1]
    again = aiflow("trace", "record", "-o", path, "Why?")
    assert "AF740" in again.stderr
    (row,) = json.loads(aiflow("trace", "show", "--json", path).stdout)["requests"]
    assert row["ending"] == "finish"
    played = json.loads(aiflow("trace", "replay", path, "--graph", graph, "--virtual", "--json").stdout)
    assert played["ttft_s"] == pytest.approx(row["ttft_s"])
    assert played["elapsed_s"] == pytest.approx(row["duration_s"])
