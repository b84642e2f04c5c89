"""`aiflow tiers`, and the local tier's provider where none is set: real servers on loopback, and no secret anywhere."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from aiflow_kernel.host import Host
from click.testing import CliRunner
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from aiflow_jupyter.cli import main
from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.notebook.magics import AiflowMagics
from aiflow_jupyter.relay.crypto import WorkerKey
from aiflow_jupyter.runtime.source import Request
from aiflow_jupyter.tiers import discovery, overview
from aiflow_jupyter.tiers.config import load
from aiflow_jupyter.tiers.configured import ConfiguredRouter
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.discovery import AGAIN_S, Discovery
from aiflow_jupyter.tiers.sections import Local

SECRET = "sk-canary-canary-canary"


class Server:
    """Answers GET requests with what a test says; silent where it says None."""

    def __init__(self, answers):
        self.answers, self.asked, self.released = answers, [], threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, self.headers.get("Authorization")))
                answer = outer.answers.get(self.path, (404, "no such path"))
                if answer is None:
                    outer.released.wait()
                    return
                status, body = answer
                data = (
                    body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
                )
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@contextmanager
def serving(answers):
    server = Server(answers)
    thread = threading.Thread(target=server.http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.http.shutdown()
        server.http.server_close()
        thread.join()


def tags(*names):
    return {"/api/tags": (200, {"models": [{"model": name, "name": name} for name in names]})}


def lists(*names):
    return {"/v1/models": (200, {"data": [{"id": name} for name in names]})}


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIFLOW_CONFIG", raising=False)
    monkeypatch.delenv("AIFLOW_MODEL", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "config" / "aiflow-jupyter" / "aiflow.toml"
    file.parent.mkdir(parents=True)
    return file


@pytest.fixture
def router(tmp_path):
    return ConfiguredRouter(Database(tmp_path / "costs.db"))


async def seen(router):
    return {each.tier: each for each in (await router.look()).tiers}


# -- the local tier's provider


async def settled(settings=None, **said):
    return await Discovery().settle(settings or Local(**said))


async def test_where_nothing_listens_the_local_tier_is_the_embedded_model(settings):
    assert (await settled()).provider == "embedded"


async def test_an_ollama_that_answers_is_the_local_tier(settings, monkeypatch):
    with serving(tags("llama3.2:latest", "qwen3:4b")) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url.removeprefix("http://"))
        found = await settled()
    assert (found.provider, found.url, found.model) == ("ollama", server.url, "llama3.2:latest")


async def test_a_model_that_is_named_decides(settings, monkeypatch):
    with serving(tags("llama3.2:latest", "qwen3:4b")) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert (await settled(model="qwen3:4b")).model == "qwen3:4b"
        assert (await settled(model="llama3.2")).model == "llama3.2:latest"
        here = await settled(model="SmolLM2-135M-Instruct")
    assert (here.provider, here.model) == ("embedded", "SmolLM2-135M-Instruct")


@pytest.mark.parametrize("names", [(), ("nomic-embed-text:latest", "gpt-oss:120b-cloud", "kimi-k2:1t-cloud")])
async def test_an_ollama_that_can_answer_no_chat_on_this_machine_is_passed_over(settings, monkeypatch, names):
    with serving(tags(*names)) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert (await settled()).provider == "embedded"


@pytest.mark.parametrize(
    "answers", [{}, {"/api/tags": (200, "<html>")}, {"/api/tags": (500, "")}, {"/api/tags": (200, {"models": 7})}]
)
async def test_what_is_no_ollama_is_passed_over(settings, monkeypatch, answers):
    with serving(answers) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert (await settled()).provider == "embedded"


async def test_a_server_that_says_nothing_is_not_waited_for(settings, monkeypatch):
    monkeypatch.setattr(discovery, "ANSWER_S", 0.2)
    with serving({"/api/tags": None}) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        async with asyncio.timeout(20):
            assert (await settled()).provider == "embedded"


async def test_an_ollama_of_another_machine_is_not_asked(settings, monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", "192.0.2.1:11434")
    assert (await settled()).provider == "embedded"


async def test_a_model_file_that_the_environment_names_goes_before_ollama(settings, monkeypatch):
    with serving(tags("llama3.2")) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        monkeypatch.setenv("AIFLOW_MODEL", "/models/own.gguf")
        assert (await settled()).provider == "embedded"
        assert server.asked == []


async def test_an_ollama_that_was_found_stays_and_one_that_was_not_is_looked_for_again(settings, monkeypatch):
    now = 0.0
    found = Discovery(lambda: now)
    assert (await found.settle(Local())).provider == "embedded"
    assert not found.due
    now = AGAIN_S
    assert found.due
    with serving(tags("llama3.2")) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert (await found.settle(Local())).provider == "ollama"
    now *= 2
    assert not found.due
    assert (await found.settle(Local())).provider == "ollama"


async def test_the_routers_local_tier_follows_what_is_found(settings, monkeypatch, tmp_path):
    now = 0.0
    router = ConfiguredRouter(Database(tmp_path / "costs.db"), Discovery(lambda: now))
    assert (await seen(router))["local"].provider == "embedded"
    with serving(tags("llama3.2")) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert (await seen(router))["local"].provider == "embedded"
        now = AGAIN_S
        assert (await seen(router))["local"].model == "llama3.2"
        assert router.router.tiers["local"].window == 8_192
    await router.aclose()


# -- what is shown


async def test_a_tier_that_is_off_says_where_it_would_be_written(settings, router):
    found = await seen(router)
    for tier in ("hpc", "cloud"):
        assert not found[tier].configured
        assert found[tier].health == f"not configured: write [tiers.{tier}] into {settings}"


async def test_all_of_a_tier_is_there_but_its_key(settings, router, monkeypatch):
    monkeypatch.setenv("CLOUD_KEY", SECRET)
    with serving(lists("m", "other")) as server:
        settings.write_text(
            f'[tiers.cloud]\nmodel = "m"\nurl = "{server.url}/v1"\nkey_env = "CLOUD_KEY"\nwindow = 128000\n'
            "price_in = 3\nprice_out = 15\n[budget]\nday = 2\n"
        )
        whole = await router.look()
        assert server.asked == [("/v1/models", f"Bearer {SECRET}")]
    cloud = whole.tiers[2]
    assert (cloud.provider, cloud.model, cloud.window, cloud.well) == ("openai", "m", 128_000, True)
    assert cloud.key == overview.Key("key_env", "CLOUD_KEY", present=True)
    text = str(whole)
    assert all(part in text for part in ("128,000", "3/15 USD", "CLOUD_KEY", "answers in", "budget 2 USD per day"))
    assert SECRET not in text + json.dumps(whole.as_dict()) + repr(whole)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, "no"), "refused the key (HTTP 401"),
        ((302, "login"), "HTTP 302"),
        ((500, "x"), "HTTP 500"),
        ((200, "<html>"), "instead of JSON"),
        ((200, {"data": "m"}), "no list of models"),
        ((200, {"data": ["m"]}), "no list of models"),
        ((200, {"data": [{"id": "other"}]}), "it lists no model 'm'"),
        ((200, b"[" * 100_000), "instead of JSON"),
        ((404, f"key {SECRET}"), "HTTP 404"),
        (None, "no answer in 0.2 s"),
    ],
)
async def test_a_server_that_is_not_well_says_how(settings, router, monkeypatch, answer, said):
    monkeypatch.setenv("CLOUD_KEY", SECRET)
    monkeypatch.setattr(overview, "PATIENCE_S", 0.2 if answer is None else 20)
    with serving({"/v1/models": answer}) as server:
        settings.write_text(f'[tiers.cloud]\nmodel = "m"\nurl = "{server.url}/v1"\nkey_env = "CLOUD_KEY"\n')
        whole = await router.look()
    assert (whole.tiers[2].well, said in whole.tiers[2].health) == (False, True)
    assert SECRET not in str(whole) + json.dumps(whole.as_dict())


@pytest.mark.parametrize(
    ("said", "key", "health"),
    [
        ('key_env = "NO_SUCH_KEY"', ("key_env", "NO_SUCH_KEY", False), "NO_SUCH_KEY, which is not set"),
        ('key_file = "gone.key"', ("key_file", "gone.key", False), "can't be read"),
        ('key_file = "open.key"', ("key_file", "open.key", True), "may be read or written by others"),
    ],
)
async def test_a_key_is_shown_by_its_place_alone(settings, router, said, key, health):
    file = settings.parent / "open.key"
    file.write_text(SECRET)
    file.chmod(0o644)
    settings.write_text(f'[tiers.cloud]\nmodel = "m"\n{said}\n')
    whole = await router.look()
    cloud = whole.tiers[2]
    assert (cloud.key.setting, cloud.key.place.rpartition("/")[2], cloud.key.present) == key
    assert health in cloud.health
    assert SECRET not in str(whole) + json.dumps(whole.as_dict())


@pytest.mark.parametrize(
    ("name", "value"), [("HTTPS_PROXY", "foo://canary@there"), ("SSL_CERT_FILE", "/nowhere/canary.pem")]
)
async def test_a_variable_of_the_environment_that_can_not_be_used_is_named(settings, router, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    settings.write_text('[tiers.cloud]\nmodel = "m"\nurl = "https://there.example/v1"\n')
    cloud = (await seen(router))["cloud"]
    assert (cloud.well, f"the environment variable {name} names no" in cloud.health) == (False, True)
    assert "canary" not in cloud.health


async def test_a_model_that_an_ollama_has_answered_elsewhere_is_never_found(settings, monkeypatch):
    away = {"remote_model": "gpt-oss:120b", "remote_host": "https://ollama.com:443"}
    listed = [{"model": "mine:latest", **away}, {"model": "gpt-oss:120B-Cloud"}, {"model": "small:latest"}]
    with serving({"/api/tags": (200, {"models": listed})}) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert (await settled()).model == "small:latest"
        assert (await settled(model="mine")).provider == "embedded"


async def test_a_local_server_and_an_ollama_by_name(settings, router):
    with serving({**lists("m"), **tags("m:latest")}) as server:
        settings.write_text(f'[tiers.local]\nprovider = "openai"\nurl = "{server.url}/v1"\n')
        local = (await seen(router))["local"]
        assert (local.well, local.provider, local.url) == (True, "openai", f"{server.url}/v1")
        settings.write_text(f'[tiers.local]\nprovider = "ollama"\nurl = "{server.url}"\nmodel = "m"\n')
        assert (await seen(router))["local"].well
        settings.write_text(f'[tiers.local]\nprovider = "ollama"\nurl = "{server.url}"\nmodel = "gone"\n')
        assert (await seen(router))["local"].health == "it has no model 'gone': ollama pull gone"
    assert "nothing answers" in (await seen(router))["local"].health


async def test_a_relay_and_a_model_server_of_this_machine_are_asked_whether_they_are_ready(
    settings, router, monkeypatch, tmp_path
):
    hpc = '[tiers.hpc]\nexecutor = "local"\nmodel_server = "{0}/v1"\nrelay_key_env = "NO_SUCH_KEY"\nrelay = "{0}"\n'
    with serving({"/readyz": (200, {"status": "ready"}), **lists("m")}) as server:
        settings.write_text(hpc.format(server.url))
        both = (await seen(router))["hpc"]
        assert (both.well, both.key) == (True, overview.Key("relay_key_env", "NO_SUCH_KEY", present=False))
        assert re.fullmatch(r"relay: answers in \d+ ms; model server: answers in \d+ ms", both.health)
        server.answers["/readyz"] = (404, "a web page")
        relay = (await seen(router))["hpc"]
        assert (relay.well, relay.health.partition(": ")[0]) == (False, "relay")
    gone = (await seen(router))["hpc"]
    assert (gone.well, gone.health.count("connection refused")) == (False, 2)
    monkeypatch.setenv("AIFLOW_MODEL_SERVER_FILE", str(tmp_path / "server.json"))
    settings.write_text('[tiers.hpc]\nexecutor = "local"\n')
    nowhere = (await seen(router))["hpc"]
    assert (nowhere.well, nowhere.key, nowhere.provider) == (False, None, "hpc (local)")
    assert "says where it is" in nowhere.health


async def test_of_a_cluster_alone_only_a_question_tells_whether_it_answers(settings, router):
    public = WorkerKey.generate().public
    settings.write_text(f'[tiers.hpc]\nexecutor = "python"\nfactory = "m:workers"\nworker_key = "{public}"\n')
    hpc = (await seen(router))["hpc"]
    assert (hpc.well, hpc.health) == (None, "a question tells whether it answers")


async def test_an_embedded_model_that_is_not_there_says_how_to_get_it(settings, router, monkeypatch, tmp_path):
    monkeypatch.setenv("AIFLOW_CACHE", str(tmp_path / "cache"))
    local = (await seen(router))["local"]
    assert (local.well, local.health) == (False, "no model yet: aiflow models fetch")
    settings.write_text('[tiers.local]\nprovider = "embedded"\nmodel = "gone"\n')
    assert "no model is called 'gone'" in (await seen(router))["local"].health


async def test_all_tiers_are_looked_at_at_once(settings, router, monkeypatch):
    """Each is silent until all of them have been asked."""
    asked, all_asked = [], asyncio.Event()

    async def waits(*_):
        asked.append(1)
        if len(asked) == 3:
            all_asked.set()
        await all_asked.wait()
        return overview.Seen("local", configured=True)

    for name in ("_local", "_hpc", "_server"):
        monkeypatch.setattr(overview, name, waits)
    settings.write_text('[tiers.hpc]\nexecutor = "local"\n[tiers.cloud]\nmodel = "m"\nkey_env = "K"\n')
    async with asyncio.timeout(20):
        await overview.look(load())


async def test_what_the_router_has_learned_of_a_tier_is_shown(settings, router):
    with serving({}) as server:
        settings.write_text(f'[tiers.local]\nprovider = "openai"\nurl = "{server.url}/v1"\nmodel = "m"\n')
        assert "first token" not in str(await router.look())
        passage = router.router.health.enter("local")
        passage.began(0.25)
        passage.ended()
        assert (await seen(router))["local"].latency_s == 0.25
        head, row = str(await router.look()).splitlines()[:2]
        assert row[head.index("first token") :].startswith("0.25 s ")
        for _ in range(3):
            router.router.health.enter("local", anyway=True).failed("it broke")
        assert "rests for 30 s after it failed: it broke" in (await seen(router))["local"].health


def test_the_command_prints_a_table_or_json(settings):
    shown = CliRunner().invoke(main, ["tiers"])
    assert (shown.exit_code, shown.output.split("\n")[0].split()[:3]) == (0, ["tier", "provider", "model"])
    assert "auto: LOW local > hpc > cloud · MEDIUM" in shown.output
    said = json.loads(CliRunner().invoke(main, ["tiers", "--json"]).output)
    assert [tier["tier"] for tier in said["tiers"]] == ["local", "hpc", "cloud"]
    assert said["route"]["HIGH"] == ["cloud", "hpc", "local"]


def test_the_command_tells_a_mistake(settings):
    settings.write_text("[tiers.moon]\n")
    shown = CliRunner().invoke(main, ["tiers"])
    assert (shown.exit_code, "tiers.moon" in shown.output) == (1, True)


def test_a_models_name_does_not_steer_the_terminal(settings):
    settings.write_text('[tiers.local]\nprovider = "embedded"\nmodel = "x\\u001b[2J"\n')
    assert "\x1b" not in CliRunner().invoke(main, ["tiers"]).output


# -- what the settings do to requests


async def test_the_floor_of_the_settings_holds_whatever_a_request_says(settings, router):
    with serving({}) as server:
        settings.write_text(f'[tiers.cloud]\nmodel = "m"\nurl = "{server.url}/v1"\n[route]\nstay = "institution"\n')
        decision = await router.explain(({"role": "user", "content": "Hi"},), tier="cloud")
        assert "not allowed: this request stays" in str(decision)
        with pytest.raises(Exception, match="not allowed: this request stays"):
            await anext(router.stream(Request(({"role": "user", "content": "Hi"},), tier="cloud")))
        assert server.asked == []
    await router.aclose()


async def test_a_budget_of_the_settings_holds_from_the_next_request_on(settings, router):
    cloud = '[tiers.cloud]\nmodel = "m"\nurl = "http://127.0.0.1:9/v1"\nprice_in = 1\nprice_out = 1000\n'
    asked = Request(({"role": "user", "content": "Hi"},), tier="cloud")
    settings.write_text(f"{cloud}[budget]\nday = 1\n")
    with pytest.raises(Exception, match="the budget of today is 1 USD"):
        await anext(router.stream(asked))
    settings.write_text(f"{cloud}[budget]\nday = 10\n")
    with pytest.raises(Exception, match="nothing answers"):
        await anext(router.stream(asked))
    await router.aclose()


async def test_costs_are_booked_to_the_notebook_that_asks(settings, router, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/analysis.ipynb")
    await router.look()
    assert router.router.settings.notebook == "/home/me/analysis.ipynb"


def test_a_notebooks_line_prints_the_same_table_and_tells_a_mistake(settings, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    host = Host()
    magics = AiflowMagics(InteractiveShell(config=Config({"HistoryManager": {"enabled": False}})), host)
    try:
        magics.aiflow("tiers")
        assert "not configured: write [tiers.cloud] into" in capsys.readouterr().out
        settings.write_text("[tiers.moon]\n")
        with pytest.raises(ConfigError, match=r"tiers\.moon"):
            magics.aiflow("tiers")
    finally:
        host.stop()
