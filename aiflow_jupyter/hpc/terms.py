"""The relay that a stream from the cluster passes, as the notebook knows it."""

from __future__ import annotations

from dataclasses import dataclass

from aiflow_jupyter.providers.secret import Secret


@dataclass(frozen=True, slots=True)
class RelayAt:
    """A relay and what opens channels on it.

    Attributes:
        url: its address.
        key: the personal key.
        allow_plain: it may be another machine without TLS.
        named: the setting that the key comes from, for whoever has to mend it.
    """

    url: str
    key: Secret
    allow_plain: bool = False
    named: str = ""
