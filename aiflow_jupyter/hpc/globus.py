"""Globus Compute as what starts the worker; the SDK is the extra `globus` and is imported when first used.

What is registered with the service is source text of three lines, so that the notebook's Python need not be the
cluster's. The SDK's own throttle (4 calls in 16 s, then seconds of delay for each) is set to its widest.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Final

from aiflow_jupyter.hpc import worker
from aiflow_jupyter.hpc.errors import HpcError

INSTALL: Final = 'pip install "aiflow-jupyter[globus]"'
LOGIN: Final = "Run `%aiflow login`, or set GLOBUS_COMPUTE_CLIENT_ID and GLOBUS_COMPUTE_CLIENT_SECRET."
NAME: Final = "aiflow_worker"
SOURCE: Final = f"""def {NAME}(argument):
    from aiflow_jupyter.hpc.worker import run
    return run(argument)
"""
BURST: Final = {"api_burst_limit": 8, "api_burst_window_s": 1}


class GlobusExecutor(Executor):
    """Starts workers on one Globus Compute endpoint. Its futures can't be cancelled once the service has the task.

    Args:
        sdk: makes the SDK's executor; made again after a failure that closed it.
    """

    def __init__(self, sdk: Callable[[], Any]) -> None:
        self._make = sdk
        self._lock = threading.Lock()
        self._sdk: Any = None
        self._function: str | None = None
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start the worker with the argument `args[0]`; `fn` is `worker.run`, which the cluster has as its own.

        Raises:
            HpcError: the service can't be reached or refuses; the message says why.
        """
        if fn is not worker.run or len(args) != 1 or kwargs:
            raise HpcError("a Globus Compute worker runs `worker.run` and nothing else", code="AF991")
        with self._lock:
            if self._closed:
                raise HpcError("the executor is closed", code="AF996")
            try:
                if self._sdk is None:
                    self._sdk = self._make()
                if self._function is None:
                    self._function = str(self._sdk.register_source_code(SOURCE, NAME))
                future: Future[Any] = self._sdk.submit_to_registered_function(self._function, args=args)
            except HpcError:
                raise
            except Exception as error:
                # The SDK closes its executor on most failures; the next task gets a new one.
                broken, self._sdk, self._function = self._sdk, None, None
                if broken is not None:
                    broken.shutdown(wait=False, cancel_futures=True)
                raise _refused(error) from error
            return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Leave the service; tasks that it has go on by themselves, and find that nobody waits for them."""
        with self._lock:
            self._closed = True
            sdk, self._sdk = self._sdk, None
        if sdk is not None:
            sdk.shutdown(wait=False, cancel_futures=True)


def globus_executor(endpoint: str | uuid.UUID, *, amqp_port: int | None = 443) -> GlobusExecutor:
    """What starts workers on a Globus Compute endpoint.

    Args:
        endpoint: its identifier.
        amqp_port: of the results' way back; 443 passes most firewalls, 5671 is the service's default.

    Raises:
        HpcError: the SDK is not installed, that is no identifier, or nobody is logged in.
    """
    try:
        identifier = uuid.UUID(str(endpoint))
    except ValueError:
        raise HpcError(
            f"{str(endpoint)[:60]!r} is no endpoint's identifier",
            code="AF993",
            hint="It looks like 4b116d3c-1703-4f8f-9f6f-39921e5864df; `globus-compute-endpoint list` shows it.",
        ) from None
    sdk = _sdk()
    _logged_in(sdk)
    return GlobusExecutor(
        lambda: sdk.Executor(endpoint_id=identifier, client=_client(sdk), amqp_port=amqp_port, **BURST)
    )


def login() -> None:
    """Log in to Globus, asking for a code where that takes one; later calls find it done.

    Raises:
        HpcError: the SDK is not installed, or the login failed.
    """
    app = _app(_sdk())
    try:
        if app.login_required():
            app.login()
    except Exception as error:
        raise HpcError(f"the login at Globus failed ({_words(error)})", code="AF994", hint="Try again.") from error


def _sdk() -> Any:
    try:
        import globus_compute_sdk  # noqa: PLC0415
    except ImportError:
        raise HpcError("Globus Compute's SDK is not installed", code="AF992", hint=INSTALL) from None
    return globus_compute_sdk


def _app(sdk: Any) -> Any:
    from globus_compute_sdk.sdk.auth.globus_app import (  # noqa: PLC0415
        get_globus_app,
    )

    try:
        app = get_globus_app()
        sdk.Client(app=app, do_version_check=False)  # names the scopes that a login has to cover
    except Exception as error:
        raise HpcError(f"Globus can't be set up ({_words(error)})", code="AF994", hint=LOGIN) from error
    return app


def _client(sdk: Any) -> Any:
    return sdk.Client(app=_app(sdk))


def _logged_in(sdk: Any) -> None:
    # Asked first, as the SDK would else wait for somebody to type a code, in a thread that nobody sees.
    app = _app(sdk)
    if hasattr(app, "login_required") and type(app).__name__ != "ClientApp" and app.login_required():
        raise HpcError("nobody is logged in to Globus on this machine", code="AF994", hint=LOGIN)


def _refused(error: Exception) -> HpcError:
    status = getattr(error, "http_status", None)
    words = _words(error)
    if status in {401, 403}:
        return HpcError(f"Globus Compute does not let you use this endpoint ({words})", code="AF994", hint=LOGIN)
    if status == 404:
        hint = "Compare the identifier with `globus-compute-endpoint list` on the cluster."
        return HpcError(f"Globus Compute does not know the endpoint ({words})", code="AF993", hint=hint)
    if status == 429:
        return HpcError(
            f"Globus Compute has had too many requests ({words})", code="AF995", hint="Wait a minute and run it again."
        )
    return HpcError(
        f"Globus Compute did not take the job ({words})", code="AF995", hint="Is the service reachable from here?"
    )


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
