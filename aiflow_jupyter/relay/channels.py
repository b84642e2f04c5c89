"""The channels a relay knows: who is at each end, who may come back, and which are over.

```
            first join of the role                 the socket is lost
   EMPTY ─────────────────────────▶ ATTACHED ─────────────────────────▶ AWAITED
  (of a role)                        ▲   │ same join token: replaces       │
                                     │   └──────────── (close 4009)        │ same join token
                                     └─────────────────────────────────────┘
   another join token for ATTACHED or AWAITED: refused with 409, both ends get HINT 3
   an end closes with 4001: the channel is FINISHED, every later join gets 410 until `not_after`
```

Nothing here does I/O, and nothing holds a frame. A channel that is unknown, because the relay was restarted, is known
again by the first join with a valid capability.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from http import HTTPStatus
from typing import Any, Protocol

from aiflow_jupyter.relay.capability import Capability, Role
from aiflow_jupyter.relay.limits import Bucket, Limits
from aiflow_jupyter.relay.request import Refusal

ALONE, PRESENT, ATTACHED, THIRD_PARTY, GOING_AWAY = range(5)
"""Codes of the relay's hints."""

FINISHED = 4001
"""An end closes with it when the channel's work is done."""
REPLACED = 4009
"""The relay closes a socket with it when its end came back on another one."""
EXPIRED = 4010
"""The relay closes a socket with it that still waits alone when its channel expires."""
STALLED = 4011
"""The relay closes a socket with it that took nothing for too long."""

OTHER: dict[Role, Role] = {"producer": "consumer", "consumer": "producer"}


def hint(code: int) -> bytes:
    """A HINT frame: version 1, type 0, sequence 0, and one byte."""
    return bytes((1, 0, 0, 0, 0, 0, 0, 0, 0, 0, code))


def full() -> Refusal:
    """A refusal for want of room."""
    message = "The relay is full; try again later, or use another relay."
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "AF958", "full", message, retry_after=30)


class End(Protocol):
    """One end's socket, as far as its channel needs it."""

    def hint(self, code: int) -> None:
        """Send a HINT."""

    def meet(self, peer: Any) -> None:
        """From now on forward to `peer`, or drop."""

    def dismiss(self, code: int, reason: str) -> None:
        """Close the socket."""


class Channel:
    """One channel: its two ends and the hashes of their join tokens."""

    __slots__ = ("bucket", "ends", "id", "key_id", "name", "not_after", "tokens")

    def __init__(self, channel: bytes, key_id: bytes, not_after: int, name: str, bucket: Bucket) -> None:
        self.id = channel
        self.key_id = key_id
        self.not_after = not_after
        self.name = name
        self.bucket = bucket
        self.ends: dict[Role, End] = {}
        self.tokens: dict[Role, bytes] = {}

    def admits(self, role: Role, join: bytes) -> bool:
        """Whether this join token may take the role: it is the first, or the one that took it before."""
        return role not in self.tokens or hmac.compare_digest(self.tokens[role], join)

    def attach(self, role: Role, join: bytes, end: End) -> None:
        """Put `end` at its place, in the place of an older socket if there is one, and tell both ends."""
        old = self.ends.get(role)
        self.tokens[role] = join
        self.ends[role] = end
        peer = self.ends.get(OTHER[role])
        if old is not None:
            old.meet(None)
            old.dismiss(REPLACED, "replaced by a newer connection of the same end")
        end.meet(peer)
        end.hint(ALONE if peer is None else PRESENT)
        if peer is not None:
            peer.meet(end)
            peer.hint(ATTACHED)

    def detach(self, role: Role, end: End) -> None:
        """Forget the socket of a role if it is still this one, and tell the other end that it is alone."""
        if self.ends.get(role) is not end:
            return
        del self.ends[role]
        peer = self.ends.get(OTHER[role])
        if peer is not None:
            peer.meet(None)
            peer.hint(ALONE)

    def warn(self) -> None:
        """Tell both ends that someone else tried to join."""
        for end in self.ends.values():
            end.hint(THIRD_PARTY)


class Channels:
    """All channels of a relay that are neither finished nor expired, and the memory of the finished ones.

    Args:
        limits: of the relay.
        salt: random bytes of this start, for the names of channels in the log.
    """

    def __init__(self, limits: Limits, salt: bytes) -> None:
        self._limits = limits
        self._salt = salt
        self._open: dict[bytes, Channel] = {}
        self._of_key: dict[bytes, set[bytes]] = {}
        self._finished: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def full(self) -> bool:
        """Whether there is room for no channel more."""
        return len(self._open) >= self._limits.channels

    def name(self, channel: bytes) -> str:
        """What stands for a channel in the log: it leads from one line to another, and to no channel."""
        return hashlib.sha256(self._salt + channel).hexdigest()[:8]

    def open(self, channel: bytes, key_id: bytes, not_after: int, now: float, *, per_key: int) -> Channel:
        """Note a new channel.

        Raises:
            Refusal: the key or the relay has no room for it.
        """
        if len(self._of_key.get(key_id, ())) >= per_key:
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                "AF956",
                "channels-per-key",
                f"This key has {per_key} open channels, its limit; finish some, or let them expire.",
                retry_after=30,
            )
        if self.full():
            raise full()
        return self._note(channel, key_id, not_after, now)

    def find(self, capability: Capability, now: float) -> Channel:
        """The channel of a valid capability; one that a relay before this one opened is noted now.

        Raises:
            Refusal: it is finished, or the relay is full.
        """
        if capability.channel in self._finished:
            raise Refusal(
                HTTPStatus.GONE,
                "AF955",
                "finished",
                "This channel is finished and never used again; open a new one for a new stream.",
            )
        found = self._open.get(capability.channel)
        if found is None and self.full():
            raise full()
        return found or self._note(capability.channel, capability.key_id, capability.not_after, now)

    def finish(self, channel: Channel) -> bool:
        """End a channel for good; its sockets may stay until they have what is in flight. False if it was over."""
        if self._open.pop(channel.id, None) is None:
            return False
        self._release(channel)
        self._finished[channel.id] = channel.not_after
        if len(self._finished) > self._limits.tombstones:
            self._finished.popitem(last=False)
        return True

    def expire(self, now: float) -> list[Channel]:
        """Forget expired channels but those with both ends attached; returns the ones with one end still waiting."""
        over = [channel for channel in self._open.values() if channel.not_after < now and len(channel.ends) < 2]
        for channel in over:
            del self._open[channel.id]
            self._release(channel)
        for channel_id in [name for name, not_after in self._finished.items() if not_after < now]:
            del self._finished[channel_id]
        return [channel for channel in over if channel.ends]

    def _note(self, channel: bytes, key_id: bytes, not_after: int, now: float) -> Channel:
        bucket = Bucket(self._limits.bytes_per_second, self._limits.burst, now)
        made = Channel(channel, key_id, not_after, self.name(channel), bucket)
        self._open[channel] = made
        self._of_key.setdefault(key_id, set()).add(channel)
        return made

    def _release(self, channel: Channel) -> None:
        ids = self._of_key.get(channel.key_id)
        if ids is not None:
            ids.discard(channel.id)
            if not ids:
                del self._of_key[channel.key_id]
