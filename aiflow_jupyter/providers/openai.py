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
import ipaddress
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from aiflow_jupyter.errors import ConfigError, ProviderError, StreamCut, encodable
from aiflow_jupyter.events import Event
from aiflow_jupyter.providers import refusals
from aiflow_jupyter.providers.chunks import Chunks
from aiflow_jupyter.providers.lines import Lines
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.runtime.source import Request

if TYPE_CHECKING:
    import httpx

_BODY: Final = 64 * 1024
_TOKENIZERS: Final = ("llamacpp", "vllm")
"""How servers that have a tokenizer call themselves as the owner of a model."""
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
        self.loopback = is_loopback(address.host)
        self._address = address
        self._key = key
        self._transport = transport
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._clock = clock
        self._owner: str | None = None
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, model={self.model!r}, name={self.name!r})"

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request`; see `Source` for what comes out.

        Raises:
            ProviderError: the server could not be asked, refused, or reported a failure.
            StreamCut: the answer ended before its finish reason.
        """
        chunks = Chunks(self.name, request.model or self.model, request.tier, self._clock)
        try:
            async with self._answered(request) as response, aclosing(self._data(response, chunks)) as pieces:
                async for data in pieces:
                    for event in self._fed(chunks, data):
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
        """Who owns the server's first model, as its list says; empty where it says nothing."""
        if self._owner is None:
            listed = await self._json("GET", f"{self._address.path.rstrip('/')}/models")
            models = listed.get("data") if isinstance(listed, dict) else None
            first = models[0] if isinstance(models, list) and models else None
            self._owner = str(first.get("owned_by", "")) if isinstance(first, dict) else ""
        return self._owner

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        import httpx  # noqa: PLC0415

        client, url = self._client(), self._address.copy_with(path=path)
        try:
            response = await client.request(method, url, headers=self._headers(), json=body)
        except httpx.RequestError as error:
            raise self._broken(error) from error
        if not response.is_success:
            raise self._refused(response, response.text)
        try:
            return response.json()
        except ValueError:
            said = response.headers.get("content-type", "")
            raise refusals.no_json(self.name, self.url, said) from None

    async def aclose(self) -> None:
        """Close the connections of the running loop, and forget those of loops that have ended."""
        running = asyncio.get_running_loop()
        for loop in [loop for loop in self._clients if loop is running or loop.is_closed()]:
            client = self._clients.pop(loop)
            if loop is running:
                await client.aclose()

    def _fed(self, chunks: Chunks, data: str) -> list[Event]:
        try:
            return chunks.feed(data)
        except ProviderError as error:
            if self._key is not None:
                error.message = self._key.redact(error.message)
                error.args = (error.message,)
            raise

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
        if response.status_code == 200 and content_type.partition(";")[0].strip() == "text/event-stream":
            return
        body = await self._text(response)
        if response.is_success:
            raise refusals.no_stream(self.name, self.url, content_type, body)
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
        return self._key.redact(text) if self._key is not None else text

    async def _data(self, response: httpx.Response, chunks: Chunks) -> AsyncGenerator[str, None]:
        """The data of each server-sent event, until the stream ends or a complete answer loses its connection."""
        import httpx  # noqa: PLC0415
        import httpx_sse  # noqa: PLC0415

        try:
            async with aclosing(self._lines(response)) as lines:
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

    async def _lines(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """The stream in whole lines, of bounded length as are the events that they make up."""
        lines, held = Lines(self.name), 0
        async for piece in response.aiter_bytes():
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
            client = httpx.AsyncClient(
                transport=self._transport,
                trust_env=not self.loopback,
                timeout=httpx.Timeout(self._read_timeout, connect=self._connect_timeout),
                # A stream holds its connection for as long as its reader likes: no limit, so none waits for another.
                limits=httpx.Limits(max_keepalive_connections=0 if self.loopback else 20, keepalive_expiry=5.0),
            )
            self._clients[loop] = client
        return client

    def _refused(self, response: httpx.Response, body: str) -> ProviderError:
        after = response.headers.get("retry-after", "")
        return refusals.refused(
            self.name, self.url, response.status_code, body, retry_after=after, keyed=self._key is not None
        )

    def _broken(self, error: httpx.RequestError) -> ProviderError:
        import httpx  # noqa: PLC0415

        self._scrub(error)
        if isinstance(error, httpx.ReadTimeout):
            return refusals.too_slow(self.name, self.url, self._read_timeout)
        why = (
            f"no connection within {self._connect_timeout:g} s"
            if isinstance(error, httpx.ConnectTimeout)
            else str(error)
        )
        return refusals.unreachable(self.name, self.url, why, loopback=self.loopback)

    def _scrub(self, error: httpx.RequestError) -> None:
        """Take the key out of the request that the HTTP library's error carries: the error stays on `__cause__`."""
        try:
            error.request.headers.pop("Authorization", None)
        except RuntimeError:  # the error carries no request
            return


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address, as in a URL) is this machine's loopback."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _connections_into(seen: list[str]) -> Callable[[str, Mapping[str, Any]], Any]:
    """A trace for the HTTP library that notes in `seen` whether a request opened a connection of its own."""

    async def trace(event: str, _info: Mapping[str, Any]) -> None:
        if event.startswith("connection.connect"):
            seen.append(event)

    return trace
