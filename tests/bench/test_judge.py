"""The measurement of a judge: its figures, by hand, and what it says of a bad file."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from aiflow_jupyter.bench import judge
from aiflow_jupyter.bench.judge import figures, interval
from aiflow_jupyter.cli import main
from aiflow_jupyter.tiers.terms import Verdict


def run(path, *options):
    return CliRunner().invoke(main, ["bench", "judge", "--data", str(path), *options])


def verdict(label, high=0.0):
    return Verdict(label, {"LOW": 1 - high, "MEDIUM": 0.0, "HIGH": high}, 0.002, "", "")


def test_figures_are_what_a_hand_counts():
    truths = ["LOW", "LOW", "MEDIUM", "MEDIUM", "HIGH", "HIGH"]
    said = [
        verdict("LOW"),
        verdict("HIGH", 0.9),
        verdict("MEDIUM"),
        verdict("LOW"),
        verdict("HIGH", 0.8),
        verdict("MEDIUM"),
    ]
    found = figures(truths, said)
    assert found["accuracy"] == pytest.approx(3 / 6)
    assert found["macro_f1"] == pytest.approx((1 / 2 + 1 / 2 + 1 / 2) / 3)
    assert found["retention"] == pytest.approx(3 / 4)
    assert found["high_recall"] == pytest.approx(1 / 2)
    assert found["confusion"]["LOW"] == {"LOW": 1, "MEDIUM": 0, "HIGH": 1}
    assert found["p50_ms"] == pytest.approx(2)
    at = next(point for point in found["curve"] if point["threshold"] == 0.85)
    assert at == {"threshold": 0.85, "high_recall": 0.0, "retention": 0.75}


def test_always_medium_retains_everything_and_recalls_nothing():
    found = figures(["LOW", "MEDIUM", "HIGH"], [verdict("MEDIUM")] * 3)
    assert (found["retention"], found["high_recall"]) == (1.0, 0.0)


def test_what_is_not_there_is_not_counted():
    assert figures(["LOW"], [verdict("LOW")])["high_recall"] is None
    assert figures(["HIGH"], [verdict("HIGH", 1.0)])["retention"] is None


def test_the_interval_is_wilson_s():
    assert interval(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)


@pytest.mark.parametrize("name", ["classifier", "rules", "fixed:HIGH"])
def test_a_file_gives_every_figure(name, tmp_path):
    path = tmp_path / "queries.jsonl"
    rows = [
        ("What is the capital of France?", "LOW"),
        ("Prove the Riemann hypothesis", "high"),
        ("Explain PCR", "MEDIUM"),
    ]
    lines = [json.dumps({"text": text, "ground_truth": truth, "domain": "x"}) for text, truth in rows]
    path.write_text("\ufeff" + "\n".join(lines) + "\n\n", "utf-8")
    result = run(path, "--json", "--judge", name)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    wanted = {"accuracy", "macro_f1", "retention", "high_recall", "confusion", "p50_ms", "p95_ms"}
    assert wanted <= set(found)
    assert (found["judge"], found["queries"]) == (name, 3)
    shown = run(path, "--judge", name)
    assert "HIGH recall" in shown.output
    assert "P(HIGH)" in shown.output


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"", "AF830", "no query"),
        (b"\n \n", "AF830", "no query"),
        (b"{", "AF831", "line 1"),
        (b'{"text": "a", "ground_truth": "LOW"}\n[1]', "AF831", "line 2"),
        (b'{"ground_truth": "LOW"}', "AF831", "no text"),
        (b'{"text": 3, "ground_truth": "LOW"}', "AF831", "no text"),
        (b'{"text": "a"}', "AF831", "ground_truth"),
        (b'{"text": "a", "ground_truth": "EASY"}', "AF831", "EASY"),
        (b'{"text": "a", "ground_truth": ["LOW"]}', "AF831", "ground_truth"),
        (b"\xff\xfe{}", "AF831", "line 1"),
        (b"[" * 100_000, "AF831", "line 1"),
    ],
)
def test_a_bad_file_is_a_coded_error_with_its_line(content, code, says, tmp_path):
    path = tmp_path / "queries.jsonl"
    path.write_bytes(content)
    result = run(path, "--json")
    assert result.exit_code == 1
    assert code in result.output
    assert says in result.output


def test_a_file_that_is_not_there_and_a_folder_are_coded_errors(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        result = run(path)
        assert result.exit_code == 1
        assert "AF830" in result.output


def test_a_fixed_judge_says_its_label(tmp_path):
    path = tmp_path / "queries.jsonl"
    path.write_text('{"text": "a", "ground_truth": "low"}')
    for name, accuracy in (("fixed:LOW", 1), ("fixed:HIGH", 0)):
        assert json.loads(run(path, "--json", "--judge", name).output)["accuracy"] == accuracy


def test_how_far_it_is_is_said(tmp_path, monkeypatch):
    path = tmp_path / "queries.jsonl"
    path.write_text('{"text": "a", "ground_truth": "low"}\n' * 3)
    monkeypatch.setattr(judge, "TELL_EVERY", 0)
    told = []
    judge.measure(path, "fixed:LOW", told.append)
    assert told == [f"{done} of 3 queries are judged" for done in range(3)]


@pytest.mark.parametrize(
    "name", ["oracle", "fixed", "fixed:EASY", "llm", "llm:moon", "rules:LOW", "classifier:", ":LOW", ""]
)
def test_an_unknown_judge_is_named(tmp_path, name):
    path = tmp_path / "queries.jsonl"
    path.write_text('{"text": "a", "ground_truth": "LOW"}')
    result = run(path, "--judge", name)
    assert result.exit_code == 1
    assert "AF725" in result.output
