"""A value as JSON text for a model or a reader, made piece by piece, so that none is written further than is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from pydantic_core import to_json

from aiflow_jupyter.errors import RunError, encodable
from aiflow_jupyter.events import text_bytes
from aiflow_jupyter.graph.problems import indefinite

MOST_DEPTH: Final = 100


def json_text(value: Any, most: int) -> str:
    """A value as JSON, cut behind `most` bytes, and told so where it is; what JSON does not know is its `str`.

    Raises:
        RunError: an iterator or an awaitable is in it, or it is nested deeper than `MOST_DEPTH`, as what holds itself.
    """
    written: list[str] = []
    size = 0
    for piece in _pieces(value, most, 0):
        written.append(piece)
        size += text_bytes(piece)
        if size > most:
            return f"{beginning(''.join(written), most)}\n[cut here: there is more]"
    return "".join(written)


def beginning(text: str, most: int) -> str:
    """What of a text fits into `most` bytes of UTF-8, no character cut in two."""
    return text.encode("utf-8", "surrogatepass")[:most].decode("utf-8", "ignore")


def _pieces(value: Any, most: int, depth: int) -> Iterator[str]:
    if depth > MOST_DEPTH:
        raise RunError(f"a value is nested deeper than {MOST_DEPTH}, or holds itself", code="AF303", hint="return less")
    if isinstance(value, Iterator | Awaitable):
        raise RunError(
            f"a value holds {indefinite(type(value).__name__)}, which is no value",
            code="AF303",
            hint="make a list of it",
        )
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        yield "{"
        for number, (key, each) in enumerate(value.items()):
            yield f"{',' if number else ''}{_leaf(key if isinstance(key, str) else str(key), most)}:"
            yield from _pieces(each, most, depth + 1)
        yield "}"
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield "["
        for number, each in enumerate(value):
            if number:
                yield ","
            yield from _pieces(each, most, depth + 1)
        yield "]"
    else:
        yield _leaf(value, most)


def _leaf(value: Any, most: int) -> str:
    if type(value) is str:
        value = encodable(value[: most + 1])
    return to_json(value, fallback=lambda each: encodable(str(each)), inf_nan_mode="strings").decode()
