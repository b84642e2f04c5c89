"""What every provider's HTTP takes: whose address it is, bodies of bounded size, any JSON, and why TLS failed."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
from typing import TYPE_CHECKING, Any, Final

from aiflow_jupyter.errors import ProviderError

if TYPE_CHECKING:
    import httpx

LARGEST: Final = 16 * 1024 * 1024
"""Bytes of an answer that is no stream: the tokens of a text of a million, and more models than anybody has."""


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address, as in a URL) is this machine's loopback."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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


def may_be_read(error: Exception) -> bool:
    """Whether a connection broke once the request was on its way: its server may have begun to answer, and charge."""
    import httpx  # noqa: PLC0415 - loaded by then, where a provider uses it

    return isinstance(error, httpx.ReadError | httpx.RemoteProtocolError)


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
