"""From the settings to each tier and its provider, which is made when its tier is first asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from aiflow_jupyter.errors import ConfigError, ModelMissing, ProviderError, words
from aiflow_jupyter.graph.problems import indefinite
from aiflow_jupyter.providers.engine import CONTEXT, SLOTS
from aiflow_jupyter.tiers.counting import Tokenizing
from aiflow_jupyter.tiers.discovery import ollama_url
from aiflow_jupyter.tiers.fields import Model
from aiflow_jupyter.tiers.keys import model_server_key, relay_key, server_key
from aiflow_jupyter.tiers.sections import AnyHpc, Cloud, Config, Local
from aiflow_jupyter.tiers.terms import Tier, TierName

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from aiflow_jupyter.events import Event
    from aiflow_jupyter.hpc.terms import RelayAt
    from aiflow_jupyter.relay.selfrelay import SelfRelay
    from aiflow_jupyter.runtime.source import Provider, Request

_OUTPUT: Final = 1_024
_WINDOWS: Final = {"embedded": CONTEXT // SLOTS, "ollama": 8_192}
"""Tokens of context where no setting says it: what the engine is started with, and what Ollama is asked for."""


class WhenAsked:
    """A provider that is made at its first request, so that a tier that is never asked costs and breaks nothing.

    Args:
        make: makes it; what it raises fails that request, and the next one tries again.
    """

    def __init__(self, make: Callable[[], Provider]) -> None:
        self._make = make
        self._made: Provider | None = None
        self._answering = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._lock = asyncio.Lock()

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `runtime.source.Source`."""
        self._answering += 1
        self._idle.clear()
        try:
            async with self._lock:
                if self._closed:
                    raise ProviderError(
                        "the tier was closed while it was asked", code="AF701", hint="Ask again.", unread=True
                    )
                if self._made is None:
                    self._made = await asyncio.to_thread(self._make)  # it reads files
                events = self._made.stream(request)
            async with aclosing(events):
                async for event in events:
                    yield event
        finally:
            self._answering -= 1
            if not self._answering:
                self._idle.set()

    async def count(self, text: str, model: str) -> int | None:
        """The tokens of a text, where the provider is there and can say it; see `counting.Tokenizing`."""
        made = self._made
        return await made.count(text, model) if isinstance(made, Tokenizing) else None

    async def retire(self) -> None:
        """Close the provider once its last answer has ended: another one takes its place."""
        await self._idle.wait()
        await self.aclose()

    async def aclose(self) -> None:
        """Close the provider, if it was made or is being made, for good."""
        self._closed = True
        async with self._lock:
            if self._made is not None:
                await self._made.aclose()
            self._made = None


def configured(config: Config) -> dict[TierName, Tier]:
    """Each tier that is configured, by its name; a local one whose provider is open is the embedded model."""
    local, hpc, cloud = config.tiers.local, config.tiers.hpc, config.tiers.cloud
    tiers = {"local": _tier("local", local.provider or "embedded", local, WhenAsked(lambda: _local(local)))}
    if hpc is not None:
        tiers["hpc"] = _tier("hpc", "hpc", hpc, WhenAsked(lambda: _hpc(hpc)))
    if cloud is not None:
        tiers["cloud"] = _tier("cloud", cloud.provider, cloud, WhenAsked(lambda: _cloud(cloud)))
    return cast("dict[TierName, Tier]", tiers)


def _tier(name: TierName, kind: str, settings: Local | AnyHpc | Cloud, provider: WhenAsked) -> Tier:
    return Tier(
        name,
        provider,
        kind,
        settings.model or "",
        window=window(kind, settings),
        max_output=settings.max_output or getattr(settings, "max_tokens", None) or _OUTPUT,
        price=settings.price,
        takes=settings.takes,
        first_token_s=settings.first_token_s,
        silence_s=settings.silence_s,
        models={model: other.described(settings.currency) for model, other in settings.models.items()},
        demo=kind == "embedded" and is_demo(settings.model),
    )


def is_demo(named: str | None) -> bool:
    """Whether the embedded model is the one for a first look; also where there is none yet."""
    from aiflow_jupyter.providers import models  # noqa: PLC0415

    try:
        model = models.find(named) if named else models.default_model()
    except ModelMissing:  # whoever asks it is told
        return True
    return model is None or model.is_demo


def window(kind: str, settings: Model) -> int | None:
    """The tokens of a tier's context, None where nobody says it; the embedded engine's can only be made less of."""
    usual = _WINDOWS.get(kind)
    if kind == "embedded" and usual is not None:
        return min(settings.window or usual, usual)
    return settings.window or usual


