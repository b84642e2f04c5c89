"""Type hints: what a user's function takes and gives as far as they say, and whether one type can stand for another.

Functions are looked at and never called. What can't be read, or fails when it is read (with any exception, also one
that would end the process), is `Any`, and `Any` fits everything: two types are only told apart where no value can be of
both.

A type is a hint of Python; a union is a tuple of alternatives.
"""

from __future__ import annotations

import abc
import inspect
import types
import typing
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiflow_jupyter.events import Event

Alternatives = tuple[Any, ...]

ANYTHING: Final[Alternatives] = (Any,)
EXTRAS: Final = frozenset({"state", "idempotency_key"})
"""Parameters that a call is given by keyword, besides its payload."""

MOST_ALTERNATIVES = 8
MOST_DEPTH = 6

_STANDARD = frozenset({"collections.abc", "typing", "numbers", "abc", "builtins", "io", "os", "contextlib"})
_WRAPPERS = (typing.Annotated, typing.Final, typing.ClassVar)
_WIDER = {(int, float), (int, complex), (float, complex), (bool, float), (bool, complex), (bytearray, bytes)}


@dataclass(frozen=True, slots=True)
class FunctionType:
    """What the hints of a function say.

    Attributes:
        takes: the types of its first parameter.
        gives: the types of what it returns, or of each item that it yields; without None.
        takes_hinted: whether its first parameter has a hint that can be read.
        gives_hinted: whether its return has one.
        event: it takes the whole `Event`.
        drops: it may return None, which drops the event.
        yields: it is a generator function.
        awaits: it is a coroutine or asynchronous generator function.
        iterable: the types of the items of what it gives, where that is an iterable; None where it is none.
        parameters: the names of its parameters.
        problem: why it can't be called with one value; empty where it can, or where that is unknown.
    """

    takes: Alternatives = ANYTHING
    gives: Alternatives = ANYTHING
    takes_hinted: bool = False
    gives_hinted: bool = False
    event: bool = False
    drops: bool = False
    yields: bool = False
    awaits: bool = False
    iterable: Alternatives | None = ANYTHING
    parameters: frozenset[str] = frozenset()
    problem: str = ""


UNKNOWN: Final = FunctionType()


def read(function: Any) -> FunctionType:
    """Read the hints of anything that may be called."""
    try:
        return _read(function)
    except BaseException:  # noqa: BLE001 - a user's object may fail in any way when it is looked at
        return UNKNOWN


def _read(function: Any) -> FunctionType:
    yields = _is(function, inspect.isgeneratorfunction) or _is(function, inspect.isasyncgenfunction)
    awaits = _is(function, inspect.iscoroutinefunction) or _is(function, inspect.isasyncgenfunction)
    hints = _hints(function)
    made = isinstance(function, type)
    given = function if made else hints.get("return", inspect.Parameter.empty)
    gives = ANYTHING if given is inspect.Parameter.empty else alternatives(given)
    if yields:
        gives = _items(gives) or ANYTHING
    parameters = _parameters(function)
    first = next((p for p in parameters or () if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)), None)
    taken = hints.get(first.name, inspect.Parameter.empty) if first else inspect.Parameter.empty
    some = tuple(each for each in gives if each is not types.NoneType)
    return FunctionType(
        takes=ANYTHING if taken is inspect.Parameter.empty else alternatives(taken),
        gives=some or gives,
        takes_hinted=taken is not inspect.Parameter.empty,
        gives_hinted=given is not inspect.Parameter.empty,
        event=taken is Event,
        drops=len(some) < len(gives) and bool(some),
        yields=yields,
        awaits=awaits,
        iterable=_items(some),
        parameters=frozenset(p.name for p in parameters or ()),
        problem="" if parameters is None else _uncallable(parameters),
    )


def _is(function: Any, kind: Callable[[Any], bool]) -> bool:
    """Whether calling it calls a function of a kind; looks into partials and into objects with `__call__`."""
    return kind(function) or kind(type(function).__call__)


def _hints(function: Any) -> Mapping[str, Any]:
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, type):
        function = inspect.getattr_static(function, "__init__")
    elif not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except BaseException:  # noqa: BLE001 - one name that is unknown spoils all; the others may be types already
        found = getattr(function, "__annotations__", {})
        return {name: Any if isinstance(hint, str) else hint for name, hint in found.items()}


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except BaseException:  # noqa: BLE001 - `str`, `print` and others have none that can be read
        return None


def _uncallable(parameters: list[inspect.Parameter]) -> str:
    """Why a call with one value, and the extras by keyword, can't succeed."""
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if not places:
        return "it takes no value"
    needed = [
        p.name
        for p in parameters
        if p is not places[0]
        and p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in EXTRAS
    ]
    return f"it also needs {', '.join(map(repr, needed[:5]))}" if needed else ""


def takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with two values; True where that can't be told."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except BaseException:  # noqa: BLE001 - a signature may be any expression, and fail in any way
        return True
    return True


def alternatives(hint: Any) -> Alternatives:
    """The types that a hint allows, wrappers taken off; one that can't be read, or allows very many, is `Any`."""
    found: list[Any] = []
    waiting = [hint]
    for _ in range(64):
        if not waiting:
            break
        each = waiting.pop()
        inner = _unwrapped(each)
        if inner is not None:
            waiting += inner
            continue
        if each is None:
            each = types.NoneType
        elif each is typing.LiteralString:
            each = str
        elif typing.is_typeddict(each):
            each = dict
        if each is object or not isinstance(_base(each), type):
            return ANYTHING
        if not has(tuple(found), each):
            found.append(each)
    return tuple(found) if found and not waiting and len(found) <= MOST_ALTERNATIVES else ANYTHING


def _unwrapped(hint: Any) -> list[Any] | None:
    """The hints that a hint stands for; None where it is a type itself."""
    origin = typing.get_origin(hint)
    if origin is typing.Union or origin is types.UnionType:
        return list(typing.get_args(hint))[::-1]
    if any(origin is each for each in _WRAPPERS):
        return [typing.get_args(hint)[0]]
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(hint)]
    if isinstance(hint, typing.NewType):
        return [hint.__supertype__]
    if isinstance(hint, typing.TypeVar):
        return [hint.__bound__] if hint.__bound__ is not None else list(hint.__constraints__ or ANYTHING)
    return None


def _items(gives: Alternatives) -> Alternatives | None:
    """The types of the items of iterables; None where nothing that is given is one."""
    found: list[Any] = []
    for each in gives:
        if each is Any:
            return ANYTHING
        base = _base(each)
        if related(base, Iterable) or related(base, AsyncIterable):
            args = typing.get_args(each)
            if base is str or base is bytes:
                found.append(base)
            elif not args or related(base, Mapping) or (base is tuple and args[-1:] != (...,)):
                return ANYTHING
            else:
                found += alternatives(args[0])
    return tuple(found) or None


def has(types_: Alternatives, one: Any) -> bool:
    """Whether a type is among others, itself and not its like: classes may be equal by code of the user's."""
    return any(each is one for each in types_)


def _base(hint: Any) -> Any:
    return typing.get_origin(hint) or hint


def related(one: Any, other: Any) -> bool:
    """Whether a value may be of both classes; where that can't be told, it may."""
    if not isinstance(one, type) or not isinstance(other, type) or one is other:
        return True
    plain = [type(each) is type for each in (one, other)]
    if all(plain):
        return other in one.__mro__ or one in other.__mro__ or (one, other) in _WIDER
    for each, ordinary in ((one, plain[0]), (other, plain[1])):
        standard = type(each) is abc.ABCMeta and each.__module__ in _STANDARD
        if not ordinary and not standard:
            return True  # a class of its own kind says by its own code what belongs to it
    if getattr(one, "_is_protocol", False) or getattr(other, "_is_protocol", False):
        return True
    return issubclass(one, other) or issubclass(other, one)


def fits(given: Any, wanted: Any, depth: int = 0) -> bool:
    """Whether a value of one type may be of the other; both are alternatives, not unions."""
    if given is Any or wanted is Any or depth > MOST_DEPTH:
        return True
    base, target = _base(given), _base(wanted)
    if not related(base, target):
        return False
    inner, outer = typing.get_args(given), typing.get_args(wanted)
    if (base is str or base is bytes) and len(outer) == 1:
        inner = (str if base is str else int,)
    if ... in inner or ... in outer or len(inner) != len(outer):
        return True
    return all(
        any(fits(a, b, depth + 1) for a in alternatives(one) for b in alternatives(other))
        for one, other in zip(inner, outer, strict=True)
    )


def words(types_: Alternatives) -> str:
    """Types in words."""
    return " or ".join(dict.fromkeys(_word(each) for each in types_[:MOST_ALTERNATIVES]))


def _word(hint: Any, depth: int = 0) -> str:
    if hint is ...:
        return "..."
    args = typing.get_args(hint)
    base = _base(hint)
    name = type.__getattribute__(base, "__name__") if isinstance(base, type) else str(base).rpartition(".")[2]
    if not args or depth > 2 or base is Callable:
        return name[:60]
    return f"{name[:60]}[{', '.join(_word(each, depth + 1) for each in args[:4])}]"
