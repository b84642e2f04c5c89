"""A key that is hard to show by accident, also where a server says it back.

Every way in which Python shows a value (`repr`, `str`, `format`, a traceback's locals) gives `***`; the text comes
out only by `reveal()`, at the one place that puts it on the wire. What comes from a server passes through a `Redaction`
before it is shown or kept: names, errors, headers, and each piece of an answer. A key that a server spells over several
pieces of its answer's text is not found: nothing of an answer is held back for it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import NoReturn, final

from aiflow_jupyter.errors import plain
from aiflow_jupyter.masking import MASK, masked


@final
class Secret:
    """A string that does not show itself.

    Two secrets are compared in constant time; one can't be pickled or copied into another process, since that would
    write the text somewhere.

    Args:
        value: the text to keep.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself, for the wire only."""
        return self._value

    def redact(self, text: str) -> str:
        """`text` with every occurrence of the secret masked, for what a server says back; see `masking.masked`."""
        return masked(text, self._value)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret can't be pickled: hand over its name or read it again on the other side")


class Redaction:
    """Masks some secrets in what comes from a server.

    Args:
        secrets: those; empty ones are left out.
    """

    def __init__(self, secrets: Iterable[Secret | None]) -> None:
        self._secrets = tuple(secret for secret in secrets if secret)

    def __call__(self, text: str) -> str:
        """The text with the secrets masked."""
        for secret in self._secrets:
            text = secret.redact(text)
        return text

    def cleanse(self, error: BaseException) -> None:
        """Mask the secrets in an exception, and in those that it came of or holds."""
        if not self._secrets:
            return
        left, seen = [error], set[int]()
        while left:
            each = left.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            each.args = tuple(map(self._cleansed, each.args))
            for name, value in vars(each).items():
                if isinstance(value, str):
                    setattr(each, name, self(value))
            groups = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
            others = [each.__cause__, each.__context__, *each.args, *groups]
            left += [other for other in others if isinstance(other, BaseException)]

    def _cleansed(self, value: object) -> object:
        if isinstance(value, bytes | bytearray):
            text = value.decode("latin-1")
            return value if self(text) == text else self(text)
        return self(value) if isinstance(value, str) else value


def one_line(text: str, redact: Redaction | None = None, longest: int = 400) -> str:
    """What a server says, in one short line that can be shown anywhere: the secrets are masked before it is cut."""
    line = " ".join(plain(text).split())
    line = redact(line) if redact is not None else line
    return line if len(line) <= longest else f"{line[:longest]}…"
