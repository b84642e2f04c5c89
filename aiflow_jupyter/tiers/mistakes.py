"""Mistakes in `aiflow.toml` in words: which setting, what is wrong with it, what it may be, what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import ValidationError

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers.fields import Section
from aiflow_jupyter.tiers.sections import EXECUTORS, Config, Hpc

EVERY = "Every setting: aiflow_jupyter/tiers/SETTINGS.md"
_NEEDED = {
    "executor": '"local" or "globus", or "python" for one of your own',
    "factory": '"module:name", what makes a concurrent.futures.Executor',
    "endpoint": "the identifier that `globus-compute-endpoint list` shows",
    "worker_key": "what `python aiflow-worker.pyz keys` printed on the cluster",
    "model": "the name that the server knows it by",
}
"""What belongs where a setting is missing."""
_LISTS = {"takes": '["images", "tools"]'}
_CHAIN = '["local", "hpc"]'


def refused(file: object, error: ValidationError) -> ConfigError:
    """The error for what pydantic found in a file: the first finding is the message, the others stand below it."""
    lines = [": ".join(part for part in (_place(item), _words(item)) if part) for item in error.errors()]
    return ConfigError(f"{file}: {lines[0]}", code="AF723", hint="\n".join([*lines[1:], EVERY]))


def _place(item: Any) -> str:
    """The setting that one of pydantic's findings is about."""
    path = [str(part) for part in item["loc"] if not isinstance(part, int)]
    if path[:2] == ["tiers", "hpc"]:
        del path[2:3]  # which executor it is: not a part of the setting's name
    return ".".join([*path, "executor"] if item["type"].startswith("union_tag") else path)


def _words(item: Any) -> str:
    """One of pydantic's findings in words."""
    kind, name = item["type"], _place(item).rpartition(".")[2]
    message = str(item["msg"]).removeprefix("Value error, ")
    words = message[0].lower() + message[1:]
    if kind == "extra_forbidden":
        words = _unknown(item["loc"], name)
    elif kind in {"missing", "union_tag_not_found"}:
        words = f"is missing: {_NEEDED[name]}" if name in _NEEDED else "is missing"
    elif kind == "union_tag_invalid":
        words = f"is {_NEEDED[name]}"
    elif kind.startswith(("model_type", "model_attributes_type", "dict_type")):
        words = "is a section of its own, [...]"
    elif kind == "literal_error":
        words = _one_of(item)
    elif kind in {"tuple_type", "frozen_set_type"}:
        words = f"is a list, such as {_LISTS.get(name, _CHAIN)}"
    return words


def _one_of(item: Any) -> str:
    """What a setting may be that takes only certain words."""
    known = str(item["ctx"]["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
    quoted = [f'"{each}"' for each in known]
    words = f"is {' or '.join([', '.join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)}"
    given = item["input"] if isinstance(item["input"], str) else ""
    alike = {each.lower(): each for each in known}
    close = difflib.get_close_matches(given.lower(), alike, n=1)
    return f'{words}; did you mean "{alike[close[0]]}"?' if close else words


def _unknown(place: Sequence[Any], name: str) -> str:
    """What to say of a setting that the section does not have: who has it, or what it may have meant."""
    in_hpc = tuple(place[:2]) == ("tiers", "hpc")
    takes = next((other for other, section in EXECUTORS.items() if name in section.model_fields), None)
    if in_hpc and takes is not None and len(place) == 4:
        return f'only executor = "{takes}" takes it, and this is "{place[2]}"'
    section: type[Section] = EXECUTORS[place[2]] if in_hpc else Config
    for part in place[3 if in_hpc else 0 : -1]:
        if part in section.model_fields:  # else it is the name of a model
            section = _section(section.model_fields[part].annotation)
    known = sorted(section.model_fields)
    words = "unknown setting"
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        words += f", did you mean {close[0]}?"
    if any(word in name for word in ("key", "secret", "password")):
        words += "; keys never stand in this file, name an environment variable or a file"
    return f"{words} (known here: {', '.join(known)})"


def _section(annotation: Any) -> type[Section]:
    """The section that a field holds, if it is there."""
    kinds = [annotation, *get_args(annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), Hpc)
