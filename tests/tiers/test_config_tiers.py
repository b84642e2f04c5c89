"""The settings of tiers, routes and budgets: what is refused, in which words, and what each comes to."""

from __future__ import annotations

import os

import pytest

from aiflow_jupyter.errors import ConfigError, ProviderError
from aiflow_jupyter.providers.embedded import EmbeddedModel
from aiflow_jupyter.providers.ollama import Ollama
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.runtime.source import Request
from aiflow_jupyter.tiers import keys, making
from aiflow_jupyter.tiers.config import load
from aiflow_jupyter.tiers.making import configured
from aiflow_jupyter.tiers.terms import Price

OPENAI = '[tiers.local]\nprovider = "openai"\nurl = "http://127.0.0.1:8080/v1"\n'
OLLAMA = '[tiers.local]\nprovider = "ollama"\n'
CLOUD = '[tiers.cloud]\nmodel = "m"\nkey_env = "CLOUD_KEY"\n'
ELSEWHERE = '[tiers.cloud]\nmodel = "m"\nurl = "https://x.example"\n'
PRICED = f"{CLOUD}price_in = 3\nprice_out = 15.0\n"
HPC = '[tiers.hpc]\nexecutor = "local"\n'


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIFLOW_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user, project = tmp_path / "user.toml", tmp_path / "aiflow.toml"

    def write(own="", beside=None):
        user.write_text(own)
        if beside is not None:
            project.write_text(beside)
        return load(user)

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[tiers.local]\nprovider = "olama"\n',
            'tiers.local.provider: is "embedded", "ollama" or "openai"; did you mean "ollama"?',
        ),
        ("[tiers.local]\nprovider = 3\n", 'tiers.local.provider: is "embedded", "ollama" or "openai"\n'),
        ('[tiers.local]\nprovider = "openai"\n', 'tiers.local: provider = "openai" needs url'),
        ('[tiers.local]\nurl = "http://127.0.0.1:1"\n', 'url: only provider = "ollama" or "openai" takes it, and no'),
        (
            '[tiers.local]\nprovider = "embedded"\nkey_env = "K"\n',
            'only provider = "openai" takes it, and this is "emb',
        ),
        (f'{OLLAMA}key_env = "K"\n', 'tiers.local.key_env: only provider = "openai" takes it, and this is "ollama"'),
        (f'{OPENAI}keep_alive = "1m"\n', 'tiers.local.keep_alive: only provider = "ollama" takes it'),
        (f'{OLLAMA}keep_alive = "a while"\n', 'tiers.local.keep_alive: is a time such as "10m"'),
        (f'{OLLAMA}url = "http://gpu.lab:11434"\n', "tiers.local.url: is on another machine"),
        (f'{OLLAMA}model = "gpt-oss:120b-cloud"\n', "runs on Ollama's own servers"),
        ('[tiers.local]\nmodel = "kimi:cloud"\n', "runs on Ollama's own servers"),
        ('[tiers.local]\nmodel = ""\n', "tiers.local.model: string should have at least 1 character"),
        (f'{OLLAMA}url = "127.0.0.1:11434"\n', "tiers.local.url: is an address that begins with http://"),
        (f'{OLLAMA}url = "http://127.0.0.1:port"\n', "tiers.local.url: is no address"),
        (f'{OPENAI}key_env = "A"\nkey_file = "b"\n', "key_env and key_file are both set"),
        ("[tiers.local]\nwindow = 0\n", "tiers.local.window: input should be greater than or equal to 1"),
        ("[tiers.local]\nwindow = true\n", "tiers.local.window: input should be a valid integer"),
        ("[tiers.local]\nmax_output = 1.5\n", "tiers.local.max_output"),
        ("[tiers.local]\nprice_in = nan\n", "tiers.local.price_in: input should be a finite number"),
        ("[tiers.local]\nprice_out = inf\n", "tiers.local.price_out: input should be a finite number"),
        (f"{HPC}price_out = -1\n", "tiers.hpc.price_out: input should be greater than or equal to 0"),
        (f'{CLOUD}price_in = "3"\n', "tiers.cloud.price_in: input should be a valid number"),
        (
            f"{CLOUD}[tiers.cloud.models.x]\nwindw = 3\n",
            "tiers.cloud.models.x.windw: unknown setting, did you mean",
        ),
        (f"{HPC}[tiers.hpc.models.x]\nfactory = 3\n", "tiers.hpc.models.x.factory: unknown setting (known here: max"),
        (f"{CLOUD}[tiers.cloud.models.x]\nprice_in = 3\n", "tiers.cloud.models.x: has one of price_in and price_out"),
        (f"{CLOUD}models = 3\n", "tiers.cloud.models: is a section of its own"),
        (f"{CLOUD}price_in = -0.1\n", "tiers.cloud.price_in: input should be greater than or equal to 0"),
        (f'{CLOUD}currency = "dollars"\n', "tiers.cloud.currency: is the three letters of a currency"),
        ('[tiers.local]\ntakes = ["image"]\n', 'tiers.local.takes: is "images" or "tools"; did you mean "images"?'),
        ('[tiers.local]\ntakes = "images"\n', 'tiers.local.takes: is a list, such as ["images", "tools"]'),
        ("[tiers.local]\nfirst_token_timeout = 0\n", "tiers.local.first_token_timeout"),
        (f"{CLOUD}token_timeout = nan\n", "tiers.cloud.token_timeout"),
        ('[tiers.cloud]\nkey_env = "K"\n', "tiers.cloud.model: is missing"),
        ('[tiers.cloud]\nmodel = "m"\n', "tiers.cloud: key_env or key_file is missing"),
        (
            '[tiers.cloud]\nmodel = "m"\nkey = "x"\n',
            "tiers.cloud.key: unknown setting, did you mean key_env?; keys never",
        ),
        ('[tiers.cloud]\nmodel = "m"\nkey_env = "sk-CANARY"\n', "tiers.cloud.key_env: is the name of an environment"),
        (f'{CLOUD}provider = "ollama"\n', 'tiers.cloud.provider: is "openai"'),
        (f'{CLOUD}url = "http://api.example/v1"\n', "it has to be https://"),
        (f'{CLOUD}url = "https://u:CANARY@api.example/v1"\n', "tiers.cloud.url: is an address alone"),
        (f'{CLOUD}url = "https://api.example/v1?key=CANARY"\n', "tiers.cloud.url: is an address alone"),
        ("[tiers]\ncloud = true\n", "tiers.cloud: is a section of its own"),
        ('[route]\nlow = ["local", "moon"]\n', 'route.low: is "local", "hpc" or "cloud"'),
        ('[route]\nlow = ["lokal"]\n', 'did you mean "local"?'),
        ('[route]\nhigh = "cloud"\n', 'route.high: is a list, such as ["local", "hpc"]'),
        ("[route]\nmedium = []\n", "route.medium: tuple should have at least 1 item"),
        ('[route]\nhigh = ["cloud", "cloud"]\n', "route.high: names each tier once"),
        ('[route]\njudge = "clasifier"\n', 'did you mean "classifier"?'),
        ('[route]\njudge = "fixed:high"\n', 'did you mean "fixed:HIGH"?'),
        ('[route]\njudge = "llm"\n', '"llm:local", "llm:hpc" or "llm:cloud"'),
        ("[route]\nthreshold = 1.5\n", "route.threshold: input should be less than or equal to 1"),
        ("[route]\nround_up = nan\n", "route.round_up: input should be a finite number"),
        ('[route]\nafter_first_token = "retry"\n', 'route.after_first_token: is "stop" or "restart"'),
        ('[route]\nstay = "here"\n', 'route.stay: is "local", "institution" or "anywhere"'),
        ('[route]\nstya = "local"\n', "route.stya: unknown setting, did you mean stay?"),
        ("[budget]\nday = -1\n", "budget.day: input should be greater than or equal to 0"),
        ("[budget]\nmonth = nan\n", "budget.month: input should be a finite number"),
        ("[budget]\nnotebook = inf\n", "budget.notebook: input should be a finite number"),
        ("[budget]\nweek = 1\n", "budget.week: unknown setting"),
        (f"{CLOUD}[budget]\nday = 1\n", "tiers.cloud.price_in: is missing: a [budget] holds only where prices are"),
        (f"{CLOUD}price_in = 1\n[budget]\nday = 1\n", "tiers.cloud.price_out: is missing"),
        (f'{PRICED}currency = "EUR"\n[budget]\nday = 1\n', 'tiers.cloud.currency: is "EUR" and budget.currency "USD"'),
        (f"{HPC}price_in = 1\n[budget]\nday = 1\ncurrency = 'EUR'\n", "tiers.hpc.currency"),
        ("[conversation]\nfold_at = 0\n", "conversation.fold_at: input should be greater than or equal to 0.1"),
        ("[conversation]\nfold = 1\n", "conversation.fold: unknown setting, did you mean fold_at?"),
    ],
)
def test_a_mistake_names_file_and_setting_and_what_is_allowed(files, text, said):
    with pytest.raises(ConfigError) as caught:
        files(text)
    assert said in str(caught.value)
    assert "user.toml" in caught.value.message
    assert caught.value.code == "AF723"
    assert "CANARY" not in str(caught.value)


