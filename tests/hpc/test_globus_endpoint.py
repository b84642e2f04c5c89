"""The Globus adapter on the SDK's real executor and result watcher, with only the service and its broker away.

`Service` is the SDK's client but for the calls that leave this machine. The broker is a socket that accepts and says
nothing; results reach the watcher as if the broker had brought them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from stage import all_of, payloads

from aiflow_jupyter.hpc import globus, remote, worker
from aiflow_jupyter.hpc.errors import HpcError, ResultLost
from aiflow_jupyter.hpc.globus import GlobusExecutor

sdk = pytest.importorskip("globus_compute_sdk", reason="needs pip install 'aiflow-jupyter[globus]'")

ENDPOINT = uuid.UUID("4b116d3c-1703-4f8f-9f6f-39921e5864df")
WAIT = 30  # seconds until a test that hangs has failed


class Service(sdk.Client):
    """The SDK's client; `refusal` is what the service answers a submission with, `gate` is passed before it answers."""

    def __init__(self, broker: socket.socket, query: str = ""):
        super().__init__(do_version_check=False)
        self.url = f"amqp://guest:guest@127.0.0.1:{broker.getsockname()[1]}/{query}"
        self.refusal: Exception | None = None
        self.gate, self.asked = threading.Event(), threading.Event()
        self.gate.set()
        self.group = str(uuid.uuid4())

    def register_source_code(self, *_args, **_options):
        return str(uuid.uuid4())

    def batch_run(self, endpoint, batch):
        self.asked.set()
        assert self.gate.wait(WAIT)
        if self.refusal is not None:
            raise self.refusal
        tasks = {str(function): [str(uuid.uuid4()) for _ in sent] for function, sent in batch.tasks.items()}
        ids = {"task_group_id": self.group, "request_id": str(uuid.uuid4()), "endpoint_id": str(endpoint)}
        return {"tasks": tasks, **ids}

    def get_result_amqp_url(self):
        return {"queue_prefix": "", "connection_url": self.url}


@pytest.fixture
def service(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOBUS_COMPUTE_USER_DIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as broker:
        yield Service(broker)


@pytest.fixture
def executor(service, monkeypatch):
    monkeypatch.setattr(sdk.Executor, "_default_task_group_id", None)
    made = GlobusExecutor(lambda: sdk.Executor(endpoint_id=ENDPOINT, client=service, **globus.BURST))
    yield made
    service.gate.set()
    made.shutdown()
    for watcher in watchers():
        watcher.shutdown(wait=False, cancel_futures=True)


def watchers():
    from globus_compute_sdk.sdk.executor import _RESULT_WATCHERS

    return list(_RESULT_WATCHERS.values())


def watched() -> list[Future]:
    """What the SDK waits for."""
    return [future for watcher in watchers() for future in watcher.get_open_futures().values()]


def eventually(holds: Callable[[], bool]) -> None:
    for _ in range(WAIT * 100):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError(f"it never came to that; the SDK waits for {watched()}")


def taken(executor: GlobusExecutor) -> tuple[Future, Future]:
    """A task that the service has: our future, and the SDK's, which its watcher waits for."""
    ours = executor.submit(worker.run, "x")
    theirs = executor._open[ours]
    eventually(lambda: theirs in watched())
    return ours, theirs


def bring(task: Future, data: str, *, error: bool = False) -> None:
    """What the broker would bring: the result of a task."""
    import pika
    from globus_compute_common.messagepack.message_types import Result
    from globus_compute_sdk.serialize import ComputeSerializer

    details = {"code": "RemoteExecutionError", "user_message": data} if error else None
    packed = data if error else ComputeSerializer().serialize(data)
    result = Result(task_id=task.task_id, data=packed, error_details=details)
    (watcher,) = watchers()
    watcher._received_results[task.task_id] = (pika.BasicProperties(), result)
    watcher._time_to_check_results.set()


def refusal(status: int, reason: str) -> Exception:
    import requests
    from globus_sdk import ComputeAPIError

    response = requests.Response()
    response.status_code, response.headers["content-type"] = status, "application/json"
    response._content = json.dumps({"status": "Failed", "code": "X", "reason": reason}).encode()
    response.request = requests.Request("POST", "https://compute.api.example.org/").prepare()
    return ComputeAPIError(response)


def test_a_result_comes_back(executor):
    ours, theirs = taken(executor)
    bring(theirs, "sealed")
    assert ours.result(WAIT) == "sealed"


@pytest.mark.parametrize(("status", "code"), [(403, "AF994"), (404, "AF993"), (429, "AF995"), (500, "AF995")])
def test_what_the_service_refuses_later_is_told_as_what_it_refuses_at_once(executor, service, status, code):
    service.refusal = refusal(status, "it has its reasons")
    with pytest.raises(HpcError, match="it has its reasons") as failed:
        executor.submit(worker.run, "x").result(WAIT)
    assert failed.value.code == code
    assert failed.value.hint


def test_after_a_refusal_the_very_next_task_is_taken(executor, service):
    service.refusal = refusal(503, "too busy")
    with pytest.raises(HpcError):
        executor.submit(worker.run, "x").result(WAIT)
    service.refusal = None
    ours, theirs = taken(executor)
    bring(theirs, "sealed")
    assert ours.result(WAIT) == "sealed"


def test_a_task_that_waits_behind_a_refused_one_is_not_left_waiting(executor, service):
    service.gate.clear()
    service.refusal = refusal(404, "no such endpoint")
    first = executor.submit(worker.run, "x")
    assert service.asked.wait(WAIT)
    second = executor.submit(worker.run, "y")
    service.gate.set()
    for future, code in ((first, "AF993"), (second, "AF995")):
        with pytest.raises(HpcError) as failed:
            future.result(WAIT)
        assert failed.value.code == code


def test_an_endpoint_without_the_worker_is_told_with_what_to_install(executor):
    ours, theirs = taken(executor)
    frames = '  File "<string>", line 2, in aiflow_worker\n    import x\n    ^^^^^^^^\n' * 50
    bring(theirs, f"Traceback (most recent call last):\n{frames}ModuleNotFoundError: No module named 'x'\n", error=True)
    with pytest.raises(HpcError, match="the endpoint: ModuleNotFoundError: No module named 'x'") as failed:
        ours.result(WAIT)
    assert failed.value.code == "AF985"
    assert "aiflow worker --print-config" in failed.value.hint


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("\n++++\nTraceback (most recent call last):\n  File 'x', line 1\n    raise y\n"
         "BadStateException: Error 1:\n\tno sbatch\n\n----\n", "BadStateException: Error 1: no sbatch"),
        ("Ignoring start request for\n untrusted identity.", "Ignoring start request for untrusted identity."),
        ("", ""),
    ],
)  # fmt: skip
def test_a_failed_job_is_told_by_what_comes_after_the_frames(executor, said, told):
    ours, theirs = taken(executor)
    bring(theirs, said, error=True)
    with pytest.raises(HpcError) as failed:
        ours.result(WAIT)
    assert failed.value.message == f"the job failed on the endpoint: {told}"


