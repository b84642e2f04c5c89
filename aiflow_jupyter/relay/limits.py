"""What one relay, one key, one channel and one source address may use; every bound of the relay is a field here.

A relay is on the open internet and forwards for strangers to each other, so nothing in it may grow with what a client
sends. `RateWindow` counts attempts and `Bucket` measures bytes; both take the time as an argument and keep a bounded
amount of state.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

from aiflow_jupyter.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a relay; sizes in bytes, times in seconds.

    Attributes:
        message: the largest WebSocket message; a larger one closes its socket with 1009.
        fragments: the most WebSocket frames one message may come in.
        head: the largest HTTP request line and headers together.
        body: the largest body of a POST.
        channels: channels of the whole relay that are neither finished nor expired.
        channels_per_key: the same for one personal key, unless the key has its own limit.
        channels_per_minute: POSTs of one key in a minute.
        joins_per_minute: joins with one key's capabilities in a minute, unless the key has its own limit.
        joins_per_minute_channel: joins of one channel in a minute, refused ones included.
        joins_per_minute_source: joins and POSTs from one address in a minute, refused ones included.
        refusals_per_minute_source: joins and POSTs from one address that were refused; guessing ends here.
        sockets: open sockets of the whole relay, in whatever state.
        sockets_per_source: open sockets of one address.
        handshakes: sockets of the whole relay that have not sent a whole request yet.
        handshake_timeout: until the request, and with TLS its handshake, must be complete.
        bytes_per_second: rate of one channel, both directions together; faster senders are read more slowly.
        burst: bytes that may pass before the rate binds.
        buffer: bytes queued for one socket at which its peer is no longer read.
        ping_interval: between two pings to a socket.
        idle_timeout: without a sign of life from a socket that is being read; must exceed `ping_interval`.
        stall_timeout: during which a socket takes nothing of what waits for it.
        close_timeout: for the other side to answer a close.
        lifetime: of a channel when the POST names none.
        max_lifetime: the most that a POST may ask for.
        abandon_timeout: during which both ends, after each has been there, are away, until their channel is finished.
        tombstones: finished channels that are remembered until they would have expired.
        drain: from the announcement that the relay goes away until it closes the sockets.
    """

    message: int = 16 * 1024 + 64
    fragments: int = 64
    head: int = 8 * 1024
    body: int = 1024
    channels: int = 4096
    channels_per_key: int = 256
    channels_per_minute: int = 120
    joins_per_minute: int = 600
    joins_per_minute_channel: int = 240
    joins_per_minute_source: int = 1200
    refusals_per_minute_source: int = 60
    sockets: int = 4096
    sockets_per_source: int = 1024
    handshakes: int = 256
    handshake_timeout: float = 10.0
    bytes_per_second: float = 32 * 2**20
    burst: int = 8 * 2**20
    buffer: int = 256 * 1024
    ping_interval: float = 15.0
    idle_timeout: float = 45.0
    stall_timeout: float = 120.0
    close_timeout: float = 5.0
    lifetime: float = 24 * 3600.0
    max_lifetime: float = 7 * 24 * 3600.0
    abandon_timeout: float = 3600.0
    tombstones: int = 65536
    drain: float = 10.0

    def __post_init__(self) -> None:
        if self.idle_timeout <= self.ping_interval:
            raise ConfigError("a relay's idle timeout must exceed its ping interval", code="AF973")


class RateWindow:
    """Counts events of each name in a sliding minute (two fixed windows, weighted), for at most `names` names."""

    __slots__ = ("_counts", "_names", "_span")

    def __init__(self, *, span: float = 60.0, names: int = 16384) -> None:
        self._span = span
        self._names = names
        self._counts: OrderedDict[object, tuple[int, int, int]] = OrderedDict()

    def wait(self, name: object, limit: int, now: float) -> float:
        """Seconds until one more event of `name` fits below `limit`; 0 when it fits now. Counts nothing."""
        window, share = int(now // self._span), now % self._span / self._span
        before, current = self._read(name, window)
        if before * (1 - share) + current + 1 <= limit:
            return 0.0
        if limit < 1:
            return self._span
        if current + 1 > limit:
            return self._span * (1 - share) + self._span * (1 - (limit - 1) / current)
        return self._span * (1 - (limit - current - 1) / before - share)

    def count(self, name: object, now: float) -> None:
        """Note one event of `name`."""
        window = int(now // self._span)
        before, current = self._read(name, window)
        self._counts[name] = (window, before, current + 1)
        self._counts.move_to_end(name)
        if len(self._counts) > self._names:
            self._counts.popitem(last=False)

    def _read(self, name: object, window: int) -> tuple[int, int]:
        last, before, current = self._counts.get(name, (window, 0, 0))
        if last == window:
            return before, current
        return (current, 0) if last == window - 1 else (0, 0)


class Bucket:
    """A token bucket of bytes: what is over the rate is paid by waiting, never by loss."""

    __slots__ = ("_burst", "_level", "_rate", "_then")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = float(burst)
        self._then = now

    def take(self, size: int, now: float) -> float:
        """Take `size` bytes that have already passed; the seconds to wait before the next ones."""
        level = min(self._burst, self._level + (now - self._then) * self._rate) - size
        self._level, self._then = level, now
        return 0.0 if level >= 0 else -level / self._rate


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def source_of(peer: str, forwarded: str | None, trusted: tuple[Network, ...]) -> str:
    """The address that counts as the source of a connection, as text; an IPv6 source is its /64.

    Args:
        peer: address of the other end of the TCP connection.
        forwarded: all values of `X-Forwarded-For`, joined by commas; believed only when `peer` is a trusted proxy.
        trusted: networks of proxies that append the address they saw.
    """
    hop = _address(peer)
    if hop is None:
        return "unknown"
    chain = [part.strip() for part in forwarded.split(",")] if forwarded else []
    # From the right: each trusted proxy vouches for the address left of its own, and for no other.
    while chain and any(hop in network for network in trusted if network.version == hop.version):
        before = _address(chain.pop())
        if before is None:
            break
        hop = before
    if isinstance(hop, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((hop, 64), strict=False))
    return str(hop)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