def test_several_mistakes_are_told_at_once(files):
    with pytest.raises(ConfigError) as caught:
        files("[route]\nthreshold = 2\nround_up = 2\n[budget]\nday = -1\n")
    assert "route.threshold" in caught.value.message
    assert all(name in caught.value.hint for name in ("route.round_up", "budget.day"))


def test_a_key_in_the_environment_is_no_consent(files, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.setenv(name, "sk-canary")
    assert list(configured(files())) == ["local"]


def test_each_setting_of_a_model_is_its_tiers(files):
    said = 'window = 32000\nmax_output = 2000\ntakes = ["images"]\nfirst_token_timeout = 5\ntoken_timeout = 6\n'
    tier = configured(files(f'{PRICED}currency = "EUR"\n{said}'))["cloud"]
    assert (tier.kind, tier.model, tier.window, tier.max_output) == ("openai", "m", 32_000, 2_000)
    assert tier.price == Price(3.0, 15.0, "EUR")
    assert (tier.takes, tier.first_token_s, tier.silence_s) == (frozenset({"images"}), 5.0, 6.0)


def test_what_is_not_said_of_a_tier_is_what_fits_its_provider(files):
    tiers = configured(files(f"{OLLAMA}{HPC}max_tokens = 77\n{CLOUD}"))
    assert [(name, tier.kind, tier.window, tier.max_output) for name, tier in tiers.items()] == [
        ("local", "ollama", 8_192, 1_024),
        ("hpc", "hpc", None, 77),
        ("cloud", "openai", None, 4_096),
    ]
    assert configured(files(OPENAI))["local"].window is None
    assert (configured(files())["local"].kind, configured(files())["local"].first_token_s) == ("embedded", 600.0)
    assert all(tier.takes == {"tools"} for tier in tiers.values())


@pytest.mark.parametrize(
    ("file", "demo"), [("llama-3.3-70b", False), ("SmolLM2-135M-Instruct", True), ("SmolLM2-135M-Instruct.Q4_1", True)]
)
def test_a_file_of_ones_own_is_no_demo_model(files, tmp_path, monkeypatch, file, demo):
    monkeypatch.setenv("AIFLOW_MODEL", str(tmp_path / f"{file}.gguf"))
    assert configured(files())["local"].demo  # there is none yet
    (tmp_path / f"{file}.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    assert configured(files())["local"].demo is demo
    assert not configured(files('[tiers.local]\nprovider = "openai"\nurl = "http://127.0.0.1:1/v1"\n'))["local"].demo


def test_the_window_of_the_embedded_engine_can_only_be_made_less_of(files):
    assert configured(files("[tiers.local]\nwindow = 1000\n"))["local"].window == 1_000
    assert configured(files("[tiers.local]\nwindow = 100000\n"))["local"].window == 8_192


def test_the_router_never_gives_a_cluster_up_before_its_own_waits_end(files):
    settings = files(f"{HPC}start_timeout = 100\nfirst_token_timeout = 10\ntoken_timeout = 5\n").tiers.hpc
    tier = configured(files(f"{HPC}start_timeout = 100\nfirst_token_timeout = 10\ntoken_timeout = 5\n"))["hpc"]
    waits = settings.timeouts
    assert tier.first_token_s > waits.submit + waits.start + waits.model
    assert tier.silence_s > waits.token + waits.lost


def test_routes_and_budgets_as_they_are_said(files):
    config = files('[route]\nlow = ["local"]\nafter_first_token = "restart"\n[budget]\nday = 2\ncurrency = "EUR"\n')
    assert config.route.chains == {
        "LOW": ("local",),
        "MEDIUM": ("hpc", "local", "cloud"),
        "HIGH": ("cloud", "hpc", "local"),
    }
    assert config.route.restarts
    assert (config.budget.limits.day, config.budget.limits.month, config.budget.limits.currency) == (2.0, None, "EUR")


# -- what the providers are made of


async def made(tier):
    """The provider behind a tier, made as its first request makes it."""
    return tier.provider._make()


async def test_each_provider_is_the_one_that_is_named(files, tmp_path, monkeypatch):
    monkeypatch.delenv("AIFLOW_MODEL", raising=False)
    assert isinstance(await made(configured(files())["local"]), EmbeddedModel)
    ollama = await made(configured(files(f'{OLLAMA}model = "m"\nwindow = 4000\nkeep_alive = "5m"\n'))["local"])
    assert isinstance(ollama, Ollama)
    assert (ollama.model, ollama.window, ollama._keep_alive) == ("m", 4_000, "5m")
    local = await made(configured(files(OPENAI))["local"])
    assert isinstance(local, OpenAICompatible)
    assert (local.url, local._key, local.loopback) == ("http://127.0.0.1:8080/v1", None, True)
    key = tmp_path / "cloud.key"
    key.write_text("sk-canary-canary\n")
    key.chmod(0o600)
    cloud = await made(configured(files('[tiers.cloud]\nmodel = "m"\nkey_file = "cloud.key"\n'))["cloud"])
    assert (cloud.url, cloud.model) == ("https://openrouter.ai/api/v1", "m")
    assert cloud._key.reveal() == "sk-canary-canary"
    assert "canary" not in repr(cloud) + repr(cloud._key) + repr(vars(cloud))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('key_env = "NO_SUCH_KEY"', "tiers.cloud.key_env names NO_SUCH_KEY, which is not set"),
        ('key_file = "gone.key"', "gone.key can't be read"),
        ('key_file = "open.key"', "may be read or written by others"),
        ('key_file = "empty.key"', "is empty"),
    ],
)
async def test_a_key_that_is_not_there_fails_the_question_that_needs_it(files, tmp_path, settings, said):
    for name, mode, text in (("open.key", 0o644, "sk-canary"), ("empty.key", 0o600, "")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    tiers = configured(files(f'[tiers.cloud]\nmodel = "m"\n{settings}\n'))
    with pytest.raises(ConfigError) as caught:
        await anext(tiers["cloud"].provider.stream(Request(({"role": "user", "content": "Hi"},), tier="cloud")))
    assert said in caught.value.message
    assert caught.value.code == "AF724"
    assert "tiers.cloud.key_" in str(caught.value)
    assert "sk-canary" not in str(caught.value)


async def test_a_cloud_of_ones_own_may_want_no_key(files):
    tier = configured(files('[tiers.cloud]\nmodel = "m"\nurl = "http://gpu.lab.example:8000/v1"\n'))["cloud"]
    assert (await made(tier))._key is None


@pytest.mark.parametrize("host", ["gpu.lab.example:11434", "http://[bad", "127.0.0.1:port"])
async def test_an_ollama_elsewhere_is_not_the_local_tier(files, monkeypatch, host):
    monkeypatch.setenv("OLLAMA_HOST", host)
    with pytest.raises(ConfigError, match="OLLAMA_HOST names no address of this machine"):
        await made(configured(files(f'{OLLAMA}model = "m"\n'))["local"])


async def test_an_ollama_without_a_model_says_how_to_get_one(files):
    with pytest.raises(ProviderError, match=r"no Ollama with a model answers at http://127\.0\.0\.1:9") as caught:
        await made(configured(files(OLLAMA))["local"])
    assert "ollama pull" in caught.value.hint


async def test_a_provider_that_can_count_is_asked_once_it_is_there():
    class Counting:
        async def count(self, text, model):
            return len(text) + len(model)

        async def stream(self, request):
            yield request

        async def aclose(self):
            pass

    provider = making.WhenAsked(Counting)
    assert await provider.count("text", "m") is None
    async for _ in provider.stream(Request(())):
        pass
    assert await provider.count("text", "m") == 5


# -- a project's file


BOTH = f"{HPC}{PRICED}"


@pytest.mark.parametrize(
    ("chosen", "value"),
    [
        ('[tiers.local]\nmodel = "small"\n', lambda c: c.tiers.local.model == "small"),
        (
            '[tiers.hpc]\nmodel = "large"\nwindow = 9\n',
            lambda c: (c.tiers.hpc.model, c.tiers.hpc.window) == ("large", 9),
        ),
        ('[tiers.cloud]\nmodel = "x"\n', lambda c: c.tiers.cloud.model == "x"),
        ("[tiers.cloud]\nmax_output = 9\ntakes = []\n", lambda c: c.tiers.cloud.max_output == 9),
        ('[route]\nlow = ["hpc"]\njudge = "rules"\n', lambda c: (c.route.low, c.route.judge) == (("hpc",), "rules")),
        ("[route]\nthreshold = 0.4\nround_up = 0.1\n", lambda c: (c.route.threshold, c.route.round_up) == (0.4, 0.1)),
        ('[route]\nstay = "local"\n', lambda c: c.route.stay == "local"),
        ('[route]\njudge = "llm:local"\n', lambda c: c.route.judge == "llm:local"),
        ("[budget]\nday = 1\n", lambda c: c.budget.day == 1),
        ('[tiers.cloud.models."a/b"]\nwindow = 9\n', lambda c: c.tiers.cloud.models["a/b"].window == 9),
    ],
)
def test_what_a_project_may_choose(files, chosen, value):
    assert value(files(BOTH, chosen))


def test_a_dearer_model_that_a_project_chooses_counts_at_its_own_price(files):
    dear = "[tiers.cloud.models.dear]\nwindow = 9\nprice_in = 50\nprice_out = 500\n[budget]\nday = 5\n"
    cloud = files(PRICED + dear, '[tiers.cloud]\nmodel = "dear"\n').tiers.cloud
    assert (cloud.model, cloud.window, cloud.price.input, cloud.price.output) == ("dear", 9, 50, 500)
    tier = configured(files(PRICED + dear, '[tiers.cloud]\nmodel = "dear"\n'))["cloud"]
    assert (tier.price.output, tier.serving("x").price.known) == (500, False)


@pytest.mark.parametrize(
    "setting",
    [
        '[tiers.local]\nprovider = "openai"\nurl = "http://127.0.0.1:1"\n',
        '[tiers.local]\nkeep_alive = "1h"\n',
        '[tiers.hpc]\nrelay_key_file = "/etc/passwd"\n',
        '[tiers.hpc]\nfactory = "evil:run"\n',
        '[tiers.cloud]\nurl = "https://evil.example"\n',
        '[tiers.cloud]\nkey_env = "AWS_SECRET"\n',
        '[tiers.cloud]\nkey_file = "/etc/passwd"\n',
        "[tiers.cloud]\nprice_in = 0\n",
        "[tiers.cloud.models.x]\nprice_in = 0\nprice_out = 0\n",
        '[route]\nafter_first_token = "restart"\n',
        "[conversation]\nfold_at = 0.1\n",
        '[route]\njudge = "llm:cloud"\n',
        '[route]\njudge = "llm:hpc"\n',
        "tiers = 7\n",
    ],
)
def test_what_a_project_may_not_say(files, setting):
    with pytest.raises(ConfigError, match="may not stand in a project's file") as caught:
        files(BOTH, setting)
    assert caught.value.message.startswith("aiflow.toml: ")
    assert "aiflow trust aiflow.toml" in caught.value.hint
    assert "user.toml" in caught.value.hint


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ('[route]\njudges = "rules"\n', "route.judges: unknown setting, did you mean judge?"),
        ("[x]\ny = 1\n", "x: unknown setting"),
        ("[tiers.cloud.models.x]\nwindw = 1\n", "tiers.cloud.models.x.windw: unknown setting, did you mean window?"),
    ],
)
def test_a_slip_in_a_project_s_file_is_told_as_one(files, setting, said):
    with pytest.raises(ConfigError) as caught:
        files(BOTH, setting)
    assert caught.value.message.startswith(f"aiflow.toml: {said}")


