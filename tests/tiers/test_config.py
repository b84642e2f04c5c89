"""The configuration: what may stand where, and that every mistake is one message with file, key and what is allowed."""

from __future__ import annotations

import pytest

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers.config import load
from aiflow_jupyter.tiers.providers import WhenAsked, configured

UUID = "4b116d3c-1703-4f8f-9f6f-39921e5864df"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIFLOW_CONFIG", raising=False)
    user, project = tmp_path / "user.toml", tmp_path / "aiflow.toml"

    def write(own="", beside=None):
        user.write_text(own)
        if beside is not None:
            project.write_text(beside)
        return load(user)

    return write


def test_with_no_file_there_is_the_local_tier_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIFLOW_CONFIG", raising=False)
    assert list(configured(load(tmp_path / "none.toml"))) == ["local"]


def test_the_hpc_tier_is_there_once_it_is_named(files):
    config = files('[tiers.hpc]\nexecutor = "local"\nmodel_server = "http://127.0.0.1:8000/v1"\n')
    assert list(configured(config)) == ["local", "hpc"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tiers.hpc]\n", "tiers.hpc.executor: is missing"),
        ('[tiers.hpc]\nexecutor = "slurm"\n', "tiers.hpc.executor"),
        ('[tiers.hpc]\nexecutor = "globus"\nendpoint = "not-a-uuid"\n', "tiers.hpc.endpoint"),
        ('[tiers.hpc]\nexecutor = "local"\nrelay = "ws://x"\n', "begins with https://"),
        ('[tiers.hpc]\nexecutor = "local"\nrelay_key = "afr_secret"\n', "keys never stand in this file"),
        ('[tiers.hpc]\nexecutor = "local"\nstart_timeout = -1\n', "tiers.hpc.start_timeout"),
        ('[tiers.hpc]\nexecutor = "local"\nstart_timeout = nan\n', "tiers.hpc.start_timeout"),
        ("[tiers.moon]\n", "tiers.moon: unknown setting"),
        ("not toml", "is not TOML"),
    ],
)
def test_a_mistake_is_one_message_with_the_file_and_the_key(files, text, said):
    with pytest.raises(ConfigError) as caught:
        files(text)
    assert said in str(caught.value)
    assert "user.toml" in str(caught.value)
    assert "afr_secret" not in str(caught.value)


def test_a_projects_file_chooses_a_model(files):
    config = files('[tiers.hpc]\nexecutor = "local"\nmodel = "small"\n', '[tiers.hpc]\nmodel = "large"\n')
    assert config.tiers.hpc.model == "large"


@pytest.mark.parametrize(
    "setting",
    ['relay = "https://evil.example"', 'worker_key = "x"', 'relay_key_env = "AWS_SECRET"', 'executor = "local"'],
)
def test_a_projects_file_points_nowhere(files, setting):
    with pytest.raises(ConfigError, match="may not stand in a project's file"):
        files('[tiers.hpc]\nexecutor = "local"\n', f"[tiers.hpc]\n{setting}\n")


def test_a_file_that_the_environment_names_has_to_be_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIFLOW_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(ConfigError, match="not there"):
        load()


async def ask(provider):
    from aiflow_jupyter.runtime.source import Request

    return [event async for event in provider.stream(Request(({"role": "user", "content": "Hi"},), tier="hpc"))]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (f'executor = "globus"\nendpoint = "{UUID}"', "worker_key is missing"),
        ('executor = "globus"\nworker_key = "x"', "endpoint is missing"),
        (f'executor = "globus"\nendpoint = "{UUID}"\nworker_key = "x"', "no cluster can reach it"),
        ('executor = "local"\nrelay = "https://relay.example"', "relay_key_env or relay_key_file is missing"),
        (
            'executor = "local"\nrelay = "https://relay.example"\nrelay_key_env = "NO_SUCH_KEY"',
            "NO_SUCH_KEY, which is not set",
        ),
    ],
)
async def test_what_is_incomplete_fails_the_question_that_needs_it_and_no_other(files, settings, said):
    tiers = configured(files("[tiers.hpc]\n" + settings.replace('globus"\n', 'globus"\nrelay = "self"\n')))
    with pytest.raises(ConfigError, match=said):
        await ask(tiers["hpc"])


