"""Ollama's cloud models: they have a name on this machine, and are answered by another one.

Their names end in `cloud` unless somebody copied them under another one; then only Ollama itself knows, and says so as
`remote_host` and `remote_model`: of a model (`/api/show`, `/api/tags`), and in each piece of its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.providers.secret import one_line

CHECKED_NS: Final = 60_000_000_000
"""Nanoseconds for which a model that is this machine's counts as such; each piece of an answer is looked at anyway."""


def elsewhere(model: str) -> bool:
    """Whether a model of that name is answered by Ollama's own servers: `gpt-oss:120b-cloud`, `x:cloud`."""
    return model.strip().casefold().endswith(("-cloud", ":cloud"))


def host_of(said: object) -> str:
    """Who answers, as Ollama says it of a model or in a piece of an answer; empty for this machine."""
    if not isinstance(said, Mapping):
        return ""
    facts: Mapping[str, Any] = said
    return one_line(str(facts.get("remote_host") or facts.get("remote_model") or ""), longest=100)


def models_of(said: object) -> list[Mapping[str, Any]] | None:
    """The models in what Ollama says at `/api/tags`; None where that is no such list."""
    models = said.get("models") if isinstance(said, Mapping) else None
    if not isinstance(models, list) or not all(isinstance(each, Mapping) for each in models):
        return None
    return models


def host_among(models: Iterable[Mapping[str, Any]], model: str) -> str:
    """Who answers for a model, as the list has it; empty for this machine, or where it is not in the list."""
    wanted = {model.strip().casefold(), f"{model.strip()}:latest".casefold()}  # as Ollama itself compares them
    return next(
        (
            host
            for each in models
            if wanted & {str(each.get(key)).casefold() for key in ("model", "name")} and (host := host_of(each))
        ),
        "",
    )


def refused(name: str, model: str, host: str = "") -> ConfigError:
    """The error for such a model.

    Args:
        name: the provider's.
        model: as it was asked for.
        host: who would answer.
    """
    who = host or "Ollama's own servers"
    return ConfigError(
        f"{name}: {model} is answered by {who}, not by this machine",
        code="AF739",
        hint="name a model that `ollama list` shows with a size, and without -cloud",
    )
