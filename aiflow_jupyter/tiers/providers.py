"""From the configuration to each tier's provider, which is made when its tier is first asked.

The files are looked at before each request: a mistake that was mended, or a tier that was added, counts at once, and
what did not change stays open.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from aiflow_jupyter.errors import ConfigError, ProviderError, words
from aiflow_jupyter.tiers.config import Config, load, stamp
from aiflow_jupyter.tiers.router import Router

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from aiflow_jupyter.events import Event
    from aiflow_jupyter.hpc.terms import RelayAt
    from aiflow_jupyter.providers.secret import Secret
    from aiflow_jupyter.relay.selfrelay import SelfRelay
    from aiflow_jupyter.runtime.source import Provider, Request
    from aiflow_jupyter.tiers.config import GlobusHpc, Local, LocalHpc, PythonHpc

    Settings = LocalHpc | GlobusHpc | PythonHpc

_log = logging.getLogger(__name__)


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
                    raise ProviderError("the tier was closed while it was asked", code="AF701", hint="Ask again.")
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


class ConfiguredRouter:
    """A router that follows the configuration files."""

    def __init__(self) -> None:
        self._stamp: object = None
        self._config: Config | None = None
        self.tiers: dict[str, WhenAsked] = {}
        self._replaced: dict[WhenAsked, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request` with its tier's provider; see `runtime.source.Source`.

        Raises:
            ConfigError: a file has a mistake; once it is mended, the next request goes through.
        """
        await self._follow()
        events = Router(self.tiers).stream(request)
        async with aclosing(events):
            async for event in events:
                yield event

    async def _follow(self) -> None:
        """Read the files anew if they changed, and replace the providers of the tiers that did."""
        async with self._lock:
            now = await asyncio.to_thread(stamp)  # a home folder may be a network file system
            if self._config is not None and now == self._stamp:
                return
            config, before = await asyncio.to_thread(load), self._config
            fresh = configured(config)
            for tier in ("local", "hpc"):
                same = before is not None and getattr(before.tiers, tier) == getattr(config.tiers, tier)
                if same and tier in self.tiers:
                    fresh[tier] = self.tiers[tier]
            old, self.tiers = self.tiers, fresh
            self._config, self._stamp = config, now
            for tier, provider in old.items():
                if fresh.get(tier) is not provider:
                    # Beside the requests, none of which waits for it or takes it along when it is cancelled.
                    self._replaced[provider] = asyncio.create_task(self._retire(tier, provider))

    async def _retire(self, tier: str, provider: WhenAsked) -> None:
        try:
            await provider.retire()
        except Exception:  # noqa: BLE001 - of a tier that nobody asks any more: no request is to fail of it
            _log.exception("what answered for the tier %r before its settings changed can't be closed", tier)
        finally:
            self._replaced.pop(provider, None)

    async def aclose(self) -> None:
        """Close every provider, those of before a change too, also where one can't be closed."""
        async with AsyncExitStack() as stack:
            for provider in (*self.tiers.values(), *self._replaced):
                stack.push_async_callback(provider.aclose)


def configured(config: Config) -> dict[str, WhenAsked]:
    """The provider of each tier that is configured, by the tier's name."""
    tiers = {"local": WhenAsked(lambda: _local(config.tiers.local))}
    hpc = config.tiers.hpc
    if hpc is not None:
        tiers["hpc"] = WhenAsked(lambda: _hpc(hpc))
    return tiers


def _local(settings: Local) -> Provider:
    from aiflow_jupyter.providers import models  # noqa: PLC0415 - httpx is loaded when first asked
    from aiflow_jupyter.providers.embedded import EmbeddedModel  # noqa: PLC0415

    return EmbeddedModel(models.find(settings.model) if settings.model else None)


def _hpc(settings: Settings) -> Provider:
    from aiflow_jupyter.hpc.executors import LocalExecutor, globus_executor  # noqa: PLC0415
    from aiflow_jupyter.hpc.provider import HpcProvider  # noqa: PLC0415
    from aiflow_jupyter.relay.crypto import WorkerKey  # noqa: PLC0415

    executor: Callable[[], Executor]
    if settings.executor == "local":
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
    )


def _relay(settings: Settings) -> RelayAt | Callable[[], SelfRelay]:
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
            f"tiers.hpc.factory, {factory}, makes a {type(executor).__name__}, not a concurrent.futures.Executor",
            code="AF724",
            hint="Such a one has submit and shutdown.",
        )
    return cast("Executor", executor)


def model_server_key(settings: LocalHpc) -> Secret | None:
    """The model server's key, None if it has none.

    Raises:
        ConfigError: what is to hold it does not.
    """
    return _variable(settings.model_server_key_env, "model_server_key_env")


def relay_key(settings: Settings) -> Secret:
    """The personal key that opens channels.

    Raises:
        ConfigError: nothing names one, or what is to hold it does not.
    """
    key = _variable(settings.relay_key_env, "relay_key_env") or _file(settings.relay_key_file)
    if key is None:
        raise ConfigError(
            "tiers.hpc.relay_key_env or relay_key_file is missing",
            code="AF724",
            hint='relay_key_env = "AIFLOW_RELAY_KEY" names an environment variable, relay_key_file = "relay.key" a '
            "file of mode 0600; the relay's operator makes the key: aiflow keys relay add NAME",
        )
    return key


def _variable(name: str | None, setting: str) -> Secret | None:
    """The key in an environment variable, None if the setting names none."""
    from aiflow_jupyter.providers.secret import Secret  # noqa: PLC0415

    if name is None:
        return None
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(
            f"tiers.hpc.{setting} names {name}, which is not set",
            code="AF724",
            hint=f"export {name}=... before the kernel starts",
        )
    return Secret(value)


def _file(path: Path | None) -> Secret | None:
    """The key in a file that only its owner can read, None if the setting names none."""
    from aiflow_jupyter.providers.secret import Secret  # noqa: PLC0415
    from aiflow_jupyter.relay.private import read_private  # noqa: PLC0415

    if path is None:
        return None
    named = "tiers.hpc.relay_key_file names it"
    try:
        text = read_private(path.expanduser()).strip()
    except (ConfigError, RuntimeError) as error:  # the latter of a ~ without a home
        why, hint = (error.message, error.hint) if isinstance(error, ConfigError) else (str(error), "")
        raise ConfigError(
            why, code="AF724", hint=f"{named}. {hint or 'It holds the relay key, with mode 0600.'}"
        ) from None
    if not text:
        raise ConfigError(f"{path} is empty", code="AF724", hint=f"{named}; the relay key belongs into it")
    return Secret(text)
