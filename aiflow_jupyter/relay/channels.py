"""The channels a relay knows: who is at each end, who may come back, and which are over.

```
            first join of the role                 the socket is lost
   EMPTY ─────────────────────────▶ ATTACHED ─────────────────────────▶ AWAITED
  (of a role)                        ▲   │ same join token: replaces       │
                                     │   └──────────── (close 4009)        │ same join token
                                     └─────────────────────────────────────┘
   another join token for ATTACHED or AWAITED: refused with 409, both ends get HINT 3
   an end closes with 4001: the channel is FINISHED, the other end is closed with 4010
   both roles AWAITED for `abandon_timeout`: the channel is FINISHED
   not_after, but not while both are ATTACHED: the channel is forgotten, an end that is there is closed with 4012
```

Every join of a finished channel gets 410 until `not_after`. A channel with a role that nobody has taken yet is not
given up: its job may stand in a queue for hours, and the other end may sleep meanwhile.

Nothing here does I/O, and nothing holds a frame. A channel that is unknown, because the relay was restarted, is known
again by the first join with a valid capability.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import OrderedDict
from http import HTTPStatus
from typing import Any, Protocol

from aiflow_jupyter.relay.capability import Capability
from aiflow_jupyter.relay.frames import Hint
from aiflow_jupyter.relay.joining import Close, Role
from aiflow_jupyter.relay.limits import Bucket, Limits
from aiflow_jupyter.relay.request import Refusal

OTHER: dict[Role, Role] = {"producer": "consumer", "consumer": "producer"}
SWEEP = 5.0
"""Seconds between two calls of `Channels.expire`, at most."""


def full() -> Refusal:
    """A refusal for want of room."""
    message = "The relay is full; try again later, or use another relay."
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "AF958", "full", message, retry_after=30)


class End(Protocol):
    """One end's socket, as far as its channel needs it."""

    def hint(self, code: Hint) -> None:
        """Send a HINT."""

    def meet(self, peer: Any) -> None:
        """From now on forward to `peer`, or drop."""

    def dismiss(self, code: int, reason: str) -> None:
        """Close the socket."""


class Channel:
    """One channel: its two ends, the hashes of their join tokens, and when an end last left."""

    __slots__ = ("bucket", "ends", "id", "key_id", "left", "name", "not_after", "tokens")

    def __init__(self, channel: bytes, key_id: bytes, not_after: int, name: str, bucket: Bucket) -> None:
        self.id = channel
        self.key_id = key_id
        self.not_after = not_after
        self.name = name
        self.bucket = bucket
        self.ends: dict[Role, End] = {}
        self.tokens: dict[Role, bytes] = {}
        self.left = 0.0

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
            old.dismiss(Close.SUPERSEDED, "replaced by a newer connection of the same end")
        end.meet(peer)
        end.hint(Hint.ALONE if peer is None else Hint.PRESENT)
        if peer is not None:
            peer.meet(end)
            peer.hint(Hint.ATTACHED)

    def detach(self, role: Role, end: End, now: float) -> None:
        """Forget the socket of a role if it is still this one, and tell the other end that it is alone."""
        if self.ends.get(role) is not end:
            return
        del self.ends[role]
        self.left = now
        peer = self.ends.get(OTHER[role])
        if peer is not None:
            peer.meet(None)
            peer.hint(Hint.ALONE)

    def warn(self) -> None:
        """Tell both ends that someone else tried to join."""
        for end in self.ends.values():
            end.hint(Hint.CROWDED)

    def left_to(self, wall: float, now: float, patience: float) -> float:
        """Seconds that the channel has left if nobody comes or leaves; negative once it is over.

        Args:
            wall: Unix time.
            now: the time by the clock of `detach`.
            patience: for how long both ends may be away.
        """
        if len(self.ends) == len(OTHER):
            return math.inf
        left = self.not_after - wall
        abandoned = len(self.tokens) == len(OTHER) and not self.ends
        return min(left, self.left + patience - now) if abandoned else left


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

    def open(self, channel: bytes, key_id: bytes, not_after: int, wall: float, now: float, *, per_key: int) -> Channel:
        """Note a new channel.

        Raises:
            Refusal: the key or the relay has no room for it.
        """
        if len(self._of_key.get(key_id, ())) >= per_key:
            raise self._key_is_full(key_id, wall, now)
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

    def finish(self, channel: Channel, role: Role) -> bool:
        """End a channel for good as its end of `role` did, and close the other end. False if it was over."""
        peer = channel.ends.get(OTHER[role])
        if peer is not None:
            peer.dismiss(Close.GONE, "the other end finished the channel")
        if channel.id not in self._open:
            return False
        self._bury(channel)
        return True

    def expire(self, wall: float, now: float) -> list[Channel]:
        """Forget channels that have expired, close who waits there, and finish and return those that are abandoned.

        Args:
            wall: Unix time.
            now: the time by the clock of `Channel.detach`.
        """
        abandoned: list[Channel] = []
        for channel in list(self._open.values()):
            if channel.left_to(wall, now, self._limits.abandon_timeout) >= 0:
                continue
            if channel.not_after >= wall:
                self._bury(channel)
                abandoned.append(channel)
                continue
            self._release(channel)
            for end in list(channel.ends.values()):
                end.dismiss(Close.EXPIRED, "the channel expired before the other end came")
        for channel_id in [name for name, not_after in self._finished.items() if not_after < wall]:
            del self._finished[channel_id]
        return abandoned

    def _key_is_full(self, key_id: bytes, wall: float, now: float) -> Refusal:
        """A refusal that says when there is room again, as far as that can be known."""
        ids = self._of_key.get(key_id, set())
        patience = self._limits.abandon_timeout
        left = min((self._open[name].left_to(wall, now, patience) for name in ids), default=math.inf)
        message = f"This key has {len(ids)} open channels, its limit; finish some."
        wait = None
        if left < math.inf:
            wait = math.ceil(max(left, 0.0) + SWEEP)
            message += f" The next one that nobody comes back to is freed in {wait} s."
        return Refusal(HTTPStatus.TOO_MANY_REQUESTS, "AF956", "channels-per-key", message, retry_after=wait)

    def _note(self, channel: bytes, key_id: bytes, not_after: int, now: float) -> Channel:
        bucket = Bucket(self._limits.bytes_per_second, self._limits.burst, now)
        made = Channel(channel, key_id, not_after, self.name(channel), bucket)
        self._open[channel] = made
        self._of_key.setdefault(key_id, set()).add(channel)
        return made

    def _bury(self, channel: Channel) -> None:
        self._release(channel)
        self._finished[channel.id] = channel.not_after
        if len(self._finished) > self._limits.tombstones:
            self._finished.popitem(last=False)

    def _release(self, channel: Channel) -> None:
        del self._open[channel.id]
        ids = self._of_key.get(channel.key_id)
        if ids is not None:
            ids.discard(channel.id)
            if not ids:
                del self._of_key[channel.key_id]
