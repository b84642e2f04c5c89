"""Calls of functions as a model streams them: put together from fragments, in one way by all who read them.

`tools` makes the calls, and `generate` repeats them to the model with the results; both see the same fragments, so
both come to the same calls and the same ids.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass

from aiflow_jupyter.events import ToolFragment, text_bytes


@dataclass(frozen=True, slots=True)
class SaidCall:
    """A call as the model made it: `arguments` is JSON, if it made no mistake; `cut` says that they were too long."""

    id: str
    name: str
    arguments: str
    cut: bool = False


class _Parts:
    __slots__ = ("arguments", "cut", "id", "name")

    def __init__(self) -> None:
        self.id = self.name = ""
        self.cut = False
        self.arguments: list[str] = []


class Assembly:
    """The calls of one answer.

    Ids and names may come late, in pieces, or again with every piece. A call whose server gave no id, or one that
    another call of the answer has, gets one that is made of the answer's lineage and the call's place: the same each
    time.

    Args:
        lineage: the answer's.
    """

    def __init__(self, lineage: str) -> None:
        self._lineage = lineage
        self._calls: list[_Parts] = []
        self._at: dict[int, _Parts] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, fragment: ToolFragment, room: int = sys.maxsize) -> int:
        """Take in a piece of a call, its arguments as far as there is room for them.

        Args:
            fragment: the piece.
            room: bytes of arguments that may be kept.

        Returns:
            bytes of arguments that were kept.
        """
        parts = self._at.get(fragment.index)
        if parts is None or _another(parts, fragment):
            parts = self._at[fragment.index] = _Parts()
            self._calls.append(parts)
        if fragment.id and fragment.id != parts.id:
            parts.id += fragment.id
        if fragment.name and fragment.name != parts.name:
            parts.name += fragment.name
        size = text_bytes(fragment.arguments)
        parts.cut = parts.cut or size > room
        if parts.cut or not size:
            return 0
        parts.arguments.append(fragment.arguments)
        return size

    def calls(self) -> list[SaidCall]:
        """The calls, in the order in which they were begun."""
        found: list[SaidCall] = []
        taken: set[str] = set()
        for place, parts in enumerate(self._calls):
            identifier = parts.id if parts.id and parts.id not in taken else self._made(place)
            taken.add(identifier)
            found.append(SaidCall(identifier, parts.name, "".join(parts.arguments), parts.cut))
        return found

    def _made(self, place: int) -> str:
        digest = hashlib.blake2s(f"{self._lineage}#{place}".encode(), digest_size=12)
        return f"call_{digest.hexdigest()}"


def _another(parts: _Parts, fragment: ToolFragment) -> bool:
    """Whether a fragment begins another call under an index that has one: some servers give every call the same."""
    if not (fragment.id and fragment.name and parts.id and parts.name) or fragment.id == parts.id:
        return False
    return is_object("".join(parts.arguments))


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
