"""The adapter to Globus Compute: what it asks of the SDK, and every way to fail as an error that says what to do.

`FakeSdk` stands for the SDK where that is not installed; where it is, the last tests take the real one as far as it
goes without the service.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import uuid
from concurrent.futures import Future

import pytest
from stage import all_of, payloads

from aiflow_jupyter.hpc import globus, worker
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.globus import GlobusExecutor, globus_executor

ENDPOINT = "4b116d3c-1703-4f8f-9f6f-39921e5864df"
real = pytest.mark.usefixtures("installed_sdk")


@pytest.fixture
def installed_sdk(require):
    found = importlib.util.find_spec("globus_compute_sdk")
    require("globus-compute-sdk", found, "pip install 'aiflow-jupyter[globus]'")


class FakeSdk:
    """Registers source and runs it in threads of its own, as an endpoint would, or fails as it is told to."""

    def __init__(self, threads=None, fails: Exception | None = None):
        self.threads, self.fails = threads, fails
        self.registered: list[tuple[str, str]] = []
        self.closed = False

    def register_source_code(self, source, name):
        if self.fails:
            raise self.fails
        self.registered.append((source, name))
        return str(uuid.uuid4())

    def submit_to_registered_function(self, function_id, args=None, kwargs=None):
        if self.closed:
            raise RuntimeError("is shutdown")
        source, name = self.registered[-1]
        space: dict[str, object] = {}
        exec(source, space)
        return self.threads.submit(space[name], *args) if self.threads else Future()

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.closed = True


class Refused(Exception):
    def __init__(self, status):
        super().__init__(f"HTTP {status}")
        self.http_status = status


async def test_an_answer_streams_from_an_endpoint_that_has_the_worker_installed(stage, threads):
    sdk = FakeSdk(threads)
    executor = GlobusExecutor(lambda: sdk)
    assert await all_of(stage.ask(executor=executor)) == payloads("vllm")
    assert await all_of(stage.ask(executor=executor)) == payloads("vllm")
    assert len(sdk.registered) == 1


def test_what_runs_there_is_source_text_of_three_lines_without_this_python_s_bytecode():
    assert len(globus.SOURCE.strip().splitlines()) == 3
    for minor in (8, 9, 13):
        compile(globus.SOURCE, "worker", "exec", dont_inherit=True)
        assert minor


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (Refused(401), "AF994"),
        (Refused(403), "AF994"),
        (Refused(404), "AF993"),
        (Refused(429), "AF995"),
        (Refused(500), "AF995"),
        (ConnectionError("no route"), "AF995"),
    ],
)
def test_what_the_service_refuses_is_told_with_a_code_and_what_to_do(problem, code):
    executor = GlobusExecutor(lambda: FakeSdk(fails=problem))
    with pytest.raises(HpcError) as failed:
        executor.submit(worker.run, "x")
    assert failed.value.code == code
    assert failed.value.hint


def test_after_a_failure_the_next_task_gets_a_new_executor():
    made: list[FakeSdk] = []

    def make():
        made.append(FakeSdk(fails=None if made else OSError("cut")))
        return made[-1]

    executor = GlobusExecutor(make)
    with pytest.raises(HpcError):
        executor.submit(worker.run, "x")
    assert isinstance(executor.submit(worker.run, "x"), Future)
    assert made[0].closed
    assert len(made) == 2


def test_it_is_closed_for_good():
    sdk = FakeSdk()
    executor = GlobusExecutor(lambda: sdk)
    executor.submit(worker.run, "x")
    executor.shutdown()
    assert sdk.closed
    with pytest.raises(HpcError, match="closed"):
        executor.submit(worker.run, "x")


def test_it_runs_nothing_but_the_worker():
    def run(argument):
        pytest.fail("only its name is the worker's")

    for other in (print, run):
        with pytest.raises(HpcError, match="nothing else"):
            GlobusExecutor(FakeSdk).submit(other, "x")


def test_an_endpoint_that_is_no_identifier_is_refused_at_once():
    with pytest.raises(HpcError, match="no endpoint's identifier") as failed:
        globus_executor("my-cluster")
    assert failed.value.code == "AF993"


def test_without_the_sdk_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "globus_compute_sdk", None)
    with pytest.raises(HpcError) as failed:
        globus_executor(ENDPOINT)
    assert failed.value.code == "AF992"
    assert 'pip install "aiflow-jupyter[globus]"' in failed.value.hint


def fake_modules(monkeypatch, app, executor=None):
    """The SDK's modules, as far as the adapter imports them."""
    sdk = types.ModuleType("globus_compute_sdk")
    sdk.Client = lambda **_: types.SimpleNamespace()  # type: ignore[attr-defined]
    sdk.Executor = executor  # type: ignore[attr-defined]
    inner = types.ModuleType("globus_compute_sdk.sdk.auth.globus_app")
    inner.get_globus_app = lambda: app  # type: ignore[attr-defined]
    for name in ("globus_compute_sdk.sdk", "globus_compute_sdk.sdk.auth"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "globus_compute_sdk", sdk)
    monkeypatch.setitem(sys.modules, "globus_compute_sdk.sdk.auth.globus_app", inner)


