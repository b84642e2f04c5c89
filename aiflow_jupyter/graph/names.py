"""Names: what a node, a port, an argument, a function or a graph may be called."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, WithJsonSchema

MOST_NAME: Final = 64


def checked_name(name: str) -> str:
    """The name itself, if it may be one.

    Raises:
        ValueError: it is no identifier of Python (letters of any script, digits, `_`), or too long.
    """
    if len(name) > MOST_NAME:
        raise ValueError(f"a name has at most {MOST_NAME} characters")
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a name: letters, digits and _, no digit first")
    return name


Name = Annotated[
    str,
    AfterValidator(checked_name),
    WithJsonSchema({"type": "string", "pattern": r"^[^\W\d]\w*$", "maxLength": MOST_NAME}),
]
