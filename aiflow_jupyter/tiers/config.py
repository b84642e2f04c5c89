"""Configuration: `aiflow.toml` in the user's config folder, and one in the working folder that may choose, not point.

A project's file comes with a repository that somebody else wrote, so it may choose models, chains and the judge, lower
a budget and tighten the floor; addresses, key names and keys count only from the user's own file, or once the user
trusts the project's (`trust.py`). Keys stand in neither: a setting names an environment variable or a 0600 file.
`sections.py` says what each setting is, `mistakes.py` words what is wrong with one.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers import trust
from aiflow_jupyter.tiers.fields import Model
from aiflow_jupyter.tiers.mistakes import refused
from aiflow_jupyter.tiers.sections import SETTINGS, Config
from aiflow_jupyter.tiers.terms import NAMES, REACH, TierName

FILE: Final = "aiflow.toml"
MOST_BYTES: Final = 1_000_000
_DEEPEST: Final = 8
_LARGEST: Final = 1 << 64
Setting = tuple[str, ...]
"""A setting by the names of its sections and its own."""

_DESCRIBES: Final = ("model", "window", "max_output", "takes")
PROJECT_MAY: Final[frozenset[Setting]] = frozenset(
    {
        *(("tiers", tier, name) for tier in NAMES for name in _DESCRIBES),
        ("tiers", "hpc", "max_tokens"),
        *(("route", name) for name in ("low", "medium", "high", "judge", "threshold", "round_up", "stay")),
        *(("budget", name) for name in ("day", "month", "notebook", "currency")),
    }
)
"""What counts from a project's file that nobody has trusted."""

_PRIVATE = (
    (re.compile(r"aiflow-\w+-secret:"), "a worker's private key", "`aiflow-worker.pyz keys --force` makes a new one"),
    (re.compile(r"\bafr_[\w-]{16,}"), "a relay key", "the relay's operator revokes it and makes a new one"),
    (re.compile(r"\bsk-[\w-]{16,}"), "an API key", "revoke it where it was made"),
)
"""What must not stand in a file that is read, shown and copied; whoever may have seen it has it."""


def user_file() -> Path:
    """The user's own file; `AIFLOW_CONFIG` names another one."""
    named = os.environ.get("AIFLOW_CONFIG")
    if named:
        return Path(named)
    from platformdirs import user_config_path  # noqa: PLC0415

    return user_config_path("aiflow-jupyter", appauthor=False) / FILE


def place() -> str:
    """The user's own file and whether it is there, in words."""
    path = user_file()
    named = " (named by AIFLOW_CONFIG)" if os.environ.get("AIFLOW_CONFIG") else ""
    return f"{path}{named}{'' if path.is_file() else ', which is not there yet'}"


def stamp() -> object:
    """What tells whether the files have changed: which they are, and when they were written."""
    marks = []
    for path in (user_file(), Path(FILE), trust.store()):
        try:
            found = path.stat()
            marks.append((str(path.absolute()), found.st_mtime_ns, found.st_size, found.st_ino))
        except OSError:
            marks.append((str(path), 0, 0, 0))
    return tuple(marks)


def load(user: Path | None = None, beside: Path = Path(FILE)) -> Config:
    """Read the user's file and the project's, where they exist.

    Args:
        user: the user's file; None for the usual place.
        beside: the project's file.

    Raises:
        ConfigError: a file can't be read, or a setting is unknown, has a wrong value, or may not stand there.
    """
    own = user or user_file()
    if user is None and os.environ.get("AIFLOW_CONFIG") and not own.is_file():
        raise ConfigError(f"AIFLOW_CONFIG names {own}, which is not there", code="AF723")
    _, settings = contents(own)
    config = _checked(own, settings)
    if not beside.is_file() or (own.is_file() and beside.samefile(own)):
        return config
    data, chosen = contents(beside)
    pointing = [path for path, _ in pointers(chosen)]
    state = trust.state(beside, data) if pointing else "unknown"
    if pointing and state != "trusted":
        if any(path[-1] not in SETTINGS for path in pointing):  # a slip of the pen rather than a wish for more
            _checked(beside, _merged(settings, chosen))
        changed = "it was trusted and has changed since; " if state == "changed" else ""
        raise ConfigError(
            f"{beside}: {', '.join(map(named, pointing))} may not stand in a project's file",
            code="AF723",
            hint=f"{changed}a project chooses {_CHOICES} only; move the setting to {own}\n"
            f"or, if you know who wrote it, look at it and trust it, in a terminal: aiflow trust {beside}",
        )
    return _together(beside, config, settings, chosen)


