"""Who gets in: what a relay checks before it opens a channel or lets an end join one.

The order is from cheap to dear and from public to private. Whoever guesses keys or capabilities is slowed down by
address, but an address is never locked out: behind one may sit a whole cluster, so only requests that fail anyway meet
that limit.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import logging
import math
import re
import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Literal

from aiflow_jupyter.relay.capability import Capability, Secret
from aiflow_jupyter.relay.channels import OTHER, Channel, Channels
from aiflow_jupyter.relay.joining import Role
from aiflow_jupyter.relay.keys import KeyStore, PersonalKey
from aiflow_jupyter.relay.limits import Limits, RateWindow
from aiflow_jupyter.relay.request import Head, Refusal, bad_request

log = logging.getLogger("aiflow_jupyter.relay")

Kind = Literal["source", "guess", "open", "key", "channel"]

_JOIN_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


class Admission:
    """The checks of one relay.

    Args:
        keys: the personal keys that may open channels.
        secret: seals the capabilities.
        channels: of the relay.
        limits: of everything.
        wall: Unix time in seconds, for expiry.
    """

    def __init__(
        self, keys: KeyStore, secret: Secret, channels: Channels, limits: Limits, wall: Callable[[], float]
    ) -> None:
        self._keys = keys
        self._secret = secret
        self._channels = channels
        self._limits = limits
        self._wall = wall
        # One window for each kind of name, so that many of one kind can't push out those of another.
        self._rates: dict[Kind, RateWindow] = {
            kind: RateWindow() for kind in ("source", "guess", "open", "key", "channel")
        }

    def open(self, head: Head, body: bytes, source: str) -> tuple[Channel, PersonalKey, dict[str, str | int]]:
        """Open a channel for a personal key; returns it, the key, and the body of the answer.

        Raises:
            Refusal: the key is unknown, the request makes no sense, or a limit is reached.
        """
        limits, now = self._limits, time.monotonic()
        self._take("source", source, limits.joins_per_minute_source, now, "source-rate", "Your address connects")
        key = self._keys.find(head.bearer() or "")
        if key is None and self._keys.unreadable is not None:
            raise keys_unreadable()
        if key is None:
            message = (
                "The relay does not know this personal key; ask its operator for one (aiflow keys relay add NAME)."
            )
            raise self._guess(source, now, _unauthorized("key", "AF950", message))
        self._take("open", key.id, limits.channels_per_minute, now, "channel-rate", "This key opens channels")
        not_after = self._not_after(body)
        channel = secrets.token_bytes(16)
        per_key = limits.channels_per_key if key.channels is None else key.channels
        made = self._channels.open(channel, key.id, not_after, self._wall(), now, per_key=per_key)
        capabilities: dict[str, str | int] = {
            role: self._secret.seal(Capability(role, channel, not_after, key.id)) for role in OTHER
        }
        return made, key, {"channel": channel.hex(), **capabilities, "not_after": not_after}

    def join(self, head: Head, channel_hex: str, role: Role, source: str) -> tuple[Channel, bytes]:
        """Let an end join; returns the channel and the hash of the join token.

        Raises:
            Refusal: the capability does not permit it, someone else has the role, or a limit is reached.
        """
        limits, now = self._limits, time.monotonic()
        self._take("source", source, limits.joins_per_minute_source, now, "source-rate", "Your address connects")
        try:
            capability, key = self._verify(head, channel_hex, role)
        except Refusal as refusal:
            if refusal.status is HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            raise self._guess(source, now, refusal) from None
        channel, token = self._channels.find(capability, now), _join_token(head)
        known = channel.admits(role, token)
        # Counted apart, so that a third party can't use up what the ends need to come back.
        most = limits.joins_per_minute_channel
        self._take("channel", (channel.id, known), most, now, "join-rate", "This channel is joined")
        if not known:
            channel.warn()
            log.warning("event=third-party channel=%s role=%s source=%s", channel.name, role, source)
            message = f"Someone else is the {role} of this channel; both ends have been told. Open a new channel."
            raise Refusal(HTTPStatus.CONFLICT, "AF954", "third-party", message)
        most = limits.joins_per_minute if key.joins_per_minute is None else key.joins_per_minute
        self._take("key", key.id, most, now, "join-rate-key", "This key's channels are joined")
        return channel, token

    def _verify(self, head: Head, channel_hex: str, role: Role) -> tuple[Capability, PersonalKey]:
        capability = self._secret.open(head.bearer() or "")
        if capability is None:
            raise _unauthorized("capability", "AF951", "This relay did not give out this capability.")
        if capability.not_after < self._wall():
            raise _unauthorized("expired", "AF952", "The capability has expired; open a new channel.")
        if capability.channel.hex() != channel_hex or capability.role != role:
            message = "The capability is for another channel or the other role; each end has its own."
            raise Refusal(HTTPStatus.FORBIDDEN, "AF953", "other-place", message)
        key = self._keys.by_id(capability.key_id)
        if key is None and self._keys.unreadable is not None:
            raise keys_unreadable()
        if key is None:
            raise _unauthorized("revoked", "AF951", "The key that opened this channel has been revoked.")
        return capability, key

    def _not_after(self, body: bytes) -> int:
        try:
            wanted = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            raise bad_request("The body is not JSON.") from None
        now = self._wall()
        not_after = wanted.get("not_after") if isinstance(wanted, dict) else wanted
        if isinstance(wanted, dict) and not_after is None:
            return int(now + min(self._limits.lifetime, self._limits.max_lifetime))
        if isinstance(not_after, bool) or not isinstance(wanted, dict) or not isinstance(not_after, int | float):
            raise bad_request('The body is to be a JSON object such as {"not_after": 1767225600}.')
        # Compared before it is converted: JSON has integers that no float holds.
        if not_after != not_after or not_after <= now:  # noqa: PLR0124 - NaN
            raise bad_request("not_after is not a time to come, in Unix seconds.")
        return int(min(not_after, now + self._limits.max_lifetime))

    def _guess(self, source: str, now: float, refusal: Refusal) -> Refusal:
        """The refusal, or the one for too many of them from one address."""
        window = self._rates["guess"]
        wait = window.wait(source, self._limits.refusals_per_minute_source, now)
        if wait > 0:
            return too_many("guessing", "Too many requests from your address were refused", wait)
        window.count(source, now)
        return refusal

    def _take(self, kind: Kind, name: object, limit: int, now: float, reason: str, what: str) -> None:
        window = self._rates[kind]
        wait = window.wait(name, limit, now)
        window.count(name, now)
        if wait > 0:
            raise too_many(reason, f"{what} more than {limit} times a minute", wait)


def too_many(reason: str, what: str, wait: float) -> Refusal:
    """A refusal that says when to come back."""
    message = f"{what}; try again in {max(1, math.ceil(wait))} s."
    return Refusal(HTTPStatus.TOO_MANY_REQUESTS, "AF956", reason, message, retry_after=wait)


def keys_unreadable() -> Refusal:
    """A refusal for everybody: the fault is the relay's."""
    message = "The relay can't read its file of keys; its operator finds the reason in its log."
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "AF968", "keys-unreadable", message, retry_after=5)


def _unauthorized(reason: str, code: str, message: str) -> Refusal:
    return Refusal(HTTPStatus.UNAUTHORIZED, code, reason, message, headers={"WWW-Authenticate": "Bearer"})


def _join_token(head: Head) -> bytes:
    text = head.get("aiflow-join") or ""
    raw = b""
    if _JOIN_TOKEN.fullmatch(text):
        with contextlib.suppress(binascii.Error):
            raw = base64.b64decode(text + "=", altchars=b"-_", validate=True)
    if len(raw) != 32:
        raise bad_request("Aiflow-Join is to be 32 random bytes of this end, in base64url without padding.")
    return hashlib.sha256(raw).digest()
