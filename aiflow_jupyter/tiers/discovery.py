"""Which provider the local tier has where no setting says it: Ollama if it answers here and has a model, else embedded.

The look takes a connection to loopback, which is refused at once where nothing listens. What is found stays, so that a
server that is busy for a moment does not hand its conversations over to another model; what is not found is looked for
again from time to time.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from importlib import import_module
from typing import Final
from urllib.parse import urlsplit

from aiflow_jupyter.environment import usable_environment
from aiflow_jupyter.errors import AiflowError, ConfigError
from aiflow_jupyter.providers.network import is_loopback
from aiflow_jupyter.providers.ollama import Ollama, default_url
from aiflow_jupyter.tiers.sections import Local

CONNECT_S: Final = 0.3
ANSWER_S: Final = 1.5
AGAIN_S: Final = 30.0
_NO_CHAT: Final = re.compile(r"embed|\bbge\b|minilm|rerank", re.IGNORECASE)
"""Names of models that answer no chat."""


def ollama_url(settings: Local) -> str | None:
    """Where Ollama is to be asked; None where `OLLAMA_HOST` names another machine, or nothing that is an address."""
    if settings.url is not None:
        return settings.url
    try:
        url = default_url()
        return url if is_loopback(urlsplit(url).hostname or "") else None
    except ValueError:
        return None


async def ollama_models(url: str) -> list[str] | None:
    """The models of this machine that answer a chat there, latest first; None where no Ollama answers in a short time.

    What Ollama has answered by servers of its own is none of them, whatever its name.

    Raises:
        ConfigError: the environment's proxies or certificates can't be used.
    """
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        writer.close()
        await asyncio.to_thread(_load)  # where the disk is cold it takes longer than the answer
        async with asyncio.timeout(ANSWER_S):
            names = await Ollama(url, "").models()
    except ConfigError:  # of the environment: it would stop the answer too
        raise
    except (OSError, TimeoutError, AiflowError):
        return None
    return [name for name in names if not _NO_CHAT.search(name)]


def _load() -> None:
    with usable_environment():  # it makes a client as soon as it is loaded
        import_module("ollama")


class Discovery:
    """See the module.

    Args:
        clock: seconds that only go up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: Local | None = None
        self._found: Local | None = None
        self._looked = 0.0

    @property
    def due(self) -> bool:
        """Whether to look again: it was not there, and it was named or that was a while ago."""
        if self._asked is None or self._found is not None:
            return False
        return self._asked.provider is not None or self._clock() - self._looked >= AGAIN_S

    async def settle(self, settings: Local) -> Local:
        """The local tier's settings with what they leave open: the provider, and Ollama's model."""
        if settings.provider not in (None, "ollama") or (settings.provider and settings.model):
            self._asked = None
            return settings
        if settings.provider is None and os.environ.get("AIFLOW_MODEL"):
            self._asked = None
            return _embedded(settings).model_copy(update={"model": None})  # the file that it names, and no other
        if settings != self._asked:
            self._asked, self._found = settings, None
        if self._found is None:
            self._found = await self._look(settings)
            self._looked = self._clock()
        return self._found or (settings if settings.provider else _embedded(settings))

    async def _look(self, settings: Local) -> Local | None:
        url = ollama_url(settings)
        models = await ollama_models(url) if url is not None else None
        if not models:
            return None
        wanted = settings.model
        model = models[0] if wanted is None else next((each for each in models if _same(each, wanted)), None)
        if model is None:
            return None
        return settings.model_copy(update={"provider": "ollama", "url": url, "model": model})


def _embedded(settings: Local) -> Local:
    return settings.model_copy(update={"provider": "embedded"})


def _same(name: str, wanted: str) -> bool:
    return name.casefold() in {wanted.casefold(), f"{wanted}:latest".casefold()}  # as Ollama itself compares them
