"""Neither the control plane nor the relay ever holds prompt or answer: looked for where they could be."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from concurrent.futures import Executor
from contextlib import aclosing
from pathlib import Path

import pytest
from stage import Stage, chunk

from aiflow_jupyter.hpc import worker
from aiflow_jupyter.hpc.executors import LocalExecutor
from aiflow_jupyter.hpc.remote import RelayAt
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.relay.keys import KeyStore

ROOT = Path(worker.__file__).parents[2]
PROMPT = "CANARY-4f1c-PROMPT"
ANSWER = "CANARY-77ab-ANSWER"


class Recording(Executor):
    """A control plane that keeps what passes through it."""

    def __init__(self, inner):
        self.inner = inner
        self.passed: list[str] = []

    def submit(self, fn, /, *args, **kwargs):
        self.passed.append(args[0])
        future = self.inner.submit(fn, *args)
        future.add_done_callback(lambda done: done.cancelled() or done.exception() or self.passed.append(done.result()))
        return future


def memory(pid: int) -> bytes:
    """All that a process can read and write in its memory."""
    held = bytearray()
    maps = Path(f"/proc/{pid}/maps").read_text()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as mem:
        for line in maps.splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if found and "[vvar" not in line:
                begin, end = (int(place, 16) for place in found.groups())
                try:
                    mem.seek(begin)
                    held += mem.read(end - begin)
                except OSError:
                    continue
    return bytes(held)


@pytest.fixture
async def relay_process(tmp_path):
    """A relay as a process of its own, logging all it can."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    personal = KeyStore(state / "keys.json").add("me")
    code = (
        "import sys; from aiflow_jupyter.relay.command import relay;"
        f"relay(['--state', {str(state)!r}, '--port', '0', '--log-level', 'debug'])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert process.stderr is not None
    log = bytearray()
    address = None
    while address is None:
        line = await process.stderr.readline()
        assert line, log.decode()
        log += line
        address = re.search(rb"relay on (http://\S+);", line)
    draining = asyncio.create_task(_drain(process.stderr, log))
    yield process, RelayAt(address[1].decode(), Secret(personal)), log
    process.terminate()
    await process.wait()
    await draining


async def _drain(pipe, log):
    async for line in pipe:
        log += line


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="looks into /proc")
async def test_the_relay_s_memory_and_log_hold_neither_prompt_nor_answer_nor_key(vllm, key, relay_process):
    process, relay, log = relay_process
    vllm.parts, vllm.free = [*[chunk(f"{ANSWER}{n} ") for n in range(50)], chunk("", "stop")], 40
    vllm.gate.clear()
    local = LocalExecutor(key, vllm.url)
    stage = Stage(vllm, relay, key, local)
    seen, came = b"", 0
    remote = stage.ask({"messages": [{"role": "user", "content": PROMPT}]})
    async with aclosing(remote.items()) as items:
        async for item in items:
            assert ANSWER in item or came == 50
            came += 1
            if came == 40:
                assert remote._task is not None
                try:
                    seen = await asyncio.to_thread(memory, process.pid)
                except PermissionError:
                    pytest.skip("this system lets no process look into another one")
                held = {
                    "channel": remote._task.channel.encode() in seen or bytes.fromhex(remote._task.channel) in seen,
                    "prompt": PROMPT.encode() in seen,
                    "answer": ANSWER.encode() in seen,
                    "secret": remote._task.secret in seen or remote._task.secret.hex().encode() in seen,
                }
                vllm.gate.set()
    await asyncio.to_thread(local.shutdown)
    assert came == 51
    assert held == {"channel": True, "prompt": False, "answer": False, "secret": False}
    assert b"CANARY" not in log
    assert b"event=join" in log


async def test_the_control_plane_sees_neither_prompt_nor_answer_whether_streamed_or_in_one_piece(stage):
    stage.vllm.parts = [chunk(ANSWER), chunk("", "stop")]
    for relay in (stage.relay, None):
        recording = Recording(stage.executor)
        remote = stage.ask({"messages": [{"role": "user", "content": PROMPT}]}, executor=recording, relay=relay)
        items = [item async for item in remote.items()]
        assert ANSWER in items[0]
        async with asyncio.timeout(20):
            while len(recording.passed) < 2:
                await asyncio.sleep(0.01)
        argument, result = recording.passed
        assert "CANARY" not in argument + result
        assert remote._task is not None
        assert remote._task.secret.hex() not in argument + result
        assert json.loads(result)["status"] == ("streamed" if relay else "batch")


async def test_what_the_model_server_says_about_a_prompt_does_not_stand_in_clear_in_the_result(stage):
    stage.vllm.status, stage.vllm.kind = 400, "application/json"
    stage.vllm.body = json.dumps({"message": f"not this: {PROMPT}"}).encode()
    for relay in (stage.relay, None):
        recording = Recording(stage.executor)
        with pytest.raises(Exception, match=PROMPT):
            _ = [item async for item in stage.ask(executor=recording, relay=relay, model="m").items()]
        async with asyncio.timeout(20):
            while len(recording.passed) < 2:
                await asyncio.sleep(0.01)
        assert "CANARY" not in recording.passed[1]
        assert json.loads(recording.passed[1])["error"]["code"] == "AF706"


async def test_the_worker_s_log_holds_neither_prompt_nor_answer_nor_key(stage, caplog):
    caplog.set_level("DEBUG", logger="aiflow_jupyter")
    stage.vllm.parts = [chunk(ANSWER), chunk("", "stop")]
    body = {"messages": [{"role": "user", "content": PROMPT}]}
    _ = [item async for item in stage.ask(body).items()]
    async with asyncio.timeout(20):
        while "streamed" not in caplog.text:
            await asyncio.sleep(0.01)
    assert "CANARY" not in caplog.text
    assert stage.key.secret_text() not in caplog.text


async def test_the_log_of_a_worker_that_breaks_says_where_and_not_what(stage, caplog, monkeypatch):
    def broken(*_, **__):
        raise ValueError(PROMPT)

    monkeypatch.setattr("aiflow_jupyter.hpc.modelserver.answer", broken)
    with pytest.raises(Exception, match="ValueError"):
        _ = [item async for item in stage.ask(relay=None).items()]
    assert "ValueError at " in caplog.text
    assert "CANARY" not in caplog.text
