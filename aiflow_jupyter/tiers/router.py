"""The router: a request for a tier goes to that tier's provider.

`auto` takes the local tier. A named tier is strict: what asks for a tier that is not configured is told so, and is
never sent elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.source import Provider, Request


class Router:
    """Chooses who answers.

    Args:
        tiers: the provider of each tier that is configured; `local` stands first in `auto`'s order.
    """

    def __init__(self, tiers: Mapping[str, Provider]) -> None:
        self._tiers = dict(tiers)

    def choose(self, tier: str) -> str:
        """The tier that answers a request for `tier`.

        Raises:
            ConfigError: there is none.
        """
        if tier == "auto":
            chosen = next((name for name in ("local", "hpc", "cloud") if name in self._tiers), None)
            if chosen is None:
                raise ConfigError("no tier is configured", code="AF722")
            return chosen
        if tier not in self._tiers:
            from aiflow_jupyter.tiers.config import place  # noqa: PLC0415 - pydantic is loaded when first needed

            hint = (
                f"configured: {', '.join(self._tiers) or 'none'}; a section [tiers.{tier}] turns it on, in\n{place()}"
            )
            if tier == "cloud":
                hint = f"configured: {', '.join(self._tiers) or 'none'}; this release has no cloud tier yet"
            raise ConfigError(f"tier {tier!r} is not configured", code="AF722", hint=hint)
        return tier

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request` with its tier's provider; see `runtime.source.Source`."""
        tier = self.choose(request.tier)
        events = self._tiers[tier].stream(replace(request, tier=tier))
        async with aclosing(events):
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Close every provider, also where one can't be closed."""
        async with AsyncExitStack() as stack:
            for provider in self._tiers.values():
                stack.push_async_callback(provider.aclose)


def default_router() -> Provider:
    """The router that the configuration files describe; with no file at all, the embedded model is the local tier."""
    from aiflow_jupyter.tiers.providers import ConfiguredRouter  # noqa: PLC0415 - pydantic is loaded when first needed

    return ConfiguredRouter()
