"""Configuration: `aiflow.toml` in the user's config folder, and one in the working folder that may choose, not point.

A project's file comes with a repository that somebody else wrote, so it may only choose models; addresses, key names
and keys count only from the user's own file. Keys stand in neither: a setting names an environment variable or a 0600
file.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.hpc.timeouts import Timeouts

FILE = "aiflow.toml"
_PROJECT_MAY = {("tiers", "hpc", "model"), ("tiers", "hpc", "max_tokens"), ("tiers", "local", "model")}

_VARIABLE = re.compile(r"[A-Za-z_]\w{0,63}")
_KEYS = ("afr_", "sk_", "sk-", "aiflow-")
"""How keys begin: whoever puts one where its variable's name belongs is told so, without the key."""

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TIMES = Timeouts()
_NEEDED = {
    "executor": '"local" or "globus"',
    "endpoint": "the identifier that `globus-compute-endpoint list` shows",
    "worker_key": "what `aiflow keys worker` printed on the cluster",
}
"""What belongs where a setting is missing."""


def _a_variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value) or value.lower().startswith(_KEYS):
        raise ValueError("is the name of an environment variable; a key itself never stands here")
    return value


Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
Variable = Annotated[str, AfterValidator(_a_variable)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Local(_Section):
    """The tier on this machine; so far the embedded model.

    Attributes:
        model: the name of one of `aiflow models list`, None for the first.
    """

    model: str | None = None


class _Hpc(_Section):
    """The tier on the institution's cluster, whatever starts the worker.

    Attributes:
        relay: the relay's address (`https://...`), or `self` for one in this kernel.
        relay_host: with `relay = "self"`, the interface to listen on; others reach it only if it is not loopback.
        relay_port: with `relay = "self"`, the port to listen on, 0 for any free one.
        relay_public_host: with `relay = "self"`, the name or address by which the cluster reaches this machine, where
            that is another one than `relay_host`.
        relay_insecure: let one of these hosts be other than loopback, without TLS. Streams stay sealed; who listens on
            the way could end them.
        relay_key_env, relay_key_file: where the personal relay key is.
        model: the model's name at the model server, None for its first.
        max_tokens: the most tokens of an answer, None for the server's default.
        start_timeout: seconds until a worker has to have joined; a queue on a cluster can be long.
        first_token_timeout: seconds from then until the first token; loading a model can take minutes.
        linger: seconds that the worker waits for a consumer, or goes on without one.
        pad: frames are padded to a multiple of this many bytes, 0 for no padding.
    """

    relay: str = "self"
    relay_host: str = "127.0.0.1"
    relay_port: Annotated[int, Field(ge=0, le=65535)] = 0
    relay_public_host: str | None = None
    relay_insecure: bool = False
    relay_key_env: Variable | None = None
    relay_key_file: Path | None = None
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    start_timeout: Seconds = _TIMES.start
    first_token_timeout: Seconds = _TIMES.first_token
    linger: Annotated[float, Field(ge=0, le=3600)] = _TIMES.linger
    pad: Annotated[int, Field(ge=0, le=1024)] = 64

    @property
    def timeouts(self) -> Timeouts:
        """Every wait: the three that are set here, and the others as they are."""
        return replace(_TIMES, start=self.start_timeout, first_token=self.first_token_timeout, linger=self.linger)

    @field_validator("relay")
    @classmethod
    def _an_address(cls, value: str) -> str:
        if value != "self" and not value.startswith(("http://", "https://")):
            raise ValueError(
                'the relay is "self" or an address that begins with https:// (ws:// and wss:// are not used)'
            )
        return value

    @field_validator("relay_public_host")
    @classmethod
    def _a_host(cls, value: str | None) -> str | None:
        if value is not None and not _HOST.fullmatch(value):
            try:
                ipaddress.IPv6Address(value)
            except ValueError:
                words = "is the name or the address of a machine alone, without https:// and without a port"
                raise ValueError(words) from None
        return value


class LocalHpc(_Hpc):
    """The worker in a process of this machine: for a model server here, a demonstration, a test.

    Attributes:
        model_server: the address of the OpenAI-compatible server (`http://127.0.0.1:8000/v1`), None for what the file
            that a job writes for workers says.
        model_server_key_env: where the model server's key is, if it has one.
    """

    executor: Literal["local"]
    model_server: str | None = None
    model_server_key_env: Variable | None = None


class GlobusHpc(_Hpc):
    """The worker on a Globus Compute endpoint.

    Attributes:
        endpoint: the endpoint's identifier.
        worker_key: the worker's public key.
    """

    executor: Literal["globus"]
    endpoint: UUID
    worker_key: str

    @model_validator(mode="after")
    def _within_reach(self) -> Self:
        if self.relay == "self" and (self.relay_public_host or self.relay_host) in _LOOPBACK:
            raise ValueError(
                "the relay is this kernel's own, on loopback: no cluster can reach it. It is "
                'relay = "https://..." with relay_key_env, or relay_host = "an address the cluster can reach"'
            )
        return self


Hpc = Annotated[LocalHpc | GlobusHpc, Field(discriminator="executor")]
_EXECUTORS: dict[str, type[_Hpc]] = {"local": LocalHpc, "globus": GlobusHpc}


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
        lines = [f"{_place(item)}: {_words(item)}" for item in error.errors()]
        raise ConfigError(f"{own}: {lines[0]}", code="AF723", hint="\n".join(lines[1:])) from None


def _unknown(place: tuple[Any, ...], name: str) -> str:
    """What to say of a setting that the section does not have."""
    takes = next((other for other, section in _EXECUTORS.items() if name in section.model_fields), None)
    if place[:2] == ("tiers", "hpc") and takes is not None:
        return f'only executor = "{takes}" takes it, and this is "{place[2]}"'
    if any(word in name for word in ("key", "secret", "token", "password")):
        return "unknown setting; keys never stand in this file, name an environment variable or a file"
    return "unknown setting"


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


def _place(item: Any) -> str:
    """The setting that one of pydantic's findings is about."""
    path = [str(part) for part in item["loc"]]
    if path[:2] == ["tiers", "hpc"]:
        del path[2:3]  # which executor it is: not a part of the setting's name
    return ".".join([*path, "executor"] if item["type"].startswith("union_tag") else path)


def _words(item: Any) -> str:
    """One of pydantic's findings in words."""
    kind, name = item["type"], _place(item).rpartition(".")[2]
    if kind == "extra_forbidden":
        return _unknown(item["loc"], name)
    if kind in {"missing", "union_tag_not_found"}:
        return f"is missing: {_NEEDED[name]}" if name in _NEEDED else "is missing"
    if kind == "union_tag_invalid":
        return f"is {_NEEDED[name]}"
    if kind.startswith(("model_type", "model_attributes_type", "dict_type")):
        return "is a section of its own, [...]"
    message = str(item["msg"]).removeprefix("Value error, ")
    return message[0].lower() + message[1:]
