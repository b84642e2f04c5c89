"""Why there is no connection, in words that somebody can act on; and whose certificates are trusted."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress


def why(error: BaseException) -> str:
    """The reason of a connection that failed, whatever library tried it."""
    return next((words for cause in _causes(error) if (words := _words(cause))), type(error).__name__)


def _words(cause: BaseException) -> str:
    """The words for what only one kind of mistake gives; empty for any other."""
    kind = type(cause).__name__
    words = ""
    if isinstance(cause, ssl.SSLCertVerificationError):
        named = os.environ.get("SSL_CERT_FILE")
        said = f"SSL_CERT_FILE is {named}" if named else "SSL_CERT_FILE can name a file with further ones"
        words = f"its certificate is not trusted here: {cause.verify_message}; {said}"
    elif isinstance(cause, ssl.SSLError):
        words = "it does not speak TLS there: http:// instead of https://, or another port?"
    elif isinstance(cause, socket.gaierror):
        words = "its name can't be resolved"
    elif isinstance(cause, ConnectionRefusedError):
        words = "connection refused"
    elif isinstance(cause, TimeoutError) or "Timeout" in kind:
        words = "no answer in time"
    elif kind in {"RemoteProtocolError", "ReadError", "EOFError", "InvalidMessage"}:
        words = "it closed the connection without an answer: https:// instead of http://, or another port?"
    return words


def trusted() -> ssl.SSLContext:
    """What to verify an address with TLS by: the system's certificates and certifi's, or what `SSL_CERT_FILE` names.

    `SSL_CERT_FILE` and `SSL_CERT_DIR` count on loopback too, where a tunnel may end.
    """
    context = ssl.create_default_context()  # OpenSSL reads both variables
    if not os.environ.get("SSL_CERT_FILE"):
        with suppress(ImportError, OSError):
            import certifi  # noqa: PLC0415  # httpx brings it; some systems have no certificates of their own

            context.load_verify_locations(certifi.where())
    return context


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
