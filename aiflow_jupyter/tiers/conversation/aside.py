"""Work that takes its time with long texts, done where it does not hold the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from aiflow_jupyter.runtime.source import Message

T = TypeVar("T")

_SHORT: Final = 20_000
"""Letters that are gone through within a few milliseconds; a thread for them would only cost time."""


async def aside(messages: Sequence[Message], work: Callable[[], T]) -> T:
    """What `work` gives; done in a thread where the messages that it goes through are long."""
    letters = 0
    for message in messages:
        letters += 100 + len(message["content"] or "")
        if letters > _SHORT:
            return await asyncio.to_thread(work)
    return work()