def _local(settings: Local) -> Provider:
    if settings.provider == "ollama":
        from aiflow_jupyter.providers.ollama import Ollama  # noqa: PLC0415 - httpx is loaded when first asked

        url = ollama_url(settings)
        if url is None:
            raise ConfigError(
                "OLLAMA_HOST names no address of this machine, and the local tier is this machine",
                code="AF724",
                hint='[tiers.local] url = "http://127.0.0.1:11434" goes before it; another machine\'s server can be '
                "named under [tiers.cloud]",
            )
        if settings.model is None:
            raise ProviderError(
                f"no Ollama with a model answers at {url}",
                code="AF701",
                hint="Start it (ollama serve) and bring a model (ollama pull llama3.2), or name one: "
                "[tiers.local] model",
                unread=True,
            )
        return Ollama(
            url,
            settings.model,
            window=window("ollama", settings),
            windows={name: other.window for name, other in settings.models.items() if other.window is not None},
            keep_alive=settings.keep_alive,
            read_timeout=max(settings.first_token_s, settings.silence_s),
        )
    if settings.provider == "openai":
        assert settings.url is not None
        return _openai("local", settings, settings.url, settings.model or "")
    from aiflow_jupyter.providers import models  # noqa: PLC0415
    from aiflow_jupyter.providers.embedded import EmbeddedModel  # noqa: PLC0415

    return EmbeddedModel(models.find(settings.model) if settings.model else None)


def _cloud(settings: Cloud) -> Provider:
    return _openai("cloud", settings, settings.url, settings.model)


def _openai(tier: TierName, settings: Local | Cloud, url: str, model: str) -> Provider:
    from aiflow_jupyter.providers.openai import OpenAICompatible  # noqa: PLC0415

    key = server_key(tier, settings)
    read_timeout = max(settings.first_token_s, settings.silence_s)
    here = tier == "local"
    return OpenAICompatible(url, model=model, name=tier, key=key, read_timeout=read_timeout, here=here)


def _hpc(settings: AnyHpc) -> Provider:
    from aiflow_jupyter.hpc.executors import LocalExecutor, globus_executor  # noqa: PLC0415
    from aiflow_jupyter.hpc.provider import HpcProvider  # noqa: PLC0415
    from aiflow_jupyter.relay.crypto import WorkerKey  # noqa: PLC0415

    executor: Callable[[], Executor]
    starting = "connecting to the cluster"
    if settings.executor == "local":
        starting = "starting a relay and a worker on this machine"
        own, server = WorkerKey.generate(), settings.model_server
        key = model_server_key(settings)
        executor, public = lambda: LocalExecutor(own, server, key), own.public
    elif settings.executor == "python":
        factory = settings.factory
        executor, public = lambda: made_by(factory), settings.worker_key
    else:
        endpoint = settings.endpoint
        executor, public = lambda: globus_executor(endpoint), settings.worker_key
    return HpcProvider(
        executor,
        relay=_relay(settings),
        worker_key=public,
        model=settings.model,
        max_tokens=settings.max_tokens,
        timeouts=settings.timeouts,
        pad=settings.pad,
        fallback=settings.fallback,
        starting=starting,
    )


def _relay(settings: AnyHpc) -> RelayAt | Callable[[], SelfRelay]:
    """Where streams pass, or what makes a relay in this process."""
    from aiflow_jupyter.hpc.terms import RelayAt  # noqa: PLC0415
    from aiflow_jupyter.relay.selfrelay import SelfRelay  # noqa: PLC0415

    if settings.relay == "self":
        return lambda: SelfRelay(
            settings.relay_host,
            settings.relay_port,
            public_host=settings.relay_public_host,
            insecure=settings.relay_insecure,
        )
    env, file = settings.relay_key_env, settings.relay_key_file
    return RelayAt(
        settings.relay, relay_key(settings), named=f"relay_key_env, {env}" if env else f"relay_key_file, {file}"
    )


def made_by(factory: str) -> Executor:
    """The executor that the user's own `module:name` makes.

    Raises:
        ConfigError: there is no such thing, it fails, or it makes no executor.
    """
    module, _, name = factory.partition(":")
    try:
        executor = getattr(import_module(module), name)()
    except Exception as error:
        raise ConfigError(
            f"tiers.hpc.factory, {factory}, makes no executor ({type(error).__name__}: {words(error)})",
            code="AF724",
            hint="It is called without arguments, and its module has to be importable where this kernel runs.",
        ) from error
    if not all(callable(getattr(executor, method, None)) for method in ("submit", "shutdown")):
        raise ConfigError(
            f"tiers.hpc.factory, {factory}, makes {indefinite(type(executor).__name__)}, not a "
            "concurrent.futures.Executor",
            code="AF724",
            hint="Such a one has submit and shutdown.",
        )
    return cast("Executor", executor)
