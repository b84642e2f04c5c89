"""`%aiflow trace`: the next run is recorded, or answered from a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiflow_jupyter.runtime.replay.reading import load

GRAPH = '%%aiflow graph flow\nask = generate()\nout = sink(var="out")\nask -> out'


@pytest.fixture
def ran(shell, capsys):
    """Runs a cell that has to succeed, and gives what it printed."""

    def run(cell):
        result = shell.ran(cell)
        assert result.success, result.error_in_exec or result.error_before_exec
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(shell):
    """Runs a cell that has to fail, and gives the error's code."""
    return lambda cell: shell.ran(cell).error_in_exec.code


def test_the_next_run_is_recorded_and_only_that(ran, shell, provider, tmp_path):
    path = tmp_path / "run.jsonl"
    ran(GRAPH)
    assert str(path) in ran(f"%aiflow trace record {path}")
    assert not path.exists()
    ran("%%aiflow run flow\nHi")
    ran("%%aiflow run flow\nHi")
    assert len(provider.requests) == 2
    trace = load(path)
    assert (trace.graph, trace.spec.name, len(trace.exchanges)) == ("flow", "flow", 1)
    (exchange,) = trace.exchanges
    assert (exchange.node, exchange.messages, exchange.ending) == ("ask", None, "finish")
    assert "".join(event.payload for event in exchange.events[:-1]) == "Hello world"
    assert path not in [each.resolve() for each in Path("/proc/self/fd").iterdir()], "it is closed with the run"


def test_a_question_is_answered_from_a_recording(ran, shell, provider, tmp_path):
    path = tmp_path / "run.jsonl"
    ran(f"%aiflow trace record --messages {path}")
    ran("%%aiflow\nWhy?")
    assert load(path).exchanges[0].messages == ({"role": "user", "content": "Why?"},)
    provider.pieces = ["Something else"]
    assert ", 1 answer," in ran(f"%aiflow trace replay {path} --speed 100")
    ran("%%aiflow -o again\nWhy?")
    ran("%%aiflow -o other\nWhy?")
    assert len(provider.requests) == 2
    assert shell.user_ns["again"].text == "Hello world"
    assert shell.user_ns["other"].text == "Something else"
    assert "recorded)" in shell.user_ns["again"].badge
    assert "recorded" not in shell.user_ns["other"].badge


def test_a_recording_is_no_turn_of_a_conversation(ran, refused, shell, tmp_path):
    path = tmp_path / "run.jsonl"
    ran(f"%aiflow trace record {path}")
    ran("%%aiflow\nWhy?")
    ran(f"%aiflow trace replay {path}")
    assert refused("%%aiflow -c talk\nWhy?") == "AF801"
    ran("%%aiflow -o again\nWhy?")
    assert "recorded)" in shell.user_ns["again"].badge
    ran("%%aiflow -c talk\nWhy?")


def test_a_replayed_run_tells_how_far_its_nodes_are_behind(ran, shell, tmp_path):
    path = tmp_path / "run.jsonl"
    ran(GRAPH)
    ran(f"%aiflow trace record {path}")
    ran("%%aiflow run flow -o first\nHi")
    ran(f"%aiflow trace replay {path}")
    ran("%%aiflow run flow -o second\nHi")
    lags = [[node.lag_s for node in shell.user_ns[name].status.nodes] for name in ("first", "second")]
    assert lags[0] == [None, None]
    assert all(lag >= 0 for lag in lags[1])


def test_off_takes_it_back(ran, provider, tmp_path):
    ran(f"%aiflow trace record {tmp_path / 'run.jsonl'}")
    ran("%aiflow trace off")
    ran("%%aiflow\nHi")
    assert list(tmp_path.glob("*.jsonl")) == []


def test_a_recording_that_ends_early_is_told(ran, provider, tmp_path):
    provider.pieces = ["x" * 2_000_000]
    ran(f"%aiflow trace record {tmp_path / 'run.jsonl'}")
    assert "AF740" in ran("%%aiflow\nHi")


def test_mistakes_are_told(ran, refused, tmp_path):
    path = tmp_path / "run.jsonl"
    assert refused("%aiflow trace record") == "AF801"
    assert refused("%aiflow trace play x") == "AF801"
    assert refused(f"%aiflow trace replay {path}") == "AF740"
    path.write_text("{}\n")
    assert refused(f"%aiflow trace replay {path}") == "AF741"
    assert refused(f"%aiflow trace record {path}") == "AF740"
    assert refused(f"%aiflow trace record {tmp_path}") == "AF740"
    assert refused(f"%aiflow trace record {tmp_path / 'none' / 'run.jsonl'}") == "AF740"
    assert path.read_text() == "{}\n"
    ran("%%aiflow\nHi")


def test_a_file_that_came_in_between_is_told_by_the_run(ran, refused, tmp_path):
    path = tmp_path / "run.jsonl"
    ran(f"%aiflow trace record {path}")
    path.write_text("mine")
    assert refused("%%aiflow\nHi") == "AF740"
    ran("%%aiflow\nHi")
    assert path.read_text() == "mine"
