"""Configuration: `aiflow.toml` in the user's config folder, and one in the working folder that may choose, not point.

A project's file comes with a repository that somebody else wrote, so it may only choose models; addresses, key names
and keys count only from the user's own file. Keys stand in neither: a setting names an environment variable or a 0600
file.
"""

from __future__ import annotations

import difflib
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

_PRIVATE = (
    (re.compile(r"aiflow-\w+-secret:"), "a worker's private key", "`aiflow-worker.pyz keys --force` makes a new one"),
    (re.compile(r"\bafr_[\w-]{16,}"), "a relay key", "the relay's operator revokes it and makes a new one"),
    (re.compile(r"\bsk-[\w-]{16,}"), "an API key", "revoke it where it was made"),
)
"""What must not stand in a file that is read, shown and copied; whoever may have seen it has it."""

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TIMES = Timeouts()
_NEEDED = {
    "executor": '"local" or "globus", or "python" for one of your own',
    "factory": '"module:name", what makes a concurrent.futures.Executor',
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
        fallback: where the relay can't be reached, have the answer in one piece by the control plane; `false` makes
            that an error.
        start_timeout: seconds until a worker has to have joined; a queue on a cluster can be long.
        first_token_timeout: seconds from then until the first token: a model server that is loading its model, or that
            does not answer, has so long.
        token_timeout: seconds that the model server may be silent within an answer.
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
    fallback: bool = True
    start_timeout: Seconds = _TIMES.start
    first_token_timeout: Seconds = _TIMES.first_token
    token_timeout: Seconds = _TIMES.token
    linger: Annotated[float, Field(ge=0, le=3600)] = _TIMES.linger
    pad: Annotated[int, Field(ge=0, le=1024)] = 64

    @property
    def timeouts(self) -> Timeouts:
        """Every wait: those that are set here, and the others as they are."""
        return replace(
            _TIMES,
            start=self.start_timeout,
            first_token=self.first_token_timeout,
            token=self.token_timeout,
            linger=self.linger,
        )

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


class PythonHpc(_Hpc):
    """The worker by any `concurrent.futures.Executor`: Parsl, Dask, a batch system's.

    Attributes:
        factory: `module:name` of what makes it, called without arguments when the tier is first asked. It runs
            `aiflow_jupyter.hpc.worker.run` with one text, wherever its workers are.
        worker_key: the worker's public key.
    """

    executor: Literal["python"]
    factory: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    worker_key: str


Hpc = Annotated[LocalHpc | GlobusHpc | PythonHpc, Field(discriminator="executor")]
_EXECUTORS: dict[str, type[_Hpc]] = {"local": LocalHpc, "globus": GlobusHpc, "python": PythonHpc}


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


def place() -> str:
    """The user's own file and whether it is there, in words."""
    path = user_file()
    named = " (named by AIFLOW_CONFIG)" if os.environ.get("AIFLOW_CONFIG") else ""
    return f"{path}{named}{'' if path.is_file() else ', which is not there yet'}"


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
    _resolve(settings, own)
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
        hint = [*lines[1:], "Every setting: aiflow_jupyter/tiers/SETTINGS.md"]
        raise ConfigError(f"{own}: {lines[0]}", code="AF723", hint="\n".join(hint)) from None


def _unknown(place: tuple[Any, ...], name: str) -> str:
    """What to say of a setting that the section does not have: who has it, or what it may have meant."""
    in_hpc = place[:2] == ("tiers", "hpc")
    takes = next((other for other, section in _EXECUTORS.items() if name in section.model_fields), None)
    if in_hpc and takes is not None:
        return f'only executor = "{takes}" takes it, and this is "{place[2]}"'
    section: type[_Section] = _EXECUTORS[place[2]] if in_hpc else Config
    for part in () if in_hpc else place[:-1]:
        kind = section.model_fields[part].annotation
        section = kind if isinstance(kind, type) and issubclass(kind, _Section) else _Hpc
    known = sorted(section.model_fields)
    words = "unknown setting"
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        words += f", did you mean {close[0]}?"
    if any(word in name for word in ("key", "secret", "password")):
        words += "; keys never stand in this file, name an environment variable or a file"
    return f"{words} (known here: {', '.join(known)})"


def _resolve(settings: dict[str, Any], file: Path) -> None:
    """Have a file that a setting names be relative to the file that names it."""
    hpc = settings.get("tiers", {}).get("hpc", {}) if isinstance(settings.get("tiers"), dict) else {}
    named = hpc.get("relay_key_file") if isinstance(hpc, dict) else None
    if isinstance(named, str) and not named.startswith("~"):
        hpc["relay_key_file"] = str(file.absolute().parent / named)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        settings = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except OSError as error:
        hint = f"It has to be a file that you can read: ls -l {path}. AIFLOW_CONFIG can name another one."
        raise ConfigError(f"{path} can't be read: {error.strerror or error}", code="AF723", hint=hint) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8", code="AF723", hint="Save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        hint = 'A line is name = "value", a section is [tiers.hpc].'
        raise ConfigError(f"{path} is not TOML: {error}", code="AF723", hint=hint) from None
    _no_secrets(path, settings)
    return settings


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


def _paths(settings: dict[str, Any]) -> list[tuple[str, ...]]:
    return [here for here, _ in _values(settings)]


def _values(settings: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    values: list[tuple[tuple[str, ...], Any]] = []
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
