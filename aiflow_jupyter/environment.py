"""The environment's proxies and certificates, as every HTTP client reads them: a variable that is no use is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiflow_jupyter.errors import ConfigError

UNUSABLE: Final = "AF716"


@contextmanager
def usable_environment() -> Iterator[None]:
    """Have a client be made within: a variable that it can't use is one error that names it.

    Raises:
        ConfigError: a variable names no proxy, or no certificates; what it holds is not shown, as it may be a password.
    """
    import httpx  # noqa: PLC0415 - loaded by the first client, not by the first import

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
    raise ConfigError(f"the environment variable {name} names no {what}", code=UNUSABLE, hint=hint)


def _proxy_variable() -> str:
    """The variable that names no proxy."""
    from urllib.request import getproxies  # noqa: PLC0415

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
