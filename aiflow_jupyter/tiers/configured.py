"""The router that the settings describe: with no file at all, Ollama or the embedded model is the local tier.

The files are looked at before each request: a mistake that was mended, or a tier that was added, counts at once, and
what did not change stays open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, cast

from aiflow_jupyter.tiers.booking import notebook_of_session
from aiflow_jupyter.tiers.choosing import Routing
from aiflow_jupyter.tiers.config import load, stamp
from aiflow_jupyter.tiers.conversation.cache import Summaries
from aiflow_jupyter.tiers.conversation.folding import Folding
from aiflow_jupyter.tiers.conversation.store import Conversations
from aiflow_jupyter.tiers.conversation.summary import Summariser
from aiflow_jupyter.tiers.counting import TokenCounter
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.discovery import Discovery
from aiflow_jupyter.tiers.judging import ConfiguredJudge
from aiflow_jupyter.tiers.ledger import SqliteLedger
from aiflow_jupyter.tiers.making import WhenAsked, configured
from aiflow_jupyter.tiers.router import Router
from aiflow_jupyter.tiers.sections import Config
from aiflow_jupyter.tiers.terms import NAMES, Fitted, Misfit, TierName

if TYPE_CHECKING:
    from aiflow_jupyter.events import Event
    from aiflow_jupyter.runtime.source import Message, Request
    from aiflow_jupyter.tiers.decision import Decision
    from aiflow_jupyter.tiers.overview import Overview

_log = logging.getLogger(__name__)


class ConfiguredRouter:
    """A router that follows the configuration files. Implements `runtime.source.Provider`.

    Args:
        database: the file of conversations and costs; None for the user's own.
        discovery: finds the local tier's provider where none is set.
        notebook: what costs are booked to, so that a notebook's budget holds; None for what Jupyter's server says.

    Attributes:
        router: the one behind it, with the health of the tiers.
    """

    def __init__(
        self, database: Database | None = None, discovery: Discovery | None = None, notebook: str | None = None
    ) -> None:
        self._notebook = notebook
        self._stamp: object = None
        self._config: Config | None = None
        self._discovery = discovery or Discovery()
        self._replaced: dict[WhenAsked, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()
        database, counter = database or Database(), TokenCounter()
        self._judge = ConfiguredJudge(self._settings)
        self.router = Router(
            {},
            judge=self._judge,
            ledger=SqliteLedger(database, lambda: self._settings().budget.limits),
            fitter=Folding(
                counter,
                Summariser(lambda: self.router.tiers.get("local"), counter, source=lambda: self.router),
                Summaries(database),
                fold_at=lambda: self._settings().conversation.fold_at,
            ),
            counter=counter,
            recall=Conversations(database).last_tier,
        )
        self._judge.source = self.router
        self._judge.rests = lambda tier: self.router.health.status(tier).state == "open"

    def _settings(self) -> Config:
        return self._config or Config()

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request` with its tier's provider; see `runtime.source.Source`.

        Raises:
            ConfigError: a file has a mistake; once it is mended, the next request goes through.
        """
        await self._follow()
        events = self.router.stream(request)
        async with aclosing(events):
            async for event in events:
                yield event

    async def explain(self, messages: Sequence[Message], **fields: Any) -> Decision:
        """Decide without sending; see `Router.explain`.

        Raises:
            ConfigError: a file has a mistake, or the tier that was named is unknown or not configured.
        """
        await self._follow()
        return await self.router.explain(messages, **fields)

    async def view(self, messages: Sequence[Message], tier: TierName, conversation: str = "") -> Fitted | Misfit:
        """A chat as a tier would be sent it; see `Router.view`.

        Raises:
            ConfigError: a file has a mistake, or the tier is not configured.
        """
        await self._follow()
        return await self.router.view(messages, tier, conversation)

    async def look(self) -> Overview:
        """What each tier is, and whether it answers now; see `overview`.

        Raises:
            ConfigError: a file has a mistake.
        """
        from aiflow_jupyter.tiers import overview  # noqa: PLC0415

        await self._follow()
        return await overview.look(self._settings(), {name: self.router.health.status(name) for name in NAMES})

    async def _follow(self) -> None:
        """Read the files anew if they changed, and replace the providers of the tiers that did."""
        async with self._lock:
            now = await asyncio.to_thread(stamp)  # a home folder may be a network file system
            if self._config is not None and now == self._stamp and not self._discovery.due:
                return
            config, before = await asyncio.to_thread(load), self._config
            local = await self._discovery.settle(config.tiers.local)
            config = config.model_copy(update={"tiers": config.tiers.model_copy(update={"local": local})})
            fresh, old = configured(config), self.router.tiers
            for name in NAMES:
                if before is not None and name in old and before.tiers.of(name) == config.tiers.of(name):
                    fresh[name] = old[name]
            self._config, self._stamp = config, now
            notebook = notebook_of_session() if self._notebook is None else self._notebook
            route = config.route
            settings = Routing(chains=route.chains, notebook=notebook, stay=route.stay, restart=route.restarts)
            self.router.follow(fresh, settings)
            for name, tier in old.items():
                if fresh.get(name) is not tier:
                    provider = cast("WhenAsked", tier.provider)
                    # Beside the requests, none of which waits for it or takes it along when it is cancelled.
                    self._replaced[provider] = asyncio.create_task(self._retire(name, provider))

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
            stack.push_async_callback(self.router.aclose)
            for provider in self._replaced:
                stack.push_async_callback(provider.aclose)