async def test_a_key_file_that_others_can_read_is_refused(files, tmp_path):
    key = tmp_path / "relay.key"
    key.write_text("afr_canary")
    key.chmod(0o644)
    tiers = configured(
        files(f'[tiers.hpc]\nexecutor = "local"\nrelay = "https://r.example"\nrelay_key_file = "{key}"\n')
    )
    with pytest.raises(ConfigError, match="can be read by others") as caught:
        await ask(tiers["hpc"])
    assert "chmod 600" in str(caught.value)
    assert "afr_canary" not in str(caught.value)


async def test_a_provider_that_was_never_asked_is_never_made():
    made = []
    provider = WhenAsked(lambda: made.append(1))
    await provider.aclose()
    assert made == []


@pytest.mark.parametrize("setting", ["relay_key_env", "model_server_key_env"])
def test_a_key_in_the_place_of_its_variable_s_name_is_not_repeated(files, setting):
    with pytest.raises(ConfigError, match="never stands here") as caught:
        files(f'[tiers.hpc]\nexecutor = "local"\n{setting} = "afr_CANARY"\n')
    assert "CANARY" not in "\n".join(caught.value.lines())


class Counted:
    made, closed = 0, 0

    def __init__(self):
        Counted.made += 1

    async def stream(self, request):
        from aiflow_jupyter.events import Event, Finish

        yield Event("token", request.tier)
        yield Event("finish", Finish())

    async def aclose(self):
        Counted.closed += 1


@pytest.fixture
def following(tmp_path, monkeypatch):
    from aiflow_jupyter.tiers import providers

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIFLOW_CONFIG", str(tmp_path / "user.toml"))
    monkeypatch.setattr(Counted, "made", 0)
    monkeypatch.setattr(Counted, "closed", 0)
    monkeypatch.setattr(providers, "_local", lambda _settings: Counted())
    monkeypatch.setattr(providers, "_hpc", lambda _settings: Counted())
    return tmp_path / "user.toml", providers.ConfiguredRouter()


async def asked(router, tier):
    from aiflow_jupyter.runtime.source import Request

    request = Request(({"role": "user", "content": "Hi"},), tier=tier)
    return [event.kind async for event in router.stream(request)]


async def test_a_mistake_that_is_mended_counts_at_once(following):
    file, router = following
    file.write_text("[tiers.moon]\n")
    with pytest.raises(ConfigError, match="moon"):
        await asked(router, "local")
    file.write_text('[tiers.hpc]\nexecutor = "local"\n')
    assert await asked(router, "hpc") == ["token", "finish"]


async def test_a_tier_that_is_added_leaves_the_others_open(following):
    file, router = following
    file.write_text("")
    await asked(router, "local")
    with pytest.raises(ConfigError, match="not configured"):
        await asked(router, "hpc")
    file.write_text('[tiers.hpc]\nexecutor = "local"\n')
    await asked(router, "hpc")
    await asked(router, "local")
    assert (Counted.made, Counted.closed) == (2, 0)


async def test_a_tier_that_changed_is_closed_once_its_last_answer_has_ended(following):
    from aiflow_jupyter.runtime.source import Request

    file, router = following
    file.write_text('[tiers.hpc]\nexecutor = "local"\n')
    request = Request(({"role": "user", "content": "Hi"},), tier="hpc")
    answer = router.stream(request)
    await anext(answer)
    file.write_text('[tiers.hpc]\nexecutor = "local"\nmodel = "other"\n')
    await asked(router, "hpc")
    assert Counted.closed == 0
    await answer.aclose()
    assert Counted.closed == 1
