"""What every provider's HTTP takes: the environment's proxies and certificates, bounded bodies, why TLS failed."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.request import getproxies

from aiflow_jupyter.errors import ConfigError, ProviderError

if TYPE_CHECKING:
    import httpx

LARGEST: Final = 16 * 1024 * 1024
"""Bytes of an answer that is no stream: the tokens of a text of a million, and more models than anybody has."""


@contextmanager
def environment() -> Iterator[None]:
    """Have a client be made within: a variable that it can't use is one error that names it.

    Raises:
        ConfigError: a variable names no proxy, or no certificates; what it holds is not shown, as it may be a password.
    """
    import httpx  # noqa: PLC0415 - loaded by the first provider, not by the first import

    try:
        yield
    except OSError:  # of TLS, too
        name = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)), "SSL_CERT_FILE")
        what, hint = "certificates that can be read", "It names a PEM file of certificates: mend it, or unset it."
    except (ValueError, ImportError, httpx.InvalidURL):
        name = _proxy_variable()
        what = "proxy that can be used"
        hint = "A proxy is http://host:port (socks5:// needs the package socksio): mend it, or unset it."
    else:
        return
    raise ConfigError(f"the environment variable {name} names no {what}", code="AF716", hint=hint)


def _proxy_variable() -> str:
    """The variable that names no proxy."""
    import httpx  # noqa: PLC0415

    for scheme, value in getproxies().items():
        if scheme not in ("http", "https", "all") or not value:
            continue
        try:
            httpx.HTTPTransport(proxy=value if "://" in value else f"http://{value}", verify=False).close()
        except (ValueError, ImportError, httpx.InvalidURL):
            name = f"{scheme}_proxy"
            return name if os.environ.get(name) else name.upper()
    return "no_proxy" if os.environ.get("no_proxy") else "NO_PROXY"


async def whole(response: httpx.Response, name: str, limit: int = LARGEST) -> bytes:
    """The body of a response.

    Raises:
        ProviderError: it has more bytes than `limit`.
    """
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > limit:
            raise ProviderError(
                f"{name} sent an answer of more than {limit:,} bytes", code="AF708", hint="Is it a model server?"
            )
    return bytes(body)


def parsed(body: bytes) -> Any:
    """JSON.

    Raises:
        ValueError: it is none, or nested too deeply to be read.
    """
    try:
        return json.loads(body)
    except RecursionError:
        pass
    raise ValueError("nested too deeply")


def of_tls(error: BaseException) -> tuple[str, str]:
    """Why there is no TLS, and what to do about it; empty where something else has failed."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        named = "SSL_CERT_FILE names" if os.environ.get("SSL_CERT_FILE") else "SSL_CERT_FILE can name"
        return (
            f"its certificate is not trusted: {cause.verify_message}",
            f"{named} the file of certificates to trust: that of who signed this one belongs into it.",
        )
    if cause is not None:
        return "it does not speak TLS there", "Is it http:// instead of https://, or another port?"
    return "", ""
