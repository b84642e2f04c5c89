"""What a server may say or do: the key is masked in all of it, nothing is endless, no number is believed blindly."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
from provider_replies import all_of, asked, provider, replying, text
from test_openai_errors import CANARY, everything_about

from aiflow_jupyter.errors import ConfigError, ProviderError
from aiflow_jupyter.providers import openai
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.providers.secret import Secret

KEY = Secret(CANARY)
ESCAPED = CANARY.replace("-", "\\u002d")
SSE = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def chunk(content=None, finish=None, model="m", **more):
    choices = [{"index": 0, "delta": {"content": content} if content else {}, "finish_reason": finish}]
    return "data: " + json.dumps({"model": model, "choices": choices, **more}) + "\n\n"


def plain(status, body, kind="application/json", more=""):
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body.encode())}\r\n{more}"
    return f"{head}Connection: close\r\n\r\n{body}"


@asynccontextmanager
async def serving(answer):
    """A server of bytes: `answer` is what it sends, or writes it itself; gives its address."""

    async def handle(reader, writer):
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            sizes = [int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-len")]
            await reader.readexactly(sum(sizes))
            if isinstance(answer, str):
                writer.write(answer.encode("latin-1"))
                await writer.drain()
            else:
                await answer(head.split()[1], writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        server.close()


# The key


@pytest.mark.parametrize(
    "answer",
    [
        plain(401, f'{{"error":{{"message":"bad key {ESCAPED}"}}}}'),
        plain(401, json.dumps({"error": json.dumps({"message": ESCAPED})})),
        plain(401, json.dumps({"error": {"message": "\u200b".join(CANARY)}})),
        plain(400, json.dumps({"detail": "x" * 390 + CANARY})),
        plain(400, json.dumps({"detail": CANARY.replace("-", "%2D")})),
        plain(429, CANARY),
        plain(500, f"<p>{CANARY}"),
        plain(200, "x", f"text/{CANARY}"),
        plain(200, "x", f"application/json; charset={CANARY}"),
        plain(302, "", more=f"Location: http://there.example/{CANARY}\r\n"),
        f"HTTP/1.1 {CANARY} hm\r\n\r\n",
        f"HTTP/1.1 200 OK\r\n{CANARY} \x01bad\r\n\r\n",
        SSE + "data: " + json.dumps({"error": {"message": "x" * 485 + " " + CANARY}}) + "\n\n",
        SSE + f'data: {{"error": "{ESCAPED}"}}\n\n',
        SSE + f"data: {{{CANARY}\n\n",
        SSE + chunk("hi", model=CANARY),
    ],
    ids=range(16),
)
async def test_a_key_that_a_server_says_back_in_an_error_does_not_show(answer):
    async with serving(answer) as url:
        with pytest.raises(ProviderError) as caught:
            await all_of(OpenAICompatible(url, model="m", key=KEY))
    shown = everything_about(caught.value)
    shown = shown.partition("HTTP/1.1 302")[0] if "302" in answer else shown
    assert CANARY not in shown.replace("\u200b", "")
    assert CANARY[:9] not in str(caught.value)
    assert ESCAPED not in shown


async def test_a_key_that_a_server_says_back_in_an_answer_is_masked_in_every_part_of_it():
    call = {"index": 0, "id": CANARY, "function": {"name": CANARY, "arguments": json.dumps({"key": CANARY})}}
    parts = [
        chunk(f"your key is {CANARY}", model=CANARY),
        chunk(model="m").replace('"delta": {}', f'"delta": {{"tool_calls": [{json.dumps(call)}]}}'),
        chunk(finish=CANARY).replace("-", "\\u002d"),
    ]
    events = await all_of(replying([part.encode() for part in parts], key=KEY))
    assert CANARY not in repr(events) + repr([dict(event.meta) for event in events])
    assert (text(events), events[-1].payload.reason, events[0].meta["model"]) == ("your key is ***", "***", "***")


@pytest.mark.parametrize("url", ["http://me:{}@127.0.0.1:1/v1", "http://127.0.0.1:1/v1?token={}"])
async def test_what_is_secret_in_an_address_is_masked_too(url):
    def echo(_):
        return httpx.Response(400, json={"detail": f"what is {CANARY}?"})

    source = OpenAICompatible(url.format(CANARY), model="m", transport=httpx.MockTransport(echo))
    with pytest.raises(ProviderError, match=r"what is \*\*\*\?") as caught:
        await all_of(source)
    assert CANARY not in str(caught.value)


async def test_a_key_is_masked_in_what_is_asked_beside_the_answers():
    source = provider(lambda _: httpx.Response(400, json={"error": CANARY}), key=KEY)
    with pytest.raises(ProviderError) as caught:
        await source.get("/slots")
    assert CANARY not in everything_about(caught.value)


# Numbers


@pytest.mark.parametrize(("cost", "said"), [("1" + "0" * 400, None), ("-1", None), ("NaN", None), ("0.25", 0.25)])
async def test_a_cost_is_an_amount_that_can_be_one(cost, said):
    usage = f'data: {{"choices": [], "usage": {{"prompt_tokens": 1, "completion_tokens": 1, "cost": {cost}}}}}\n\n'
    events = await all_of(replying([(chunk("hi", "stop") + usage).encode()]))
    assert events[-1].meta.get("cost") == said


@pytest.mark.parametrize(
    ("tokens", "believed"),
    [(2**53, 2**53), (2**53 + 1, None), (2**63, None), (10**400, None), (-5, None), (True, None)],
)
async def test_numbers_of_tokens_that_nobody_could_have_read_are_not_believed(tokens, believed):
    body = chunk("hi", "stop", usage={"prompt_tokens": tokens, "completion_tokens": 1})
    usage = (await all_of(replying([body.encode()])))[-1].payload.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (believed, 1)


# Ends that do not come


async def test_an_answer_whose_finish_reason_came_is_whole_though_the_line_stays_open(monkeypatch):
    monkeypatch.setattr(openai, "_AFTER_S", 0.1)
    usage = {"prompt_tokens": 5, "completion_tokens": 2}

    async def stays(path, writer):
        writer.write((SSE + chunk("whole ") + chunk("answer", "stop")).encode())
        writer.write(("data: " + json.dumps({"choices": [], "usage": usage}) + "\n\n").encode())
        while True:  # alive, and with nothing more to say
            writer.write(b": still here\n\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serving(stays) as url, asyncio.timeout(20):
        events = await all_of(OpenAICompatible(url, model="m"))
    assert (text(events), events[-1].payload.reason) == ("whole answer", "stop")
    assert events[-1].payload.usage.prompt_tokens == 5


async def test_a_list_that_drips_is_waited_for_once_and_no_longer_than_its_deadline():
    asked = []

    async def drips(path, writer):
        asked.append(path)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serving(drips) as url, asyncio.timeout(20):
        source = OpenAICompatible(url, model="m", aside_timeout=0.1)
        assert [await source.count("text", "m") for _ in range(2)] == [None, None]
        with pytest.raises(ProviderError, match=r"said nothing for 0\.1 s") as caught:
            await source.get("/slots")
    assert (asked, caught.value.code) == (["/v1/models", "/slots"], "AF709")


async def test_a_list_that_never_ends_is_read_no_further_than_its_bound():
    sent = []

    async def endless():
        while True:
            sent.append(65_536)
            yield b" " * 65_536

    with pytest.raises(ProviderError, match="more than 16,777,216 bytes") as caught:
        await provider(lambda _: httpx.Response(200, content=endless())).get("/v1/models")
    assert caught.value.code == "AF708"
    assert sum(sent) <= 16_777_216 + 65_536


@pytest.mark.parametrize("body", ["[" * 100_000, "<html>", ""])
async def test_what_is_no_list_of_models_leaves_the_estimate(body):
    source = provider(lambda _: httpx.Response(200, text=body))
    assert await source.count("text", "m") is None
    with pytest.raises(ProviderError, match="instead of JSON"):
        await source.get("/v1/models")


# Forms


async def test_the_type_of_an_answer_is_read_in_any_case():
    kind = {"content-type": "Text/Event-Stream; Charset=UTF-8"}
    events = await all_of(provider(lambda _: httpx.Response(200, headers=kind, text=chunk("hi", "stop"))))
    assert text(events) == "hi"


async def test_an_answer_of_another_type_is_not_read_out_in_the_error():
    with pytest.raises(ProviderError) as caught:
        await all_of(provider(lambda _: httpx.Response(200, text=chunk("my diary", "stop"))))
    assert (caught.value.code, "diary" in str(caught.value)) == ("AF708", False)


# This machine


AWAY = {"remote_model": "gpt-oss:120b", "remote_host": "https://ollama.com:443"}


def ollama(request):
    """What Ollama answers beside its `/v1`: `mine` is a copy of a model of its own servers."""
    if request.url.path == "/api/tags":
        return httpx.Response(200, json={"models": [{"name": "llama3.2:latest"}, {"name": "Other:latest", **AWAY}]})
    if request.url.path == "/api/show":
        return httpx.Response(200, json=AWAY if json.loads(request.content)["model"] == "mine" else {"details": {}})
    return answering(request)


def answering(request):
    if request.url.path != "/v1/chat/completions":
        return httpx.Response(404)
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=chunk("hi", "stop"))


@pytest.mark.parametrize("model", ["gpt-oss:120b-cloud", "gpt-oss:120B-CLOUD", "mine", "other"])
async def test_a_model_that_an_ollama_has_answered_elsewhere_is_none_of_this_machine(model):
    seen = []

    def answer(request):
        seen.append(request.url.path)
        return ollama(request)

    with pytest.raises(ConfigError, match="not by this machine") as caught:
        await all_of(provider(answer, here=True), asked(model=model))
    assert caught.value.code == "AF739"
    assert "/v1/chat/completions" not in seen


def llama(request):
    """llama.cpp's server has some of Ollama's paths, and no models of other machines."""
    if request.url.path == "/v1/models":
        return httpx.Response(200, json={"data": [{"id": "storm-cloud", "owned_by": "llamacpp"}]})
    if request.url.path in ("/api/tags", "/api/show"):
        return httpx.Response(200, json={"models": [{"name": "storm-cloud"}]})
    return answering(request)


@pytest.mark.parametrize(
    ("server", "model"),
    [(ollama, "llama3.2"), (answering, "storm-cloud"), (answering, "m"), (llama, "storm-cloud"), (llama, "m")],
)
async def test_any_other_model_of_this_machine_is_asked(server, model):
    assert text(await all_of(provider(server, here=True), asked(model=model))) == "hi"


@pytest.mark.parametrize(("server", "told"), [(llama, True), (ollama, False), (answering, False)])
async def test_llama_cpp_is_told_to_write_while_it_reads_and_no_other_server(server, told):
    """It learns that its reader has left from what it writes: so from the first question on, whatever was counted."""
    bodies = []

    def answer(request):
        if request.url.path == "/v1/chat/completions":
            bodies.append(json.loads(request.content))
        return server(request)

    source = provider(answer, here=True)
    await all_of(source)
    await all_of(source)
    assert [body.get("return_progress", False) for body in bodies] == [told, told]


async def test_elsewhere_an_ollama_may_have_any_model():
    assert text(await all_of(provider(ollama), asked(model="mine"))) == "hi"


# The environment


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("HTTPS_PROXY", "foo://user:canary@there", "names no proxy"),
        ("https_proxy", "http://there:abc", "names no proxy"),
        ("ALL_PROXY", "foo://there", "names no proxy"),
        ("HTTP_PROXY", "http://[::1", "names no proxy"),
        ("SSL_CERT_FILE", "/nowhere/at/all.pem", "names no certificates"),
        ("SSL_CERT_FILE", __file__, "names no certificates"),
    ],
)
@pytest.mark.parametrize("kind", ["openai", "ollama"])
async def test_a_variable_that_no_client_can_use_is_named(kind, name, value, says, monkeypatch):
    from aiflow_jupyter.providers.ollama import Ollama

    monkeypatch.setenv(name, value)
    url = "https://there.example"
    source = OpenAICompatible(f"{url}/v1", model="m") if kind == "openai" else Ollama(url, "m")
    with pytest.raises(ConfigError, match=f"{name} {says}") as caught:
        await all_of(source)
    assert caught.value.code == "AF716"
    assert "canary" not in str(caught.value)


@pytest.fixture
def certificate(tmp_path):
    """A key and a certificate that nobody else has signed."""
    key, pem = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*made.split(), "-keyout", key, "-out", pem], check=True, capture_output=True)
    return key, pem


async def test_a_certificate_that_is_not_trusted_is_said(certificate):
    key, pem = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem, key)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProviderError, match="its certificate is not trusted: self-signed certificate") as caught:
            await all_of(OpenAICompatible(f"https://127.0.0.1:{port}/v1", model="m"))
        server.close()
    assert (caught.value.code, "SSL_CERT_FILE" in caught.value.hint) == ("AF701", True)


async def test_an_address_that_speaks_no_tls_is_said():
    server = await asyncio.start_server(lambda _, writer: writer.write(b"HTTP/1.1 400 X\r\n\r\n"), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProviderError, match="does not speak TLS there") as caught:
            await all_of(OpenAICompatible(f"https://127.0.0.1:{port}/v1", model="m"))
        server.close()
    assert "http://" in caught.value.hint
