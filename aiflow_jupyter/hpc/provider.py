"""The hpc tier as a source of events: a request becomes a job, its stream the same events as of any other provider."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final

from aiflow_jupyter.errors import AiflowError, ProviderError, StreamCut
from aiflow_jupyter.events import Event
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.executors import LocalExecutor
from aiflow_jupyter.hpc.modelserver import PART
from aiflow_jupyter.hpc.remote import RelayAt, RemoteStream, Timeouts
from aiflow_jupyter.providers.chunks import Chunks
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.relay.crypto import WorkerKey, seal_request
from aiflow_jupyter.relay.errors import KeyUnusable
from aiflow_jupyter.relay.protocol import StreamLimits
from aiflow_jupyter.relay.selfrelay import SelfRelay
from aiflow_jupyter.runtime.source import Request

NAME: Final = "hpc"
# Below this tier the hints name arguments and options; whoever reads these has a file.
_SETTINGS: Final = {
    "AF917": 'In aiflow.toml, under [tiers.hpc]: an address with TLS, relay = "https://...", or relay = "self" for '
    "one in this kernel, with relay_host and, where only you can read the line, relay_insecure = true.",
    "AF973": "In aiflow.toml, under [tiers.hpc]: relay_host is an address of this machine; one other than loopback "
    "needs relay_insecure = true, as it is without TLS.",
}


class HpcProvider:
    """Answers requests from a model server that only the cluster's jobs can reach.

    Args:
        executor: makes what starts the worker, when first asked and in a thread, as it may take its time.
        relay: where streams pass; a `SelfRelay` is started with the first request and closed with this provider; None
            has every answer come by the control plane in one piece.
        worker_key: the worker's public key.
        model: the model to ask for where a request names none, None for the server's first.
        max_tokens: the most tokens of an answer where a request does not say.
        timeouts: of every wait.
        pad: frames are padded to a multiple of this many bytes, at most 1024.
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
        relay: RelayAt | SelfRelay | None,
        worker_key: str,
        model: str | None = None,
        max_tokens: int | None = None,
        timeouts: Timeouts | None = None,
        pad: int = 64,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        StreamLimits(pad=pad)
        _check_key(worker_key)
        self.model = model or ""
        self._make = executor
        self._executor: Executor | None = None
        self._own_relay = relay if isinstance(relay, SelfRelay) else None
        self._relay = None if isinstance(relay, SelfRelay) else relay
        self._worker_key = worker_key
        self._max_tokens = max_tokens
        self._timeouts = timeouts or Timeouts()
        self._pad = pad
        self._clock = clock
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"HpcProvider(model={self.model!r})"

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request`; see `Source` for what comes out. Events that came in one piece have `meta["batch"]`.

        Raises:
            ProviderError: there is no answer; the message says why.
            StreamCut: the answer broke off.
        """
        model = request.model or self.model
        chunks = Chunks(NAME, model or "the server's model", NAME, self._clock)
        begun = False
        try:
            await self._ready(request.report)
            assert self._executor is not None
            remote = RemoteStream(
                self._executor,
                self._body(request),
                relay=self._relay,
                worker_key=self._worker_key,
                model=model or None,
                timeouts=self._timeouts,
                pad=self._pad,
                report=request.report,
            )
            marks: dict[int, Any] = {}
            async with aclosing(remote.items()) as items:
                async for data in items:
                    for event in chunks.feed(data):
                        begun = True
                        yield _marked(event, marks) if remote.batch else event
            for event in chunks.close():
                yield _marked(event, marks) if remote.batch else event
        except ProviderError as error:
            if begun and not isinstance(error, StreamCut) and error.code != "AF707":
                raise _cut(error) from error
            if not begun:
                error.hint = error.hint.removeprefix(PART)
            raise
        except AiflowError as error:
            if begun:
                raise _cut(error) from error
            raise HpcError(error.message, code=error.code, hint=_SETTINGS.get(error.code, error.hint)) from error

    async def aclose(self) -> None:
        """End the workers of this machine and the relay of this process."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(executor.shutdown, wait=False, cancel_futures=True)
        if self._own_relay is not None and self._relay is not None:
            self._relay = None
            await self._own_relay.__aexit__(None, None, None)

    async def _ready(self, report: Callable[[str], None] | None) -> None:
        async with self._lock:
            if self._own_relay is not None and self._relay is None:
                own = await self._own_relay.__aenter__()
                plain = own.url.startswith("http://")  # whoever had it listen elsewhere without TLS knew it
                self._relay = RelayAt(own.url, Secret(own.key), allow_plain=plain)
            if self._executor is None:
                if report is not None:
                    report("connecting to the control plane")
                self._executor = await asyncio.to_thread(self._make)

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messages": [dict(message) for message in request.messages],
            "temperature": request.temperature,
            "max_tokens": request.max_tokens or self._max_tokens,
            "seed": request.seed,
        }
        if request.think is not None:
            body["chat_template_kwargs"] = {"enable_thinking": request.think}  # vLLM's and llama.cpp's word for it
        body |= request.extra
        return {key: value for key, value in body.items() if value is not None}


def local_setup(
    model_server: str,
    *,
    key: Secret | None = None,
    model: str | None = None,
    max_tokens: int | None = None,
    timeouts: Timeouts | None = None,
    pad: int = 64,
    relay: RelayAt | SelfRelay | None = None,
) -> HpcProvider:
    """The hpc tier on this machine alone: the worker in a process here, the relay in this one, a fresh worker key.

    Args:
        model_server: address of an OpenAI-compatible server.
        key: the server's key.
        model: as of `HpcProvider`, like all that follow.
        max_tokens: the most tokens of an answer.
        timeouts: of every wait.
        pad: frames are padded to a multiple of this many bytes.
        relay: another relay than one's own.
    """
    worker_key = WorkerKey.generate()
    return HpcProvider(
        lambda: LocalExecutor(worker_key, model_server, key),
        relay=relay or SelfRelay(),
        worker_key=worker_key.public,
        model=model,
        max_tokens=max_tokens,
        timeouts=timeouts,
        pad=pad,
    )


def _check_key(text: str) -> None:
    try:
        seal_request(text, b"", purpose="check")
    except KeyUnusable as error:
        raise KeyUnusable(
            f"worker_key: {error.message}",
            code=error.code,
            hint=f"{error.hint}; `aiflow keys worker` on the cluster prints it",
        ) from None


def _marked(event: Event, marks: dict[int, Any]) -> Event:
    """The event with `batch` in its facts, which are shared as they were."""
    facts = marks.get(id(event.meta))
    if facts is None:
        facts = marks[id(event.meta)] = (event.meta, MappingProxyType({**event.meta, "batch": True}))
    event.meta = facts[1]
    return event


def _cut(error: AiflowError) -> StreamCut:
    return StreamCut(
        f"the answer of hpc broke off: {error.message}",
        code=error.code,
        hint=error.hint or f"{PART}Run it again.",
    )
