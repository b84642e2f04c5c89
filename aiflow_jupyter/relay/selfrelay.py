"""A relay inside this process, for a researcher who has none: `relay = "self"`."""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import Self

from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.limits import Limits
from aiflow_jupyter.relay.server import RelayServer


class SelfRelay:
    """A relay inside this process, with one key of its own: `async with SelfRelay() as relay:`.

    For a kernel that the cluster can reach. Channels, keys and the secret end with it.

    Args:
        host: address to listen on; see `RelayServer` for one that is not loopback.
        port: 0 for any free one.
        public_host: the name by which the other end reaches this machine; by default `host`, or this machine's name
            when `host` stands for every address.
        limits: of the relay.
        tls: context of a server that ends TLS itself.
        insecure: allow an address that is not loopback without TLS.

    Attributes:
        url: base URL for both ends.
        key: personal key.
        insecure: whether the ends may go to an address that is not loopback without TLS.

    Raises:
        ConfigError: such an address needs TLS.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        public_host: str | None = None,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
    ) -> None:
        self.insecure = insecure
        keys = KeyStore()
        self.key = keys.add("self")
        self.server = RelayServer(keys, host=host, port=port, limits=limits, tls=tls, insecure=insecure)
        everywhere = host in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
        self._name = public_host or (socket.gethostname() if everywhere else None)

    @property
    def url(self) -> str:
        """Base URL for both ends."""
        if self._name is None:
            return self.server.url
        scheme = self.server.url.partition(":")[0]
        name = f"[{self._name}]" if ":" in self._name else self._name
        return f"{scheme}://{name}:{self.server.port}"

    async def __aenter__(self) -> Self:
        await self.server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.close()
