"""Whether what an answer from the cluster takes is there: packages, keys, model server, relay. No secret is shown.

Each check gives one finding, and none takes longer than `PATIENCE` seconds. Importing this module takes nothing but the
standard library: it has to say which packages are missing.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiflow_jupyter.environment import usable_environment
from aiflow_jupyter.errors import AiflowError, plain
from aiflow_jupyter.hpc.findings import Finding

if TYPE_CHECKING:
    from aiflow_jupyter.hpc.modelserver import Server

NEEDS: Final = ("websockets>=15", "cryptography>=47", "httpx>=0.27,<1", "msgpack>=1")
_QUOTED: Final = " ".join(f"'{need}'" for need in NEEDS)
PATIENCE: Final = 5.0


def install(python: str = "python3") -> str:
    """The command that installs the packages for a Python."""
    return f"{python} -m pip install {_QUOTED}"


def lacking() -> list[str]:
    """The requirements that are not met here."""
    return [need for need in NEEDS if not _met(need)]


def packages() -> Iterator[Finding]:
    """One finding for each package."""
    last = (lacking() or [""])[-1]
    for need in NEEDS:
        name = re.split("[<>=]", need)[0]
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "not installed"
        if _met(need):
            yield Finding(name, found)
        else:
            yield Finding(
                name, f"{found}; needs {need}", wrong=True, mend=install(sys.executable) if need == last else ""
            )


def private_file(what: str, path: Path, mend: str) -> Finding:
    """A file that only its owner may read, by its place and mode; it is not read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return Finding(what, f"{path}: {error.strerror}", wrong=True, mend=mend)
    if os.name == "posix" and mode & 0o077:
        return Finding(what, f"{path}, mode {mode:04o}: others may read it", wrong=True, mend=f"chmod 600 {path}")
    if not os.access(path, os.R_OK):
        return Finding(what, f"{path}, mode {mode:04o}: not readable", wrong=True, mend=f"chmod 600 {path}")
    return Finding(what, f"{path}, mode {mode:04o}")


async def model_server(server: Server) -> Finding:
    """Whether the model server answers, and what it serves first."""
    import httpx  # noqa: PLC0415

    what = "model server"
    mend = "Look at the log of the job that starts it. It may still be loading its model."
    try:
        async with asyncio.timeout(PATIENCE), server.client() as client:
            address = f"{client.base_url}models"
            response = await client.get("models")
    except AiflowError as error:
        return Finding(what, error.message, wrong=True, mend=error.hint)
    except (httpx.HTTPError, TimeoutError, OSError) as error:
        return Finding(what, f"{server.place}: {_why(error)}", wrong=True, mend=mend)
    if response.status_code in {401, 403}:
        return Finding(what, f"{address}: refuses the key (HTTP {response.status_code})", wrong=True, mend=server.named)
    if response.status_code != httpx.codes.OK:
        return Finding(what, f"{address}: HTTP {response.status_code}", wrong=True, mend=mend)
    try:
        names = [str(model["id"]) for model in response.json()["data"]]
    except (ValueError, LookupError, TypeError):
        return Finding(
            what, f"{address}: that is no list of models", wrong=True, mend="Is it an OpenAI-compatible API?"
        )
    return Finding(what, plain(f"{address}: {names[0]}" if names else f"{address}: no model yet"))


async def relay(url: str, *, allow_plain: bool = False) -> Finding:
    """Whether a relay can be reached and takes streams."""
    import httpx  # noqa: PLC0415

    from aiflow_jupyter.relay.link import address, loopback, trusted  # noqa: PLC0415

    try:
        parts = address(url, allow_plain=allow_plain)
        verify = trusted() if parts.scheme == "https" else False
        near = loopback(parts.hostname or "")
        with usable_environment():
            made = httpx.AsyncClient(verify=verify, trust_env=not near)
        async with asyncio.timeout(PATIENCE), made as client:
            response = await client.get(f"{parts.geturl()}/readyz")
    except AiflowError as error:
        return Finding("relay", error.message, wrong=True, mend=error.hint)
    except (httpx.HTTPError, TimeoutError, OSError, ValueError) as error:
        mend = "Is the address right, and does a firewall let it out? A proxy is named by HTTPS_PROXY."
        return Finding("relay", f"{url} could not be reached ({_why(error)})", wrong=True, mend=mend)
    try:
        said = response.json()
        if response.status_code == httpx.codes.OK and said["status"] == "ready":
            return Finding("relay", f"{url} is ready")
        words = plain(str(said["error"]["message"]))[:200]
    except (ValueError, LookupError, TypeError):
        mend = "Is that a relay's address? Or does a proxy or a login stand in front of it?"
        return Finding("relay", f"{url}: HTTP {response.status_code}, and not a relay's answer", wrong=True, mend=mend)
    return Finding("relay", f"{url}: {words}", wrong=True, mend="Ask its operator.")


def _why(error: BaseException) -> str:
    from aiflow_jupyter.relay.reasons import why  # noqa: PLC0415

    return f"no answer within {PATIENCE:g} s" if isinstance(error, TimeoutError) else why(error)


def _met(need: str) -> bool:
    name, *bounds = re.split(r"(?=[<>])|,", need)
    try:
        found = _number(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False
    return all(
        found >= _number(bound[2:]) if bound.startswith(">=") else found < _number(bound[1:])
        for bound in bounds
        if bound
    )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
