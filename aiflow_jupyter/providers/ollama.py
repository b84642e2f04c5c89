"""A provider that speaks Ollama's own API, by its official client.

`/api/chat` and not the OpenAI-compatible route: only there can the context window be set (`num_ctx`), and without it
Ollama cuts a long chat without a word at a default of its own. Each piece of its stream becomes the events of `Source`;
closing the iterator closes the connection, upon which Ollama stops generating. A stream that ends without its last
piece (`done`) was cut.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from aiflow_jupyter.errors import ConfigError, ProviderError, StreamCut, encodable
from aiflow_jupyter.events import Event, Finish, Kind, Phase, ToolFragment, Usage
from aiflow_jupyter.providers.openai import is_loopback
from aiflow_jupyter.providers.tags import Tags
from aiflow_jupyter.runtime.source import Message, Request

if TYPE_CHECKING:
    import httpx
    import ollama

DEFAULT_URL: Final = "http://127.0.0.1:11434"


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


def elsewhere(model: str) -> bool:
    """Whether a model of that name is answered by Ollama's own servers: `gpt-oss:120b-cloud`, `x:cloud`."""
    return model.endswith(("-cloud", ":cloud"))


class Ollama:
    """Answers requests from one Ollama server; usable from any event loop.

    Args:
        url: where it listens.
        model: the model to ask for where a request names none.
        window: tokens of context to load the model with; None for Ollama's own default.
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
        self._url = url
        self._host = parts.hostname
        self._keep_alive = keep_alive
        self._transport = transport
        self._timeouts = (connect_timeout, read_timeout)
        self._clock = clock

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, model={self.model!r})"

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request`; see `Source` for what comes out.

        Raises:
            ConfigError: the model is none of this machine.
            ProviderError: the server could not be asked, refused, or reported a failure.
            StreamCut: the answer ended before its last piece.
        """
        model = request.model or self.model
        if elsewhere(model):
            raise ConfigError(
                f"{self.name}: {model} is answered by Ollama's own servers, not by this machine",
                code="AF739",
                hint="name a model of `ollama list` without -cloud",
            )
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

        async with self._client() as client:
            try:
                answer = await client.chat(
                    model=model,
                    messages=[_message(message) for message in request.messages],
                    tools=list(request.tools) or None,
                    stream=True,
                    think=request.think,
                    options=self._options(request),
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
                    hint=f"Is {self._url} an Ollama server?",
                ) from error

    async def models(self) -> list[str]:
        """The models that the server has.

        Raises:
            ProviderError: it could not be asked.
        """
        import httpx  # noqa: PLC0415
        import ollama  # noqa: PLC0415

        async with self._client() as client:
            try:
                return [str(each.model) for each in (await client.list()).models]
            except ollama.ResponseError as error:
                raise self._refused(error, "") from error
            except (httpx.HTTPError, ConnectionError) as error:
                raise self._broken(error) from error
            except (ValueError, TypeError, AttributeError) as error:
                raise ProviderError(f"{self._url} is no Ollama server", code="AF708") from error

    async def aclose(self) -> None:
        """Nothing stays open between answers."""

    def _client(self) -> ollama.AsyncClient:
        import httpx  # noqa: PLC0415
        import ollama  # noqa: PLC0415

        connect, read = self._timeouts
        options: dict[str, Any] = {"transport": self._transport} if self._transport is not None else {}
        client = ollama.AsyncClient(
            host=self._url,
            timeout=httpx.Timeout(read, connect=connect),
            follow_redirects=False,
            trust_env=not is_loopback(self._host),
            headers={"accept-encoding": "identity"},  # its lines are looked at before the client has them
            event_hooks={"response": [self._bounded]},
            **options,
        )
        # The client sends a key that it finds in the environment to whatever server it is pointed at.
        client._client.headers.pop("authorization", None)  # noqa: SLF001
        return client

    async def _bounded(self, response: httpx.Response) -> None:
        """Have what the client reads of a response be of bounded size."""
        import httpx  # noqa: PLC0415

        from aiflow_jupyter.providers.ndjson import Beginning, WholeLines  # noqa: PLC0415

        body = response.stream
        assert isinstance(body, httpx.AsyncByteStream)
        response.stream = WholeLines(body, self.name) if response.is_success else Beginning(body)

    def _options(self, request: Request) -> dict[str, Any]:
        given = {
            "num_ctx": self.window,
            "temperature": request.temperature,
            "num_predict": request.max_tokens,
            "seed": request.seed,
        }
        return {name: value for name, value in given.items() if value is not None} | dict(request.extra)

    def _refused(self, error: ollama.ResponseError, model: str) -> ProviderError:
        said = _said(error.error)
        if error.status_code in (-1, 200):  # the client's word for a line of the stream
            return ProviderError(
                f"{self.name} ({model}) failed in the middle of its answer: {said}",
                code="AF707",
                hint="What came so far is a part of the answer. Run it again, or look at the server's log.",
            )
        if error.status_code == 404:
            return ProviderError(
                f"{self.name} has no model {model!r}", code="AF704", hint=f"ollama pull {model}   (or `ollama list`)"
            )
        if error.status_code == 429:
            return ProviderError(f"{self.name} has had too many requests: {said}", code="AF705", hint="try again later")
        if error.status_code >= 500:
            return ProviderError(
                f"{self.name} ({model}) failed: {said}", code="AF707", hint="look at the server's log; is memory short?"
            )
        hint = "choose a model that can, or leave the option out" if "does not support" in said else "see the message"
        return ProviderError(f"{self.name} refused ({error.status_code}): {said}", code="AF706", hint=hint)

    def _broken(self, error: Exception) -> ProviderError:
        import httpx  # noqa: PLC0415

        if isinstance(error, httpx.ReadTimeout):
            return ProviderError(
                f"{self.name} said nothing for {self._timeouts[1]:g} s", code="AF709", hint="is a model still loading?"
            )
        return ProviderError(
            f"{self.name} can't be reached at {self._url}", code="AF701", hint="start it: ollama serve"
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
            usage = Usage(piece.prompt_eval_count, piece.eval_count)
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
    """A turn in Ollama's form: a call's arguments are an object there, and a result names its function."""
    told: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if calls := message.get("tool_calls"):
        told["tool_calls"] = [{"function": _function(call["function"])} for call in calls]
    if message["role"] == "tool" and (name := message.get("name")):
        told["tool_name"] = name
    return told


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    return {"name": function["name"], "arguments": arguments if isinstance(arguments, dict) else {}}


def _said(text: str) -> str:
    """What a server says of an error, in one short line; the client hands on a body that may be JSON or a page."""
    try:
        found = json.loads(text)
        text = str(found.get("error", text)) if isinstance(found, dict) else text
    except ValueError:
        text = "a page of HTML" if "<" in text[:200] else text
    return " ".join(text.split())[:300]
