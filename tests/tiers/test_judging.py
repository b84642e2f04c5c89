"""The judge that the settings name: the real judges, and a model's tier asked only within the floor."""

from __future__ import annotations

import inspect

import pytest

from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.tiers.configured import ConfiguredRouter
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.judging import ConfiguredJudge
from aiflow_jupyter.tiers.sections import Config, Local, Route, Tiers

EASY = ({"role": "user", "content": "What is the capital of France?"},)


class Model:
    """Answers every request with one word."""

    def __init__(self, word):
        self.word, self.requests = word, []

    async def stream(self, request):
        self.requests.append(request)
        yield Event("token", self.word, meta={"phase": "answer"})
        yield Event("finish", Finish())


def judging(model=None, **route):
    judge = ConfiguredJudge(lambda: Config(route=Route(**route)))
    judge.source = model
    return judge


async def verdict(judge, floor="anywhere"):
    said = judge(EASY, floor)
    return await said if inspect.isawaitable(said) else said


@pytest.mark.parametrize("name", ["classifier", "rules"])
async def test_a_judge_by_name(name):
    said = await verdict(judging(judge=name))
    assert (said.label, said.judge) == ("LOW", name)
    assert sum(said.probabilities.values()) == pytest.approx(1)


@pytest.mark.parametrize("label", ["LOW", "MEDIUM", "HIGH"])
async def test_a_fixed_judge_says_what_is_set(label):
    assert (await verdict(judging(judge=f"fixed:{label}"))).label == label


async def test_the_threshold_is_the_settings():
    assert (await verdict(judging(judge="rules", threshold=0.0))).label == "HIGH"
    assert (await verdict(judging(judge="rules", round_up=1.0))).label == "MEDIUM"


async def test_a_models_tier_is_asked_as_itself_and_goes_no_further_than_that():
    model = Model("HIGH")
    said = await verdict(judging(model, judge="llm:hpc"), "institution")
    assert said.judge == "llm"
    assert [(each.tier, each.stay) for each in model.requests] == [("hpc", "institution")]


@pytest.mark.parametrize(
    ("tier", "provider", "held"),
    [("local", None, True), ("local", "embedded", True), ("local", "ollama", False), ("hpc", None, False)],
)
async def test_the_embedded_model_is_held_to_the_three_words(tier, provider, held):
    model = Model("HIGH")
    local = Local(provider=provider, model="m" if provider else None)
    settings = Config(tiers=Tiers(local=local), route=Route(judge=f"llm:{tier}"))
    judge = ConfiguredJudge(lambda: settings)
    judge.source = model
    await verdict(judge)
    assert ["grammar" in each.extra for each in model.requests] == [held]


@pytest.mark.parametrize(("tier", "floor"), [("cloud", "institution"), ("cloud", "local"), ("hpc", "local")])
async def test_beyond_the_floor_the_classifier_judges_and_nobody_is_asked(tier, floor):
    model = Model("HIGH")
    said = await verdict(judging(model, judge=f"llm:{tier}"), floor)
    assert (said.judge, model.requests) == ("classifier", [])


async def test_while_its_tier_rests_the_classifier_judges_and_nobody_is_asked():
    model = Model("HIGH")
    judge = judging(model, judge="llm:hpc")
    judge.rests = lambda tier: tier == "hpc"
    said = await verdict(judge)
    assert (said.judge, model.requests) == ("classifier", [])
    assert said.why.endswith("(llm:hpc rests)")


async def test_the_configured_router_says_which_tiers_rest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIFLOW_CONFIG", str(tmp_path / "own.toml"))
    (tmp_path / "own.toml").write_text(
        '[tiers.local]\nprovider = "embedded"\n[tiers.hpc]\nexecutor = "local"\n[route]\njudge = "llm:local"\n'
    )
    source = ConfiguredRouter(Database(tmp_path / "costs.db"))
    await source.view(EASY, "local")
    for _ in range(3):
        source.router.health.enter("local").failed("down")
    assert (await source.explain(EASY)).why.endswith("(llm:local rests)")
    await source.aclose()


async def test_settings_that_change_count_for_the_next_request():
    route = {"judge": "fixed:LOW"}
    judge = ConfiguredJudge(lambda: Config(route=Route(**route)))
    assert (await verdict(judge)).label == "LOW"
    route["judge"] = "fixed:HIGH"
    assert (await verdict(judge)).label == "HIGH"
