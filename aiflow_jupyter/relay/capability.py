"""Capabilities: who holds one may join one channel in one role until one time, and nothing else.

A capability is 66 bytes in base64url: version, role, channel, expiry, key id, and the HMAC-SHA256 of these under the
relay's secret. The relay verifies it without looking anything up, so a relay that was restarted with the same secret
file knows every capability that it gave out before. It gives no access to what is streamed: the ends' keys never
reach the relay.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.relay.joining import Role
from aiflow_jupyter.relay.private import EMPTY, read_private, write_private

_LAYOUT = struct.Struct(">BB16sQ8s")
_VERSION = 1
_ROLES: dict[Role, int] = {"producer": 1, "consumer": 2}
_NAMES: dict[int, Role] = {number: role for role, number in _ROLES.items()}
_CONTEXT = b"aiflow-relay.1 capability\x00"
_LENGTH = 88
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Capability:
    """What a capability permits.

    Attributes:
        role: the end that may be taken.
        channel: 16 bytes.
        not_after: Unix seconds after which no join is accepted.
        key_id: 8 bytes that name the personal key that opened the channel.
    """

    role: Role
    channel: bytes
    not_after: int
    key_id: bytes


class Secret:
    """The relay's secret: it seals capabilities and opens them; it is never shown."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != _SECRET_BYTES:
            raise ValueError(f"a relay secret has {_SECRET_BYTES} bytes")
        self._key = key

    @classmethod
    def fresh(cls) -> Secret:
        """A secret for this start only: a restart invalidates every capability."""
        return cls(secrets.token_bytes(_SECRET_BYTES))

    @classmethod
    def load(cls, path: Path) -> Secret:
        """The secret in a 0600 file, which is made when there is none.

        Raises:
            ConfigError: the file is readable by others, not ours, or no secret.
        """
        if not os.path.lexists(path):
            write_private(path, secrets.token_hex(_SECRET_BYTES) + "\n")
        text = read_private(path).strip()
        try:
            return cls(bytes.fromhex(text))
        except ValueError:
            if not text:
                raise ConfigError(f"the relay's secret file {path} is empty", code="AF970", hint=EMPTY) from None
            raise ConfigError(
                f"the relay's secret file {path} does not hold {_SECRET_BYTES} bytes in hexadecimal",
                code="AF970",
                hint="Delete it to have a new one made; capabilities given out before are then refused.",
            ) from None

    def seal(self, capability: Capability) -> str:
        """The capability as text that only this secret can make."""
        body = _LAYOUT.pack(
            _VERSION, _ROLES[capability.role], capability.channel, capability.not_after, capability.key_id
        )
        return base64.urlsafe_b64encode(body + self._tag(body)).decode()

    def open(self, text: str) -> Capability | None:
        """The capability behind the text; None when this secret did not make it. Says nothing of its expiry."""
        # Both the length and the alphabet are public, so only the tag is compared in constant time.
        if len(text) != _LENGTH or not text.isascii():
            return None
        try:
            raw = base64.b64decode(text, altchars=b"-_", validate=True)
        except binascii.Error:
            return None
        body, tag = raw[: _LAYOUT.size], raw[_LAYOUT.size :]
        if not hmac.compare_digest(self._tag(body), tag):
            return None
        version, role, channel, not_after, key_id = _LAYOUT.unpack(body)
        if version != _VERSION or role not in _NAMES:
            return None
        return Capability(_NAMES[role], channel, not_after, key_id)

    def _tag(self, body: bytes) -> bytes:
        return hmac.digest(self._key, _CONTEXT + body, hashlib.sha256)

    def __repr__(self) -> str:
        return "Secret(...)"
