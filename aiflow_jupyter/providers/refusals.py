"""What went wrong with a request before its answer began, as one sentence that says what to do.

| code | what it means |
|---|---|
| AF701 | nothing answers at the address |
| AF703 | the key was refused |
| AF704 | no such path or model |
| AF705 | too many requests |
| AF706 | the request itself was refused (too long, an unknown field) |
| AF707 | the server failed |
| AF708 | the answer is no event stream |
| AF709 | the server took too long |

Nothing of a request's headers gets into a message. What a server says back is decoded, then redacted, then cut.
"""

from __future__ import annotations

import json
import math
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

from aiflow_jupyter.errors import ProviderError
from aiflow_jupyter.providers.network import may_be_read, of_tls
from aiflow_jupyter.providers.secret import Redaction, one_line

_STREAMED: Final = ("data:", "event:", "id:", "retry:", ":")
_TOO_LONG: Final = ("exceed_context", "context_length", "context length", "context size", "maximum context")


def refused(
    name: str,
    url: str,
    status: int,
    body: str,
    *,
    redact: Redaction | None = None,
    retry_after: str = "",
    keyed: bool = False,
) -> ProviderError:
    """The error for an HTTP answer that is no stream.

    Args:
        name: the provider's name.
        url: where it was asked, without credentials.
        status: the HTTP status.
        body: what the server said.
        redact: masks the key in it.
        retry_after: the header of that name, if there was one.
        keyed: whether a key was sent.
    """
    said = _said(body, redact)
    where = f"{name} at {url}"
    seconds = seconds_of(retry_after)
    code, what, hint = "AF706", f"{where} refused the request", "Check the model's name and the options."
    if status in (401, 403):
        code, what = "AF703", f"{where} refused the key" if keyed else f"{where} wants a key"
        hint = "Check that the key belongs to this service and may use this model." if keyed else "Set a key for it."
    elif status == 404:
        code, what = "AF704", f"{where} knows no such model or path"
        hint = "Check the model's name, and that the address ends where the API begins (often /v1)."
    elif status == 429:
        code, what = "AF705", f"{where} has had too many requests"
        wait = f"Wait {seconds:.0f} s" if seconds is not None else "Wait a little"
        hint = f"{wait} and run it again, or look at the account's limits."
    elif status >= 500:
        code, what = "AF707", f"{where} failed"
        hint = "The fault is on the server's side: wait and run it again, or look at its log."
    elif 300 <= status < 400:
        code, what = "AF704", f"{where} redirects elsewhere"
        hint = "Use the address that it redirects to: a key is never sent along to another one."
    elif any(sign in body.lower() for sign in _TOO_LONG):
        what = f"the request is too long for {where}"
        hint = "Shorten the conversation, or ask a model with a larger window."
    phrase = f"HTTP {status} {_phrase(status)}".rstrip()
    error = ProviderError(
        f"{what} ({phrase})" + (f": {said}" if said else ""),
        code=code,
        hint=hint,
        unread=True,
        of_request=code in {"AF704", "AF706"},
    )
    error.retry_after = seconds
    return error


def no_stream(name: str, url: str, content_type: str, body: str, redact: Redaction | None = None) -> ProviderError:
    """The error for an answer of 200 that is no event stream."""
    said = _said(body, redact)
    return ProviderError(
        f"{name} at {url} answered with {_kind(content_type, redact)} instead of an event stream"
        + (f": {said}" if said else ""),
        code="AF708",
        hint="Is the address that of an OpenAI-compatible API (often it ends in /v1)? A proxy or login page may be in "
        "between.",
        unread=content_type.partition(";")[0].strip().lower() == "text/html",  # no model writes pages
    )


def no_json(name: str, url: str, content_type: str, redact: Redaction | None = None) -> ProviderError:
    """The error for an answer of 200 that is to be JSON, and is not."""
    return ProviderError(
        f"{name} at {url} answered with {_kind(content_type, redact)} instead of JSON that can be read", code="AF708"
    )


def no_models(name: str, url: str) -> ProviderError:
    """The error for JSON that is to be a list of models, and is not."""
    return ProviderError(
        f"{name} at {url} has no list of models: is the address that of its API (often it ends in /v1)?", code="AF708"
    )


def unreachable(
    name: str, url: str, error: Exception, *, loopback: bool, why: str = "", redact: Redaction | None = None
) -> ProviderError:
    """The error for a connection that could not be made or broke before the answer began.

    Args:
        name: the provider's name.
        url: where it was asked, without credentials.
        error: what the connection failed of.
        loopback: whether that is on this machine.
        why: the reason, where it is known better than from the error.
        redact: masks the key.
    """
    untrusted, hint = of_tls(error)
    if untrusted:
        return ProviderError(f"no TLS with {name} at {url}: {untrusted}", code="AF701", hint=hint, unread=True)
    hint = (
        "Is the server running, and is this its port?" if loopback else "Check the address, the network and the proxy."
    )
    why = why or one_line(str(error), redact)
    return ProviderError(
        f"nothing answers for {name} at {url}" + (f" ({why})" if why else ""),
        code="AF701",
        hint=hint,
        unread=not may_be_read(error),
    )


def too_slow(name: str, url: str, seconds: float) -> ProviderError:
    """The error for a server that took the request and then said nothing for `seconds`."""
    return ProviderError(
        f"{name} at {url} said nothing for {seconds:g} s",
        code="AF709",
        hint="The model may still be loading or the server busy: run it again, or give it a longer read timeout.",
    )


def seconds_of(retry_after: str) -> float | None:
    """How long to wait, as `Retry-After` says it (RFC 9110, section 10.2.3): in seconds, or until a date."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _kind(content_type: str, redact: Redaction | None) -> str:
    return one_line(content_type, redact, 100) or "no content type"


def _said(body: str, redact: Redaction | None) -> str:
    """The server's own sentence, in one short line; empty where there is none worth reading."""
    text = body.strip()
    if text.startswith("<"):
        return "a web page, not an API's answer"
    if text.startswith(_STREAMED):
        return ""  # an answer, in whatever form: not to be read in an error
    try:
        said = json.loads(text)
        while isinstance(said, dict):
            said = next((said[key] for key in ("error", "message", "detail") if said.get(key)), "")
        said = str(said)
    except (ValueError, RecursionError):  # no JSON, or none that a sentence is in
        said = text
    return one_line(said, redact)
