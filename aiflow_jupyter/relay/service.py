"""A relay as a service: until a signal, and with certificates from files."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import Callable
from pathlib import Path

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.relay.server import RelayServer


async def run(server: RelayServer, started: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal closes at once.

    Args:
        server: not started.
        started: called when it listens.
    """
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[None] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        # An event loop of Windows has no signal handlers; there Ctrl-C cancels this task instead.
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, signals.put_nowait, None)
    await server.start()
    started()
    try:
        await signals.get()
        drain, again = loop.create_task(server.drain()), loop.create_task(signals.get())
        await asyncio.wait((drain, again), return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        drain.cancel()
    finally:
        await server.close()


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's TLS context (1.2 and later) from PEM files.

    Raises:
        ConfigError: they can't be read or don't belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate {certificate} or its key {key} can't be used: {error}", code="AF973"
        ) from None
    return context
