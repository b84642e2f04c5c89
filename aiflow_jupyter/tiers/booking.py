"""Bookings: an answer's worst case is written down before it is asked for, and settled or released exactly once.

The ledger's file may be slow or locked, so it is worked on off the loop; and whoever is cancelled meanwhile, what was
begun goes through. Only a process that dies leaves an intent open, which then counts as spent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.events import Usage
from aiflow_jupyter.tiers.terms import Intent, Ledger

T = TypeVar("T")


def notebook_of_session() -> str:
    """The notebook that this process answers for, as Jupyter's server says it; empty where it says nothing.

    A command that a cell starts (`!aiflow ask`) belongs to that cell's notebook.
    """
    return os.environ.get("JPY_SESSION_NAME", "")


class Aside(Protocol):
    """Runs what blocks (files, a judge) without holding the loop."""

    def __call__(self, call: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        """The result of the call."""
        ...


class Booking:
    """One intent, to be settled or released once."""

    def __init__(self, books: Books, entry: str) -> None:
        self._books = books
        self._entry = entry

    async def settle(self, usage: Usage | None, cost: float | None, model: str) -> str:
        """Put what it cost in the intent's place; see `terms.Ledger.settle`. Gives what went wrong, in words."""
        return await self._close(self._books.ledger.settle, usage, cost, model)

    async def release(self) -> str:
        """Nothing was used; see `terms.Ledger.release`. Gives what went wrong, in words."""
        return await self._close(self._books.ledger.release)

    async def _close(self, call: Callable[..., None], *args: Any) -> str:
        return await self._books.through(self._closed(call, *args))

    async def _closed(self, call: Callable[..., None], *args: Any) -> str:
        try:
            await self._books.aside(call, self._entry, *args)
        except AiflowError as error:  # an answer is not lost for that: it counts as spent until it is settled
            return error.message
        return ""


class Books:
    """Makes bookings.

    Args:
        ledger: where they are.
        aside: runs what blocks.
    """

    def __init__(self, ledger: Ledger, aside: Aside) -> None:
        self.ledger = ledger
        self.aside = aside
        self._under_way: set[asyncio.Future[Any]] = set()

    async def intend(self, intent: Intent) -> Booking:
        """Book a worst case.

        Raises:
            OverBudgetError: a budget does not allow it; nothing is booked.
            ConfigError: it can't be written down.
        """
        made = asyncio.ensure_future(self._made(intent))
        try:
            return await self.through(made)
        except asyncio.CancelledError:
            self._start(self._unmade(made))
            raise

    async def allows(self, intent: Intent) -> None:
        """Look whether a worst case could be booked; nothing is.

        Raises:
            OverBudgetError: a budget does not allow it.
            ConfigError: the budgets can't be looked at.
        """
        await self.aside(self.ledger.allows, intent)

    async def through(self, work: Awaitable[T]) -> T:
        """Wait for some work, which goes through also if the waiting is cancelled."""
        return await asyncio.shield(self._start(work))

    async def aclose(self) -> None:
        """Wait for what is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _made(self, intent: Intent) -> Booking:
        return Booking(self, await self.aside(self.ledger.intend, intent))

    async def _unmade(self, made: asyncio.Future[Booking]) -> None:
        await asyncio.wait({made})
        if not made.cancelled() and made.exception() is None:
            await made.result().release()

    def _start(self, work: Awaitable[T]) -> asyncio.Future[T]:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task