def examine(beside: Path) -> tuple[bytes, list[tuple[Setting, Any]]]:
    """A project's file as it would be read if it were trusted: its content, and what counts only then.

    Raises:
        ConfigError: it would be refused also then.
    """
    _, settings = contents(user_file())
    data, chosen = contents(beside)
    _together(beside, _checked(user_file(), settings), settings, chosen)
    return data, pointers(chosen)


def _together(beside: Path, own: Config, settings: dict[str, Any], chosen: dict[str, Any]) -> Config:
    """The user's settings with those of a project, as far as they count."""
    if not pointers(chosen):
        _leave_off(chosen, settings)
    merged = _checked(beside, _merged(settings, chosen))
    _no_more_than(beside, own, merged)
    found = ((name, _of_another(own, merged, chosen, name)) for name in NAMES)
    others = {str(name): section for name, section in found if section is not None}
    return merged.model_copy(update={"tiers": merged.tiers.model_copy(update=others)})


def named(path: Setting) -> str:
    """A setting's name; what a file could put there to look like something else is quoted."""
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else json.dumps(part) for part in path)


_CHOICES: Final = "models, chains, the judge, a lower budget and a stricter stay"


def contents(path: Path) -> tuple[bytes, dict[str, Any]]:
    """A file: its content, and the settings that stand there, none where it is not there.

    Raises:
        ConfigError: it can't be read, or holds a key.
    """
    data = _bytes(path)
    return data, _parsed(path, data)


def pointers(settings: dict[str, Any]) -> list[tuple[Setting, Any]]:
    """The settings of a project's file that count only once the user trusts it, with their values."""
    return [(path, value) for path, value in _values(settings) if not _chooses(path, value)]


def _chooses(path: Setting, value: Any) -> bool:
    """Whether a project's file may say this, of a tier's model or of another one of its models.

    A judge that asks a model elsewhere would have every question sent there, and paid for.
    """
    if path == ("route", "judge") and isinstance(value, str) and value.startswith("llm:") and value != "llm:local":
        return False
    if len(path) == 5 and path[0] == "tiers" and path[2] == "models":
        path = (*path[:2], path[4])
    return path in PROJECT_MAY


def _checked(file: Path, settings: dict[str, Any]) -> Config:
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        raise refused(file, error) from None


def _leave_off(chosen: dict[str, Any], own: dict[str, Any]) -> None:
    """Take out what a project says of tiers that the user has not: it is no consent to them."""
    tiers = chosen.get("tiers")
    for name in ("hpc", "cloud"):
        if isinstance(tiers, dict) and name in tiers and name not in own.get("tiers", {}):
            del tiers[name]


def _no_more_than(file: Path, own: Config, merged: Config) -> None:
    """See that a project's file goes no further, and spends no more, than the user's; trusted or not."""

    def refuse(setting: str, must: str, mend: str = "Change it there, or your own file.") -> None:
        raise ConfigError(f"{file}: {setting} {must}", code="AF723", hint=mend)

    if REACH[merged.route.stay] > REACH[own.route.stay]:
        refuse("route.stay", f'may only be stricter than your own, "{own.route.stay}"')
    if own.budget.amounts and merged.budget.currency != own.budget.currency:
        refuse("budget.currency", f'has to be that of your own budget, "{own.budget.currency}"')
    for name, most in own.budget.amounts.items():
        if merged.budget.amounts[name] > most:
            refuse(f"budget.{name}", f"may only be lower than your own, {most:g} {own.budget.currency}")
    for tier in NAMES if own.budget.amounts else ():
        mine, theirs = own.tiers.of(tier), merged.tiers.of(tier)
        if mine is None or theirs is None or not (mine.price.input or mine.price.output):
            continue
        other, said = theirs.model or "", mine.models.get(theirs.model or "")
        known = mine.price if mine.model == theirs.model else said.described(mine.currency).price if said else None
        if known is None:
            price = f"Say its price in your own file: [tiers.{tier}.models.{json.dumps(other)}] price_in, price_out."
            refuse(f"tiers.{tier}.model", f"is {other!r}, of which your budget does not know the price", price)
        elif theirs.price.input < known.input or theirs.price.output < known.output:
            refuse(
                f"tiers.{tier}.price_in and price_out", "may not be lower than your own, or your budget would not hold"
            )


