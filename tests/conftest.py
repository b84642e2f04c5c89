"""What every test may ask for, and what none may do.

A test that needs a part of the machine (a browser, the model) says so with `require`: it is skipped where the part is
missing, and fails where `AIFLOW_REQUIRE_ALL=1` promises that everything is there. No test reaches beyond this machine.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

REQUIRE_ALL = os.environ.get("AIFLOW_REQUIRE_ALL") == "1"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC_BROWSERS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)

# No test finds an Ollama that happens to run here, and none writes into the user's own file of costs.
os.environ["OLLAMA_HOST"] = "http://127.0.0.1:9"
_costs = tempfile.TemporaryDirectory(prefix="aiflow-tests-")
os.environ["AIFLOW_DATABASE"] = str(Path(_costs.name) / "aiflow.db")

# Servers and kernels that tests start are on loopback, where a proxy has no business.
for _name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[_name]


# Who runs the tests in the background may have them ignore interrupts, and the programs that they start would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Require(Protocol):
    """Skip, or fail where everything is required, unless `found`."""

    def __call__(self, part: str, found: object, how: str) -> None: ...


def require_part(part: str, found: object, how: str) -> None:
    """Skip the test unless `found`; fail it where `AIFLOW_REQUIRE_ALL=1`.

    Args:
        part: what the test needs, as a noun ("a Chromium").
        found: whether it is there.
        how: what brings it ("run `aiflow models fetch`").
    """
    if found:
        return
    (pytest.fail if REQUIRE_ALL else pytest.skip)(f"{part} is missing: {how}")


@pytest.fixture(scope="session")
def require() -> Require:
    return require_part


@pytest.fixture(scope="session")
def model() -> Any:
    """The embedded model that is served where none is named (`aiflow_jupyter.providers.models.Model`)."""
    from aiflow_jupyter.errors import ModelMissing
    from aiflow_jupyter.providers.models import default_model

    require_part("the engine", importlib.util.find_spec("xllamacpp"), "pip install 'aiflow-jupyter[embedded]'")
    try:
        found, how = default_model(), "run `aiflow models fetch`"
    except ModelMissing as error:
        found, how = None, str(error)
    require_part("the model", found, how)
    return found


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Any Chromium or Chrome: the one `CHROMIUM` names, else the first that is found."""
    named = os.environ.get("CHROMIUM")
    candidates = [named] if named else [*map(shutil.which, BROWSERS), *MAC_BROWSERS]
    found = next((path for path in candidates if path and Path(path).is_file()), None)
    require_part("a Chromium", found, "install chromium (or Chrome), or name one in CHROMIUM")
    return Path(str(found))


class OutsideNetworkError(AssertionError):
    """A test tried to reach another machine."""


def is_loopback(host: str) -> bool:
    try:
        return host in ("", "localhost") or ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


@pytest.fixture(scope="session")
def _attempts() -> Iterator[list[str]]:
    """Every connect and look-up of this process that was refused because it left the machine."""
    attempts: list[str] = []
    patch = pytest.MonkeyPatch()

    def refuse(what: str) -> None:
        attempts.append(what)
        raise OutsideNetworkError(f"tests stay on this machine, but this one tried {what}")

    def guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
        def connect_here(self: socket.socket, address: Any) -> Any:
            internet = self.family in (socket.AF_INET, socket.AF_INET6)
            if internet and not is_loopback(str(address[0])):
                refuse(f"to connect to {address[0]}:{address[1]}")
            return connect(self, address)

        return connect_here

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host or ""
        try:
            ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            if not is_loopback(name) and name != socket.gethostname():
                refuse(f"to look up {name}")
        return look_up(host, *args, **kwargs)

    look_up = socket.getaddrinfo
    patch.setattr(socket.socket, "connect", guarded(socket.socket.connect))
    patch.setattr(socket.socket, "connect_ex", guarded(socket.socket.connect_ex))
    patch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield attempts
    patch.undo()


@pytest.fixture(autouse=True)
def no_outside_network(_attempts: list[str]) -> Iterator[list[str]]:
    """Refuse whatever leaves the machine, and fail the test even if the code under test swallowed the refusal."""
    _attempts.clear()
    yield _attempts
    if _attempts:
        pytest.fail("tests stay on this machine, but this one tried " + ", then ".join(_attempts))
