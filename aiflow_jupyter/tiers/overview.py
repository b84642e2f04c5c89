"""`aiflow tiers`: what each tier is, what it costs, whether it answers now, and whether its key is there.

All tiers are looked at at once, each for `PATIENCE_S` seconds at most; nothing is generated, and no text is sent. Of a
key only the place is shown, and whether something is there.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiflow_jupyter.errors import AiflowError, plain
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.tiers.discovery import ollama_models, ollama_url
from aiflow_jupyter.tiers.keys import server_key
from aiflow_jupyter.tiers.making import window
from aiflow_jupyter.tiers.sections import AnyHpc, Cloud, Config, Local
from aiflow_jupyter.tiers.terms import LABELS, NAMES, Price, TierName

if TYPE_CHECKING:
    from aiflow_jupyter.hpc.findings import Finding
    from aiflow_jupyter.tiers.health import Status

PATIENCE_S: Final = 2.5


@dataclass(frozen=True, slots=True)
class Key:
    """Where a key is; never the key.

    Attributes:
        setting: what names the place.
        place: the environment variable or file.
        present: whether something is there.
    """

    setting: str
    place: str
    present: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """One tier, as it is now.

    Attributes:
        configured: whether it is on.
        provider, model: who answers; empty where that is not known.
        url: where, without any key; empty where there is no address.
        window: tokens of its context, None where nobody said.
        price: what its tokens cost, None for a tier that is off.
        well: whether it answers; None where only a question would tell.
        health: the same in words.
        key: of its server, None where it needs none.
        latency_s: median seconds to the first token of its last answers in this kernel, None before the first.
    """

    tier: TierName
    configured: bool = False
    provider: str = ""
    model: str = ""
    url: str = ""
    window: int | None = None
    price: Price | None = None
    well: bool | None = None
    health: str = ""
    key: Key | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """All tiers, and how one is chosen.

    Attributes:
        route: the chain of each label.
        judge, stay: see `sections.Route`.
        budget: the limits that are set, in `currency`.
    """

    tiers: tuple[Seen, ...]
    route: Mapping[str, Sequence[str]] = field(default_factory=dict)
    judge: str = ""
    stay: str = ""
    budget: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The same in plain types, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        head = ("tier", "provider", "model", "window", "in/out per 1M", "key", "first token", "health")
        rows: list[tuple[str, ...]] = [head, *(_row(seen) for seen in self.tiers)]
        if all(seen.latency_s is None for seen in self.tiers):  # nothing was asked yet by this process
            rows = [(*row[:-2], row[-1]) for row in rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        lines = ["  ".join([*(c.ljust(w) for c, w in zip(row[:-1], widths, strict=True)), row[-1]]) for row in rows]
        return plain("\n".join([*(line.rstrip() for line in lines), "", f"auto: {self.routing()}"]))

    def routing(self) -> str:
        """How a tier is chosen where none is named, and what may be spent, in one line."""
        chains = [f"{label} {' > '.join(names)}" for label, names in self.route.items()]
        limits = [f"{amount:g} {self.currency} per {name}" for name, amount in self.budget.items()]
        budget = f"budget {', '.join(limits) or 'none'}"
        return " · ".join([*chains, f"judge {self.judge}", f"stay {self.stay}", budget])


def _row(seen: Seen) -> tuple[str, ...]:
    if not seen.configured:
        return (seen.tier, "-", "-", "-", "-", "-", "-", seen.health)
    price, key = seen.price, seen.key
    free = price is None or not (price.input or price.output)
    return (
        seen.tier,
        seen.provider,
        seen.model or "(the server's)",
        f"{seen.window:,}" if seen.window is not None else "?",
        "-" if free or price is None else f"{price.input:g}/{price.output:g} {price.currency}",
        "-" if key is None else f"{key.place}{'' if key.present else ' (not there)'}",
        "-" if seen.latency_s is None else f"{seen.latency_s:.2f} s",
        seen.health,
    )


async def look(config: Config, statuses: Mapping[TierName, Status] | None = None) -> Overview:
    """Look at every tier at once.

    Args:
        config: the settings, the local tier's provider found.
        statuses: the health of the tiers as a router of this process knows it.
    """
    from aiflow_jupyter.tiers.config import user_file  # noqa: PLC0415

    def off(tier: TierName) -> Seen:
        return Seen(tier, health=f"not configured: write [tiers.{tier}] into {user_file()}")

    looks: dict[TierName, Awaitable[Seen]] = {"local": _local(config.tiers.local)}
    if config.tiers.hpc is not None:
        looks["hpc"] = _hpc(config.tiers.hpc)
    if config.tiers.cloud is not None:
        looks["cloud"] = _server("cloud", config.tiers.cloud, config.tiers.cloud.url)
    seen = dict(zip(looks, await asyncio.gather(*looks.values()), strict=True))
    return Overview(
        tuple(_with(seen.get(name) or off(name), (statuses or {}).get(name)) for name in NAMES),
        {label: config.route.chains[label] for label in LABELS},
        str(config.route.judge),
        config.route.stay,
        config.budget.amounts,
        config.budget.currency,
    )


def _with(seen: Seen, status: Status | None) -> Seen:
    """What is seen of a tier, and what a router has learned of it."""
    if status is None or not seen.configured:
        return seen
    health = seen.health if status.state == "closed" else f"{seen.health}; {status}"
    return replace(seen, latency_s=status.latency_s, health=health)


async def _local(settings: Local) -> Seen:
    """The local tier, its provider found as for a question."""
    if settings.provider == "openai":
        return await _server("local", settings, settings.url or "")
    if settings.provider != "ollama":
        return await asyncio.to_thread(_embedded, settings)
    url = ollama_url(settings)
    if url is None:
        well, health = False, "OLLAMA_HOST names no address of this machine"
    else:
        begun = time.perf_counter()
        well, health = await _answers(_ollama(url, settings.model), begun)
    return _seen("local", "ollama", settings, url or "", well, health)


async def _ollama(url: str, model: str | None) -> str:
    """What is wrong with an Ollama server, empty if nothing is."""
    try:
        names = await ollama_models(url)
    except AiflowError as error:
        return error.message
    if names is None:
        return f"nothing answers at {url}"
    if model is None:
        return "it has no model for a chat: ollama pull llama3.2"
    return "" if model in names or f"{model}:latest" in names else f"it has no model {model!r}: ollama pull {model}"


def _embedded(settings: Local) -> Seen:
    from aiflow_jupyter.providers import models  # noqa: PLC0415

    try:
        model = models.find(settings.model) if settings.model else models.default_model()
    except AiflowError as error:
        return _seen("local", "embedded", settings, "", well=False, health=error.message)
    if model is None:
        return _seen("local", "embedded", settings, "", well=False, health=f"no model yet: {models.FETCH}")
    return _seen("local", "embedded", settings, "", well=True, health=f"ready: {model.path}", model=model.name)


async def _server(tier: TierName, settings: Local | Cloud, url: str) -> Seen:
    """A server with OpenAI's API: whether it lists its models, and ours among them."""
    key = _key(settings.key_env, settings.key_file, "key")
    begun = time.perf_counter()
    well, health = await _answers(_listed(tier, settings, url), begun)
    return _seen(tier, "openai", settings, url, well, health, key=key)


