"""Globus Compute as what starts the worker; the SDK is the extra `globus` and is imported when first used.

What is registered with the service is source text of three lines, so that the notebook's Python need not be the
cluster's. The SDK's own throttle (4 calls in 16 s, then seconds of delay for each) is set to its widest.

The SDK takes a task at once and asks the service later, in a thread of its own: what the service refuses ends the
task's future, and the SDK's executor with it. A future of the SDK that was cancelled breaks the thread that brings all
results, and one that stays open keeps the process from ending; hence tasks have futures of ours.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final

from aiflow_jupyter.errors import plain
from aiflow_jupyter.hpc import worker
from aiflow_jupyter.hpc.errors import HpcError, ResultLost

INSTALL: Final = 'pip install "aiflow-jupyter[globus]"'
AGAIN: Final = "Run it again."
LOGIN: Final = (
    "Run `%aiflow login`, in a terminal `aiflow login`, or set GLOBUS_COMPUTE_CLIENT_ID and "
    "GLOBUS_COMPUTE_CLIENT_SECRET."
)
NAME: Final = "aiflow_worker"
SOURCE: Final = f"""def {NAME}(argument):
    from aiflow_jupyter.hpc.worker import run
    return run(argument)
"""
BURST: Final = {"api_burst_limit": 8, "api_burst_window_s": 1}
_WORDS: Final = 500
_FRAMES: Final = re.compile(r"^  File .*\n(?: {4}.*\n)*", re.MULTILINE)  # what a traceback says comes after them
_POLL: Final = 0.2


class GlobusExecutor(Executor):
    """Starts workers on one Globus Compute endpoint.

    The service can't take a task back: a future that is cancelled is only waited for no more.

    Args:
        sdk: makes the SDK's executor; made again after a failure that closed it.
    """

    def __init__(self, sdk: Callable[[], Any]) -> None:
        self._make = sdk
        self._making = threading.Lock()  # held as long as the service takes
        self._lock = threading.Lock()  # held for a moment
        self._made: tuple[Any, str] | None = None  # the SDK's executor, and the worker as it knows it
        self._open: dict[Future[Any], Future[Any]] = {}  # the SDK's future of each of ours
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start the worker with the argument `args[0]`; `fn` is `worker.run`, which the cluster has as its own.

        Raises:
            HpcError: the service can't be reached or refuses; the message says why. The future has the same errors,
                for what is only known later.
        """
        if fn is not worker.run or len(args) != 1 or kwargs:
            raise HpcError("a Globus Compute worker runs `worker.run` and nothing else", code="AF991")
        sdk, function = self._ready()
        try:
            sent: Future[Any] = sdk.submit_to_registered_function(function, args=args)
        except Exception as error:
            self._drop(sdk)
            raise _refused(error) from error
        future: Future[Any] = Future()
        with self._lock:
            self._open[future] = sent
        future.add_done_callback(self._done)
        sent.add_done_callback(partial(self._hand_over, sdk, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Leave the service; tasks that it has go on by themselves, and find that nobody waits for them."""
        with self._lock:
            self._closed = True
            made, waiting = self._made, list(self._open.items())
        if made is not None:
            self._drop(made[0])
        for future, sent in waiting:
            future.cancel()
            if not _forget(sent):
                sent.cancel()  # the SDK may be asking the service right now, and then does not wait for it

    def _ready(self) -> tuple[Any, str]:
        with self._making:
            with self._lock:
                if self._made is not None:
                    return self._made
                if self._closed:
                    raise HpcError("the executor is closed", code="AF996")
            made = self._registered()
            with self._lock:
                if not self._closed:
                    self._made = made
                    return made
        made[0].shutdown(wait=False, cancel_futures=True)
        raise HpcError("the executor is closed", code="AF996")

    def _registered(self) -> tuple[Any, str]:
        sdk = None
        try:
            sdk = self._make()
            return sdk, str(sdk.register_source_code(SOURCE, NAME))
        except HpcError:
            raise
        except Exception as error:
            if sdk is not None:
                sdk.shutdown(wait=False, cancel_futures=True)
            raise _refused(error) from error

    def _drop(self, sdk: Any) -> None:
        """Leave one of the SDK's executors; the next task gets a new one."""
        with self._lock:
            if self._made is not None and self._made[0] is sdk:
                self._made = None
        sdk.shutdown(wait=False, cancel_futures=True)  # without the lock, as futures end in it

    def _hand_over(self, sdk: Any, future: Future[Any], sent: Future[Any]) -> None:
        """Pass on how the SDK's future ended; called in a thread of the SDK."""
        with self._lock:
            self._open.pop(future, None)
        error = None if sent.cancelled() else sent.exception()
        if error is not None and not _taken(sent):
            self._drop(sdk)  # the SDK closes its executor once the service has refused a task
        if not future.set_running_or_notify_cancel():
            return
        if sent.cancelled():
            future.set_exception(
                HpcError(
                    "Globus Compute refused another job before it came to this one",
                    code="AF995",
                    hint=AGAIN,
                    unread=True,
                )
            )
        elif error is None:
            future.set_result(sent.result())
        else:
            future.set_exception(_failed(error) if _taken(sent) else _refused(error))

    def _done(self, future: Future[Any]) -> None:
        with self._lock:
            sent = self._open.pop(future, None)
        if sent is not None:  # it was cancelled; in a thread, as the SDK locks while it asks the service
            threading.Thread(target=_leave, args=(sent,), name="aiflow globus", daemon=True).start()


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


def logged_in() -> None:
    """Check that a login is there; asks for nothing.

    Raises:
        HpcError: the SDK is not installed, or nobody is logged in.
    """
    _logged_in(_sdk())


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
    client = sdk.Client(app=_app(sdk))
    # It warns of another Python on the cluster, which matters to pickled code and not to source text and JSON.
    client._log_version_mismatch = lambda _: None  # noqa: SLF001
    return client


def _logged_in(sdk: Any) -> None:
    # Asked first, as the SDK would else wait for somebody to type a code, in a thread that nobody sees.
    app = _app(sdk)
    if hasattr(app, "login_required") and type(app).__name__ != "ClientApp" and app.login_required():
        raise HpcError("nobody is logged in to Globus on this machine", code="AF994", hint=LOGIN)


def _refused(error: BaseException) -> HpcError:
    status = getattr(error, "http_status", None)
    words = _words(error)
    if status in {401, 403}:
        return HpcError(
            f"Globus Compute does not let you use this endpoint ({words})", code="AF994", hint=LOGIN, unread=True
        )
    if status == 404:
        hint = "Compare the identifier with `globus-compute-endpoint list` on the cluster."
        return HpcError(f"Globus Compute does not know the endpoint ({words})", code="AF993", hint=hint, unread=True)
    if status == 429:
        return HpcError(
            f"Globus Compute has had too many requests ({words})",
            code="AF995",
            hint="Wait a minute and run it again.",
            unread=True,
        )
    return HpcError(
        f"Globus Compute did not take the job ({words})", code="AF995", hint="Is the service reachable from here?"
    )


def _failed(error: BaseException) -> HpcError:
    """The error for a task that the service had taken."""
    said = getattr(error, "remote_data", None)
    if said is None:
        return ResultLost(
            f"the job's result can't come back from Globus Compute ({_words(error)})",
            hint="It comes by AMQP: does a firewall let TCP port 443 out to Globus Compute?",
        )
    words = plain(" ".join(_FRAMES.split(str(said))[-1].strip("+- \n").split()))[:_WORDS]
    missing = words.startswith(("ModuleNotFoundError", "ImportError", "SyntaxError"))
    return HpcError(
        f"the job failed on the endpoint: {words}",
        code="AF985",
        hint="The endpoint's Python lacks the worker, or is too old for it: `aiflow worker --print-config` says what "
        "to install there, and the endpoint has to be started again."
        if missing
        else "Look at the endpoint's log.",
        unread=missing,
    )


def _taken(sent: Any) -> bool:
    """Whether the service has the task of one of the SDK's futures."""
    return getattr(sent, "task_id", None) is not None


def _leave(sent: Future[Any]) -> None:
    """Have the SDK wait for a task no more, once the service has it."""
    while not sent.done() and not _forget(sent):
        time.sleep(_POLL)


def _forget(sent: Any) -> bool:
    """Take a task from those that the SDK waits for: the process could not end before the cluster had run it.

    The SDK has no call for that; where it is made otherwise, nothing is done.
    """
    found = False
    module = sys.modules.get("globus_compute_sdk.sdk.executor")
    for watcher in list(getattr(module, "_RESULT_WATCHERS", {}).values()):
        with watcher._new_futures_lock:  # noqa: SLF001
            found |= watcher._open_futures.pop(sent.task_id, None) is not None  # noqa: SLF001
            if not watcher._open_futures:  # noqa: SLF001
                watcher._open_futures_empty.set()  # noqa: SLF001
    return found


def _words(error: BaseException) -> str:
    said = getattr(error, "raw_json", None)  # the service's own reason; the SDK's text for it is a row of fields
    reason = said.get("reason") if isinstance(said, dict) else None
    text = " ".join(str(reason or error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
