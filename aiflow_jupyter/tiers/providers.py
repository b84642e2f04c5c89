"""From the configuration to each tier's provider, which is made when its tier is first asked.

The files are looked at before each request: a mistake that was mended, or a tier that was added, counts at once, and
what did not change stays open.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers.config import Config, load, stamp
from aiflow_jupyter.tiers.router import Router

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from aiflow_jupyter.events import Event
    from aiflow_jupyter.providers.secret import Secret
    from aiflow_jupyter.runtime.source import Provider, Request
    from aiflow_jupyter.tiers.config import Hpc, Local


class WhenAsked:
    """A provider that is made at its first request, so that a tier that is never asked costs and breaks nothing.

    Args:
        make: makes it; what it raises fails that request, and the next one tries again.
    """

    def __init__(self, make: Callable[[], Provider]) -> None:
        self._make = make
        self._made: Provider | None = None
        self._answering = 0
        self._retired = False
        self._lock = asyncio.Lock()

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `runtime.source.Source`."""
        self._answering += 1
        try:
            async with self._lock:
                if self._made is None:
                    self._made = await asyncio.to_thread(self._make)  # it reads files
                events = self._made.stream(request)
            async with aclosing(events):
                async for event in events:
                    yield event
        finally:
            self._answering -= 1
            if self._retired and not self._answering:
                await self.aclose()

    async def retire(self) -> None:
        """Close the provider once its last answer has ended: another one takes its place."""
        self._retired = True
        if not self._answering:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the provider, if it was made."""
        made, self._made = self._made, None
        if made is not None:
            await made.aclose()


class ConfiguredRouter:
    """A router that follows the configuration files."""

    def __init__(self) -> None:
        self._stamp: object = None
        self._config: Config | None = None
        self.tiers: dict[str, WhenAsked] = {}
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
                    await provider.retire()

    async def aclose(self) -> None:
        """Close every provider, also where one can't be closed."""
        await Router(self.tiers).aclose()


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


def _hpc(settings: Hpc) -> Provider:
    from aiflow_jupyter.hpc.executors import LocalExecutor  # noqa: PLC0415
    from aiflow_jupyter.hpc.globus import globus_executor  # noqa: PLC0415
    from aiflow_jupyter.hpc.provider import HpcProvider  # noqa: PLC0415
    from aiflow_jupyter.hpc.remote import RelayAt, Timeouts  # noqa: PLC0415
    from aiflow_jupyter.relay.crypto import WorkerKey  # noqa: PLC0415
    from aiflow_jupyter.relay.selfrelay import SelfRelay  # noqa: PLC0415

    if settings.relay == "self":
        relay: RelayAt | SelfRelay = SelfRelay(settings.relay_host, insecure=settings.relay_insecure)
    else:
        relay = RelayAt(settings.relay, _secret(settings.relay_key_env, settings.relay_key_file, "relay_key"))
    timeouts = Timeouts(start=settings.start_timeout, first_token=settings.first_token_timeout, linger=settings.linger)
    if settings.executor == "local":
        own = WorkerKey.generate()
        variable = settings.model_server_key_env
        server_key = _secret(variable, None, "model_server_key") if variable else None
        executor: Callable[[], Executor] = lambda: LocalExecutor(own, settings.model_server, server_key)  # noqa: E731
        public = own.public
    else:
        endpoint = settings.endpoint
        if endpoint is None or settings.worker_key is None:
            missing = "endpoint" if endpoint is None else "worker_key"
            hint = {
                "endpoint": 'endpoint = "UUID", as `globus-compute-endpoint list` shows it',
                "worker_key": 'worker_key = "...", as `aiflow keys worker` printed it on the cluster',
            }
            raise ConfigError(
                f'tiers.hpc.{missing} is missing: executor = "globus" needs it', code="AF723", hint=hint[missing]
            )
        if settings.relay == "self" and settings.relay_host in ("127.0.0.1", "localhost", "::1"):
            raise ConfigError(
                "tiers.hpc.relay is this kernel's own, on loopback: no cluster can reach it",
                code="AF723",
                hint='relay = "https://..." with relay_key_env, or relay_host = "an address the cluster can reach"',
            )
        executor = lambda: globus_executor(endpoint)  # noqa: E731
        public = settings.worker_key
    return HpcProvider(
        executor,
        relay=relay,
        worker_key=public,
        model=settings.model,
        max_tokens=settings.max_tokens,
        timeouts=timeouts,
        pad=settings.pad,
    )


def _secret(variable: str | None, file: Path | None, setting: str) -> Secret:
    """A key from where the configuration says that it is."""
    from aiflow_jupyter.providers.secret import Secret  # noqa: PLC0415

    if variable is not None:
        value = os.environ.get(variable, "").strip()
        if not value:
            raise ConfigError(f"tiers.hpc.{setting}_env names {variable}, which is not set", code="AF724",
                              hint=f"export {variable}=... before the kernel starts")  # fmt: skip
        return Secret(value)
    if file is None:
        raise ConfigError(f"tiers.hpc.{setting}_env or {setting}_file is missing", code="AF724",
                          hint="name an environment variable or a file that only you can read")  # fmt: skip
    path = file.expanduser()
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {getattr(error, 'strerror', error)}", code="AF724") from None
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by others", code="AF724", hint=f"chmod 600 {path}")
    if not text:
        raise ConfigError(f"{path} is empty", code="AF724")
    return Secret(text)
