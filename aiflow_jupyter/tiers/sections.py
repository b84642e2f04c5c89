"""The sections of `aiflow.toml`: what may be said, what it means, and what it is where nothing is said."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import Field, ValidationInfo, field_validator, model_validator

from aiflow_jupyter.hpc.timeouts import Timeouts
from aiflow_jupyter.providers.network import is_loopback
from aiflow_jupyter.providers.remote import elsewhere
from aiflow_jupyter.tiers.choosing import CHAINS
from aiflow_jupyter.tiers.fields import (
    Address,
    Chain,
    Currency,
    KeyFile,
    Model,
    Money,
    Name,
    Other,
    Seconds,
    Section,
    Share,
    Tokens,
    Variable,
    an_address,
)
from aiflow_jupyter.tiers.ledger import Budgets
from aiflow_jupyter.tiers.terms import JUDGES, NAMES, Floor, Label, TierName

OPENROUTER: Final = "https://openrouter.ai/api/v1"

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_KEEP = re.compile(r"-?(\d+(\.\d+)?(ms|s|m|h))+|-?\d+")
_TIMES = Timeouts()
_WORKERS_SLACK = 30.0
"""Seconds by which the worker knows before this end that it has waited for too long, and why."""


class Local(Model):
    """The tier on this machine.

    Attributes:
        provider: `embedded`, `ollama`, or `openai` for any other server with that API; None for Ollama if it answers,
            else embedded.
        url: where the server listens, on loopback; None for Ollama's usual port.
        key_env, key_file: where the server's key is, if it has one.
        keep_alive: how long Ollama keeps the model loaded: "10m", seconds, or -1 for always.
        first_token_timeout: seconds without a first token after which it has failed; None for the provider's default.
        token_timeout: seconds of silence within an answer, likewise.
    """

    provider: Literal["embedded", "ollama", "openai"] | None = None
    url: Address | None = None
    key_env: Variable | None = None
    key_file: KeyFile | None = None
    keep_alive: str | int | None = None
    first_token_timeout: Seconds | None = None
    token_timeout: Seconds | None = None

    @property
    def first_token_s(self) -> float:
        """Seconds until the first token: a server may load its model, and the embedded model has few slots."""
        return self.first_token_timeout or (300.0 if self.provider in ("ollama", "openai") else 600.0)

    @property
    def silence_s(self) -> float:
        """Seconds of silence within an answer."""
        return self.token_timeout or (120.0 if self.provider in ("ollama", "openai") else 600.0)

    @field_validator("url", "key_env", "key_file", "keep_alive")
    @classmethod
    def _of_this_provider(cls, value: Any, info: ValidationInfo) -> Any:
        takers = {"url": ("ollama", "openai"), "keep_alive": ("ollama",)}.get(str(info.field_name), ("openai",))
        if value is not None and "provider" in info.data and info.data["provider"] not in takers:
            named = " or ".join(f'"{each}"' for each in takers)
            is_now = info.data["provider"]
            so_far = f'this is "{is_now}"' if is_now else "no provider is set"
            raise ValueError(f"only provider = {named} takes it, and {so_far}")
        return value

    @field_validator("url")
    @classmethod
    def _on_this_machine(cls, value: str | None) -> str | None:
        if value is not None and not is_loopback(urlsplit(value).hostname or ""):
            raise ValueError("is on another machine, and this tier is this one; name that server under [tiers.cloud]")
        return value

    @field_validator("keep_alive")
    @classmethod
    def _a_while(cls, value: str | int | None) -> str | int | None:
        if isinstance(value, str) and not _KEEP.fullmatch(value):
            raise ValueError('is a time such as "10m" or "1h30m", seconds, or -1 for always')
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.provider == "openai" and self.url is None:
            raise ValueError('provider = "openai" needs url, such as "http://127.0.0.1:8080/v1"')
        if self.model is not None and self.provider in (None, "ollama") and elsewhere(self.model):
            raise ValueError(f"model, {self.model!r}, runs on Ollama's own servers, and this tier is this machine")
        _one_key(self)
        return self


class Cloud(Model):
    """The tier elsewhere: a server with OpenAI's API. It is off until the user's own file names it.

    Attributes:
        provider: which API it speaks.
        url: where it is.
        key_env, key_file: where the key is.
        first_token_timeout: seconds without a first token after which it has failed.
        token_timeout: seconds of silence within an answer.
    """

    provider: Literal["openai"] = "openai"
    url: Address = OPENROUTER
    key_env: Variable | None = None
    key_file: KeyFile | None = None
    model: Name
    max_output: Tokens = 4_096
    first_token_timeout: Seconds = 120.0
    token_timeout: Seconds = 60.0

    @property
    def first_token_s(self) -> float:
        """Seconds until the first token."""
        return self.first_token_timeout

    @property
    def silence_s(self) -> float:
        """Seconds of silence within an answer."""
        return self.token_timeout

    @model_validator(mode="after")
    def _with_its_key(self) -> Self:
        _one_key(self)
        keyed = self.key_env is not None or self.key_file is not None
        parts = urlsplit(self.url)
        if not keyed and self.url.rstrip("/") == OPENROUTER:
            raise ValueError(
                'key_env or key_file is missing: key_env = "OPENROUTER_API_KEY" names the environment variable that '
                "holds the key"
            )
        if keyed and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError("url begins with http://, where the key could be read on its way; it has to be https://")
        return self


def _one_key(section: Local | Cloud) -> None:
    if section.key_env is not None and section.key_file is not None:
        raise ValueError("key_env and key_file are both set; one of them names the key")


class Hpc(Model):
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
    relay_key_file: KeyFile | None = None
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

    @property
    def first_token_s(self) -> float:
        """Seconds until the first token, whatever there is to wait for: more than all of the provider's own waits."""
        waits = self.timeouts
        return waits.submit + waits.start + waits.whole + waits.rest + _WORKERS_SLACK

    @property
    def silence_s(self) -> float:
        """Seconds of silence within an answer, a little more than the worker allows the model server."""
        waits = self.timeouts
        return waits.token + waits.absence + waits.lost + _WORKERS_SLACK

    @field_validator("relay")
    @classmethod
    def _a_relay(cls, value: str) -> str:
        if value != "self" and not value.startswith(("http://", "https://")):
            raise ValueError(
                'the relay is "self" or an address that begins with https:// (ws:// and wss:// are not used)'
            )
        return value if value == "self" else an_address(value)

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


