"""Configuration: `aiflow.toml` in the user's config folder, and one in the working folder that may choose, not point.

A project's file comes with a repository that somebody else wrote, so it may only choose models; addresses, key names
and keys count only from the user's own file. Keys stand in neither: a setting names an environment variable or a 0600
file.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from aiflow_jupyter.errors import ConfigError

FILE = "aiflow.toml"
_PROJECT_MAY = {("tiers", "hpc", "model"), ("tiers", "hpc", "max_tokens"), ("tiers", "local", "model")}

_VARIABLE = re.compile(r"[A-Za-z_]\w{0,63}")
_KEYS = ("afr_", "sk_", "sk-", "aiflow-")
"""How keys begin: whoever puts one where its variable's name belongs is told so, without the key."""

Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Local(_Section):
    """The tier on this machine; so far the embedded model.

    Attributes:
        model: the name of one of `aiflow models list`, None for the first.
    """

    model: str | None = None


class Hpc(_Section):
    """The tier on the institution's cluster.

    Attributes:
        executor: `local` runs the worker in a process of this machine, `globus` on a Globus Compute endpoint.
        endpoint: the Globus Compute endpoint's identifier.
        relay: the relay's address (`https://...`), or `self` for one in this kernel.
        relay_host: with `relay = "self"`, the interface to listen on; others reach it only if it is not loopback.
        relay_insecure: let that interface be one without TLS. Streams stay sealed; who listens there could end them.
        relay_key_env, relay_key_file: where the personal relay key is.
        worker_key: the worker's public key, as `aiflow keys worker` prints it; the local executor makes its own.
        model: the model's name at the model server, None for its first.
        model_server: for the local executor, the address of the OpenAI-compatible server (`http://127.0.0.1:8000/v1`).
        model_server_key_env: where the model server's key is, if it has one.
        max_tokens: the most tokens of an answer, None for the server's default.
        start_timeout: seconds until a worker has to have joined; a queue on a cluster can be long.
        first_token_timeout: seconds from then until the first token; loading a model can take minutes.
        linger: seconds that the worker goes on without a consumer.
        pad: frames are padded to a multiple of this many bytes, 0 for no padding.
    """

    executor: Literal["local", "globus"]
    endpoint: UUID | None = None
    relay: str = "self"
    relay_host: str = "127.0.0.1"
    relay_insecure: bool = False
    relay_key_env: str | None = None
    relay_key_file: Path | None = None
    worker_key: str | None = None
    model: str | None = None
    model_server: str | None = None
    model_server_key_env: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    start_timeout: Seconds = 1800
    first_token_timeout: Seconds = 900
    linger: Annotated[float, Field(ge=0, le=3600)] = 120
    pad: Annotated[int, Field(ge=0, le=1024)] = 64

    @field_validator("relay_key_env", "model_server_key_env")
    @classmethod
    def _a_variable(cls, value: str | None) -> str | None:
        if value is not None and (not _VARIABLE.fullmatch(value) or value.lower().startswith(_KEYS)):
            raise ValueError("is the name of an environment variable; a key itself never stands here")
        return value

    @field_validator("relay")
    @classmethod
    def _an_address(cls, value: str) -> str:
        if value != "self" and not value.startswith(("http://", "https://")):
            raise ValueError(
                'the relay is "self" or an address that begins with https:// (ws:// and wss:// are not used)'
            )
        return value


class Tiers(_Section):
    """The tiers by name; what is not named is off."""

    local: Local = Local()
    hpc: Hpc | None = None


class Config(_Section):
    """The whole configuration."""

    tiers: Tiers = Tiers()


def user_file() -> Path:
    """The user's own file; `AIFLOW_CONFIG` names another one."""
    named = os.environ.get("AIFLOW_CONFIG")
    if named:
        return Path(named)
    from platformdirs import user_config_path  # noqa: PLC0415

    return user_config_path("aiflow-jupyter", appauthor=False) / FILE


def stamp() -> object:
    """What tells whether the files have changed: which they are, and when they were written."""
    marks = []
    for path in (user_file(), Path(FILE)):
        try:
            found = path.stat()
            marks.append((str(path.absolute()), found.st_mtime_ns, found.st_size, found.st_ino))
        except OSError:
            marks.append((str(path), 0, 0, 0))
    return tuple(marks)


def load(user: Path | None = None, project: Path | None = None) -> Config:
    """Read the user's file and the project's, where they exist.

    Args:
        user: the user's file; None for the usual place.
        project: the project's file; None for `aiflow.toml` in the working folder.

    Raises:
        ConfigError: a file can't be read, or a setting is unknown, has a wrong value, or may not stand there.
    """
    own = user or user_file()
    settings = _read(own)
    if user is None and os.environ.get("AIFLOW_CONFIG") and not own.is_file():
        raise ConfigError(f"AIFLOW_CONFIG names {own}, which is not there", code="AF723")
    beside = project or Path(FILE)
    if beside.is_file() and not (own.is_file() and beside.samefile(own)):
        chosen = _read(beside)
        for path in _paths(chosen):
            if path not in _PROJECT_MAY:
                raise ConfigError(
                    f"{beside}: {'.'.join(path)} may not stand in a project's file",
                    code="AF723",
                    hint=f"a project chooses models only; move the setting to {own}",
                )
        settings = _merged(settings, chosen)
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {_words(item)}" for item in error.errors()]
        raise ConfigError(f"{own}: {lines[0]}", code="AF723", hint="\n".join(lines[1:])) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}", code="AF723") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", code="AF723") from None


def _paths(settings: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths = []
    for name, value in settings.items():
        here = (*before, name)
        paths += _paths(value, here) if isinstance(value, dict) else [here]
    return paths


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        mine = merged.get(name)
        merged[name] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged


def _words(item: Any) -> str:
    """One of pydantic's findings in words."""
    name = str(item["loc"][-1])
    if item["type"] == "extra_forbidden":
        if any(word in name for word in ("key", "secret", "token", "password")):
            return "unknown setting; keys never stand in this file, name an environment variable or a file"
        return "unknown setting"
    if item["type"] == "missing":
        return "is missing"
    if item["type"].startswith(("model_type", "dict_type")):
        return "is a section of its own, [...]"
    message = str(item["msg"]).removeprefix("Value error, ")
    return message[0].lower() + message[1:]
