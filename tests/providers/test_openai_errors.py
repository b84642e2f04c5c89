"""What goes wrong with a request: each has its code, says what to do, and never shows the key."""

from __future__ import annotations

import copy
import logging
import pickle
import socket
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from provider_replies import all_of, provider, recorded, replying, text

from aiflow_jupyter.errors import ConfigError, ProviderError, StreamCut
from aiflow_jupyter.providers.network import is_loopback
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.providers.secret import Secret

CANARY = "sk-canary-7f3a91"


@pytest.mark.parametrize(
    ("status", "body", "code", "says"),
    [
        (401, '{"error":{"message":"bad key"}}', "AF703", "refused the key (HTTP 401 Unauthorized): bad key"),
        (403, "", "AF703", "HTTP 403 Forbidden"),
        (404, '{"error":{"message":"The model `x` does not exist."}}', "AF704", "The model `x` does not exist."),
        (404, "<!doctype html><h1>Not Found</h1>", "AF704", "a web page"),
        (400, '{"error":{"code":400,"type":"exceed_context_size_error","message":"big"}}', "AF706", "too long"),
        (400, '{"detail":"what is this"}', "AF706", "what is this"),
        (422, '{"detail":[{"loc":["body"]}]}', "AF706", "loc"),
        (429, "slow down", "AF705", "slow down"),
        (500, "", "AF707", "HTTP 500"),
        (502, "<html>Bad gateway</html>", "AF707", "a web page"),
        (503, '{"error":{"message":"Loading model"}}', "AF707", "Loading model"),
        (307, "", "AF704", "redirects"),
    ],
)
async def test_refusal_is_one_sentence_with_a_code_and_what_to_do(status, body, code, says):
    source = provider(lambda _: httpx.Response(status, text=body), name="there", key=Secret("k"))
    with pytest.raises(ProviderError) as caught:
        await all_of(source)
    assert caught.value.code == code
    assert (caught.value.unread, caught.value.of_request) == (True, code in {"AF704", "AF706"})
    assert says in caught.value.message
    assert "there at http://127.0.0.1:1/v1" in caught.value.message
    assert caught.value.hint
    assert "<" not in str(caught.value)


async def test_refusal_without_a_key_asks_for_one():
    with pytest.raises(ProviderError, match="Set a key"):
        await all_of(provider(lambda _: httpx.Response(401)))


async def test_wait_that_the_server_asks_for_is_passed_on():
    with pytest.raises(ProviderError, match="Wait 17 s"):
        await all_of(provider(lambda _: httpx.Response(429, headers={"retry-after": "17"})))


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("17", 17),
        ("1.5", 1.5),
        ("-3", 0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("9" * 400, None),
        ("\xb2", None),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
    ],
)
async def test_how_long_to_wait_is_a_number_of_seconds_or_not_said(said, seconds):
    headers = [(b"retry-after", said.encode("latin-1"))]
    with pytest.raises(ProviderError) as caught:
        await all_of(provider(lambda _: httpx.Response(429, headers=headers)))
    assert caught.value.code == "AF705"
    assert caught.value.retry_after == seconds


async def test_a_date_to_wait_for_is_told_in_seconds():
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    with pytest.raises(ProviderError) as caught:
        await all_of(provider(lambda _: httpx.Response(503, headers={"retry-after": later})))
    assert 3000 < caught.value.retry_after <= 3600


@pytest.mark.parametrize(("kind", "body"), [("text/html", "<html>log in</html>"), ("application/json", "{}"), ("", "")])
async def test_answer_that_is_no_stream_is_an_error(kind, body):
    with pytest.raises(ProviderError, match="instead of an event stream") as caught:
        await all_of(provider(lambda _: httpx.Response(200, headers={"content-type": kind}, content=body)))
    assert caught.value.code == "AF708"


async def test_endless_error_body_is_not_read_to_its_end():
    async def endless():
        while True:
            yield b"x" * 10_000

    with pytest.raises(ProviderError) as caught:
        await all_of(provider(lambda _: httpx.Response(500, content=endless())))
    assert len(caught.value.message) < 1000


async def test_nobody_at_the_address():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    source = OpenAICompatible(f"http://127.0.0.1:{port}/v1", model="m")
    with pytest.raises(ProviderError, match="nothing answers") as caught:
        await all_of(source)
    assert caught.value.code == "AF701"
    assert "Is the server running" in caught.value.hint


@pytest.mark.parametrize(
    ("failure", "unread"),
    [
        (httpx.ConnectError, True),
        (httpx.ConnectTimeout, True),
        (httpx.ReadError, False),
        (httpx.RemoteProtocolError, False),
        (httpx.ReadTimeout, False),
    ],
)
async def test_an_error_says_whether_its_server_may_have_read_the_request(failure, unread):
    def answer(request):
        raise failure("broken", request=request)

    with pytest.raises(ProviderError) as caught:
        await all_of(provider(answer))
    assert caught.value.unread is unread


