"""The configuration: what may stand where, and that every mistake is one message with file, key and what is allowed."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading

import pytest

from aiflow_jupyter.errors import ConfigError, ProviderError
from aiflow_jupyter.hpc.timeouts import Timeouts
from aiflow_jupyter.providers.embedded import EmbeddedModel
from aiflow_jupyter.relay.crypto import WorkerKey
from aiflow_jupyter.tiers.config import load
from aiflow_jupyter.tiers.configured import ConfiguredRouter
from aiflow_jupyter.tiers.discovery import Discovery
from aiflow_jupyter.tiers.making import WhenAsked, _local, configured, made_by
from aiflow_jupyter.tiers.terms import Price

UUID = "4b116d3c-1703-4f8f-9f6f-39921e5864df"
LOCAL = '[tiers.hpc]\nexecutor = "local"\n'
GLOBUS = '[tiers.hpc]\nexecutor = "globus"\n'
WHOLE = f'{GLOBUS}endpoint = "{UUID}"\nworker_key = "x"\nrelay = "https://relay.example"\n'
OWN_RELAY = WHOLE.replace("https://relay.example", "self")


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
        ("[tiers.hpc]\n", 'tiers.hpc.executor: is missing: "local" or "globus"'),
        ("[tiers]\nhpc = 7\n", "tiers.hpc: is a section of its own"),
        ('[tiers.hpc]\nexecutor = "slurm"\n', 'tiers.hpc.executor: is "local" or "globus"'),
        (f'{GLOBUS}worker_key = "x"\nendpoint = "not-a-uuid"\n', "tiers.hpc.endpoint: input should be a valid UUID"),
        (f'{GLOBUS}endpoint = "{UUID}"\n', "tiers.hpc.worker_key: is missing: what `python aiflow-worker.pyz keys`"),
        (f'{GLOBUS}worker_key = "x"\n', "tiers.hpc.endpoint: is missing: the identifier that `globus-compute-endpoint"),
        (
            f'{WHOLE}model_server = "x"\n',
            'tiers.hpc.model_server: only executor = "local" takes it, and this is "globus"',
        ),
        (f'{WHOLE}model_server_key_env = "X"\n', 'tiers.hpc.model_server_key_env: only executor = "local" takes it'),
        (f'{LOCAL}endpoint = "{UUID}"\n', 'tiers.hpc.endpoint: only executor = "globus" takes it, and this is "local"'),
        (f'{LOCAL}worker_key = "x"\n', 'tiers.hpc.worker_key: only executor = "globus" takes it'),
        (OWN_RELAY, "tiers.hpc: the relay is this kernel's own, on loopback"),
        (f'{OWN_RELAY}relay_public_host = "127.0.0.1"\n', "no cluster can reach it"),
        (f'{OWN_RELAY}relay_host = "127.0.0.2"\n', "no cluster can reach it"),
        ('[tiers.local]\nmodel = "gpt-oss:120B-Cloud"\n', "runs on Ollama's own servers"),
        (f"{LOCAL}relay_port = 70000\n", "tiers.hpc.relay_port: input should be less than or equal to 65535"),
        (f'{LOCAL}relay_port = "http"\n', "tiers.hpc.relay_port"),
        (f'{LOCAL}relay_public_host = "https://login1"\n', "tiers.hpc.relay_public_host: is the name or the address"),
        (f'{LOCAL}relay_public_host = "login1:8000"\n', "without a port"),
        ('[tiers.hpc]\nexecutor = "local"\nrelay = "ws://x"\n', "begins with https://"),
        ('[tiers.hpc]\nexecutor = "local"\nrelay_key = "afr_secret"\n', "keys never stand in this file"),
        ('[tiers.hpc]\nexecutor = "local"\nstart_timeout = -1\n', "tiers.hpc.start_timeout"),
        ('[tiers.hpc]\nexecutor = "local"\nstart_timeout = nan\n', "tiers.hpc.start_timeout"),
        ("[tiers.moon]\n", "tiers.moon: unknown setting"),
        ("[tiers.hcp]\n", "tiers.hcp: unknown setting, did you mean hpc? (known here: cloud, hpc, local)"),
        ("[tier.hpc]\n", "tier: unknown setting, did you mean tiers? (known here: budget, "),
        (f'{LOCAL}modelserver = "x"\n', "tiers.hpc.modelserver: unknown setting, did you mean model_server?"),
        (f"{LOCAL}first_token = 3\n", "did you mean first_token_timeout? (known here: currency, executor, fallback, "),
        (
            '[tiers.local]\nmodle = "x"\n',
            "tiers.local.modle: unknown setting, did you mean model? (known here: currency",
        ),
        ("x = [1\n", "a section is [tiers.hpc]"),
        ("not toml", "is not TOML"),
    ],
)
def test_a_mistake_is_one_message_with_the_file_and_the_key(files, text, said):
    with pytest.raises(ConfigError) as caught:
        files(text)
    assert said in str(caught.value)
    assert "user.toml" in str(caught.value)
    assert "afr_secret" not in str(caught.value)


SECRET = "aiflow-x25519-secret:Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5"


@pytest.mark.parametrize(
    ("text", "setting", "what"),
    [
        (f'{LOCAL}worker_key = "{SECRET}"\n', "tiers.hpc.worker_key", "a worker's private key"),
        (f'{WHOLE}model = "{SECRET}"\n', "tiers.hpc.model", "a worker's private key"),
        (f'{LOCAL}relay_key_env = "afr_{"c" * 43}"\n', "tiers.hpc.relay_key_env", "a relay key"),
        (f'relay_key = "afr_{"c" * 43}"\n', "relay_key", "a relay key"),
        (f'"{SECRET}" = "x"\n', "a name", "a worker's private key"),
        (f'[tiers.local]\nmodel = "sk-{"c" * 40}"\n', "tiers.local.model", "an API key"),
        (f'x = ["{SECRET}"]\n', "x", "a worker's private key"),
    ],
)
@pytest.mark.parametrize("whose", ["own", "project"])
def test_a_key_anywhere_in_a_file_is_named_as_such_and_not_shown(files, text, setting, what, whose):
    with pytest.raises(ConfigError) as caught:
        files(*([text] if whose == "own" else ["", text]))
    assert f": {setting} holds {what}, which never stands in this file" in caught.value.message
    assert "Y2FuYXJ5" not in str(caught.value)
    assert "ccccc" not in str(caught.value)


PYTHON = '[tiers.hpc]\nexecutor = "python"\nworker_key = "x"\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "tiers.hpc.factory: is missing"),
        ('factory = "no colon"', "tiers.hpc.factory: string should match"),
        ('factory = "os; import sys:x"', "tiers.hpc.factory"),
    ],
)
def test_a_factory_is_a_module_and_a_name(files, line, said):
    with pytest.raises(ConfigError, match=said):
        files(f"{PYTHON}{line}\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "AttributeError"),
        ("def workers(): raise OSError('no scheduler')", "OSError: no scheduler"),
        ("def workers(): return 7", "makes an int, not a concurrent.futures.Executor"),
    ],
)
def test_a_factory_that_makes_no_executor_is_one_message(tmp_path, monkeypatch, body, said):
    (tmp_path / "my_cluster_x.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("my_cluster_x", None)
    with pytest.raises(ConfigError) as caught:
        made_by("my_cluster_x:workers")
    assert said in caught.value.message
    assert caught.value.code == "AF724"


def test_a_public_worker_key_is_no_secret(files):
    public = WorkerKey.generate().public
    assert files(WHOLE.replace('"x"', f'"{public}"')).tiers.hpc.worker_key == public


def test_a_key_file_is_beside_the_file_that_names_it(files, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert files(f'{LOCAL}relay_key_file = "keys/relay.key"\n').tiers.hpc.relay_key_file == tmp_path / "keys/relay.key"
    absolute = files(f'{LOCAL}relay_key_file = "/etc/relay.key"\n').tiers.hpc.relay_key_file
    assert (str(absolute), str(files(f'{LOCAL}relay_key_file = "~/k"\n').tiers.hpc.relay_key_file)) == (
        "/etc/relay.key",
        "~/k",
    )


async def test_a_key_file_that_is_not_there_is_told_with_the_setting_that_names_it(files):
    tiers = configured(files(f'{LOCAL}relay = "https://r.example"\nrelay_key_file = "gone.key"\n'))
    with pytest.raises(ConfigError, match=r"gone\.key can't be read: No such file") as caught:
        await ask(tiers["hpc"].provider)
    assert "tiers.hpc.relay_key_file" in caught.value.hint


def test_a_file_that_can_not_be_read_has_a_hint(tmp_path):
    with pytest.raises(ConfigError, match="can't be read: Is a directory") as caught:
        load(tmp_path)
    assert "AIFLOW_CONFIG" in caught.value.hint
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        load(tmp_path / "bytes.toml")


@pytest.mark.parametrize("there", [False, True])
async def test_a_tier_that_is_not_configured_names_the_file_that_would(tmp_path, monkeypatch, there):
    monkeypatch.delenv("AIFLOW_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "aiflow-jupyter" / "aiflow.toml"
    if there:
        file.parent.mkdir()
        file.write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        await asked(ConfiguredRouter(), "hpc")
    assert caught.value.code == "AF722"
    assert f"[tiers.hpc] turns it on, in\n{file}" in caught.value.hint
    assert ("not there yet" in caught.value.hint) is not there


def test_each_wait_that_is_set_is_the_tiers(files):
    waits = files(
        f"{LOCAL}start_timeout = 1\nfirst_token_timeout = 2\ntoken_timeout = 3\nlinger = 4\n"
    ).tiers.hpc.timeouts
    assert (waits.start, waits.first_token, waits.token, waits.linger) == (1, 2, 3, 4)


def test_a_projects_file_chooses_a_model(files):
    config = files('[tiers.hpc]\nexecutor = "local"\nmodel = "small"\n', '[tiers.hpc]\nmodel = "large"\n')
    assert config.tiers.hpc.model == "large"


CLOUD = '[tiers.cloud]\nmodel = "cheap"\nkey_env = "K"\n'
DEAR = '[tiers.cloud.models."dear"]\n'


@pytest.mark.parametrize(
    ("own", "project", "window", "price"),
    [
        ("", "", None, Price(0.1, 0.2, known=False)),
        ("", "window = 9000\n", 9_000, Price(0.1, 0.2, known=False)),
        (f"{DEAR}price_in = 3\nprice_out = 4\n", "", None, Price(3, 4)),
        (f"{DEAR}window = 8000\n", "", 8_000, Price(0.1, 0.2, known=False)),
    ],
)
def test_what_is_said_of_the_user_s_model_is_not_taken_for_a_project_s(files, own, project, window, price):
    cheap = f"{CLOUD}window = 200000\nmax_output = 9000\nprice_in = 0.1\nprice_out = 0.2\n{own}"
    tier = configured(files(cheap, f'[tiers.cloud]\nmodel = "dear"\n{project}'))["cloud"]
    assert (tier.model, tier.window, tier.max_output, tier.price) == ("dear", window, 4_096, price)
    same = configured(files(cheap, '[tiers.cloud]\nmodel = "cheap"\n'))["cloud"]
    assert (same.window, same.max_output, same.price) == (200_000, 9_000, Price(0.1, 0.2))


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


async def test_a_file_that_the_environment_names_goes_before_a_model_that_a_setting_names(files, tmp_path, monkeypatch):
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"GGUF and more")
    monkeypatch.setenv("AIFLOW_MODEL", str(mine))
    local = await Discovery().settle(files('[tiers.local]\nmodel = "llama3.2"\n').tiers.local)
    assert (local.provider, local.model) == ("embedded", None)
    assert isinstance(_local(local), EmbeddedModel)


async def ask(provider):
    from aiflow_jupyter.runtime.source import Request

    return [event async for event in provider.stream(Request(({"role": "user", "content": "Hi"},), tier="hpc"))]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('executor = "local"\nrelay = "https://relay.example"', "relay_key_env or relay_key_file is missing"),
        (
            'executor = "local"\nrelay = "https://relay.example"\nrelay_key_env = "NO_SUCH_KEY"',
            "NO_SUCH_KEY, which is not set",
        ),
        ('executor = "local"\nmodel_server_key_env = "NO_SUCH_KEY"', "model_server_key_env names NO_SUCH_KEY"),
    ],
)
async def test_what_is_incomplete_fails_the_question_that_needs_it_and_no_other(files, settings, said):
    tiers = configured(files(f"[tiers.hpc]\n{settings}\n"))
    with pytest.raises(ConfigError, match=said):
        await ask(tiers["hpc"].provider)


async def test_a_key_file_that_others_can_read_is_refused(files, tmp_path):
    key = tmp_path / "relay.key"
    key.write_text("afr_canary")
    key.chmod(0o644)
    tiers = configured(
        files(f'[tiers.hpc]\nexecutor = "local"\nrelay = "https://r.example"\nrelay_key_file = "{key}"\n')
    )
    with pytest.raises(ConfigError, match="may be read or written by others") as caught:
        await ask(tiers["hpc"].provider)
    assert "chmod 600" in str(caught.value)
    assert "afr_canary" not in str(caught.value)


async def test_a_key_file_of_somebody_else_is_refused(files, tmp_path, monkeypatch):
    key = tmp_path / "relay.key"
    key.write_text("afr_canary")
    key.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    tiers = configured(files(f'{LOCAL}relay = "https://r.example"\nrelay_key_file = "{key}"\n'))
    with pytest.raises(ConfigError, match="belongs to another user") as caught:
        await ask(tiers["hpc"].provider)
    assert "afr_canary" not in str(caught.value)


async def test_an_empty_key_file_is_no_key(files, tmp_path):
    key = tmp_path / "relay.key"
    key.touch(0o600)
    tiers = configured(files(f'{LOCAL}relay = "https://r.example"\nrelay_key_file = "{key}"\n'))
    with pytest.raises(ConfigError, match="is empty"):
        await ask(tiers["hpc"].provider)


async def test_a_relay_of_this_kernel_that_is_not_allowed_names_what_is_set_in_the_file(files):
    tiers = configured(files(f'{LOCAL}relay_host = "0.0.0.0"\n'))
    with pytest.raises(ProviderError) as caught:
        await ask(tiers["hpc"].provider)
    await tiers["hpc"].provider.aclose()
    assert caught.value.code == "AF973"
    assert "relay_insecure = true" in caught.value.hint
    assert "--insecure" not in str(caught.value)


async def test_a_port_that_something_else_uses_is_told_by_its_setting(files):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        tiers = configured(files(f"{LOCAL}relay_port = {port}\n"))
        with pytest.raises(ProviderError, match=str(port)) as caught:
            await ask(tiers["hpc"].provider)
        await tiers["hpc"].provider.aclose()
    assert "relay_port" in caught.value.hint


def test_what_the_file_says_of_the_relay_of_this_kernel_reaches_it(files):
    from aiflow_jupyter.tiers.making import _relay

    said = 'relay_port = 8765\nrelay_public_host = "login1.cluster"\nrelay_insecure = true\n'
    relay = _relay(files(LOCAL + said).tiers.hpc)()
    assert (relay.url, relay.insecure) == ("http://login1.cluster:8765", True)
    said = 'relay_port = 8765\nrelay_public_host = "2001:db8::1"\n'
    relay = _relay(files(LOCAL + said).tiers.hpc)()
    assert (relay.url, relay.insecure) == ("http://[2001:db8::1]:8765", False)


def test_a_cluster_may_reach_this_machine_by_another_name_than_that_it_listens_on(files):
    config = files(f'{OWN_RELAY}relay_public_host = "login1.cluster"\n')
    assert config.tiers.hpc.relay_public_host == "login1.cluster"


def test_every_wait_is_as_declared_in_one_place_unless_the_file_says_otherwise(files):
    assert files(LOCAL).tiers.hpc.timeouts == Timeouts()
    times = files(f"{LOCAL}start_timeout = 7200\nfirst_token_timeout = 60\nlinger = 5\n").tiers.hpc.timeouts
    assert times == Timeouts(start=7200, first_token=60, linger=5)


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
    from aiflow_jupyter.tiers import making

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIFLOW_CONFIG", str(tmp_path / "user.toml"))
    monkeypatch.setattr(Counted, "made", 0)
    monkeypatch.setattr(Counted, "closed", 0)
    monkeypatch.setattr(making, "_local", lambda _settings: Counted())
    monkeypatch.setattr(making, "_hpc", lambda _settings: Counted())
    return tmp_path / "user.toml", ConfiguredRouter()


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
    async with asyncio.timeout(20):
        while Counted.closed == 0:
            await asyncio.sleep(0)
    await router.aclose()
    assert (Counted.made, Counted.closed) == (2, 2)


@pytest.fixture
def slow_to_close(following, monkeypatch):
    """The same router, with providers that close when they are let."""
    gate = asyncio.Event()

    class Slow(Counted):
        async def aclose(self):
            await gate.wait()
            await super().aclose()

    from aiflow_jupyter.tiers import making

    monkeypatch.setattr(making, "_hpc", lambda _settings: Slow())
    return *following, gate


async def test_no_question_waits_until_what_answered_before_is_closed(slow_to_close):
    file, router, gate = slow_to_close
    file.write_text(LOCAL)
    await asked(router, "hpc")
    file.write_text(f'{LOCAL}model = "other"\n')
    async with asyncio.timeout(20):
        assert await asked(router, "hpc") == ["token", "finish"]
        assert await asked(router, "local") == ["token", "finish"]
    assert Counted.closed == 0
    gate.set()
    await router.aclose()
    assert (Counted.made, Counted.closed) == (3, 3)


async def test_the_end_closes_what_was_replaced_and_still_answers(following):
    from aiflow_jupyter.runtime.source import Request

    file, router = following
    file.write_text(LOCAL)
    answer = router.stream(Request(({"role": "user", "content": "Hi"},), tier="hpc"))
    await anext(answer)
    file.write_text("")
    await asked(router, "local")
    await router.aclose()
    assert (Counted.made, Counted.closed) == (2, 2)
    await answer.aclose()


async def test_a_replaced_provider_that_can_not_be_closed_fails_no_question(following, monkeypatch, caplog):
    from aiflow_jupyter.tiers import making

    class Stuck(Counted):
        async def aclose(self):
            raise OSError("stuck")

    monkeypatch.setattr(making, "_hpc", lambda _settings: Stuck())
    file, router = following
    file.write_text(LOCAL)
    await asked(router, "hpc")
    file.write_text(f'{LOCAL}model = "other"\n')
    assert await asked(router, "hpc") == ["token", "finish"]
    async with asyncio.timeout(20):
        while "stuck" not in caplog.text:
            await asyncio.sleep(0)


async def test_a_provider_that_is_being_made_when_its_tier_is_closed_is_closed_too():
    making, gate = threading.Event(), threading.Event()
    closed: list[int] = []

    class Late(Counted):
        async def aclose(self):
            closed.append(1)

    def make():
        making.set()
        assert gate.wait(20)
        return Late()

    provider = WhenAsked(make)
    asking = asyncio.create_task(ask(provider))
    assert await asyncio.to_thread(making.wait, 20)
    closing = asyncio.create_task(provider.aclose())
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(asking, closing)
    assert closed == [1]
    with pytest.raises(ProviderError, match="closed"):
        await ask(provider)