async def _listed(tier: TierName, settings: Local | Cloud, url: str) -> str:
    """What is wrong with such a server, empty if nothing is."""
    model = settings.model or ""
    try:
        key = await asyncio.to_thread(server_key, tier, settings)
        async with aclosing(OpenAICompatible(url, model=model, name=tier, key=key)) as server:
            names = [each.get("id") for each in await server.models()]
    except AiflowError as error:
        return error.message
    return f"it lists no model {model!r}" if model and model not in names else ""


async def _hpc(settings: AnyHpc) -> Seen:
    """The hpc tier: its relay, and the model server where the worker runs on this machine."""
    from aiflow_jupyter.hpc import checks  # noqa: PLC0415
    from aiflow_jupyter.tiers.checks import model_server  # noqa: PLC0415

    own = settings.relay == "self"
    key = None if own else _key(settings.relay_key_env, settings.relay_key_file, "relay_key")
    looks = [] if own else [("relay", checks.relay(settings.relay))]
    if settings.executor == "local":
        looks.append(("model server", model_server(settings)))
    begun = time.perf_counter()
    seen = await asyncio.gather(*(_answers(_wrong(look), begun) for _, look in looks))
    parts = [(well, f"{what}: {health}") for (what, _), (well, health) in zip(looks, seen, strict=True)]
    well = all(each for each, _ in parts) if parts else None
    health = "; ".join(words for each, words in parts if each is well) or "a question tells whether it answers"
    return _seen("hpc", f"hpc ({settings.executor})", settings, "" if own else settings.relay, well, health, key=key)


async def _wrong(look: Awaitable[Finding]) -> str:
    """What is wrong with what was looked at, empty if nothing is."""
    found = await look
    return found.found if found.wrong else ""


async def _answers(question: Awaitable[str], begun: float) -> tuple[bool, str]:
    """Whether a look ended well, and in words how."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            wrong = await question
    except TimeoutError:
        wrong = f"no answer in {PATIENCE_S:g} s"
    took = math.ceil((time.perf_counter() - begun) * 1e3)
    return (False, wrong) if wrong else (True, f"answers in {took} ms")


def _seen(
    tier: TierName,
    provider: str,
    settings: Local | Cloud | AnyHpc,
    url: str,
    well: bool | None,
    health: str,
    *,
    model: str = "",
    key: Key | None = None,
) -> Seen:
    tokens = window(provider, settings)
    return Seen(
        tier,
        configured=True,
        provider=provider,
        model=model or settings.model or "",
        url=url,
        window=tokens,
        price=settings.price,
        well=well,
        health=health,
        key=key,
    )


def _key(env: str | None, file: Path | None, prefix: str) -> Key | None:
    """Where a key is to be, and whether something is there; it is not read."""
    if env is not None:
        return Key(f"{prefix}_env", env, bool(os.environ.get(env, "").strip()))
    if file is not None:
        try:
            return Key(f"{prefix}_file", str(file), file.expanduser().stat().st_size > 0)
        except (OSError, RuntimeError):
            return Key(f"{prefix}_file", str(file), present=False)
    return None
