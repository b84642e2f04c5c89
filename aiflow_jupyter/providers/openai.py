"""A provider that speaks OpenAI's chat completions: vLLM, llama.cpp, OpenRouter, OpenAI and gateways like them.

One `stream` is one POST whose server-sent events become the events of `Source` (`chunks.py` reads them,
`refusals.py` words what goes wrong before they begin). Closing the iterator, or cancelling the task that reads it,
closes the connection, which is how these servers learn that they shall stop generating.

Addresses on the loopback ignore proxy variables and never reuse a connection: llama.cpp's server closes one after
each streamed answer although it has just promised to keep it. Others honour proxies and `SSL_CERT_FILE`, and a
request is sent a second time only if a kept connection turned out to be dead before the server said a byte.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from aiflow_jupyter.environment import usable_environment
from aiflow_jupyter.errors import ConfigError, ProviderError, StreamCut, encodable
from aiflow_jupyter.events import Event
from aiflow_jupyter.providers import network, refusals, remote
from aiflow_jupyter.providers.chunks import Chunks
from aiflow_jupyter.providers.lines import Lines
from aiflow_jupyter.providers.secret import Redaction, Secret
from aiflow_jupyter.runtime.source import Request

if TYPE_CHECKING:
    import httpx

_BODY: Final = 64 * 1024
_AFTER_S: Final = 2.0
"""Seconds for which a server that has said its finish reason may still say what it used, or that it is done."""
_TOKENIZERS: Final = ("llamacpp", "vllm")
"""How servers that have a tokenizer call themselves as the owner of a model."""
_NOT_TOLD: Final = frozenset({"AF701", "AF705", "AF707", "AF709"})  # not reached, busy, failed, late: it may have it
_NO_ANSWER: Final = frozenset({"AF704", "AF708", "AF709"})  # there is no list of models, or none that ends
_EVENTS: Final = {"Content-Type": "text/event-stream; charset=utf-8"}
_HEADERS: Final = {"Accept": "text/event-stream", "Cache-Control": "no-store", "Content-Type": "application/json"}


class OpenAICompatible:
    """Answers requests from one OpenAI-compatible server; usable from any event loop.

    Args:
        base_url: where the API begins, such as `http://127.0.0.1:8000/v1`.
        model: the model to ask for where a request names none.
        name: what events and messages call this provider.
        key: sent as a bearer token; None where the server wants none.
        transport: stands in for the network (tests).
        connect_timeout: seconds for the connection to be made.
        read_timeout: seconds that the server may be silent, before its first byte and between two.
        aside_timeout: seconds that a question beside the answers (`get`, `count`) may take in all.
        here: the answer may come from this machine alone: where the server is an Ollama, its cloud models are refused.
        facts: what else every event says in its `meta`.
        clock: nanoseconds, stamped on events.

    Raises:
        ConfigError: the address or the key has a form that can't be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        name: str = "openai",
        key: Secret | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 120.0,
        aside_timeout: float = 10.0,
        here: bool = False,
        facts: Mapping[str, str] = MappingProxyType({}),
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        import httpx  # noqa: PLC0415  (loaded by the first provider, not by the first import)

        try:
            address = httpx.URL(base_url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise ConfigError(f"{name}: the address can't be understood: {error}") from None
        if address.scheme not in ("http", "https") or not address.host:
            raise ConfigError(f"{name}: an address begins with http:// or https://", hint="http://127.0.0.1:8000/v1")
        if key is not None and not (key.reveal().isascii() and key.reveal().isprintable() and " " not in key.reveal()):
            # Past this point the HTTP library would quote the key in its own error.
            raise ConfigError(f"{name}: the key holds a space, a line end or a letter that no key has")
        self.name = name
        self.model = model
        self.url = str(address.copy_with(userinfo=b"", query=None))
        self.loopback = network.is_loopback(address.host)
        self._address = address
        self._key = key
        carried = [address.password, *(value for _, value in parse_qsl(address.query.decode("latin-1")))]
        self._redact = Redaction([key, *map(Secret, carried)])
        self._transport = transport
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._aside_timeout = aside_timeout
        self._here = here
        self._facts = facts
        self._checked: dict[str, int] = {}
        self._clock = clock
        self._owner: str | None = None
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, model={self.model!r}, name={self.name!r})"

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request`; see `Source` for what comes out.

        Raises:
            ConfigError: the request or the environment can't be used, or the model is none of this machine and must be.
            ProviderError: the server could not be asked, refused, or reported a failure.
            StreamCut: the answer ended before its finish reason.
        """
        if self._here:
            await self._stays(request.model or self.model)
            with suppress(ProviderError):  # it says so when it is asked for the answer
                await self._whose()
        chunks = Chunks(self.name, request.model or self.model, request.tier, self._clock, self._redact, self._facts)
        try:
            async with self._answered(request) as response, aclosing(self._data(response, chunks)) as pieces:
                async for data in pieces:
                    for event in chunks.feed(data):
                        yield event
                    if chunks.done:
                        break
            last = chunks.close()
        except ProviderError:
            for event in chunks.left():
                yield event
            raise
        for event in last:
            yield event

    async def get(self, path: str) -> Any:
        """The JSON at `path` on this server (`/slots`, `/v1/models`), asked with the key.

        Raises:
            ProviderError: as for `stream`.
        """
        return await self._json("GET", path)

    async def models(self) -> list[Mapping[str, Any]]:
        """The models that the server lists, as it describes each of them.

        Raises:
            ProviderError: as for `stream`; AF708 where there is something else than such a list.
        """
        listed = await self._json("GET", f"{self._address.path.rstrip('/')}/models")
        models = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(models, list) or not all(isinstance(each, dict) for each in models):
            raise refusals.no_models(self.name, self.url)
        return models

    async def count(self, text: str, model: str) -> int | None:
        """The tokens of a text by the server's own tokenizer; None where it has none.

        llama.cpp's and vLLM's servers have one beside their API, and say who they are in the list of their models.
        The text is sent to no other.

        Raises:
            ProviderError: as for `stream`.
        """
        if await self._whose() not in _TOKENIZERS:
            return None
        path = f"{self._address.path.rstrip('/').removesuffix('/v1')}/tokenize"
        text = encodable(text)
        said = await self._json("POST", path, {"content": text, "prompt": text, "model": model or self.model})
        tokens = said.get("tokens") if isinstance(said, dict) else None
        return len(tokens) if isinstance(tokens, list) else None

    async def _whose(self) -> str:
        """Who owns the server's first model, as its list says; empty where it says nothing that can be read."""
        if self._owner is None:
            try:
                models = await self.models()
            except ProviderError as error:
                if error.code not in _NO_ANSWER:
                    raise
                models = []  # asked again, it would but take as long again
            self._owner = str(models[0].get("owned_by", "")) if models else ""
        return self._owner

    async def _stays(self, model: str) -> None:
        """Refuse a model that an Ollama has answered by another machine; another server's models are its own."""
        now = self._clock()
        if model in self._checked and now - self._checked[model] < remote.CHECKED_NS:
            return
        root = self._address.path.rstrip("/").removesuffix("/v1")
        models = remote.models_of(await self._told("GET", f"{root}/api/tags"))
        if models is not None:
            if remote.elsewhere(model) and await self._whose() not in _TOKENIZERS:
                raise remote.refused(self.name, model)
            host = remote.host_among(models, model)
            host = host or remote.host_of(await self._told("POST", f"{root}/api/show", {"model": model}))
            if host:
                raise remote.refused(self.name, model, host)
        self._checked[model] = now

    async def _told(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON at a path that an Ollama has; None of a server that has none there."""
        try:
            return await self._json(method, path, body)
        except ProviderError as error:
            if error.code in _NOT_TOLD:
                raise
            return None

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        import httpx  # noqa: PLC0415

        client, url, kind = self._client(), self._address.copy_with(path=path), ""
        try:
            async with (
                asyncio.timeout(self._aside_timeout),
                client.stream(method, url, headers=self._headers(), json=body) as response,
            ):
                if not response.is_success:
                    raise self._refused(response, await self._text(response))
                kind = response.headers.get("content-type", "")
                content = await network.whole(response, self.name)
        except TimeoutError:
            raise refusals.too_slow(self.name, self.url, self._aside_timeout) from None
        except httpx.RequestError as error:
            raise self._broken(error) from error
        with suppress(ValueError):
            return await asyncio.to_thread(network.parsed, content) if len(content) > _BODY else network.parsed(content)
        raise refusals.no_json(self.name, self.url, kind, self._redact)

    async def aclose(self) -> None:
        """Close the connections of the running loop, and forget those of loops that have ended."""
        running = asyncio.get_running_loop()
        for loop in [loop for loop in self._clients if loop is running or loop.is_closed()]:
            client = self._clients.pop(loop)
            if loop is running:
                await client.aclose()

    @asynccontextmanager
    async def _answered(self, request: Request) -> AsyncIterator[httpx.Response]:
        """The response of this request, its head checked, open while the caller reads it."""
        import httpx  # noqa: PLC0415

        client = self._client()
        again = True
        while True:
            fresh: list[str] = []
            message = client.build_request(
                "POST",
                self._address.copy_with(path=f"{self._address.path.rstrip('/')}/chat/completions"),
                content=self._body(request),
                headers={**_HEADERS, **self._headers()},
                extensions={"trace": _connections_into(fresh)},
            )
            try:
                response = await client.send(message, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
                if again and not fresh:
                    again = False
                    continue
                raise self._broken(error) from error
            except httpx.RequestError as error:
                raise self._broken(error) from error
            break
        try:
            await self._check(response)
            yield response
        finally:
            await response.aclose()

    async def _check(self, response: httpx.Response) -> None:
        content_type = response.headers.get("content-type", "")
        if response.status_code == 200 and content_type.partition(";")[0].strip().lower() == "text/event-stream":
            return
        body = await self._text(response)
        if response.is_success:
            raise refusals.no_stream(self.name, self.url, content_type, body, self._redact)
        raise self._refused(response, body)

    async def _text(self, response: httpx.Response) -> str:
        """The beginning of a body that is no stream; whatever broke while reading it, the status says enough."""
        import httpx  # noqa: PLC0415

        text = ""
        try:
            async for part in response.aiter_text():
                text += part
                if len(text) > _BODY:
                    break
        except httpx.RequestError:
            pass
        return text

    async def _data(self, response: httpx.Response, chunks: Chunks) -> AsyncGenerator[str, None]:
        """The data of each server-sent event, until the stream ends or a complete answer loses its connection."""
        import httpx  # noqa: PLC0415
        import httpx_sse  # noqa: PLC0415

        try:
            async with aclosing(self._lines(response, chunks)) as lines:
                whole = httpx.Response(200, headers=_EVENTS, content=lines)
                async with aclosing(httpx_sse.EventSource(whole).aiter_sse()) as events:
                    async for event in events:
                        yield event.data
        except httpx.RequestError as error:
            if chunks.finished is not None:
                return
            self._scrub(error)
            silent = isinstance(error, httpx.TimeoutException)
            why = f"no byte for {self._read_timeout:g} s" if silent else "the connection was lost"
            raise StreamCut(
                f"the answer of {self.name} at {self.url} broke off: {why}",
                hint="What came so far is a part of the answer. Run it again.",
            ) from error

    async def _lines(self, response: httpx.Response, chunks: Chunks) -> AsyncGenerator[bytes, None]:
        """The stream in whole lines, of bounded length as are the events that they make up.

        Once the answer is complete, its end is waited for only for a moment: some servers keep the line open.
        """
        lines, held = Lines(self.name), 0
        loop, left = asyncio.get_running_loop(), _AFTER_S
        async with aclosing(response.aiter_bytes()) as pieces:  # type: ignore[type-var]  # it is a generator
            while True:
                begun = loop.time()
                limit = None if chunks.finished is None else left
                try:
                    async with asyncio.timeout(limit):
                        piece = await anext(pieces, None)
                except TimeoutError:
                    return
                if piece is None:
                    return
                if limit is not None:
                    left = max(left - (loop.time() - begun), 0.0)
                whole = lines.feed(piece)
                for line in whole:
                    held = held + len(line) + 1 if line.startswith(b"data") else held if line else 0
                    lines.check(held)
                if whole:
                    yield b"".join(line + b"\n" for line in whole)

    def _body(self, request: Request) -> bytes:
        body: dict[str, Any] = {
            "model": request.model or self.model,
            "messages": [dict(message) for message in request.messages],
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "tools": request.tools or None,
            "stream_options": {"include_usage": True},
            # llama.cpp's server learns that its reader has left only from what it writes, also while it reads a prompt.
            "return_progress": True if self._owner == "llamacpp" else None,
            **request.extra,
            "stream": True,
        }
        given = {key: value for key, value in body.items() if value is not None}
        try:
            text = json.dumps(given, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"the request to {self.name} can't be written as JSON: {error}") from error
        # Text out of a notebook may hold halves of characters, which no server reads.
        return encodable(text).encode()

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._key.reveal()}"} if self._key else {}

    def _client(self) -> httpx.AsyncClient:
        import httpx  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            for ended in [other for other in self._clients if other.is_closed()]:
                del self._clients[ended]
            with usable_environment():
                client = httpx.AsyncClient(
                    transport=self._transport,
                    trust_env=not self.loopback,
                    timeout=httpx.Timeout(self._read_timeout, connect=self._connect_timeout),
                    # A stream holds its connection for as long as its reader likes: no limit, so none waits for others.
                    limits=httpx.Limits(max_keepalive_connections=0 if self.loopback else 20, keepalive_expiry=5.0),
                )
            self._clients[loop] = client
        return client

    def _refused(self, response: httpx.Response, body: str) -> ProviderError:
        after = response.headers.get("retry-after", "")
        return refusals.refused(
            self.name,
            self.url,
            response.status_code,
            body,
            redact=self._redact,
            retry_after=after,
            keyed=self._key is not None,
        )

    def _broken(self, error: httpx.RequestError) -> ProviderError:
        import httpx  # noqa: PLC0415

        self._scrub(error)
        if isinstance(error, httpx.ReadTimeout):
            return refusals.too_slow(self.name, self.url, self._read_timeout)
        late = f"no connection within {self._connect_timeout:g} s" if isinstance(error, httpx.ConnectTimeout) else ""
        return refusals.unreachable(self.name, self.url, error, loopback=self.loopback, why=late, redact=self._redact)

    def _scrub(self, error: httpx.RequestError) -> None:
        """Take the key out of what the HTTP library's error says and carries: the error stays on `__cause__`."""
        self._redact.cleanse(error)
        with suppress(RuntimeError):  # the error carries no request
            error.request.headers.pop("Authorization", None)


def _connections_into(seen: list[str]) -> Callable[[str, Mapping[str, Any]], Any]:
    """A trace for the HTTP library that notes in `seen` whether a request opened a connection of its own."""

    async def trace(event: str, _info: Mapping[str, Any]) -> None:
        if event.startswith("connection.connect"):
            seen.append(event)

    return trace