def test_all_that_may_not_stand_in_a_project_s_file_is_named_at_once(files):
    with pytest.raises(ConfigError, match=r"tiers\.cloud\.url, tiers\.cloud\.key_env may not stand"):
        files(BOTH, '[tiers.cloud]\nurl = "https://x.example"\nkey_env = "A"\n')


def test_another_model_of_a_tier_may_be_chosen_at_the_price_that_is_said_of_it(files):
    other = "[tiers.cloud.models.dear]\nprice_in = 50\nprice_out = 60\nwindow = 9\n"
    config = files(f"{PRICED}{other}[budget]\nday = 5\n", '[tiers.cloud]\nmodel = "dear"\n')
    tier = configured(config)["cloud"]
    assert (tier.model, tier.window, tier.price) == ("dear", 9, Price(50, 60))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"a = {'[' * 5_000}{']' * 5_000}\n", "nests too deeply"),
        (f"{'a.' * 5_000}a = 1\n", "nests"),
        (f"[tiers.local]\nwindow = {'9' * 5_000}\n", "a number that is too long"),
        (f"[tiers.local]\nwindow = 0x{'f' * 5_000}\n", "a number is too large"),
        (f"# {'x' * 1_000_000}\n", "is larger than 1,000,000 bytes"),
        ('[tiers.local]\nprovider = "openai"\nurl = "http://xn--\u00e9/v1"\n', "tiers.local.url: is no address"),
        (f'{ELSEWHERE}key_env = "gsk_abcdefghijklmnoPQRSTUVWX12"\n', "a key itself"),
        (f'{ELSEWHERE}key_file = "gsk_abcdefghijklmnoPQRSTUVWX12"\n', "a key itself"),
        ('[tiers.cloud]\nmodel = "m\\nx"\n', "is a name in one line"),
        ('[tiers.hpc]\nexecutor = "local"\nrelay = "https://u:SECRET@x.example"\n', "is an address alone"),
        ("[tiers.local]\nfirst_token_timeout = true\n", "first_token_timeout: input should be a valid number"),
    ],
)
def test_what_could_not_even_be_shown_is_one_message(files, text, said):
    with pytest.raises(ConfigError) as caught:
        files(text)
    assert said in caught.value.message
    assert not any(secret in str(caught.value) for secret in ("SECRET", "gsk_abc", "ffff", "9999"))
    if not text.startswith("[tiers.cloud]"):  # of which a project says nothing while the user's own does not
        with pytest.raises(ConfigError):
            files("", text)