def _of_another(own: Config, merged: Config, chosen: dict[str, Any], tier: TierName) -> Model | None:
    """The tier's section without what the user says of another model than the project's; None where it is the same."""
    mine, theirs = own.tiers.of(tier), merged.tiers.of(tier)
    if mine is None or theirs is None or theirs.model is None or mine.model in (None, theirs.model):
        return None
    described = theirs.models.get(theirs.model)
    return theirs.of_another({*chosen["tiers"][tier], *(described.model_fields_set if described else ())})


def _resolve(settings: dict[str, Any], file: Path) -> None:
    """Have a file that a setting names be relative to the file that names it."""
    tiers = settings.get("tiers")
    for section in tiers.values() if isinstance(tiers, dict) else ():
        for name in ("key_file", "relay_key_file"):
            named = section.get(name) if isinstance(section, dict) else None
            if isinstance(named, str) and not named.startswith("~"):
                section[name] = str(file.absolute().parent / named)


def _bytes(path: Path) -> bytes:
    """The file's content, read once: what is judged is what is used; empty where it is not there."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ConfigError(f"{path} is no file", code="AF723", hint="It has to be one: no device, no pipe.")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ConfigError(f"{path} is larger than {MOST_BYTES:,} bytes", code="AF723", hint="Is it the right file?")
    except FileNotFoundError:
        return b""
    except OSError as error:
        hint = f"It has to be a file that you can read: ls -l {path}. AIFLOW_CONFIG can name another one."
        raise ConfigError(f"{path} can't be read: {error.strerror or error}", code="AF723", hint=hint) from None
    return data


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    try:
        settings = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8", code="AF723", hint="Save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        hint = 'A line is name = "value", a section is [tiers.hpc].'
        raise ConfigError(f"{path} is not TOML: {error}", code="AF723", hint=hint) from None
    except (RecursionError, ValueError):  # of a number with thousands of digits
        raise ConfigError(f"{path} nests too deeply, or has a number that is too long", code="AF723") from None
    _ordinary(path, settings)
    _no_secrets(path, settings)
    _resolve(settings, path)
    return settings


def _ordinary(path: Path, settings: dict[str, Any]) -> None:
    """See that nothing is nested so deeply, or so large, that it could not even be shown."""
    level: list[Any] = [settings]
    for _ in range(_DEEPEST):
        if any(isinstance(each, int) and abs(each) > _LARGEST for each in level):
            raise ConfigError(f"{path}: a number is too large", code="AF723")
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [each for values in inside for each in values]
    if level:
        raise ConfigError(f"{path} nests its sections too deeply", code="AF723", hint="A section is [tiers.hpc].")


def _no_secrets(path: Path, settings: dict[str, Any]) -> None:
    for here, value in _values(settings):
        for pattern, what, mend in _PRIVATE:
            if pattern.search(".".join([*here, str(value)])):
                setting = ".".join(part for part in here if not pattern.search(part)) or "a name"
                raise ConfigError(
                    f"{path}: {setting} holds {what}, which never stands in this file",
                    code="AF723",
                    hint=f"Take it out. Who could read the file may have it: {mend}.",
                )


def _values(settings: dict[str, Any], before: Setting = ()) -> list[tuple[Setting, Any]]:
    values: list[tuple[Setting, Any]] = []
    for name, value in settings.items():
        here = (*before, name)
        values += _values(value, here) if isinstance(value, dict) else [(here, value)]
    return values


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        mine = merged.get(name)
        merged[name] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged
