"""Ollama's API as the official client reads it, against a transport that speaks its wire form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import httpx
import pytest

from aiflow_jupyter.errors import ConfigError, ProviderError, StreamCut
from aiflow_jupyter.events import ToolFragment
from aiflow_jupyter.providers.ollama import DEFAULT_URL, Ollama, default_url
from aiflow_jupyter.runtime.source import Message, Request
from aiflow_jupyter.tiers.fields import Other
from aiflow_jupyter.tiers.making import configured
from aiflow_jupyter.tiers.sections import Config, Local, Tiers

ASK = Request((Message(role="user", content="Hi"),), tier="local")


def piece(content="", *, thinking=None, calls=None, done=None, **more):
    message = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = [{"function": {"name": name, "arguments": args}} for name, args in calls]
    end = {"done": True, "done_reason": done, "prompt_eval_count": 12, "eval_count": 3} if done else {"done": False}
    return {"model": "small", "created_at": "2026-01-01T00:00:00Z", "message": message, **end, **more}


WHOLE = [piece("", thinking="Hm."), piece("Héllo "), piece("wörld 🌍"), piece("", done="stop")]


def wire(pieces):
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in pieces).encode()


class Server(httpx.AsyncBaseTransport):
    """Answers each request with the given chunks of bytes; notes what was asked and what was left open."""

    def __init__(self, *chunks: bytes, status: int = 200, fails: Exception | None = None, **facts: object) -> None:
        self.chunks, self.status, self.fails = chunks, status, fails
        self.shown = facts.pop("shown", {"details": {"family": "llama"}})
        self.listed = facts.pop("listed", [])
        self.sends = facts.pop("sends", {})
        assert not facts
        self.asked: list[dict] = []
        self.headers: list[httpx.Headers] = []
        self.open = self.sent = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.headers.append(request.headers)
        if request.url.path == "/api/show":
            return httpx.Response(200, json=self.shown)
        if request.url.path == "/api/tags" and self.listed is not None:
            return httpx.Response(200, json={"models": self.listed})
        if request.method == "POST":
            self.asked.append(json.loads(await request.aread()))
        if self.fails is not None and not self.chunks:
            raise self.fails
        return httpx.Response(self.status, stream=Body(self), headers=self.sends)


class Body(httpx.AsyncByteStream):
    def __init__(self, server: Server) -> None:
        self.server = server
        server.open += 1

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.server.chunks:
            await asyncio.sleep(0)
            self.server.sent += len(chunk)
            yield chunk
        if self.server.fails is not None:
            raise self.server.fails

    async def aclose(self) -> None:
        self.server.open -= 1


def provider(server, **more):
    return Ollama("http://127.0.0.1:11434", "small", transport=server, **more)


async def answer(server, request=ASK, **more):
    events = [event async for event in provider(server, **more).stream(request)]
    assert server.open == 0
    return events


def texts(events, phase="answer"):
    return "".join(event.payload for event in events if event.kind == "token" and event.phase == phase)


async def test_an_answer_has_its_phases_its_usage_and_its_finish():
    events = await answer(Server(wire(WHOLE)))
    assert (texts(events, "reasoning"), texts(events)) == ("Hm.", "Héllo wörld 🌍")
    usage, finish = events[-2:]
    assert (usage.payload.prompt_tokens, usage.payload.completion_tokens) == (12, 3)
    assert (finish.kind, finish.payload.reason) == ("finish", "stop")
    assert [event.sequence for event in events] == list(range(len(events)))
    assert events[0].meta["provider"] == "ollama"
    assert events[0].meta["tier"] == "local"


async def test_what_is_asked_carries_the_window_and_the_options():
    server = Server(wire(WHOLE))
    request = Request(
        (
            Message(role="system", content="Be brief."),
            Message(
                role="assistant",
                content="",
                tool_calls=[{"id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}}],
            ),
            Message(role="tool", content="1", name="add", tool_call_id="1"),
        ),
        model="other",
        temperature=0.0,
        max_tokens=5,
        seed=7,
        think=False,
        tools=({"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}},),
    )
    await answer(server, request, window=8192, keep_alive="10m")
    (asked,) = server.asked
    assert asked["model"] == "other"
    assert asked["options"] == {"num_ctx": 8192, "temperature": 0.0, "num_predict": 5, "seed": 7}
    assert (asked["keep_alive"], asked["think"], asked["stream"]) == ("10m", False, True)
    assert asked["messages"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert asked["messages"][2]["tool_name"] == "add"
    assert asked["tools"][0]["function"]["name"] == "add"


@pytest.mark.parametrize("model", ["small", "big", "unheard-of"])
async def test_each_model_of_the_local_tier_is_loaded_with_the_window_that_the_router_counts_with(monkeypatch, model):
    server = Server(wire(WHOLE))
    monkeypatch.setattr("aiflow_jupyter.providers.ollama.Ollama", partial(Ollama, transport=server))
    local = Local(provider="ollama", model="small", window=4_096, models={"big": Other(window=32_768)})
    tier = configured(Config(tiers=Tiers(local=local)))["local"]
    async for _ in tier.provider.stream(replace(ASK, model=model)):
        pass
    assert server.asked[0]["options"]["num_ctx"] == tier.serving(model).window


def parts(url):
    image = {"type": "image_url", "image_url": {"url": url}}
    return replace(ASK, messages=({"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]},))


async def test_an_image_of_the_request_is_beside_its_text():
    server = Server(wire(WHOLE))
    await answer(server, parts("data:image/png;base64,iVBORw=="))
    (message,) = server.asked[0]["messages"]
    assert (message["content"], message["images"]) == ("What is it?", ["iVBORw=="])


@pytest.mark.parametrize("url", ["https://x.example/a.png", "/etc/passwd", "data:image/png;base64,/etc/a.png", None])
async def test_an_image_elsewhere_is_refused_and_nothing_is_sent(url):
    server = Server(wire(WHOLE))
    with pytest.raises(ProviderError, match="images that stand in the request") as caught:
        await answer(server, parts(url))
    assert (caught.value.code, caught.value.unread, caught.value.of_request) == ("AF706", True, True)
    assert server.asked == []


async def test_calls_are_whole_fragments_and_finish_as_such():
    events = await answer(Server(wire([piece("", calls=[("add", {"a": 1}), ("add", {"a": 2})]), piece(done="stop")])))
    fragments = [event.payload for event in events if event.kind == "tool_fragment"]
    assert fragments == [ToolFragment(0, None, "add", '{"a": 1}'), ToolFragment(1, None, "add", '{"a": 2}')]
    assert events[-1].payload.reason == "tool_calls"


async def test_a_lost_connection_is_a_cut():
    with pytest.raises(StreamCut):
        await answer(Server(wire(WHOLE[:2]), fails=httpx.ReadError("reset")))


@pytest.mark.parametrize(
    ("server", "code", "says"),
    [
        (Server(b'{"error":"model \'small\' not found"}', status=404), "AF704", "ollama pull small"),
        (Server(b'{"error":"\\"small\\" does not support thinking"}', status=400), "AF706", "does not support"),
        (Server(b'{"error":"unauthorized"}', status=401), "AF703", 'provider = "openai"'),
        (Server(b'{"error":"exceeds the maximum context"}', status=400), "AF706", "too long"),
        (Server(b'{"error":"busy"}', status=429), "AF705", "too many"),
        (Server(b'{"error":"out of memory"}', status=500), "AF707", "out of memory"),
        (Server(b"<html>proxy</html>", status=502), "AF707", "a web page"),
        (Server(b"<html>not ollama</html>"), "AF708", "Is http://127.0.0.1:11434 an Ollama server?"),
        (Server(b"[1, 2]\n"), "AF708", "can't be understood"),
        (Server(b'{"message": 5, "done": false}\n'), "AF708", "can't be understood"),
        (Server(wire(WHOLE[:2]) + b'{"error":"runner stopped"}\n'), "AF707", "in the middle"),
        (Server(fails=httpx.ConnectError("refused")), "AF701", "ollama serve"),
        (Server(fails=httpx.ReadTimeout("slow")), "AF709", "said nothing"),
    ],
)
async def test_what_goes_wrong_is_said_with_its_code(server, code, says):
    with pytest.raises(ProviderError) as raised:
        await answer(server)
    assert raised.value.code == code
    assert says in str(raised.value)


async def test_closing_the_stream_closes_the_connection():
    server = Server(*(wire([piece("x")]) for _ in range(100)))
    stream = provider(server).stream(ASK)
    assert (await anext(stream)).payload == "x"
    assert server.open == 1
    await stream.aclose()
    assert server.open == 0


async def test_a_key_of_the_environment_is_sent_nowhere(monkeypatch):
    monkeypatch.setenv("OLLAMA_API_KEY", "sk-canary")
    server = Server(wire(WHOLE))
    await answer(server)
    assert all("canary" not in str(headers) for headers in server.headers)


async def test_no_more_of_a_refusal_is_read_than_anybody_needs():
    server = Server(*[b"x" * 10_000] * 1000, status=500)
    with pytest.raises(ProviderError) as raised:
        await answer(server)
    assert raised.value.code == "AF707"
    assert server.sent < 100_000


async def test_models_are_listed():
    body = {"models": [{"model": "small:latest", "modified_at": "2026-01-01T00:00:00Z", "size": 1, "digest": "0"}]}
    assert await provider(Server(json.dumps(body).encode(), listed=None)).models() == ["small:latest"]
    with pytest.raises(ProviderError, match="is no Ollama server"):
        await provider(Server(b"<html>", listed=None)).models()
    with pytest.raises(ProviderError, match="can't be reached"):
        await provider(Server(fails=httpx.ConnectError("refused"), listed=None)).models()


@pytest.mark.parametrize(
    ("named", "url"),
    [
        ("", DEFAULT_URL),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("box:1234", "http://box:1234"),
        ("https://ollama.example:8443", "https://ollama.example:8443"),
        ("[::1]:9", "http://[::1]:9"),
    ],
)
def test_the_host_variable_is_read_as_ollama_reads_it(named, url, monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", named)
    assert default_url() == url


@pytest.mark.parametrize("url", ["box:11434", "ftp://box", ""])
def test_an_address_of_another_form_is_refused(url):
    with pytest.raises(ConfigError, match="begins with"):
        Ollama(url, "small")


@pytest.mark.parametrize("model", ["gpt-oss:120b-cloud", "x:cloud", "gpt-oss:120B-CLOUD", "x:Cloud "])
async def test_a_model_of_ollamas_own_servers_is_never_asked(model):
    server = Server(wire(WHOLE))
    with pytest.raises(ConfigError, match="not by this machine"):
        await answer(server, Request(ASK.messages, model=model))
    assert server.asked == []


AWAY = {"remote_model": "gpt-oss:120b", "remote_host": "https://ollama.com:443"}


@pytest.mark.parametrize(
    "says",
    [
        {"shown": AWAY},
        {"shown": {"remote_model": "gpt-oss:120b"}},
        {"listed": [{"name": "small:latest"}, {"model": "Mine:latest", **AWAY}]},
        {"listed": [{"name": "mine", **AWAY}]},
    ],
)
async def test_an_alias_of_such_a_model_is_asked_about_and_never_asked(says):
    server = Server(wire(WHOLE), **says)
    with pytest.raises(ConfigError, match="not by this machine") as raised:
        await answer(server, Request(ASK.messages, model="mine"))
    assert raised.value.code == "AF739"
    assert server.asked == []


async def test_a_text_is_sent_to_no_server_whose_word_about_the_model_can_not_be_read():
    server = Server(wire(WHOLE), listed=None)
    with pytest.raises(ProviderError, match="is no Ollama server"):
        await answer(server)
    assert server.asked == []


async def test_an_answer_that_turns_out_to_come_from_elsewhere_is_broken_off_at_its_first_piece():
    server = Server(wire([piece("ok ")]), wire([piece("secret", **AWAY)]), wire([piece(done="stop")]))
    stream = provider(server).stream(ASK)
    assert (await anext(stream)).payload == "ok "
    with pytest.raises(ConfigError, match=r"answered by https://ollama\.com:443, not by this machine"):
        await anext(stream)
    assert server.open == 0


async def test_an_answer_may_speak_of_remote_hosts():
    said = 'what "remote_host" means: {"remote_host": "https://ollama.com"}'
    assert texts(await answer(Server(wire([piece(said), piece(done="stop")])))) == said


async def test_models_of_other_machines_are_not_listed():
    names = ("small:latest", "gpt-oss:120B-Cloud")
    models = [{"name": "mine:latest", "model": "mine:latest", **AWAY}, *({"model": name} for name in names)]
    assert await provider(Server(listed=models)).models() == ["small:latest"]


async def test_a_list_of_models_that_does_not_end_is_refused():
    server = Server(*[b"\n" * 1_000_000] * 40, listed=None)
    with pytest.raises(ProviderError, match="more than"):
        await provider(server).models()
    assert server.sent < 20_000_000


@pytest.mark.parametrize("call", [{"x": 1}, "add", {"function": "add"}, {"function": {"arguments": "{}"}}])
async def test_a_call_that_names_no_function_is_left_out(call):
    server = Server(wire(WHOLE))
    whole = {"id": "1", "function": {"name": "add", "arguments": "[" * 100_000}}
    await answer(server, Request((Message(role="assistant", content="", tool_calls=[call, whole]),)))
    assert server.asked[0]["messages"][0]["tool_calls"] == [{"function": {"name": "add", "arguments": {}}}]


async def test_how_long_a_busy_server_wants_to_be_left_alone_is_passed_on():
    with pytest.raises(ProviderError, match="Wait 30 s") as raised:
        await answer(Server(b'{"error":"slow"}', status=429, sends={"retry-after": "30"}))
    assert (raised.value.code, raised.value.retry_after) == ("AF705", 30)


async def test_numbers_of_tokens_that_nobody_could_have_read_are_not_believed():
    last = piece(done="stop") | {"prompt_eval_count": 2**63, "eval_count": -1}
    finish = (await answer(Server(wire([piece("hi"), last]))))[-1]
    assert (finish.payload.usage.prompt_tokens, finish.payload.usage.completion_tokens) == (None, None)


async def test_a_password_in_the_address_does_not_show():
    canary = "canary-7f3a91"
    source = Ollama(f"http://me:{canary}@127.0.0.1:1", "small", transport=Server(fails=httpx.ConnectError("refused")))
    echoing = Server(json.dumps({"error": f"who is {canary}?"}).replace("-", "\\u002d").encode(), status=400)
    for each in (source, Ollama(f"http://me:{canary}@127.0.0.1:1", "small", transport=echoing)):
        with pytest.raises(ProviderError) as raised:
            [event async for event in each.stream(ASK)]
        assert canary not in repr(each) + str(raised.value)