def test_a_pipe_is_no_file_of_settings(tmp_path):
    os.mkfifo(tmp_path / "aiflow.toml")
    with pytest.raises(ConfigError, match="is no file"):
        load(tmp_path / "aiflow.toml")


def test_a_mark_of_the_byte_order_is_no_mistake(files):
    assert files("\ufeff[route]\nstay = 'local'\n").route.stay == "local"


def test_a_key_file_that_can_be_no_path_is_told(files):
    config = files(f'{ELSEWHERE}key_file = "a\\u0000b"\n')
    with pytest.raises(ConfigError, match="null"):
        keys.server_key("cloud", config.tiers.cloud)


@pytest.mark.parametrize("name", ["hpc", "cloud"])
def test_what_a_project_says_of_a_tier_that_the_user_has_not_turns_nothing_on(files, name):
    config = files("", f'[tiers.{name}]\nmodel = "x"\n[tiers.local]\nmodel = "y"\n')
    assert config.tiers.of(name) is None
    assert config.tiers.local.model == "y"


@pytest.mark.parametrize(
    ("own", "chosen", "said"),
    [
        ('[route]\nstay = "local"\n', '[route]\nstay = "institution"\n', "route.stay may only be stricter"),
        ("[budget]\nday = 5\n", "[budget]\nday = 5.01\n", "budget.day may only be lower than your own, 5 USD"),
        ("[budget]\nnotebook = 0\n", "[budget]\nnotebook = 1\n", "budget.notebook may only be lower"),
        ("[budget]\nday = 5\n", '[budget]\nday = 4\ncurrency = "JPY"\n', "budget.currency has to be that of your own"),
        (
            f"{PRICED}[budget]\nday = 5\n",
            '[tiers.cloud]\nmodel = "dear"\n',
            "tiers.cloud.model is 'dear', of which your budget does not know the price",
        ),
        (
            f"{PRICED}[tiers.cloud.models.dear]\nwindow = 9\n[budget]\nday = 5\n",
            '[tiers.cloud]\nmodel = "dear"\n',
            "tiers.cloud.model is 'dear', of which your budget does not know the price",
        ),
        ("", "[budget]\nday = nan\n", "budget.day: input should be a finite number"),
        ("", '[route]\nlow = ["moon"]\n', "route.low: is"),
    ],
)
def test_a_project_goes_no_further_and_spends_no_more(files, own, chosen, said):
    with pytest.raises(ConfigError) as caught:
        files(own, chosen)
    assert caught.value.message.startswith(f"aiflow.toml: {said}")


@pytest.mark.parametrize(
    ("own", "chosen"),
    [
        ('[route]\nstay = "institution"\n', '[route]\nstay = "local"\n'),
        ("[budget]\nday = 5\n", "[budget]\nday = 5\n"),
        ("[budget]\nday = 5\n", "[budget]\nmonth = 100\n"),
    ],
)
def test_a_project_may_be_stricter(files, own, chosen):
    assert files(own, chosen)


def test_a_mistake_in_the_users_own_file_is_told_as_such_whatever_the_projects_says(files):
    with pytest.raises(ConfigError, match=r"user\.toml: budget\.day"):
        files("[budget]\nday = -1\n", "[budget]\nday = 1\n")