async def test_silence_before_and_within_an_answer_are_told_apart():
    def late(request):
        raise httpx.ReadTimeout("late", request=request)

    with pytest.raises(ProviderError, match="said nothing for 120 s") as caught:
        await all_of(provider(late))
    assert caught.value.code == "AF709"
    with pytest.raises(StreamCut, match="no byte for 120 s"):
        await all_of(replying([recorded("vllm")[:900]], httpx.ReadTimeout("late")))


@pytest.mark.parametrize("failure", [httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError])
async def test_dead_kept_connection_is_tried_once_more(failure):
    tries = []

    def answer(request):
        tries.append(request)
        if len(tries) == 1:
            raise failure("Server disconnected without sending a response.", request=request)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=recorded("llama_server"))

    assert text(await all_of(provider(answer))).startswith("Hello")
    assert len(tries) == 2


async def test_but_not_for_ever():
    tries = []

    def answer(request):
        tries.append(request)
        raise httpx.RemoteProtocolError("Server disconnected", request=request)

    with pytest.raises(ProviderError) as caught:
        await all_of(provider(answer))
    assert (len(tries), caught.value.code) == (2, "AF701")


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://a/b", "http://", "http://[::1"])
def test_address_of_no_use_is_refused_at_once(url):
    with pytest.raises(ConfigError):
        OpenAICompatible(url, model="m")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[(host, True) for host in ("localhost", "127.0.0.53", "[::1]", "::1", "a.localhost")],
        *[(host, False) for host in ("10.0.0.1", "localhost.example.org", "example.org", "127.example.org")],
    ],
)
def test_loopback_is_told_from_the_rest(host, expected):
    assert is_loopback(host) is expected


# The key


def everything_about(error: BaseException) -> str:
    """All text that an error, its causes, and the objects they carry would show or give away."""
    seen, rows = set(), []
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        rows += [repr(error), str(error), repr(error.args), repr(vars(error)), *traceback.format_exception(error)]
        request = getattr(error, "_request", None)
        rows += [repr(request.headers.raw)] if request is not None else []
        error = error.__cause__ or error.__context__
    return "\n".join(rows)


def echo(request: httpx.Request) -> httpx.Response:
    return httpx.Response(401, json={"error": {"message": f"Incorrect API key: {request.headers['authorization']}"}})


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("no route", request=request)


def timed_out(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("late", request=request)


def failing(request: httpx.Request) -> httpx.Response:
    body = b'data: {"error": {"message": "no ' + request.headers["authorization"].encode() + b'"}}\n\n'
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)


@pytest.mark.parametrize("answer", [echo, broken, timed_out, failing])
async def test_key_never_shows(answer, caplog):
    caplog.set_level(logging.DEBUG)
    source = provider(answer, key=Secret(CANARY))
    with pytest.raises(ProviderError) as caught:
        await all_of(source)
    assert CANARY not in everything_about(caught.value)
    assert CANARY not in repr(source) + str(source) + repr(vars(source))
    assert CANARY not in caplog.text


async def test_key_is_sent_to_the_server():
    seen = []

    def answer(request):
        seen.append(request.headers["authorization"])
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=recorded("vllm"))

    await all_of(provider(answer, key=Secret(CANARY)))
    assert seen == [f"Bearer {CANARY}"]


@pytest.mark.parametrize("bad", [f"{CANARY}\n", f"{CANARY} x", f"{CANARY}é", f"\x00{CANARY}"])
def test_key_of_no_use_is_refused_without_being_quoted(bad):
    with pytest.raises(ConfigError) as caught:
        provider(echo, key=Secret(bad))
    assert CANARY not in everything_about(caught.value)


def test_credentials_in_an_address_do_not_show():
    source = OpenAICompatible(f"http://me:{CANARY}@127.0.0.1:1/v1?token={CANARY}", model="m")
    assert CANARY not in repr(source)


def test_secret_shows_only_when_asked():
    secret = Secret(CANARY)
    assert CANARY not in f"{secret} {secret!r} {secret:>40} {[secret]}" + "{} {!r}".format(secret, {"k": secret})
    assert secret.reveal() == CANARY
    assert secret == Secret(CANARY)
    assert secret != Secret("other")
    assert secret != CANARY
    assert hash(secret) == hash(Secret(CANARY))
    assert not Secret("")
    assert secret.redact(f"a {CANARY} b") == "a *** b"
    for away in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError) as caught:
            away(secret)
        assert CANARY not in str(caught.value)
