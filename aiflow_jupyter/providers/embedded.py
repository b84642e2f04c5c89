"""The embedded model: a small real model that answers on this machine, with no account and no server to set up.

The first request starts llama.cpp's server in a child process (`engine.py`), later ones find it running, and one that
finds it dead starts it anew. The child ends with `aclose`, when the provider is garbage, at the interpreter's exit, and
by itself however this process dies. One instance may be used from several event loops.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from aiflow_jupyter.errors import ConfigError, ModelMissing, ProviderError, StreamCut
from aiflow_jupyter.events import Event
from aiflow_jupyter.providers import models
from aiflow_jupyter.providers.engine import Engine, free_threads
from aiflow_jupyter.providers.models import Model
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.providers.thinking import thinking_grammar
from aiflow_jupyter.runtime.source import Request

NAME: Final = "embedded"
_TEMPERATURE: Final = 0.3
_STEADY: Final = MappingProxyType({"repeat_penalty": 1.1})  # it is prone to repeat itself
_PATIENCE: Final = 600.0  # seconds of silence: both slots may be busy, and a large prompt is slow on a processor


class EmbeddedModel:
    """Answers requests from a model file on this machine.

    Args:
        model: what to serve; None for `default_model()` at the time of the start.
        threads: compute threads; None for what the machine has free at the time of the start.
        log: where the engine logs; None for a file in the cache folder.
        starter: makes the engine (tests).
    """

    name = NAME

    def __init__(
        self,
        model: Model | None = None,
        *,
        threads: int | None = None,
        log: Path | None = None,
        starter: Callable[..., Engine] = Engine,
    ) -> None:
        self._model = model
        self._threads = threads
        self._log = log
        self._starter = starter
        # A thread's lock, since the requests may come from several loops; it is only ever waited for off the loop.
        self._lock = threading.Lock()
        self._running: tuple[Engine, OpenAICompatible] | None = None
        self._engines: list[Engine] = []
        weakref.finalize(self, _end, self._engines)

    def __repr__(self) -> str:
        return f"EmbeddedModel({self._model.name if self._model else 'default'})"

    @property
    def model(self) -> str:
        """The name of the model that answers, empty as long as there is none; looks at files unless an engine runs."""
        running = self._running
        if running and running[0].alive:  # its file may be gone or another be the default by now: this one answers
            return running[1].model
        chosen = self._model or models.default_model()
        return chosen.name if chosen else ""

    @property
    def pid(self) -> int | None:
        """The process id of the running engine."""
        running = self._running
        return running[0].pid if running and running[0].alive else None

    async def start(self) -> None:
        """Have the engine running, so that the first request need not wait for it.

        Raises:
            ModelMissing: there is no model, or no engine to serve it.
            ProviderError: the engine could not start.
        """
        await self._ready()

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request`; see `Source` for what comes out.

        Raises:
            ConfigError: the request names another model than the one that there is.
            ModelMissing: there is no model, or no engine to serve it.
            ProviderError: the engine could not start or refused.
            StreamCut: the answer broke off.
        """
        served = await asyncio.to_thread(lambda: self.model) if request.model is not None else ""
        if request.model is not None and served and request.model.lower() != served.lower():
            raise ConfigError(
                f"there is no model {request.model!r} on this machine's tier: {served!r} answers",
                code="AF704",
                hint="leave the model out, or serve a GGUF file of yours: aiflow models add FILE, AIFLOW_MODEL=FILE",
            )
        # A small model reasons only where a grammar holds it to that, and left to the server's default temperature it
        # loses its thread.
        # Only what it writes to tells the engine that its reader has left: so it writes how far it has read the prompt.
        extra = {"return_progress": True, **(thinking_grammar() if request.think else _STEADY), **request.extra}
        temperature = _TEMPERATURE if request.temperature is None else request.temperature
        if request.seed is not None or request.temperature == 0:
            # What the engine keeps of an earlier prompt changes the last bits of what it computes, and so the answer.
            extra = {"cache_prompt": False, **extra}
        request = replace(request, model=None, think=None, temperature=temperature, extra=extra)
        for attempt in (1, 2):
            engine, client = await self._ready(request.report)
            begun = False
            try:
                async with aclosing(client.stream(request)) as events:
                    async for event in events:
                        begun = True
                        yield event
            except ProviderError as error:
                if error.of_request or not await asyncio.to_thread(engine.gone, 1.0):
                    raise
                if begun or isinstance(error, StreamCut):
                    raise StreamCut(
                        f"the engine of the embedded model {engine.why()} while it was answering",
                        hint="What came so far is a part of the answer. Run it again: the engine is started anew.",
                    ) from error
                if attempt == 2:
                    raise
            else:
                return

    async def count(self, text: str, model: str) -> int | None:
        """The tokens of a text, as the running engine says it; None where none runs."""
        running = self._running
        return await running[1].count(text, model) if running and running[0].alive else None

    async def slots(self) -> list[dict[str, Any]]:
        """What each of the engine's slots does (`is_processing`), as llama.cpp's `/slots` says.

        Raises:
            ProviderError: the engine can't be asked.
        """
        _, client = await self._ready()
        slots: list[dict[str, Any]] = await client.get("/slots")
        return slots

    async def aclose(self) -> None:
        """End the engine. A later request starts it anew."""
        running, self._running = self._running, None
        await asyncio.to_thread(_end, self._engines)
        if running:
            await running[1].aclose()

    async def _ready(self, report: Callable[[str], None] | None = None) -> tuple[Engine, OpenAICompatible]:
        running = self._running
        if running and running[0].alive:
            return running
        if report is not None:
            report("starting the model")
        started = await asyncio.to_thread(self._start)
        if report is not None:
            report("")
        return started

    def _start(self) -> tuple[Engine, OpenAICompatible]:
        """Start the engine unless another request has done it meanwhile; blocks."""
        with self._lock:
            running = self._running
            if running and running[0].alive:
                return running
            _end(self._engines)
            model = self._model or models.default_model()
            if model is None:
                raise ModelMissing(
                    "there is no model on this machine for the embedded provider",
                    hint=f"`{models.FETCH}` brings a small one (98 MB), or set AIFLOW_MODEL to a GGUF file.",
                )
            engine = self._starter(model, self._threads or free_threads(), log=self._log)
            # On the list before it starts, so that it is ended also if this process is closed meanwhile.
            self._engines.append(engine)
            engine.start()
            facts = {"badge": "demo model"} if model.is_demo else {}
            client = OpenAICompatible(
                f"{engine.url}/v1", model=model.name, name=NAME, key=engine.key, read_timeout=_PATIENCE, facts=facts
            )
            self._running = engine, client
            return self._running


def _end(engines: list[Engine]) -> None:
    while engines:
        engines.pop().end()
