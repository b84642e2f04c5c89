"""What a user's function returned, where a value is wanted: what is still to be awaited or run through is none.

A lambda around an `async def`, or a decorator's plain wrapper of one, looks plain and returns a coroutine. Taken for a
value it would be true, equal to nothing, and never run; so it is a failure of the event instead.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Generator, Iterator
from concurrent.futures import Future
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import Any, Final, TypeVar

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.problems import indefinite

T = TypeVar("T")

_ORDINARY: Final = frozenset({str, int, float, bool, NoneType, list, dict, tuple, bytes})
_UNFINISHED: Final = (Awaitable, AsyncIterator, Generator)
_GIVING: Final = (Iterator, AsyncIterator)
_AWAIT: Final = "what awaits has to be an async def itself; a lambda or a plain wrapper around one is none"
_LIST: Final = "return a list; flat_map takes what yields"
_ALWAYS_TRUE: Final = (Iterator, Future, FunctionType, MethodType, BuiltinFunctionType)


def value(name: str, returned: T) -> T:
    """What a function returned, as the value that it is.

    Args:
        name: the function's, for the error.
        returned: what it returned (of an `Event`, the payload counts).

    Raises:
        RunError: it is a coroutine, another awaitable, or a generator.
    """
    _refuse(name, returned.payload if isinstance(returned, Event) else returned, _UNFINISHED)
    return returned


def whole(name: str, returned: T) -> T:
    """What a function returned, as a value that can be written down.

    Raises:
        RunError: as `value`; also for an iterator, which may have no end.
    """
    _refuse(name, returned, (*_UNFINISHED, Iterator))
    return returned


def decision(name: str, returned: T) -> T:
    """What a function returned, for its truth, or as a label, a port or a key.

    Raises:
        RunError: as `value`; also for an iterator, a future or a function, which decide nothing: each is true.
    """
    _refuse(name, returned, _UNFINISHED)
    _refuse(name, returned, _ALWAYS_TRUE)
    return returned


def _refuse(name: str, returned: Any, kinds: tuple[type, ...]) -> None:
    if type(returned) in _ORDINARY or not isinstance(returned, kinds):
        return
    if inspect.iscoroutine(returned) and inspect.getcoroutinestate(returned) == inspect.CORO_CREATED:
        returned.close()  # none of it ran, and nobody is told that it was never awaited
    raise RunError(
        f"{name!r} returned {indefinite(type(returned).__name__.replace('_', ' '))}, not a value",
        code="AF303",
        hint=_AWAIT if isinstance(returned, Awaitable) else _LIST if isinstance(returned, _GIVING) else "",
    )
