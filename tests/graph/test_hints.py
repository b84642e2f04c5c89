"""What is read from a user's function, and which types can stand for which; nothing of the user's is called."""

from __future__ import annotations

import typing
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, TypeVar, Union
from unittest.mock import MagicMock

import pytest

from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.hints import UNKNOWN, alternatives, fits, read, words

Name = NewType("Name", str)
T = TypeVar("T")
Bound = TypeVar("Bound", bound=int)
DEEP = list[list[list[list[list[list[list[int]]]]]]]
MANY = list[int] | list[str] | list[float] | list[bytes] | set[int] | set[str] | dict[int, int] | tuple[int] | bool


class Row(TypedDict):
    """A row."""

    name: str


class Refuses(type):
    """A kind of class whose classes can't be compared."""

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError

    __hash__ = type.__hash__

    def __subclasscheck__(cls, other: type) -> bool:
        raise RuntimeError


class Odd(metaclass=Refuses):
    """Any value may be one."""


@dataclass
class Point:
    """A class of a user's."""

    x: int


class Calls:
    """An object that is called."""

    def __call__(self, text: str) -> int:
        raise AssertionError


def plain(text: str) -> int: ...
def optional(text: str) -> int | None: ...
def whole(event: Event) -> str: ...
def keeps(text: str, state: dict, *, idempotency_key: str) -> str: ...
def unread(text: Missing) -> str: ...  # noqa: F821
def partly(text: Missing, number: int = 1) -> "str": ...  # noqa: F821, UP037
def nothing() -> int: ...
def two(a: int, b: int) -> int: ...
def named(*, text: str) -> int: ...
def many(*texts: str) -> int: ...
def yields(text: str) -> Iterator[int]:
    yield 1


async def later(text: str) -> int: ...
async def streams(text: str) -> AsyncIterator[Point]:
    yield Point(1)


def decorated(function):
    @wraps(function)
    def inner(*args, **kwargs):
        raise AssertionError

    return inner


@pytest.mark.parametrize(
    ("function", "takes", "gives"),
    [
        (plain, "str", "int"),
        (optional, "str", "int"),
        (whole, "Event", "str"),
        (later, "str", "int"),
        (yields, "str", "int"),
        (streams, "str", "Point"),
        (Calls(), "str", "int"),
        (Calls, "Any", "Calls"),
        (Point, "int", "Point"),
        (str, "Any", "str"),
        (print, "Any", "Any"),
        (partial(two, 1), "int", "int"),
        (decorated(plain), "str", "int"),
        (unread, "Any", "Any"),
        (MagicMock(), "Any", "Any"),
        (lambda text: text, "Any", "Any"),
        (3, "Any", "Any"),
    ],
)
def test_hints_say_what_a_function_takes_and_gives(function, takes, gives):
    known = read(function)
    assert (words(known.takes), words(known.gives)) == (takes, gives)


def test_sort_of_a_function_is_read():
    assert (read(optional).drops, read(plain).drops) == (True, False)
    assert (read(whole).event, read(plain).event) == (True, False)
    assert (read(later).awaits, read(later).yields) == (True, False)
    assert (read(streams).awaits, read(streams).yields) == (True, True)
    assert (read(yields).awaits, read(yields).yields) == (False, True)
    assert read(keeps).parameters == {"text", "state", "idempotency_key"}
    assert (read(plain).takes_hinted, read(lambda x: x).takes_hinted) == (True, False)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (plain, ""),
        (keeps, ""),
        (many, ""),
        (print, ""),
        (partial(two, 1), ""),
        (nothing, "it takes no value"),
        (named, "it takes no value"),
        (two, "it also needs 'b'"),
    ],
)
def test_function_that_can_not_be_called_with_one_value_says_why(function, problem):
    assert read(function).problem == problem


def test_object_that_fails_when_it_is_looked_at_is_unknown():
    class Fails:
        def __getattribute__(self, name):
            raise RuntimeError(name)

        def __call__(self, text: str) -> int: ...

    assert read(Fails()) is UNKNOWN


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (Any, "Any"),
        (object, "Any"),
        (None, "NoneType"),
        (Union[int, str], "int or str"),  # noqa: UP007
        (Optional[int], "int or NoneType"),  # noqa: UP045
        (Annotated[int, "unit"], "int"),
        (Literal["a", 1], "int or str"),
        (Name, "str"),
        (Bound, "int"),
        (T, "Any"),
        (Row, "dict"),
        (list[Name], "list[Name]"),
        (typing.List[int], "list[int]"),  # noqa: UP006
        (typing.Self, "Any"),
        ("later", "Any"),
        (typing.LiteralString, "str"),
        (MANY, "Any"),
    ],
)
def test_hint_is_taken_apart_into_alternatives(hint, said):
    assert sorted(words(alternatives(hint)).split(" or ")) == sorted(said.split(" or "))


@pytest.mark.parametrize(
    ("given", "wanted", "fit"),
    [
        (str, str, True),
        (bool, int, True),
        (int, float, True),
        (int, bool, True),
        (str, int, False),
        (str, Path, False),
        (float, int, False),
        (Point, str, False),
        (Point, Odd, True),
        (str, Iterable[str], True),
        (str, Sequence[int], False),
        (str, list[str], False),
        (list[str], list[int], False),
        (list[str], list, True),
        (list, list[int], True),
        (list[Any], list[int], True),
        (list[int], Iterable[float], True),
        (list[int | str], list[str], True),
        (tuple[int, ...], tuple[int, int], True),
        (tuple[int, str], tuple[int, int], False),
        (dict[str, int], Mapping[str, str], False),
        (int, Iterable[int], False),
        (Iterable[int], list[int], True),
        (Calls, Callable[[str], int], True),
        (int, typing.SupportsInt, True),
        (list[DEEP], list[list[DEEP]], True),
    ],
)
def test_types_are_told_apart_where_no_value_can_be_of_both(given, wanted, fit):
    assert fits(given, wanted) is fit


def test_deep_hint_is_read_without_recursion_to_its_end():
    hint = int
    for _ in range(400):
        hint = Annotated[list[hint], "x"]
    assert words(alternatives(hint)).startswith("list[")
    assert fits(*alternatives(hint), *alternatives(list[hint]))
