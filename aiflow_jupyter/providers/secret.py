"""A key that is hard to show by accident.

Every way in which Python shows a value (`repr`, `str`, `format`, a traceback's locals) gives `***`; the text comes
out only by `reveal()`, at the one place that puts it on the wire.
"""

from __future__ import annotations

import hmac
from typing import Final, NoReturn, final

MASK: Final = "***"
_SHORTEST: Final = 8


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
        """`text` with every occurrence of the secret masked, for what a server says back.

        A value as short as `EMPTY`, as servers without keys want it, is no secret and would only garble the text.
        """
        return text.replace(self._value, MASK) if len(self._value) >= _SHORTEST else text

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
