"""The model server beside the worker: where it is, whether it is ready, and its answer, event by event.

It is any OpenAI-compatible server: vLLM, llama.cpp. Its address and key are read for every task, as a job that starts
it may write them later: `AIFLOW_MODEL_SERVER` and `AIFLOW_MODEL_SERVER_KEY`, else the 0600 JSON file
`{"url": ..., "key": ...}` that `AIFLOW_MODEL_SERVER_FILE` names, by default `~/.aiflow/server.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final

import httpx

from aiflow_jupyter.environment import usable_environment
from aiflow_jupyter.errors import ConfigError, encodable, plain
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.sse import Events
from aiflow_jupyter.masking import masked
from aiflow_jupyter.relay.link import loopback, trusted

FILE: Final = "~/.aiflow/server.json"
_BODY: Final = 64 * 1024
_MODELS: Final = 1024 * 1024
_LONGEST: Final = 400
_CONNECT: Final = 10.0
_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
_FINISHED: Final = re.compile(r'"finish_reason"\s*:\s*"')
_AFTER: Final = 2.0  # seconds for which a server that has said its finish reason may still say what it used

_NO_LIST: Final = "Is that the address of an OpenAI-compatible API? Name a model, or look at /v1/models there."
_LONGER: Final = "How long that may take: first_token_timeout in aiflow.toml, under [tiers.hpc]."
_BY_VARIABLE: Final = "AIFLOW_MODEL_SERVER and AIFLOW_MODEL_SERVER_KEY in the worker's environment"
BY_SETTING: Final = "model_server and model_server_key_env in aiflow.toml, under [tiers.hpc]"
PART: Final = "What came so far is a part of the answer. "
LOADING: Final = "model loading"
_AWAY: Final = (
    "Start its model server, or look at its log. A tier that is named alone, --tier hpc, is waited for longer."
)

Report = Callable[[str, float, float | None], Awaitable[None]]


class NotReadyError(Exception):
    """The server is loading its model, or nothing says yet where it is.

    Args:
        why: the reason, for the error that comes once it is late.
        now: what is said meanwhile; the reason, unless the server itself says that it is loading.
    """

    def __init__(self, why: str, now: str = "") -> None:
        super().__init__(why)
        self.now = now or why


class NotReachedError(NotReadyError):
    """Nothing answers where the server is said to be."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where the model server is; `url` with or without its `/v1`; `named` says what sets address and key."""

    url: str
    key: str = field(default="", repr=False)
    named: str = _BY_VARIABLE

    @classmethod
    def find(cls) -> Server:
        """The server of this task.

        Raises:
            NotReadyError: nothing says yet where it is.
            HpcError: what says it can't be used.
        """
        url = os.environ.get("AIFLOW_MODEL_SERVER", "")
        if url:
            return cls(url, os.environ.get("AIFLOW_MODEL_SERVER_KEY", ""))
        path = Path(os.environ.get("AIFLOW_MODEL_SERVER_FILE") or FILE).expanduser()
        try:
            with path.open(encoding="utf-8") as file:
                info = os.fstat(file.fileno())
                if os.name == "posix" and (stat.S_IMODE(info.st_mode) & 0o077 or info.st_uid not in {os.getuid(), 0}):
                    raise HpcError(
                        f"{path} may be read or written by others",
                        code="AF991",
                        hint=f"Run there: chmod 600 {path}",
                        unread=True,
                    )
                content = json.loads(file.read(8192))
            return cls(str(content["url"]), str(content.get("key") or ""), f"`url` and `key` in {path} on the cluster")
        except FileNotFoundError:
            raise NotReadyError(
                f"neither AIFLOW_MODEL_SERVER nor {path} says where it is", "nothing says yet where the model server is"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise HpcError(
                f"{path} does not say where the model server is ({type(error).__name__})",
                code="AF991",
                hint='It holds {"url": "http://host:port/v1", "key": "..."}.',
                unread=True,
            ) from None

    def client(self, connect: float = _CONNECT) -> httpx.AsyncClient:
        """A client for one task.

        Args:
            connect: seconds for the connection to be made.

        Raises:
            HpcError: the address, or the environment's proxies or certificates can't be used.
        """
        try:
            address = httpx.URL(self.url.rstrip("/"))
        except httpx.InvalidURL:
            address = httpx.URL("")
        if address.scheme not in {"http", "https"} or not address.host:
            raise HpcError(
                "the model server's address does not begin with http:// or https://", code="AF991", unread=True
            )
        path = address.path.rstrip("/")
        base = address.copy_with(path=path if path.endswith("/v1") else f"{path}/v1")
        try:
            with usable_environment():
                return httpx.AsyncClient(
                    base_url=base,
                    headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
                    trust_env=not loopback(address.host),
                    # An address without TLS needs no certificates, and to read the system's takes tens of milliseconds.
                    verify=trusted() if address.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                    timeout=httpx.Timeout(None, connect=connect),  # silence is timed by the reader
                )
        except ConfigError as error:
            raise HpcError(
                f"where the worker runs, {error.message}", code=error.code, hint=error.hint, unread=True
            ) from None

    @property
    def place(self) -> str:
        """Its address without what may be a secret in it."""
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL:
            return "(no address)"
        return _shown(address)

    def redact(self, text: str) -> str:
        """What the server says, without the key."""
        return masked(text, self.key)

    def said(self, text: str) -> str:
        """What the server says, in one short line without the key."""
        line = self.redact(" ".join(plain(text).split()))
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


async def answer(
    body: dict[str, Any],
    model: str | None,
    report: Report,
    *,
    find: Callable[[], Server] = Server.find,
    load_timeout: float,
    token_timeout: float,
    reach_timeout: float | None = None,
) -> AsyncGenerator[str, None]:
    """Yield the data of each event of the server's answer, as it came. Closing the iterator closes the connection.

    Args:
        body: the chat's OpenAI fields; `model` and `stream` are set here.
        model: the model's name, None for the server's first.
        report: told why a server that is not ready is waited for, the seconds spent on it, and those at most, None for
            one that says itself that it is loading.
        find: says where the server is.
        load_timeout: seconds that it may take until the first piece of the answer; getting ready is in it.
        token_timeout: seconds that it may be silent from then on.
        reach_timeout: seconds for which nothing may answer at its address, None for as long as it may take anyway.

    Raises:
        HpcError: it did not get ready, refused, failed, or its answer was cut.
    """
    started = time.monotonic()
    away: float | None = None  # since when nothing answers
    for pause in _pauses():
        server, begun = Server(""), time.monotonic()
        patience = inf if reach_timeout is None else reach_timeout - (0.0 if away is None else begun - away)
        try:
            server = find()
            left = max(load_timeout - (begun - started), 1.0)
            connect = max(min(_CONNECT, patience), 1.0)
            async with _asked(server, body, model, left, token_timeout, connect) as pieces:
                async for data in pieces:
                    yield server.redact(data)
        except NotReadyError as error:
            why, now, reached = str(error), error.now, not isinstance(error, NotReachedError)
        else:
            return
        waited = time.monotonic() - started
        away = None if reached else begun if away is None else away
        if not reached and time.monotonic() - begun + pause > patience:
            raise HpcError(
                f"{why}, tried for {reach_timeout:g} s as another tier may answer",
                code="AF701",
                hint=_AWAY,
                unread=True,
            )
        if waited + pause > load_timeout:
            raise HpcError(
                f"the model server did not get ready within {load_timeout:g} s: {why}",
                code="AF987",
                hint=f"Look at its log, and at what says where it is: {server.named}. {_LONGER}",
                unread=True,
            )
        limit = load_timeout if reached or reach_timeout is None else reach_timeout
        await report(now, waited, None if now == LOADING else limit)
        await asyncio.sleep(pause)


@asynccontextmanager
async def _asked(
    server: Server, body: dict[str, Any], model: str | None, first: float, silence: float, connect: float
) -> AsyncIterator[AsyncIterator[str]]:
    async with server.client(connect) as client:
        try:
            async with asyncio.timeout(first):
                name = model or await _first_model(client, server)
                request = client.build_request(
                    "POST",
                    "chat/completions",
                    json={"stream_options": {"include_usage": True}, **body, "model": name, "stream": True},
                    headers={"Accept": "text/event-stream"},
                )
                response = await client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise NotReachedError(f"nothing answers at {_where(client)}") from None
        except httpx.RequestError as error:
            raise _cut(f"the connection was lost ({type(error).__name__})", came=False) from None
        except TimeoutError:
            raise _mute(first, client) from None
        async with aclosing(response):
            await _check(response, server)
            async with aclosing(_data(response, _mute(first, client), first, silence)) as pieces:
                yield pieces


async def _first_model(client: httpx.AsyncClient, server: Server) -> str:
    async with client.stream("GET", "models") as response:
        content = b""
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > _MODELS:
                raise HpcError(
                    f"the model server at {_where(client)} lists models in more than {_MODELS:,} bytes",
                    code="AF708",
                    hint=_NO_LIST,
                    unread=True,
                )
    if response.status_code != httpx.codes.OK:
        raise _refused(response, server, content[:_BODY].decode("utf-8", "replace"))
    try:
        models = json.loads(content)["data"]
        if models == []:
            raise NotReadyError("it lists no model yet", LOADING)
        return encodable(str(models[0]["id"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        raise HpcError(
            f"the model server lists no model at {_shown(response.request.url)}",
            code="AF704",
            hint=_NO_LIST,
            unread=True,
            of_request=True,
        ) from None


async def _check(response: httpx.Response, server: Server) -> None:
    kind = server.said(response.headers.get("content-type", "").partition(";")[0]).lower()
    if response.status_code == httpx.codes.OK and kind == "text/event-stream":
        return
    text = ""
    try:
        async with asyncio.timeout(10):
            async for piece in response.aiter_text():
                text += piece
                if len(text) > _BODY:
                    break
    except (httpx.RequestError, TimeoutError):
        text += "…"  # the status says enough
    if response.is_success:
        raise HpcError(
            f"the model server answered with {kind or 'no content type'} instead of an event stream"
            + _said(text, server),
            code="AF708",
            hint="Is its address that of an OpenAI-compatible API? A proxy or login page may be in between.",
            unread=kind == "text/html",  # no model writes pages
        )
    raise _refused(response, server, text)


async def _data(response: httpx.Response, mute: HpcError, first: float, silence: float) -> AsyncGenerator[str, None]:
    events, came, finished, left = Events(), False, False, _AFTER
    pieces = response.aiter_bytes()
    async with aclosing(pieces):  # type: ignore[type-var]  # it is a generator
        while True:
            begun = time.monotonic()
            try:
                async with asyncio.timeout(left if finished else silence if came else first):
                    piece = await anext(pieces, None)
            except TimeoutError:
                if finished:
                    return  # some servers keep the connection open behind a whole answer
                raise (_silent(silence) if came else mute) from None
            except httpx.RequestError as error:
                if finished:
                    return
                raise _cut(f"the connection was lost ({type(error).__name__})", came=came) from None
            if piece is None:
                return
            if finished:
                left = max(left - (time.monotonic() - begun), 0.0)
            for data in events.feed(piece):
                came = True
                finished = finished or _FINISHED.search(data) is not None
                yield data
                if data.strip() == "[DONE]":
                    return  # the answer is complete, whether or not the server closes the connection


def _refused(response: httpx.Response, server: Server, text: str) -> Exception:
    status = response.status_code
    said = f" (HTTP {status} {server.said(response.reason_phrase)})".replace(" )", ")") + _said(text, server)
    if status == httpx.codes.SERVICE_UNAVAILABLE:
        return NotReadyError(f"it says that it is not ready{said}", LOADING)
    code, what, hint = "AF706", "refused the request", "Check its length and its options."
    if status in {401, 403}:
        code, what = "AF703", "refused the worker's key"
        hint = f"The key has to be the server's: {server.named}."
    elif status == httpx.codes.NOT_FOUND:
        code, what = "AF704", f"knows no such model or path at {_shown(response.request.url)}"
        hint = "Check the model's name, and the server's address on the cluster: it is taken with or without its /v1."
    elif status == httpx.codes.TOO_MANY_REQUESTS:
        code, what, hint = "AF705", "has had too many requests", "Wait a little and run it again."
    elif status >= httpx.codes.INTERNAL_SERVER_ERROR:
        code, what, hint = "AF707", "failed", "Look at its log on the cluster."
    elif 300 <= status < 400:
        code, hint = "AF704", "Use the address that it redirects to."
        what = f"redirects elsewhere from {_shown(response.request.url)}"
    return HpcError(
        f"the model server {what}{said}", code=code, hint=hint, unread=True, of_request=code in {"AF704", "AF706"}
    )


def _said(text: str, server: Server) -> str:
    """The server's own sentence, in one short line."""
    said: Any = text.strip()
    if said.startswith("<"):
        return ": a web page, not an API's answer"
    with suppress(ValueError, RecursionError):
        said = json.loads(said)
    while isinstance(said, dict):
        said = next((said[key] for key in ("error", "message", "detail") if said.get(key)), "")
    line = server.said(str(said))
    return f": {line}" if line else ""


def _cut(why: str, *, came: bool) -> HpcError:
    return HpcError(
        f"the model server's answer broke off: {why}",
        code="AF702",
        hint=f"{PART if came else ''}Run it again, or look at the server's log on the cluster.",
    )


def _mute(seconds: float, client: httpx.AsyncClient) -> HpcError:
    return HpcError(
        f"the model server at {_where(client)} took the request and did not answer it within {seconds:.0f} s",
        code="AF709",
        hint=f"It may be loading its model, or be overloaded: look at its log. {_LONGER}",
    )


def _silent(seconds: float) -> HpcError:
    return HpcError(
        f"the model server said nothing for {seconds:g} s", code="AF709", hint="It may be overloaded: run it again."
    )


def _shown(url: httpx.URL) -> str:
    """An address without what may be a secret in it."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


def _where(client: httpx.AsyncClient) -> str:
    return f"{client.base_url.host}:{client.base_url.port or client.base_url.scheme}"


def _pauses() -> Iterator[float]:
    yield from _PAUSES
    while True:
        yield _PAUSES[-1]
