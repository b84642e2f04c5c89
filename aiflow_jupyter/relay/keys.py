"""Personal relay keys: who may open channels. The relay stores only their hashes, in one 0600 JSON file.

A key is `afr_` and 256 random bits. A plain SHA-256 of it is enough: there is nothing to guess offline, and a slow hash
would only let strangers spend the relay's time. The file is read again when it changes, so that a key that was added or
revoked counts at once, without a restart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiflow_jupyter.errors import AiflowError, ConfigError
from aiflow_jupyter.relay.private import EMPTY, read_private, write_private

log = logging.getLogger("aiflow_jupyter.relay")

PREFIX = "afr_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class PersonalKey:
    """A key as the relay knows it.

    Attributes:
        name: whose it is; chosen by the operator.
        digest: SHA-256 of the key.
        channels: the most channels at a time; None for the relay's default.
        joins_per_minute: None for the relay's default.
    """

    name: str
    digest: bytes
    channels: int | None = None
    joins_per_minute: int | None = None

    @property
    def id(self) -> bytes:
        """8 bytes that name the key in capabilities."""
        return self.digest[:8]


class KeyStore:
    """The personal keys of a relay, in a file or, without a path, in memory.

    Args:
        path: JSON file with mode 0600; one that does not exist holds no keys.

    Attributes:
        unreadable: why a file that changed can't be read; until it can, there are no keys.

    Raises:
        ConfigError: the file can't be read, is open to others, or is not a key file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self.unreadable: AiflowError | None = None
        self._by_name: dict[str, PersonalKey] = {}
        self._by_digest: dict[bytes, PersonalKey] = {}
        self._by_id: dict[bytes, PersonalKey] = {}
        self._load()

    def add(self, name: str, *, channels: int | None = None, joins_per_minute: int | None = None) -> str:
        """Make a key and store its hash; the returned text is the only copy of the key.

        Raises:
            ConfigError: the name is taken or no name, or the file can't be written.
        """
        self._load()
        if not _NAME.fullmatch(name):
            raise ConfigError("a key's name has 1 to 64 letters, digits, dots, dashes, underscores or @", code="AF972")
        if name in self._by_name:
            raise ConfigError(
                f"there is a key named {name!r} already",
                code="AF972",
                hint=f"Revoke it first (aiflow keys relay revoke {name}) or choose another name.",
            )
        key = PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
        self._store([*self._by_name.values(), PersonalKey(name, _digest(key), channels, joins_per_minute)])
        return key

    def revoke(self, name: str) -> None:
        """Forget a key: it opens no more channels, and channels it opened can't be joined any more.

        Raises:
            ConfigError: there is none of that name, or the file can't be written.
        """
        self._load()
        if name not in self._by_name:
            raise ConfigError(f"there is no key named {name!r}", code="AF972", hint="See: aiflow keys relay list")
        self._store([key for key in self._by_name.values() if key.name != name])

    def names(self) -> list[PersonalKey]:
        """All keys, by name."""
        self._load()
        return sorted(self._by_name.values(), key=lambda key: key.name)

    def find(self, text: str) -> PersonalKey | None:
        """The key, or None. The time it takes depends on the length of the text, not on the keys."""
        self._refresh()
        digest = _digest(text)
        # The table is searched by hash, which nobody can steer, and the last word is a comparison in constant time.
        found = self._by_digest.get(digest)
        same = hmac.compare_digest(found.digest if found is not None else bytes(32), digest)
        return found if same else None

    def by_id(self, key_id: bytes) -> PersonalKey | None:
        """The key that a capability names; None once it is revoked."""
        self._refresh()
        return self._by_id.get(key_id)

    def _refresh(self) -> None:
        """Read the file again if it changed; one that can't be read holds no keys."""
        if self._path is None or self._stamp() == self._seen:
            return
        try:
            self._load()
        except AiflowError as error:
            self._take([])
            self.unreadable = error
            self._seen = self._stamp()
            log.error("event=keys-unreadable code=%s message=%s", error.code, error.message)  # noqa: TRY400

    def _stamp(self) -> tuple[int, int, int] | None:
        assert self._path is not None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ctime_ns, status.st_ino

    def _load(self) -> None:
        if self._path is None:
            return
        stamp = self._stamp()
        if stamp is None:
            self._take([])
        else:
            text = read_private(self._path)
            if not text.strip():
                raise ConfigError(f"the file of relay keys {self._path} is empty", code="AF972", hint=EMPTY)
            try:
                self._take([_read(entry) for entry in _entries(json.loads(text))])
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise ConfigError(f"{self._path} is not a file of relay keys", code="AF972") from None
        self._seen = stamp

    def ready(self) -> bool:
        """Whether the keys can be read, after a look at the file."""
        self._refresh()
        return self.unreadable is None

    def _take(self, keys: list[PersonalKey]) -> None:
        self.unreadable = None
        self._by_name = {key.name: key for key in keys}
        self._by_digest = {key.digest: key for key in keys}
        self._by_id = {key.id: key for key in keys}

    def _store(self, keys: list[PersonalKey]) -> None:
        if self._path is not None:
            content = {"version": _VERSION, "keys": [_write(key) for key in keys]}
            write_private(self._path, json.dumps(content, indent=1), replace=True)
            self._seen = self._stamp()
        self._take(keys)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _entries(content: Any) -> list[Any]:
    if content["version"] != _VERSION or not isinstance(content["keys"], list):
        raise ValueError
    return list(content["keys"])


def _read(entry: Any) -> PersonalKey:
    digest = bytes.fromhex(entry["sha256"])
    limits = [entry.get("channels"), entry.get("joins_per_minute")]
    if len(digest) != 32 or not isinstance(entry["name"], str):
        raise ValueError
    if any(limit is not None and (type(limit) is not int or limit < 0) for limit in limits):
        raise ValueError
    return PersonalKey(entry["name"], digest, *limits)


def _write(key: PersonalKey) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": key.name, "sha256": key.digest.hex()}
    if key.channels is not None:
        entry["channels"] = key.channels
    if key.joins_per_minute is not None:
        entry["joins_per_minute"] = key.joins_per_minute
    return entry
