"""The event loop of a process or thread that is the stream's own: the relay, the worker, a plain generator's producer.

With the extra `fast` it is uvloop's, which takes about a fifth off a token's way. `AIFLOW_RELAY_LOOP=asyncio` leaves it
alone; `uvloop` insists on it. A notebook's loop belongs to its kernel and stays what it is.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiflow_jupyter.errors import ConfigError

T = TypeVar("T")
VARIABLE = "AIFLOW_RELAY_LOOP"


def installed() -> bool:
    """Whether the extra `fast` is there."""
    return importlib.util.find_spec("uvloop") is not None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of the kind that is wanted here.

    Raises:
        ConfigError: the variable says something else, or insists on what is not installed.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in {"", "asyncio", "uvloop"}:
        raise ConfigError(f"{VARIABLE} is {wanted!r}", code="AF973", hint="It is `uvloop`, `asyncio` or unset.")
    if wanted == "uvloop" and not installed():
        raise ConfigError(
            f"{VARIABLE} is `uvloop`, but uvloop is not installed",
            code="AF973",
            hint="pip install 'aiflow-jupyter[fast]'",
        )
    if wanted == "asyncio" or not installed():
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on such a loop."""
    try:
        runner = asyncio.Runner(loop_factory=new_event_loop)
        with runner:
            return runner.run(work)
    finally:
        work.close()  # where there was no loop for it
