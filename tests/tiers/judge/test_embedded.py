"""The judges that need no server: any text has a verdict, and the same one each time."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers.judge import Rule, judge_named
from aiflow_jupyter.tiers.judge.classifier import MODEL, ClassifierJudge
from aiflow_jupyter.tiers.judge.encoder import TOKENS
from aiflow_jupyter.tiers.judge.fixed import FixedJudge
from aiflow_jupyter.tiers.judge.rules import RulesJudge
from aiflow_jupyter.tiers.terms import LABELS

JUDGES = [ClassifierJudge(), RulesJudge(), FixedJudge("HIGH")]
EACH = pytest.mark.parametrize("each", JUDGES, ids=lambda each: each.name)

ODD = [
    "",
    " \n\t",
    "\x00\x01\x1b[2J\x7f",
    "\ud800 half a character",
    "\u202e\u200b\ufeff",
    "Warum ist der Himmel blau?",
    "为什么天空是蓝色的？请证明。",
    "لماذا السماء زرقاء؟",
    "🙂" * 500,
    "a" * 1_000_000,
    "why " * 250_000,
    "?" * 1_000_000,
    "(" * 100_000 + "a" * 100_000,
    "e\u0301" * 100_000,
]


def said(text):
    return [{"role": "user", "content": text}]


@EACH
@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_any_text_has_a_verdict(each, text):
    verdict = each.judge(said(text))
    assert verdict.label in LABELS
    assert sum(verdict.probabilities.values()) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in verdict.probabilities.values())
    assert verdict.why


@EACH
@given(text=st.text(max_size=300))
@settings(deadline=None, max_examples=60)
def test_a_verdict_is_the_same_each_time(each, text):
    first, second = each.judge(said(text)), each.judge(said(text))
    assert first.probabilities == second.probabilities
    assert sum(first.probabilities.values()) == pytest.approx(1)


def test_what_the_encoder_reads_is_bounded():
    arrays = JUDGES[0].load()._encoder
    assert arrays._positions.shape[0] == TOKENS
    assert np.allclose(arrays("why is it so " * 5_000), arrays("why is it so " * 50_000))


@EACH
def test_no_message_is_no_question(each):
    assert each.judge([]).label in LABELS


def test_shorter_please_is_as_hard_as_what_it_shortens():
    hard = said("Prove that every finitely generated group of polynomial growth is virtually nilpotent")
    for each in JUDGES[:2]:
        first = each.judge(hard)
        again = each.judge([*hard, {"role": "assistant", "content": "Gromov showed ..."}, *said("shorter please")])
        assert again.probabilities == first.probabilities
        assert "follow-up" in again.why


def test_two_plus_two_stays_low_after_anything():
    before = said("Design a consensus protocol for byzantine networks with proofs of safety and liveness")
    assert JUDGES[0].judge([*before, {"role": "assistant", "content": "..."}, *said("What is 2+2?")]).label == "LOW"


def test_thanks_is_low():
    assert JUDGES[0].judge(said("thanks!")).label == "LOW"


def test_the_classifier_tells_plain_cases_apart():
    assert JUDGES[0].judge(said("What is the capital of Portugal?")).label == "LOW"
    assert JUDGES[0].judge(said("Solve y'' + 4y' + 4y = exp(-2x) and check the result")).label == "MEDIUM"
    assert (
        JUDGES[0].judge(said("Lower bound on the sample complexity of testing whether a distribution is uniform")).label
        == "HIGH"
    )


def test_the_rules_name_what_they_met():
    verdict = RulesJudge().judge(said("Prove that there is no largest prime"))
    assert "asks for a proof" in verdict.why


def test_the_setting_moves_the_classifier():
    question = said("How does insulin lower blood sugar?")
    assert ClassifierJudge(Rule(high=0.0)).judge(question).label == "HIGH"
    assert ClassifierJudge(Rule(high=1.0)).judge(question).label != "HIGH"


async def test_the_loop_goes_on_while_it_judges():
    gone_on = threading.Event()

    class Waiting(FixedJudge):
        def weigh(self, question):
            assert gone_on.wait(10), "the loop stood still"
            return super().weigh(question)

    async def go_on():
        gone_on.set()

    verdict, _ = await asyncio.gather(Waiting("HIGH").ajudge(said("Why?")), go_on())
    assert verdict.label == "HIGH"


def test_judging_takes_neither_torch_nor_a_server_and_importing_no_numpy():
    program = (
        "import sys; from aiflow_jupyter.tiers.judge import judge_named; assert 'numpy' not in sys.modules;"
        "judge_named('classifier').judge([{'role': 'user', 'content': 'why?'}]);"
        "assert not {'torch', 'sklearn', 'onnxruntime', 'httpx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_model_file_is_small_and_holds_numbers_alone():
    assert MODEL.stat().st_size <= 40_000_000
    with np.load(MODEL, allow_pickle=False) as file:
        assert all(file[name].dtype.kind in "fiu" for name in file.files)


class Trap:
    def __reduce__(self):
        return (open, ("sprung", "w"))


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "pickle", "object array", "cut", "other arrays"])
def test_a_damaged_model_file_is_a_coded_error_and_runs_no_code(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.npz"
    if kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("<html>not found</html>")
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Trap()))
    elif kind == "object array":
        np.savez(path, mix=np.array([Trap()], dtype=object))
    elif kind == "cut":
        path.write_bytes(MODEL.read_bytes()[:100_000])
    elif kind == "other arrays":
        np.savez(path, mix=np.ones(2))
    with pytest.raises(ConfigError, match="AF726"):
        ClassifierJudge(model=path).judge(said("why is the sky blue?"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(("name", "says"), [("oracle", "there is no judge"), ("llm:local", "no source to ask")])
def test_a_judge_that_is_none_is_refused(name, says):
    with pytest.raises(ConfigError, match=says) as raised:
        judge_named(name)
    assert raised.value.code == "AF725"


def test_a_fixed_judge_takes_one_of_the_three_words():
    with pytest.raises(ConfigError, match="AF725"):
        FixedJudge("EASY")
