"""The relay's HTTP, without I/O: one request per connection, read strictly, answered with JSON.

The relay's own surface is five paths, so this reads the little of RFC 9112 that they need and refuses everything that
two readers could understand differently: a bare line feed, folded lines, a second `Host`, `Content-Length` or
`Authorization`, any transfer coding, bytes after the request.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"/[\x21-\x7e]*")
_LENGTH = re.compile(r"[0-9]{1,9}")
_ONCE = (
    "aiflow-join",
    "authorization",
    "content-length",
    "host",
    "sec-websocket-key",
    "sec-websocket-version",
)
_HEADERS_AT_MOST = 64


class Refusal(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        code: the stable code in the answer.
        reason: one word for the metrics and the log.
        message: what is wrong and what to do, for whoever runs the other side.
        retry_after: seconds, for 429 and 503.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        reason: str,
        message: str,
        *,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason
        self.message = message
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, int(retry_after + 0.999)))

    def response(self) -> bytes:
        """The answer."""
        return json_response(self.status, {"error": {"code": self.code, "message": self.message}}, self.headers)


@dataclass(frozen=True, slots=True)
class Head:
    """The request line and the headers, their names in lower case."""

    method: str
    path: str
    version: str
    headers: dict[str, list[str]] = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """All values of a header, joined by commas; None when there is none."""
        values = self.headers.get(name)
        return None if values is None else ", ".join(values)

    def bearer(self) -> str | None:
        """The token of `Authorization: Bearer`."""
        scheme, _, token = (self.get("authorization") or "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" and token.strip() else None

    def upgrades(self) -> bool:
        """Whether the request asks for a WebSocket."""
        return "websocket" in (self.get("upgrade") or "").lower()

    def content_length(self) -> int:
        """Length of the body; 0 when it has none.

        Raises:
            Refusal: it is not a number.
        """
        text = self.get("content-length")
        if text is None:
            return 0
        if not _LENGTH.fullmatch(text):
            raise bad_request("Content-Length is not a number.")
        return int(text)


def parse_head(raw: bytes) -> Head:
    """Parse a request line and headers, up to and including the empty line.

    Raises:
        Refusal: it is not a request that has exactly one meaning.
    """
    first, *lines = raw[:-4].split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not parts[2].startswith(b"HTTP/"):
        raise bad_request("This is not an HTTP/1.1 request; a relay's address starts with https:// or http://.")
    if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "AF964", "http-version", "The relay speaks HTTP/1.1 only.")
    if not _TARGET.fullmatch(parts[1]):
        raise bad_request("The request's target is not a path.")
    if len(lines) > _HEADERS_AT_MOST:
        raise head_too_large()
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise bad_request("A header line is malformed.")
        headers.setdefault(name.decode("ascii").lower(), []).append(value.decode("latin-1").strip(" \t"))
    if any(len(headers.get(name, ())) > 1 for name in _ONCE):
        raise bad_request("A header that may stand once stands twice.")
    if "transfer-encoding" in headers:
        raise bad_request("Transfer codings are not accepted; send a Content-Length.")
    if parts[2] == b"HTTP/1.1" and "host" not in headers:
        raise bad_request("The Host header is missing.")
    return Head(parts[0].decode("ascii"), parts[1].decode("ascii"), parts[2].decode("ascii"), headers)


def bad_request(message: str) -> Refusal:
    """A refusal of a request that makes no sense."""
    return Refusal(HTTPStatus.BAD_REQUEST, "AF963", "bad-request", message)


def head_too_large() -> Refusal:
    """A refusal of headers over the limit."""
    return Refusal(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "AF965", "head-size", "The request's headers are too large."
    )


def json_response(status: HTTPStatus, body: Any, headers: dict[str, str] | None = None) -> bytes:
    """A JSON answer after which the connection closes."""
    return _response(status, json.dumps(body).encode(), "application/json", headers)


def text_response(body: str) -> bytes:
    """A text answer, for Prometheus."""
    return _response(HTTPStatus.OK, body.encode(), "text/plain; version=0.0.4; charset=utf-8", None)


def _response(status: HTTPStatus, body: bytes, kind: str, headers: dict[str, str] | None) -> bytes:
    rows = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return "\r\n".join(rows).encode("ascii") + b"\r\n\r\n" + body
