"""Idempotency keys: one text for all tries of an event, and another for every other event.

A key names the run, the node and the event's identity. Several events of one identity may come to a node, copies that
meet again behind a split, the rounds of a loop, what an answer says after it began anew: the second one's key ends with
`+1`, the third one's with `+2`. A node remembers the last `MOST_KEYS` identities; of those before it counts anew.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.behaviour import Behaviour

MOST_KEYS: Final = 16_384

_TRIED: Final[ContextVar[tuple[Keys, str] | None]] = ContextVar("_TRIED", default=None)
"""The key of the event that a worker tries, and whose it is: what a call begins within is not of the same node."""


class Keys:
    """The keys of one node's events.

    Args:
        run: the run's identifier: the same event of another run is not done yet.
        node: the node's name.
    """

    def __init__(self, run: str, node: str) -> None:
        self._of = f"{run}/{node}"
        self._came: dict[tuple[str, int], int] = {}

    def _next(self, event: Event) -> str:
        """The key of an event that has just been taken."""
        before = self._came.pop(event.identity, 0)
        self._came[event.identity] = before + 1
        if len(self._came) > MOST_KEYS:
            del self._came[next(iter(self._came))]
        return f"{self._of}/{event.lineage}/{event.sequence}{f'+{before}' if before else ''}"

    def given(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that is given the key of the event."""

        def keyed(event: Event, **extras: Any) -> Any:
            tried = _TRIED.get()
            key = tried[1] if tried is not None and tried[0] is self else self._next(event)
            return call(event, idempotency_key=key, **extras)

        return keyed

    def kept(self, behaviour: Behaviour) -> Behaviour:
        """A behaviour that tries calls, each with the key that the event had first."""
        call = behaviour.call
        return replace(behaviour, call=self._awaited(call) if behaviour.mode == "await" else self._streamed(call))

    def _awaited(self, call: Callable[[Event], Awaitable[Any]]) -> Callable[[Event], Awaitable[Any]]:
        async def awaited(event: Event) -> Any:
            _TRIED.set((self, self._next(event)))
            return await call(event)

        return awaited

    def _streamed(
        self, call: Callable[[Event], AsyncGenerator[Event, None]]
    ) -> Callable[[Event], AsyncGenerator[Event, None]]:
        async def streamed(event: Event) -> AsyncGenerator[Event, None]:
            _TRIED.set((self, self._next(event)))
            async with aclosing(call(event)) as stream:
                async for out in stream:
                    yield out

        return streamed
