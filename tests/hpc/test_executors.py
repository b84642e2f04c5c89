"""Any executor starts the worker; a local one leaves no process and shows no secret."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing, suppress
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest
from stage import all_of, chunk, payloads

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.hpc import worker
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.executors import LocalExecutor
from aiflow_jupyter.providers.secret import Secret

ROOT = Path(worker.__file__).parents[2]


async def gone(pid: int) -> None:
    async with asyncio.timeout(20):
        with suppress(psutil.NoSuchProcess):
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)


@pytest.fixture
async def local(stage):
    executor = LocalExecutor(stage.key, stage.vllm.url, Secret("CANARY-SERVER-KEY"))
    yield executor
    await asyncio.to_thread(executor.shutdown)


async def test_a_process_of_its_own_does_the_task(stage, local):
    assert await all_of(stage.ask(executor=local)) == payloads("vllm")
    assert "authorization: bearer canary-server-key" in stage.vllm.headers[-1].lower()


async def test_a_pool_of_processes_does_the_task_as_it_comes(stage):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert await all_of(stage.ask(executor=pool)) == payloads("vllm")
        await asyncio.to_thread(pool.shutdown)


async def test_a_worker_that_is_killed_in_the_middle_is_an_error_that_says_so(stage, local):
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b")], 1
    stage.vllm.gate.clear()
    async with aclosing(stage.ask(executor=local).items()) as items:
        await anext(items)
        os.kill(local.pids[0], signal.SIGKILL)
        with pytest.raises(HpcError, match="killed"):
            await anext(items)
    await stage.vllm.stopped.wait()


async def test_the_process_ends_when_the_answer_is_left(stage, local):
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b")], 1
    stage.vllm.gate.clear()
    async with aclosing(stage.ask(executor=local).items()) as items:
        await anext(items)
        (pid,) = local.pids
    await stage.vllm.stopped.wait()
    await gone(pid)


async def test_shutdown_ends_the_processes_and_takes_nothing_more(stage, local):
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b")], 1
    stage.vllm.gate.clear()
    async with aclosing(stage.ask(executor=local).items()) as items:
        await anext(items)
        (pid,) = local.pids
        await asyncio.to_thread(local.shutdown)
        await gone(pid)
        with pytest.raises(AiflowError):
            await anext(items)
    with pytest.raises(HpcError, match="closed"):
        local.submit(worker.run, "x")


async def test_a_cancelled_future_ends_its_process(stage, local):
    future = local.submit(worker.run, "x" * 10)
    (pid,) = local.pids
    future.cancel()
    await gone(pid)


def test_it_runs_nothing_but_the_worker(key):
    executor = LocalExecutor(key)
    with pytest.raises(HpcError, match="nothing else"):
        executor.submit(print, "x")
    executor.shutdown()


async def test_the_only_secret_in_any_process_s_environment_and_arguments_is_the_worker_s_own_key(
    stage, local, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "CANARY-OTHER-KEY")
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b")], 1
    stage.vllm.gate.clear()
    async with aclosing(
        stage.ask({"messages": [{"role": "user", "content": "CANARY-PROMPT"}]}, executor=local).items()
    ) as items:
        await anext(items)
        (pid,) = local.pids
        process = psutil.Process(pid)
        arguments, environment = json.dumps(process.cmdline()), json.dumps(process.environ())
    assert "CANARY" not in arguments + environment
    assert stage.relay.key.reveal() not in arguments + environment
    assert stage.key.secret_text() in environment
    assert stage.key.secret_text() not in arguments


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_workers_end_with_the_process_that_started_them(vllm, how):
    vllm.parts, vllm.free = [chunk("a"), chunk("b")], 1
    vllm.gate.clear()
    script = f"""
        import asyncio
        from stage import on_this_machine
        from aiflow_jupyter.runtime.source import Request
        async def main():
            provider = on_this_machine({vllm.url!r})
            async for event in provider.stream(Request(({{"role": "user", "content": "x"}},))):
                print(*provider._opening.result().executor.pids, flush=True)
        asyncio.run(main())
    """
    kernel = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(script),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"},
    )
    assert kernel.stdout is not None
    pid = int(await kernel.stdout.readline())
    kernel.send_signal(how)
    await kernel.wait()
    await gone(pid)
    await vllm.stopped.wait()


async def test_an_idle_spare_ends_with_shutdown(key):
    executor = LocalExecutor(key)
    executor.prepare()
    spare = executor._waiting
    assert spare is not None
    await asyncio.to_thread(executor.shutdown, wait=False)
    assert not psutil.pid_exists(spare.process.pid)  # reaped
    assert all(file.closed for file in (spare.process.stdin, spare.process.stdout, spare._log))


async def test_a_spare_that_has_died_is_let_go_and_another_one_does_the_task(stage, local):
    local.prepare()
    spare = local._waiting
    os.kill(spare.process.pid, signal.SIGKILL)
    await gone(spare.process.pid)
    assert await all_of(stage.ask(executor=local)) == payloads("vllm")
    assert all(file.closed for file in (spare.process.stdin, spare.process.stdout, spare._log))


async def test_an_orderly_end_leaves_neither_a_process_nor_an_open_file(vllm):
    script = f"""
        import asyncio
        import psutil
        from stage import on_this_machine
        from aiflow_jupyter.runtime.source import Request
        async def main():
            provider = on_this_machine({vllm.url!r})
            asked = Request(({{"role": "user", "content": "x"}},))
            _ = [event async for event in provider.stream(asked)]
            executor = provider._opening.result().executor
            while executor._waiting is None:  # the next worker is kept ready
                await asyncio.sleep(0.01)
            await provider.aclose()
        asyncio.run(main())
        print(len(psutil.Process().children(recursive=True)))
    """
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(script)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"},
    )
    assert done.stdout.decode().split() == ["0"]
    assert b"ResourceWarning" not in done.stderr


async def test_a_worker_that_can_not_start_says_what_its_log_says(stage, monkeypatch):
    executor = LocalExecutor(stage.key, stage.vllm.url)
    monkeypatch.setattr("aiflow_jupyter.hpc.executors._ROOT", Path("/nowhere"))
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(HpcError, match="exit code 1"):
        await all_of(stage.ask(executor=executor))
    await asyncio.to_thread(executor.shutdown)


async def test_the_worker_as_a_program_reads_one_argument_and_writes_one_result(key, tmp_path):
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "aiflow_jupyter.hpc.worker"],
        input=b'{"v": 7}\n',
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert json.loads(done.stdout)["status"] == "version"


async def test_without_an_address_and_a_server_file_a_local_worker_is_refused_at_once(stage, monkeypatch, tmp_path):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER_FILE", str(tmp_path / "server.json"))
    executor = LocalExecutor(stage.key)
    with pytest.raises(HpcError, match="no address is set") as refused:
        await all_of(stage.ask(executor=executor))
    await asyncio.to_thread(executor.shutdown)
    assert refused.value.code == "AF991"
    assert "model_server = " in refused.value.hint
