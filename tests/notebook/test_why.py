"""Who answered and why, as a cell, a reply and a line say it; over a real router whose tiers are scripted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

import aiflow_jupyter
from aiflow_jupyter.errors import CommandError, ProviderError
from aiflow_jupyter.notebook import magics
from aiflow_jupyter.tiers.counting import TokenCounter
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.ledger import SqliteLedger
from aiflow_jupyter.tiers.router import Router
from aiflow_jupyter.tiers.terms import Fitted, Tier


class Whole:
    def misfit(self, messages, tier, output):
        return None

    async def fit(self, messages, tier, output, floor, conversation=""):
        return Fitted(tuple(messages), 10)


@pytest.fixture
def local(provider):
    return provider


@pytest.fixture
def hpc(local):
    return type(local)(["From the cluster"])


@pytest.fixture
def the_host(local, hpc, monkeypatch, tmp_path):
    from aiflow_kernel import host

    def judge(messages, floor):
        return SimpleNamespace(label="LOW", probabilities={"LOW": 0.9, "MEDIUM": 0.1}, seconds=0.0, why="a greeting")

    def router():
        tiers = {"local": Tier("local", local, "openai", "small"), "hpc": Tier("hpc", hpc, "hpc", "large")}
        ledger = SqliteLedger(Database(tmp_path / "aiflow.db"))
        return Router(tiers, judge=judge, ledger=ledger, fitter=Whole(), counter=TokenCounter())

    made = host.Host(router)
    monkeypatch.setattr(host, "_hosts", [made])
    yield made
    made.stop()


def test_a_reply_says_who_answered_and_why(shell):
    reply = shell.ran("%%aiflow\nHi").result
    assert reply.decision.as_dict()["chosen"] == "local"
    assert reply.why.startswith("auto: local answers · small\njudged LOW (LOW 0.90, MEDIUM 0.10) in")
    assert reply.badge.endswith("judged LOW")


def test_a_cell_says_it_below_its_answer_where_it_is_asked_to(shell, capsys):
    reply = shell.ran("%%aiflow --why -o it\nHi").result
    assert "]\nauto: local answers · small\njudged LOW" in capsys.readouterr().out
    assert shell.user_ns["it"] is reply
    shell.ran('%%aiflow graph one\na = generate(tier="hpc")\nout = sink(var="x")\na -> out')
    capsys.readouterr()
    shell.ran("%%aiflow run one --why\nHi")
    assert "\nhpc: hpc answers · large\nnot judged" in f"\n{capsys.readouterr().out}"


def test_the_line_says_it_of_the_newest_run_or_a_named_one(shell, capsys):
    first = shell.ran("%%aiflow --tier hpc\nHi").result
    shell.ran("%%aiflow\nHi")
    capsys.readouterr()
    shell.ran("%aiflow why")
    assert capsys.readouterr().out.startswith("auto: local answers")
    shell.ran(f"%aiflow why {first.result.status.run_id[:6]}")
    assert capsys.readouterr().out.startswith("hpc: hpc answers · large\nnot judged: hpc was named")


def test_the_line_knows_no_run_of_that_name(shell):
    assert isinstance(shell.ran("%aiflow why").error_in_exec, CommandError)
    shell.ran("%%aiflow\nHi")
    assert "%aiflow runs" in shell.ran("%aiflow why nothing").error_in_exec.hint
    assert "%%aiflow" in shell.ran("%aiflow why is it so").error_in_exec.hint


def test_a_graphs_answers_are_told_one_by_one(shell, capsys):
    graph = 'a = generate()\nr = reduce(join)\nb = generate(tier="hpc")\nout = sink(var="x")\na -> r -> b -> out'
    shell.ran(f"%%aiflow graph two\n{graph}")
    assert shell.ran("%%aiflow run two\nHi").success
    capsys.readouterr()
    shell.ran("%aiflow why")
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("0/0.a\nauto: local answers")
    assert second.splitlines()[1] == "hpc: hpc answers · large"


def test_a_tier_that_failed_is_named_under_the_answer(shell, local, capsys):
    local.pieces = [ProviderError("nothing answers", code="AF701")]
    reply = shell.ran("%%aiflow\nHi").result
    assert (str(reply), reply.tier) == ("From the cluster", "hpc")
    assert "local failed: nothing answers, answered by hpc" in reply.badge
    strict = shell.ran("%%aiflow --tier local\nHi")
    assert isinstance(strict.error_in_exec, ProviderError)
    assert str(shell.ran("%%aiflow --tier local --fallback\nHi").result) == "From the cluster"


def test_the_floor_of_a_cell_and_of_ask_is_kept(shell, local, hpc):
    local.pieces = [ProviderError("nothing answers", code="AF701")]
    assert isinstance(shell.ran("%%aiflow --stay local\nHi").error_in_exec, ProviderError)
    with pytest.raises(ProviderError):
        aiflow_jupyter.ask("Hi", stay="local")
    assert hpc.requests == []
    assert aiflow_jupyter.ask("Hi", tier="local", fallback=True).tier == "hpc"


def test_explain_asks_nobody(shell, local, hpc, capsys):
    shell.ran("%%aiflow --explain --stay institution\nHi")
    out = capsys.readouterr().out
    assert out.startswith("auto: local answers · small\njudged LOW")
    assert "cloud  refused  not allowed: this request stays" in out
    assert (local.requests, hpc.requests) == ([], [])


@pytest.mark.parametrize(("cell", "what"), [("%%aiflow --explain\nHi", "explain"), ("%aiflow tiers", "look")])
def test_a_loop_that_has_no_time_is_said(shell, the_host, monkeypatch, cell, what):
    async def never(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(magics, "LOOK_S", 0.01)
    monkeypatch.setattr(the_host.source, what, never, raising=False)
    error = shell.ran(cell).error_in_exec
    assert isinstance(error, CommandError)
    assert (error.code, error.hint) == ("AF812", "%aiflow runs")


def test_an_answer_that_is_begun_anew_leaves_nothing_of_the_old_one(shell, local):
    local.pieces = ["old", ProviderError("down", code="AF702")]
    shell.ran('%%aiflow graph g\nask = generate() [restart=true]\nout = sink(var="x")\nask -> out')
    result = shell.ran("%%aiflow run g\nHi").result
    assert "".join(result.variables["x"]) == "From the cluster"
    assert result.answers[0].tier == "hpc"


def test_what_answers_cost_is_printed_once(shell, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("AIFLOW_DATABASE", str(tmp_path / "aiflow.db"))
    shell.ran("%%aiflow\nHi")
    capsys.readouterr()
    shell.ran("%aiflow cost")
    assert capsys.readouterr().out.count("answers") == 1