def test_a_cancelled_task_that_fails_later_does_not_stop_the_results_of_others(executor):
    (one, its), (other, others) = taken(executor), taken(executor)
    assert one.cancel()
    bring(its, "Traceback: no", error=True)
    bring(others, "sealed")
    assert other.result(WAIT) == "sealed"
    assert one.cancelled()


def test_a_task_that_nobody_waits_for_is_none_of_the_sdk_s_business(executor):
    one, _ = taken(executor)
    one.cancel()
    eventually(lambda: not watched())


def test_a_task_that_is_cancelled_before_the_service_has_it_is_left_once_it_has(executor, service):
    service.gate.clear()
    executor.submit(worker.run, "x").cancel()
    service.gate.set()
    _, other = taken(executor)
    eventually(lambda: watched() == [other])


def test_closing_waits_for_no_service_and_keeps_nothing_that_was_made_meanwhile(service):
    asked, answers = threading.Event(), threading.Event()
    made = []

    def make():
        asked.set()
        assert answers.wait(WAIT)
        made.append(sdk.Executor(endpoint_id=ENDPOINT, client=service, **globus.BURST))
        return made[-1]

    executor = GlobusExecutor(make)
    with ThreadPoolExecutor(1) as thread:
        submitting = thread.submit(executor.submit, worker.run, "x")
        assert asked.wait(WAIT)
        executor.shutdown()
        answers.set()
        with pytest.raises(HpcError, match="closed"):
            submitting.result(WAIT)
    with pytest.raises(RuntimeError, match="shutdown"):
        made[0].submit(print)


def test_closing_gives_up_what_is_on_its_way(executor, service):
    service.gate.clear()
    ours = executor.submit(worker.run, "x")
    assert service.asked.wait(WAIT)
    executor.shutdown()
    assert ours.cancelled()
    service.gate.set()


ENDS = f"""
import socket, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_globus_endpoint import *
broker = socket.create_server(("127.0.0.1", 0))
service = Service(broker, "?stack_timeout=2")
executor = GlobusExecutor(lambda: sdk.Executor(endpoint_id=ENDPOINT, client=service, **globus.BURST))
ours, _ = taken(executor)
{{end}}
print("the end")
"""


@pytest.mark.parametrize("end", ["ours.cancel()", "executor.shutdown()"])
def test_a_process_ends_though_its_job_never_ran(end, tmp_path):
    """The SDK's own exit waits until the cluster has run every task."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDS.format(end=end)],
        env={**os.environ, "GLOBUS_COMPUTE_USER_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=2 * WAIT,
        check=True,
    )
    assert ended.stdout == "the end\n"


def test_another_python_on_the_cluster_is_no_warning(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOBUS_COMPUTE_USER_DIR", str(tmp_path))
    monkeypatch.setattr(sdk.Client, "version_check", lambda _: None)
    details = {"python_version": "3.8.0", "dill_version": "0.1", "endpoint_id": str(ENDPOINT)}
    with pytest.warns(UserWarning, match="Environment differences"):
        sdk.Client(do_version_check=False)._log_version_mismatch(details)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        globus._client(sdk)._log_version_mismatch(details)


class Deaf(Executor):
    """Starts workers and can't hear how they end."""

    def __init__(self, workers: Executor):
        self.workers = workers

    def submit(self, fn, /, *args, **kwargs):
        self.workers.submit(fn, *args, **kwargs)
        lost: Future = Future()
        lost.set_exception(ResultLost("the job's result can't come back"))
        return lost


async def test_a_stream_goes_on_when_the_way_back_of_results_is_lost(stage, threads, monkeypatch):
    monkeypatch.setattr(remote, "_GRACE", 0.0)
    assert await all_of(stage.ask(executor=Deaf(threads))) == payloads("vllm")


async def test_an_answer_by_the_way_back_alone_is_lost_with_it(stage, threads):
    with pytest.raises(ResultLost):
        await all_of(stage.ask(executor=Deaf(threads), relay=None))