class LocalHpc(Hpc):
    """The worker in a process of this machine: for a model server here, a demonstration, a test.

    Attributes:
        model_server: the address of the OpenAI-compatible server (`http://127.0.0.1:8000/v1`), None for what the file
            that a job writes for workers says.
        model_server_key_env: where the model server's key is, if it has one.
    """

    executor: Literal["local"]
    model_server: str | None = None
    model_server_key_env: Variable | None = None


class GlobusHpc(Hpc):
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
        if self.relay == "self" and is_loopback(self.relay_public_host or self.relay_host):
            raise ValueError(
                "the relay is this kernel's own, on loopback: no cluster can reach it. It is "
                'relay = "https://..." with relay_key_env, or relay_host = "an address the cluster can reach"'
            )
        return self


class PythonHpc(Hpc):
    """The worker by any `concurrent.futures.Executor`: Parsl, Dask, a batch system's.

    Attributes:
        factory: `module:name` of what makes it, called without arguments when the tier is first asked. It runs
            `aiflow_jupyter.hpc.worker.run` with one text, wherever its workers are.
        worker_key: the worker's public key.
    """

    executor: Literal["python"]
    factory: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    worker_key: str


AnyHpc = LocalHpc | GlobusHpc | PythonHpc
EXECUTORS: dict[str, type[Hpc]] = {"local": LocalHpc, "globus": GlobusHpc, "python": PythonHpc}


