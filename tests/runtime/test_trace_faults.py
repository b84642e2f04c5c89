"""What is said of a fault that can't be: in Python and in a script; and of a file that can't be recorded to."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import aiflow_jupyter
from aiflow_jupyter import Burst, Cut, Fail, Slow, Stall
from aiflow_jupyter.runtime.replay.faults import read_faults
from aiflow_jupyter.runtime.replay.recorder import require_new
from aiflow_jupyter.runtime.replay.trace import TraceError

README = Path(__file__).parents[2] / "README.md"
FAULTS = {kind.__name__: kind for kind in (Burst, Cut, Fail, Slow, Stall)}


@pytest.mark.parametrize("kind", FAULTS.values())
def test_faults_are_names_of_the_package_with_arguments_that_can_be_looked_up(kind):
    assert getattr(aiflow_jupyter, kind.__name__) is kind
    assert kind.__name__ in aiflow_jupyter.__all__
    assert set(inspect.signature(kind).parameters) == set(kind.model_fields)


@pytest.mark.parametrize(
    ("make", "said", "hint"),
    [
        (
            lambda: Stall(at=-1, seconds=2),
            "stall.at is -1, not a number of at least 0",
            "a stall takes request, at, se",
        ),
        (lambda: Stall(at="1", seconds=2), "stall.at is '1', not a number", "request, at, seconds"),
        (lambda: Stall(at=1), "stall.seconds is missing", "request, at, seconds"),
        (lambda: Stall(at=1, secs=2), "stall has no 'secs'", "request, at, seconds"),
        (Cut, "cut needs at or events", "a cut takes request, at, events"),
        (
            lambda: Fail(node="x", call=0),
            "fail.call is 0, not a whole number of at least 1",
            "node, call, times, error",
        ),
        (lambda: Fail(node="x", call=1, error="Oops"), "'Oops' is no exception of Python's own", "node, call, times"),
        (lambda: Slow(node=3), "slow.node is 3, not a text", "a slow takes node, factor, spread"),
        (lambda: Burst(at=float("nan")), "burst.at is nan, not a finite number", "request, at, seconds"),
    ],
)
def test_a_fault_that_can_not_be_is_one_coded_error(make, said, hint):
    with pytest.raises(TraceError) as caught:
        make()
    assert caught.value.code == "AF745"
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("script", "said", "hint"),
    [
        ('[{"fault": "cut", "at": 1},\n {"fault": "stall", "at": 1, "secs": 2}]', "1.stall has no 'secs'", "fault 2"),
        ('[{"fault": "stal", "at": 1, "seconds": 2}]', "0.fault is 'stal'", "1; did you mean 'stall'?"),
        ('[{"fault": ["stall"]}]', "0.fault is ['stall'], which is none", "fault 1"),
        ('[{"fault": "quake"}]', "0.fault is 'quake'", "known: burst, cut, fail, slow, stall"),
        ('[{"fault": "cut", "at": 1}, 3]', "1 does not say which fault it is", '[{"fault": "stall"'),
        ('[\n{"fault": "cut" "at": 1}]', "no JSON (line 2, column 17", '[{"fault": "stall"'),
        ('{"fault": "cut", "at": 1}', "no JSON array", '[{"fault": "stall"'),
        ("[" * 100_000, "no JSON", '[{"fault": "stall"'),
        ('[{"fault": "cut", "events": ' + "9" * 5_000 + "}]", "no JSON", '[{"fault": "stall"'),
        ("[" + ", ".join(['{"fault": "burst"}'] * 10_001) + "]", "more than 10,000 faults", '[{"fault": "stall"'),
        ('[{"fault": "cut", "self": 1}]', "0.cut has no 'self'", "fault 1"),
    ],
)
def test_a_script_that_is_wrong_is_told_with_the_place_in_it(script, said, hint):
    with pytest.raises(TraceError) as caught:
        read_faults(script)
    assert caught.value.code == "AF745"
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_the_two_forms_of_a_fault_in_the_readme_are_the_same():
    rows = re.findall(r"^\| `(\w+\(.*?\))`.*?\| `(\{.*?\})` \|", README.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 5
    for python, document in rows:
        assert [eval(python, FAULTS)] == read_faults(f"[{document}]")


def test_a_file_that_can_be_recorded_to_is_not_made_by_asking(tmp_path):
    require_new(tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run.jsonl").write_text("mine")
    with pytest.raises(TraceError, match=r"AF740.*is there already"):
        require_new(tmp_path / "run.jsonl")
    with pytest.raises(TraceError, match=r"AF740.*can't be written"):
        require_new(tmp_path / "none" / "run.jsonl")
    assert (tmp_path / "run.jsonl").read_text() == "mine"
