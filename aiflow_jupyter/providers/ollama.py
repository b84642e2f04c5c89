"""A provider that speaks Ollama's own API, by its official client.

`/api/chat` and not the OpenAI-compatible route: only there can the context window be set (`num_ctx`), and without it
Ollama cuts a long chat without a word at a default of its own. Each piece of its stream becomes the events of `Source`;
closing the iterator closes the connection, upon which Ollama stops generating. A stream that ends without its last
piece (`done`) was cut.

Ollama also lists models that its own servers answer, under any name. Those are not this machine: a model is asked about
before a text is sent to it, and an answer that turns out to come from elsewhere is broken off at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from aiflow_jupyter.environment import usable_environment
from aiflow_jupyter.errors import ConfigError, ProviderError, StreamCut, encodable
from aiflow_jupyter.events import Event, Finish, Kind, Phase, ToolFragment, Usage
from aiflow_jupyter.providers import network, refusals, remote
from aiflow_jupyter.providers.chunks import counted
from aiflow_jupyter.providers.secret import Redaction, Secret, one_line
from aiflow_jupyter.providers.tags import Tags
from aiflow_jupyter.runtime.source import Message, Request

if TYPE_CHECKING:
    import httpx
    import ollama

DEFAULT_URL: Final = "http://127.0.0.1:11434"
_ASIDE_S: Final = 10.0
"""Seconds that a question about a model may take in all."""


def default_url() -> str:
    """Where Ollama listens: `OLLAMA_HOST`, as its own tools read it, or the usual port of this machine."""
    named = os.environ.get("OLLAMA_HOST", "").strip()
    if not named:
        return DEFAULT_URL
    url = named if "://" in named else f"http://{named}"
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname in ("0.0.0.0", "::", None) else parts.hostname  # noqa: S104 - where it listens, not we
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{parts.port or 11434}"


class Ollama:
    """Answers requests from one Ollama server; usable from any event loop.

    Args:
        url: where it listens.
        model: the model to ask for where a request names none.
        window: tokens of context to load a model with; None for Ollama's own default.
        windows: the same of those models, by their names, that have one of their own.
        keep_alive: how long the model stays loaded after an answer (`"10m"`, seconds, -1 for always).
        name: what events and messages call this provider.
        transport: stands in for the network (tests).
        connect_timeout: seconds for the connection to be made.
        read_timeout: seconds that the server may be silent; loading a model is silence.
        clock: nanoseconds, stamped on events.

    Raises:
        ConfigError: the address has a form that can't be used.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        window: int | None = None,
        windows: Mapping[str, int] | None = None,
        keep_alive: str | float | None = None,
        name: str = "ollama",
        transport: httpx.AsyncBaseTransport | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 300.0,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{name}: an address begins with http:// or https://", hint=DEFAULT_URL)
        self.name = name
        self.model = model
        self.window = window
        self._windows = dict(windows or {})
        self._url = url
        self._host = parts.hostname
        self._shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
        self._redact = Redaction([Secret(unquote(parts.password or ""))])
        self._checked: dict[str, int] = {}
        self._keep_alive = keep_alive
        self._transport = transport
        self._timeouts = (connect_timeout, read_timeout)
        self._clock = clock

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown!r}, model={self.model!r})"

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request`; see `Source` for what comes out.

        Raises:
            ConfigError: the model is none of this machine.
            ProviderError: the server could not be asked, refused, or reported a failure.
            StreamCut: the answer ended before its last piece.
        """
        model = request.model or self.model
        await self._stays(model)
        reader = _Reader(self.name, model, request.tier, self._clock)
        try:
            async with aclosing(self._pieces(request, model)) as pieces:
                async for piece in pieces:
                    for event in reader.read(piece):
                        yield event
                    if reader.done:
                        break
            last = reader.close()
        except ProviderError:
            for event in reader.left():
                yield event
            raise
        for event in last:
            yield event

    async def _pieces(self, request: Request, model: str) -> AsyncGenerator[ollama.ChatResponse, None]:
        """The pieces of the answer, until the stream ends."""
        import httpx  # noqa: PLC0415 - loaded by the first answer, not by the first import
        import ollama  # noqa: PLC0415

        async with self._client(model) as client:
            try:
                answer = await client.chat(
                    model=model,
                    messages=[_message(message) for message in request.messages],
                    tools=list(request.tools) or None,
                    stream=True,
                    think=request.think,
                    options=self._options(request, model),
                    keep_alive=self._keep_alive,
                )
                async with aclosing(answer) as pieces:
                    async for piece in pieces:
                        yield piece
            except ollama.ResponseError as error:
                raise self._refused(error, model) from error
            except (httpx.HTTPError, ConnectionError) as error:
                raise self._broken(error) from error
            except (ValueError, TypeError, AttributeError, RecursionError) as error:  # what is no piece of this API
                raise ProviderError(
                    f"{self.name} sent a piece that can't be understood",
                    code="AF708",
                    hint=f"Is {self._shown} an Ollama server?",
                ) from error

    async def models(self) -> list[str]:
        """The models that the server has, but for those that other machines answer.

        Raises:
            ProviderError: it could not be asked.
        """
        models = await self._listed()
        if models is None:
            raise ProviderError(f"{self._shown} is no Ollama server", code="AF708")
        names = [str(each.get("model") or each.get("name") or "") for each in models if not remote.host_of(each)]
        return [name for name in names if name and not remote.elsewhere(name)]

    async def _listed(self) -> list[Mapping[str, Any]] | None:
        return remote.models_of(await self._json("GET", "/api/tags"))

    async def _stays(self, model: str) -> None:
        """Refuse a model that another machine answers."""
        if remote.elsewhere(model):
            raise remote.refused(self.name, model)
        now = self._clock()
        if model in self._checked and now - self._checked[model] < remote.CHECKED_NS:
            return
        host = remote.host_among(await self._listed() or (), model)
        if host := host or remote.host_of(await self._json("POST", "/api/show", {"model": model})):
            raise remote.refused(self.name, model, host)
        self._checked[model] = now

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON at a path; None where the server has none there.

        Raises:
            ProviderError: it can't be reached, does not answer in time, or says what is no JSON.
        """
        import httpx  # noqa: PLC0415

        try:
            async with (
                asyncio.timeout(_ASIDE_S),
                self._client() as client,
                client._client.stream(method, path, json=body) as response,  # noqa: SLF001 - it drops `remote_host`
            ):
                if not response.is_success:
                    return None
                content = await network.whole(response, self.name)
        except TimeoutError:
            raise refusals.too_slow(self.name, self._shown, _ASIDE_S) from None
        except httpx.HTTPError as error:
            raise self._broken(error) from error
        with suppress(ValueError):
            return network.parsed(content)
        raise ProviderError(f"{self._shown} is no Ollama server: what it says at {path} is no JSON", code="AF708")

    async def aclose(self) -> None:
        """Nothing stays open between answers."""

    def _client(self, model: str = "") -> ollama.AsyncClient:
        """A client for one answer: of `model`, where it is one, whose pieces are then looked at."""
        import httpx  # noqa: PLC0415

        connect, read = self._timeouts
        options: dict[str, Any] = {"transport": self._transport} if self._transport is not None else {}
        if self._url.startswith("http://"):  # no certificates are needed, and to read the system's takes its time
            options["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        hooks = [partial(self._bounded, model)] if model else []
        with usable_environment():
            import ollama  # noqa: PLC0415 - it makes a client of its own at once

            client = ollama.AsyncClient(
                host=self._url,
                timeout=httpx.Timeout(read, connect=connect),
                follow_redirects=False,
                trust_env=not network.is_loopback(self._host),
                headers={"accept-encoding": "identity"},  # its lines are looked at before the client has them
                event_hooks={"response": hooks},
                **options,
            )
        # The client sends a key that it finds in the environment to whatever server it is pointed at.
        client._client.headers.pop("authorization", None)  # noqa: SLF001
        return client

    async def _bounded(self, model: str, response: httpx.Response) -> None:
        """Have what the client reads of a response be of bounded size."""
        import httpx  # noqa: PLC0415

        from aiflow_jupyter.providers.ndjson import Beginning, WholeLines  # noqa: PLC0415

        body = response.stream
        assert isinstance(body, httpx.AsyncByteStream)
        response.stream = WholeLines(body, self.name, model) if response.is_success else Beginning(body)

    def _options(self, request: Request, model: str) -> dict[str, Any]:
        given = {
            "num_ctx": self._windows.get(model, self.window),
            "temperature": request.temperature,
            "num_predict": request.max_tokens,
            "seed": request.seed,
        }
        return {name: value for name, value in given.items() if value is not None} | dict(request.extra)

    def _refused(self, error: ollama.ResponseError, model: str) -> ProviderError:
        self._redact.cleanse(error)
        if error.status_code in (-1, 200):  # the client's word for a line of the stream
            return ProviderError(
                f"{self.name} ({model}) failed in the middle of its answer: {one_line(error.error, self._redact, 300)}",
                code="AF707",
                hint="What came so far is a part of the answer. Run it again, or look at the server's log.",
            )
        response = getattr(error.__context__, "response", None)  # only there does the client keep the headers
        refused = refusals.refused(
            self.name,
            self._shown,
            error.status_code,
            error.error,
            redact=self._redact,
            retry_after=response.headers.get("retry-after", "") if response is not None else "",
        )
        if error.status_code == 404:
            refused.hint = f"ollama pull {model}   (or `ollama list`)"
        elif refused.code == "AF703":
            refused.hint = 'Only provider = "openai" takes a key; its url then ends in /v1.'
        return refused

    def _broken(self, error: Exception) -> ProviderError:
        import httpx  # noqa: PLC0415

        self._redact.cleanse(error)
        if isinstance(error, httpx.ReadTimeout):
            return refusals.too_slow(self.name, self._shown, self._timeouts[1])
        untrusted, hint = network.of_tls(error)
        if untrusted:
            return ProviderError(
                f"no TLS with {self.name} at {self._shown}: {untrusted}", code="AF701", hint=hint, unread=True
            )
        return ProviderError(
            f"{self.name} can't be reached at {self._shown}",
            code="AF701",
            hint="start it: ollama serve",
            unread=not network.may_be_read(error),
        )


class _Reader:
    """One answer on its way in."""

    def __init__(self, provider: str, model: str, tier: str, clock: Callable[[], int]) -> None:
        self._provider = provider
        self._facts = {"tier": tier, "model": model, "provider": provider}
        self._metas: dict[Phase | None, Mapping[str, Any]] = {}
        self._clock = clock
        self._sequence = 0
        self._calls = 0
        self._tags = Tags()
        self._finish: Finish | None = None

    @property
    def done(self) -> bool:
        """Whether the last piece has come."""
        return self._finish is not None

    def read(self, piece: ollama.ChatResponse) -> Iterator[Event]:
        """The events that one piece stands for."""
        message = piece.message
        if message.thinking:
            yield from self._texts(self._tags.none())
            yield from self._texts([(message.thinking, "reasoning")])
        if message.content:
            yield from self._texts(self._tags.feed(message.content))
        if message.tool_calls:
            yield from self.left()
        for call in message.tool_calls or ():
            arguments = json.dumps(dict(call.function.arguments), ensure_ascii=False)
            yield self._event("tool_fragment", ToolFragment(self._calls, None, call.function.name, arguments))
            self._calls += 1
        if piece.done:
            usage = Usage(counted(piece.prompt_eval_count), counted(piece.eval_count))
            self._finish = Finish("tool_calls" if self._calls else piece.done_reason or "stop", usage)

    def left(self) -> list[Event]:
        """The text that was held back until more of it came; where a stream breaks off, the last that came of it."""
        return [*self._texts(self._tags.rest())]

    def close(self) -> list[Event]:
        """What ends the stream.

        Raises:
            StreamCut: its last piece had not come.
        """
        if self._finish is None:
            raise StreamCut(
                f"the answer of {self._provider} ({self._facts['model']}) broke off before its end",
                hint="What came so far is a part of the answer. Run it again; if it breaks off again, look at the "
                "server's log.",
            )
        return [*self.left(), self._event("usage", self._finish.usage), self._event("finish", self._finish)]

    def _texts(self, pieces: Iterable[tuple[str, Phase]]) -> Iterator[Event]:
        for text, phase in pieces:
            yield self._event("token", encodable(text), phase)

    def _event(self, kind: Kind, payload: Any, phase: Phase | None = None) -> Event:
        meta = self._metas.get(phase)
        if meta is None:
            meta = self._metas[phase] = MappingProxyType({"phase": phase, **self._facts} if phase else self._facts)
        event = Event(kind, payload, "", self._provider, self._sequence, self._clock(), "", meta)
        self._sequence += 1
        return event


def _message(message: Message) -> dict[str, Any]:
    """A turn in Ollama's form: images beside the text, a call's arguments as an object, a result with its function."""
    told: dict[str, Any] = {"role": message["role"], **_content(message["content"])}
    if calls := message.get("tool_calls"):
        told["tool_calls"] = [{"function": function} for function in map(_function, calls) if function]
    if message["role"] == "tool" and (name := message.get("name")):
        told["tool_name"] = name
    return told


def _content(content: object) -> dict[str, Any]:
    """A turn's text, and the images of one that comes in parts.

    Raises:
        ProviderError: a part is neither.
    """
    if not isinstance(content, list | tuple):
        return {"content": content}
    texts: list[str] = []
    images: list[bytes] = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type") == "text":
            texts.append(str(part.get("text", "")))
        else:
            images.append(_image(part))
    return {"content": "\n".join(texts), **({"images": images} if images else {})}


def _image(part: object) -> bytes:
    """An image that stands in the request; as bytes, since the client takes a text for the name of a file."""
    said = part.get("image_url") if isinstance(part, Mapping) else None
    kind, _, data = str(said.get("url") if isinstance(said, Mapping) else said).partition(",")
    with suppress(ValueError):
        if kind.startswith("data:image/") and kind.endswith(";base64"):
            return b64decode(data, validate=True)
    raise ProviderError(
        "Ollama takes text and images that stand in the request, and this is neither",
        code="AF706",
        hint='An image is {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}.',
        unread=True,
        of_request=True,
    )


def _function(call: object) -> dict[str, Any]:
    """What a call calls; empty where it names no function, as one that was imported may."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return {}
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = {}
    return {"name": function["name"], "arguments": arguments if isinstance(arguments, dict) else {}}
