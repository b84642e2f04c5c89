"""The keys that the settings name: an environment variable, or a file that its owner alone may read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers.sections import AnyHpc, Cloud, Local, LocalHpc
from aiflow_jupyter.tiers.terms import TierName

if TYPE_CHECKING:
    from aiflow_jupyter.providers.secret import Secret


def server_key(tier: TierName, settings: Local | Cloud) -> Secret | None:
    """The key of a tier's server, None if its settings name none.

    Raises:
        ConfigError: what is to hold it does not.
    """
    return _variable(settings.key_env, f"tiers.{tier}.key_env") or _file(settings.key_file, f"tiers.{tier}.key_file")


def model_server_key(settings: LocalHpc) -> Secret | None:
    """The model server's key, None if it has none.

    Raises:
        ConfigError: what is to hold it does not.
    """
    return _variable(settings.model_server_key_env, "tiers.hpc.model_server_key_env")


def relay_key(settings: AnyHpc) -> Secret:
    """The personal key that opens channels.

    Raises:
        ConfigError: nothing names one, or what is to hold it does not.
    """
    key = _variable(settings.relay_key_env, "tiers.hpc.relay_key_env") or _file(
        settings.relay_key_file, "tiers.hpc.relay_key_file"
    )
    if key is None:
        raise ConfigError(
            "tiers.hpc.relay_key_env or relay_key_file is missing",
            code="AF724",
            hint='relay_key_env = "AIFLOW_RELAY_KEY" names an environment variable, relay_key_file = "relay.key" a '
            "file of mode 0600; the relay's operator makes the key: aiflow keys relay add NAME",
        )
    return key


def _variable(name: str | None, setting: str) -> Secret | None:
    """The key in an environment variable, None if the setting names none."""
    from aiflow_jupyter.providers.secret import Secret  # noqa: PLC0415

    if name is None:
        return None
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(
            f"{setting} names {name}, which is not set",
            code="AF724",
            hint=f"export {name}=... before the kernel or the command starts",
        )
    return Secret(value)


def _file(path: Path | None, setting: str) -> Secret | None:
    """The key in a file that only its owner can read, None if the setting names none."""
    from aiflow_jupyter.providers.secret import Secret  # noqa: PLC0415
    from aiflow_jupyter.relay.private import read_private  # noqa: PLC0415

    if path is None:
        return None
    named = f"{setting} names it"
    try:
        text = read_private(path.expanduser()).strip()
    except (ConfigError, RuntimeError, ValueError) as error:  # of a ~ without a home, of what can be no path
        why, hint = (error.message, error.hint) if isinstance(error, ConfigError) else (str(error), "")
        raise ConfigError(
            why, code="AF724", hint=f"{named}. {hint or 'It holds the key alone, with mode 0600.'}"
        ) from None
    if not text:
        raise ConfigError(f"{path} is empty", code="AF724", hint=f"{named}; the key belongs into it")
    return Secret(text)