class FakeApp:
    def __init__(self, needed):
        self.needed, self.logins = needed, 0

    def login_required(self):
        return self.needed

    def login(self):
        self.logins += 1
        self.needed = False


def test_nobody_logged_in_is_an_error_and_no_prompt_that_nobody_sees(monkeypatch):
    app = FakeApp(needed=True)
    fake_modules(monkeypatch, app)
    with pytest.raises(HpcError, match="nobody is logged in") as failed:
        globus_executor(ENDPOINT)
    assert "%aiflow login" in failed.value.hint
    assert app.logins == 0


def test_login_asks_once(monkeypatch):
    app = FakeApp(needed=True)
    fake_modules(monkeypatch, app)
    globus.login()
    globus.login()
    assert app.logins == 1


def test_the_sdk_s_throttle_is_set_to_its_widest(monkeypatch):
    asked: dict[str, object] = {}

    def executor(**options):
        asked.update(options)
        return FakeSdk()

    fake_modules(monkeypatch, FakeApp(needed=False), executor)
    globus_executor(ENDPOINT).submit(worker.run, "x")
    assert asked["api_burst_limit"] == 8
    assert asked["api_burst_window_s"] == 1
    assert asked["endpoint_id"] == uuid.UUID(ENDPOINT)


@real
def test_the_real_sdk_says_that_nobody_is_logged_in(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOBUS_COMPUTE_USER_DIR", str(tmp_path))
    monkeypatch.delenv("GLOBUS_COMPUTE_CLIENT_SECRET", raising=False)
    with pytest.raises(HpcError) as failed:
        globus_executor(ENDPOINT)
    assert failed.value.code == "AF994"


@real
def test_the_real_executor_takes_what_the_adapter_gives_it(monkeypatch, tmp_path):
    import globus_compute_sdk
    from globus_compute_sdk.serialize import ComputeSerializer

    monkeypatch.setenv("GLOBUS_COMPUTE_USER_DIR", str(tmp_path))
    registered = []

    class Client(globus_compute_sdk.Client):
        """The real client, but for the one call that needs the service."""

        def register_source_code(self, source, function_name, **options):
            from globus_compute_sdk.serialize import PureSourceTextInspect

            code = ComputeSerializer(strategy_code=PureSourceTextInspect())
            registered.append((source, function_name, code))
            return str(uuid.uuid4())

    client = Client(do_version_check=False)
    sdk = globus_compute_sdk.Executor(endpoint_id=uuid.UUID(ENDPOINT), client=client, amqp_port=443, **globus.BURST)
    assert (sdk.api_burst_limit, sdk.api_burst_window_s) == (8, 1)
    executor = GlobusExecutor(lambda: sdk)
    future = executor.submit(worker.run, "x")
    assert isinstance(future, Future)
    assert registered[0][:2] == (globus.SOURCE, globus.NAME)
    executor.shutdown()


@real
def test_the_real_sdk_packs_a_task_of_a_long_chat_within_its_limit(key):
    from globus_compute_sdk.serialize import ComputeSerializer

    argument = "x" * (8 * 1024 * 1024 - 1)
    serializer = ComputeSerializer()
    packed = serializer.pack_buffers([serializer.serialize((argument,)), serializer.serialize({})])
    assert len(packed) < 10 * 1024 * 1024 * 1.34
