"""Ollama's cloud models: they have a name on this machine, and are answered by another one.

Their names end in `cloud` unless somebody copied them under another one; then only Ollama itself knows, and says so as
`remote_host` and `remote_model`: of a model (`/api/show`, `/api/tags`), and in each piece of its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
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