class Tiers(Section):
    """The tiers by name; what is not named is off, but for the local one."""

    local: Local = Local()
    hpc: Annotated[AnyHpc, Field(discriminator="executor")] | None = None
    cloud: Cloud | None = None

    def of(self, name: TierName) -> Model | None:
        """The section of a tier, None where it is off."""
        section: Model | None = getattr(self, name)
        return section


class Route(Section):
    """How a tier is chosen where none is named.

    Attributes:
        low, medium, high: for each label of the judge the tiers in the order in which they are asked.
        judge: who says how hard a question is; one of `terms.JUDGES`.
        threshold: P(HIGH) from which on a question is HIGH, and below which it never is; None for the likeliest label.
        round_up: the harder label is taken where it is less likely than the likeliest by at most this much.
        after_first_token: an answer that breaks off stays a part (`stop`), or another tier begins anew (`restart`).
        stay: how far any question may go.
    """

    low: Chain = CHAINS["LOW"]
    medium: Chain = CHAINS["MEDIUM"]
    high: Chain = CHAINS["HIGH"]
    judge: Literal[JUDGES] = "classifier"  # type: ignore[valid-type]
    threshold: Share | None = None
    round_up: Share = 0.0
    after_first_token: Literal["stop", "restart"] = "stop"  # noqa: S105 - of an answer
    stay: Floor = "anywhere"

    @property
    def chains(self) -> dict[Label, tuple[TierName, ...]]:
        """The tiers of each label."""
        return {"LOW": self.low, "MEDIUM": self.medium, "HIGH": self.high}

    @property
    def restarts(self) -> bool:
        """Whether an answer that broke off is begun anew."""
        return self.after_first_token == "restart"  # noqa: S105


class Budget(Section):
    """The most that may be spent.

    Attributes:
        day, month: in one of the calendar.
        notebook: by one notebook, ever.
        currency: of these amounts, and of the prices that they limit.
    """

    day: Money | None = None
    month: Money | None = None
    notebook: Money | None = None
    currency: Currency = "USD"

    @property
    def amounts(self) -> dict[str, float]:
        """The limits that are set, by their names."""
        named = {"day": self.day, "month": self.month, "notebook": self.notebook}
        return {name: amount for name, amount in named.items() if amount is not None}

    @property
    def limits(self) -> Budgets:
        """The same as the ledger takes it."""
        return Budgets(self.day, self.month, self.notebook, self.currency)


class Conversation(Section):
    """Long conversations.

    Attributes:
        fold_at: the share of a tier's window from which on older turns are folded into a summary.
    """

    fold_at: Annotated[float, Field(ge=0.1, le=1, strict=True)] = 0.8


class Config(Section):
    """The whole configuration."""

    tiers: Tiers = Tiers()
    route: Route = Route()
    budget: Budget = Budget()
    conversation: Conversation = Conversation()

    @model_validator(mode="after")
    def _countable(self) -> Self:
        """A budget holds only where every price is known, in its currency."""
        cloud = self.tiers.cloud
        if not self.budget.amounts:
            return self
        if cloud is not None and (cloud.price_in is None or cloud.price_out is None):
            missing = "price_in" if cloud.price_in is None else "price_out"
            raise ValueError(
                f"tiers.cloud.{missing}: is missing: a [budget] holds only where prices are known (0 if it is free)"
            )
        for name in NAMES:
            section = self.tiers.of(name)
            if section is None or not (section.price.input or section.price.output):
                continue
            if section.currency != self.budget.currency:
                raise ValueError(
                    f'tiers.{name}.currency: is "{section.currency}" and budget.currency "{self.budget.currency}"; '
                    "amounts are not converted"
                )
        return self


SETTINGS: Final = frozenset(
    name
    for section in (Config, Tiers, Local, LocalHpc, GlobusHpc, PythonHpc, Cloud, Other, Route, Budget, Conversation)
    for name in section.model_fields
)
"""The names of all settings and sections."""
