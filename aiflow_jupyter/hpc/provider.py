"""The hpc tier as a source of events: a request becomes a job, its stream the same events as of any other provider."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from aiflow_jupyter.errors import AiflowError, ProviderError, StreamCut
from aiflow_jupyter.events import Event
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.modelserver import PART
from aiflow_jupyter.hpc.remote import RelayAt, RemoteStream, Timeouts
from aiflow_jupyter.providers.chunks import Chunks
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.relay.crypto import seal_request
from aiflow_jupyter.relay.errors import KeyUnusable
from aiflow_jupyter.relay.protocol import StreamLimits
from aiflow_jupyter.relay.selfrelay import SelfRelay
from aiflow_jupyter.runtime.source import Request

NAME: Final = "hpc"
# Below this tier the hints name arguments and options; whoever reads these has a file.
_SETTINGS: Final = {
    "AF917": 'In aiflow.toml, under [tiers.hpc]: an address with TLS, relay = "https://...", or relay = "self" for '
    "one in this kernel, with relay_host or relay_public_host and, where only you can read the line, "
    "relay_insecure = true.",
    "AF973": "In aiflow.toml, under [tiers.hpc]: relay_host is an address of this machine, relay_port one that nothing "
    "else uses; a host other than loopback needs relay_insecure = true, as it is without TLS.",
}


class HpcProvider:
    """Answers requests from a model server that only the cluster's jobs can reach.

    What answers take is started with the first request and closed with this provider, which is then closed for good. A
    start belongs to no request: one that leaves meanwhile interrupts it for no other, and nothing of it is forgotten.

    Args:
        executor: makes what starts the worker, in a thread, as it may take its time.
        relay: where streams pass, or what makes a relay in this process for them; None has every answer come by the
            control plane in one piece.
        worker_key: the worker's public key.
        model: the model to ask for where a request names none, None for the server's first.
        max_tokens: the most tokens of an answer where a request does not say.
        timeouts: of every wait.
        pad: frames are padded to a multiple of this many bytes, at most 1024.
        fallback: an answer may come in one piece where the relay can't be reached; else that is an error.
        starting: what is reported while the executor and a relay of this process start.
        clock: nanoseconds, stamped on events.

    Raises:
        RelayError: `pad` is out of bounds.
        KeyUnusable: `worker_key` is none.
    """

    name = NAME

    def __init__(
        self,
        executor: Callable[[], Executor],
        *,
        relay: RelayAt | Callable[[], SelfRelay] | None,
        worker_key: str,
        model: str | None = None,
        max_tokens: int | None = None,
        timeouts: Timeouts | None = None,
        pad: int = 64,
        fallback: bool = True,
        starting: str = "connecting to the cluster",
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        StreamLimits(pad=pad)
        check_key(worker_key)
        self.model = model or ""
        self._make = executor
        self._relay = relay
        self._worker_key = worker_key
        self._max_tokens = max_tokens
        self._timeouts = timeouts or Timeouts()
        self._pad = pad
        self._fallback = fallback
        self._starting = starting
        self._clock = clock
        self._opening: asyncio.Task[_Opened] | None = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"HpcProvider(model={self.model!r})"

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request`; see `Source` for what comes out.

        Events that came in one piece have `meta["batch"]`, and `meta["note"]` says why they did.

        Raises:
            ProviderError: there is no answer; the message says why.
            StreamCut: the answer broke off.
        """
        model, times = request.model or self.model, self._timeouts
        if request.patience is not None:
            times = replace(times, reach=min(request.patience, times.first_token))
        chunks = Chunks(NAME, model or "the server's model", NAME, self._clock)
        begun, marks = False, dict[int, Any]()
        remote: RemoteStream | None = None

        def marked(event: Event) -> Event:
            return _marked(event, marks, remote.note) if remote is not None and remote.batch else event

        try:
            opened = await self._ready(request.report)
            remote = RemoteStream(
                opened.executor,
                self._body(request),
                relay=opened.relay,
                worker_key=self._worker_key,
                model=model or None,
                timeouts=times,
                pad=self._pad,
                report=request.report,
                fallback=self._fallback,
            )
            async with aclosing(remote.items()) as items:
                async for data in items:
                    for event in chunks.feed(data):
                        begun = True
                        yield marked(event)
            for event in chunks.close():
                yield marked(event)
        except AiflowError as error:
            for event in chunks.left():
                begun = True
                yield marked(event)
            told = _told(error, begun=begun)
            told.unread = told.unread or remote is None or not remote.sent
            if told is error:
                raise
            raise told from error

    async def aclose(self) -> None:
        """End the workers of this machine and the relay of this process, also those that are being started."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        opening = self._opening
        if opening is not None:
            await asyncio.wait({opening})  # a thread can't be stopped, and what it makes is closed too
            if not _failed(opening):
                await opening.result().stack.aclose()

    async def _ready(self, report: Callable[[str], None] | None) -> _Opened:
        """What answers take; started if it is not there, or if its start has failed."""
        if self._closing is not None:
            raise HpcError("the hpc tier is closed", code="AF996")
        if self._opening is None or _failed(self._opening):
            self._opening = asyncio.create_task(self._open())
        if report is not None and not self._opening.done():
            report(self._starting)
        return await asyncio.shield(self._opening)

    async def _open(self) -> _Opened:
        async with AsyncExitStack() as stack:  # a start that fails leaves nothing behind
            relay = self._relay
            if not isinstance(relay, RelayAt | None):
                own = await stack.enter_async_context(relay())
                relay = RelayAt(own.url, Secret(own.key), allow_plain=own.insecure)
            executor = await asyncio.to_thread(self._make)
            stack.push_async_callback(asyncio.to_thread, executor.shutdown, wait=False, cancel_futures=True)
            return _Opened(executor, relay, stack.pop_all())

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messages": [dict(message) for message in request.messages],
            "temperature": request.temperature,
            "max_tokens": request.max_tokens or self._max_tokens,
            "seed": request.seed,
            "tools": list(request.tools) or None,
        }
        if request.think is not None:
            body["chat_template_kwargs"] = {"enable_thinking": request.think}  # vLLM's and llama.cpp's word for it
        body |= request.extra
        return {key: value for key, value in body.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Opened:
    """What answers take, and what closes it."""

    executor: Executor
    relay: RelayAt | None
    stack: AsyncExitStack


def _failed(opening: asyncio.Task[_Opened]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


def check_key(text: str) -> None:
    """Check a worker's public key.

    Raises:
        KeyUnusable: it is none.
    """
    try:
        seal_request(text, b"", purpose="check")
    except KeyUnusable as error:
        raise KeyUnusable(
            f"worker_key: {error.message}",
            code=error.code,
            hint=f"{error.hint}; `python aiflow-worker.pyz keys` on the cluster prints it",
        ) from None


def _marked(event: Event, marks: dict[int, Any], note: str) -> Event:
    """The event with `batch`, and why, in its facts, which are shared as they were."""
    facts = marks.get(id(event.meta))
    if facts is None:
        facts = marks[id(event.meta)] = (event.meta, MappingProxyType({**event.meta, "batch": True, "note": note}))
    event.meta = facts[1]
    return event


def _told(error: AiflowError, *, begun: bool) -> ProviderError:
    """An error as one of a provider; where an answer had begun, it was cut, unless its server itself has failed."""
    of_answer = isinstance(error, StreamCut) or (isinstance(error, ProviderError) and error.code == "AF707")
    if begun and not of_answer:
        return _cut(error)
    if not isinstance(error, ProviderError):
        return HpcError(error.message, code=error.code, hint=_SETTINGS.get(error.code, error.hint))
    if not begun:
        error.hint = error.hint.removeprefix(PART)
    return error


def _cut(error: AiflowError) -> StreamCut:
    return StreamCut(
        f"the answer of hpc broke off: {error.message}",
        code=error.code,
        hint=error.hint or f"{PART}Run it again.",
    )
