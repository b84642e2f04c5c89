"""Names: what a node, a port, an argument, a function or a graph may be called."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Final

from pydantic import AfterValidator, WithJsonSchema

MOST_NAME: Final = 64


def checked_name(name: str) -> str:
    """The name itself, if it may be one.

    Raises:
        ValueError: it is no identifier of Python (letters of any script, digits, `_`), too long, or not in the form
            of Unicode (NFKC) in which Python reads identifiers, so that no function could be called so.
    """
    if len(name) > MOST_NAME:
        raise ValueError(f"a name has at most {MOST_NAME} characters; choose a shorter one")
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a name: letters, digits and _, no digit first")
    normal = unicodedata.normalize("NFKC", name)
    if normal != name:
        raise ValueError(f"{name!r} is not in the form of Unicode that Python reads names in (NFKC); write {normal!r}")
    return name


Name = Annotated[
    str,
    AfterValidator(checked_name),
    WithJsonSchema({"type": "string", "pattern": r"^(?![0-9])(?:[0-9A-Za-z_]|[^\x00-\x7f])+$", "maxLength": MOST_NAME}),
]
