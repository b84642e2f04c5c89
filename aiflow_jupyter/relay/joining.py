"""What a relay and its two ends agree on beside the frames: the subprotocol, the roles, how a socket is closed.

`PROTOCOL.md` has the same as tables. And what counts as this machine, which decides where TLS and proxies are for.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from typing import Literal

from websockets.typing import Subprotocol

SUBPROTOCOL = Subprotocol("aiflow-relay.1")

Role = Literal["producer", "consumer"]


class Close(IntEnum):
    """The codes of a close that RFC 6455 does not have."""

    FINISHED = 4001  # from an end: END was acknowledged, or nothing more will come
    SUPERSEDED = 4009  # its end came back on another socket
    GONE = 4010  # the other end finished the channel
    STALLED = 4011  # it took nothing for too long
    EXPIRED = 4012  # the channel's `not_after` came before the other end


def loopback(host: str) -> bool:
    """Whether a host is this machine by its very name or address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
