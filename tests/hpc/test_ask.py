"""`aiflow ask --tier hpc`: what is waited for is said on stderr, and so is an answer that came in one piece."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from stage import chunk

from aiflow_jupyter.relay.crypto import WorkerKey

COMMAND = Path(sys.executable).with_name("aiflow")
PLAIN = "the relay 127.0.0.1:9 could not be reached (connection refused)"


@pytest.fixture
def configured(tmp_path):
    """Writes the settings of a tier on this machine; gives the environment of the command."""

    def write(server, *lines):
        file = tmp_path / "aiflow.toml"
        file.write_text(
            "\n".join(["[tiers.hpc]", 'executor = "local"', f'model_server = "{server}"', "linger = 3", *lines])
        )
        return {**os.environ, "AIFLOW_CONFIG": str(file), "NO_RELAY_KEY": "afr_canary"}

    return write


async def ask(env):
    def run():
        words = [str(COMMAND), "ask", "Why?", "--tier", "hpc"]
        return subprocess.run(words, capture_output=True, text=True, env=env, timeout=120, check=False)

    return await asyncio.to_thread(run)


NO_RELAY = ('relay = "http://127.0.0.1:9"', 'relay_key_env = "NO_RELAY_KEY"')


async def test_an_answer_streams_and_what_was_waited_for_is_on_stderr(vllm, configured):
    vllm.parts = [chunk("Rivers "), chunk("meander."), chunk("", "stop")]
    vllm.loading = 2
    done = await ask(configured(vllm.url))
    assert (done.returncode, done.stdout) == (0, "Rivers meander.\n")
    *waited, badge = [line for line in done.stderr.splitlines() if line]
    assert badge.startswith("hpc · ")
    assert any(line.startswith("model loading ") and line.endswith(" ...") for line in waited)
    assert len(waited) == len({"".join(c for c in line if not c.isdigit()) for line in waited}), "each state once"


async def test_a_model_server_that_is_not_there_is_an_error_that_was_announced(configured):
    done = await ask(configured("http://127.0.0.1:9", "first_token_timeout = 1"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing answers at 127.0.0.1:9, " in done.stderr
    assert "HpcError AF987: the model server did not get ready within 1 s" in done.stderr
    assert "model_server and model_server_key_env in aiflow.toml" in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_relay_that_can_not_be_reached_is_told_under_the_answer(vllm, configured):
    vllm.parts = [chunk("Rivers "), chunk("meander."), chunk("", "stop")]
    done = await ask(configured(vllm.url, *NO_RELAY))
    assert (done.returncode, done.stdout) == (0, "Rivers meander.\n")
    badge, note = done.stderr.splitlines()[-2:]
    assert badge.endswith(" · in one piece")
    assert note == f"{PLAIN}: the answer came in one piece"


async def test_where_no_other_way_is_wanted_it_is_an_error(vllm, configured):
    done = await ask(configured(vllm.url, *NO_RELAY, "fallback = false"))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"HpcError AF910: {PLAIN}" in done.stderr
    assert "canary" not in done.stderr


async def test_on_a_terminal_the_line_is_rewritten_in_place_and_gone_in_the_end(vllm, configured):
    vllm.parts = [chunk("Rivers."), chunk("", "stop")]
    vllm.loading = 2
    env = configured(vllm.url)

    def run():
        main, side = pty.openpty()
        words = [str(COMMAND), "ask", "Why?", "--tier", "hpc"]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=side, stderr=side, env=env, timeout=120, check=False
        )
        os.close(side)
        said = b""
        try:
            while piece := os.read(main, 65536):
                said += piece
        except OSError:  # the other side is closed
            pass
        finally:
            os.close(main)
        return done.returncode, said.decode()

    code, said = await asyncio.to_thread(run)
    assert code == 0, said
    assert "\r\x1b[Jmodel loading " in said
    shown = said.rpartition("\r\x1b[J")[2]
    assert shown.startswith("Rivers.")
    assert " ..." not in shown


async def test_a_key_that_the_relay_does_not_take_is_told_with_the_setting_it_comes_from(vllm, relay, configured):
    env = configured(vllm.url, f'relay = "{relay.url}"', 'relay_key_env = "NO_RELAY_KEY"')
    done = await ask(env)
    assert (done.returncode, done.stdout) == (1, "")
    assert "HpcError AF911: the relay does not accept this key" in done.stderr
    assert "The key comes from relay_key_env, NO_RELAY_KEY." in done.stderr
    assert "canary" not in done.stderr


async def test_a_worker_with_another_key_is_told_what_to_compare(vllm, tmp_path, key):
    del key
    (tmp_path / "my_cluster.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\ndef workers(): return ThreadPoolExecutor(1)\n"
    )
    file = tmp_path / "aiflow.toml"
    other = WorkerKey.generate().public
    file.write_text(
        f'[tiers.hpc]\nexecutor = "python"\nfactory = "my_cluster:workers"\nworker_key = "{other}"\nlinger = 3\n'
    )
    paths = {"AIFLOW_CONFIG": str(file), "PYTHONPATH": str(tmp_path), "AIFLOW_MODEL_SERVER": vllm.url}
    done = await ask({**os.environ, **paths})
    assert "HpcError AF941: the job failed: the request was sealed for another key" in done.stderr
    assert "Compare worker_key in aiflow.toml with what `python aiflow-worker.pyz keys` prints" in done.stderr


@pytest.mark.model
def test_a_served_model_plays_the_clusters_and_its_file_goes_with_it(model, tmp_path):
    del model
    config, server = tmp_path / "aiflow.toml", tmp_path / "served" / "server.json"
    config.write_text('[tiers.hpc]\nexecutor = "local"\nmax_tokens = 8\nlinger = 3\n')
    env = {**os.environ, "AIFLOW_CONFIG": str(config), "AIFLOW_MODEL_SERVER_FILE": str(server)}
    env.pop("AIFLOW_MODEL_SERVER", None)
    words = [str(COMMAND), "models", "serve"]
    with subprocess.Popen(
        [*words, "--tied"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as serving:
        assert serving.stdout.readline().startswith("http://127.0.0.1:")
        assert server.stat().st_mode & 0o777 == 0o600
        asked = [str(COMMAND), "ask", "Say hello.", "--tier", "hpc"]
        done = subprocess.run(asked, capture_output=True, text=True, env=env, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        assert "hpc · " in done.stderr
        second = subprocess.run(words, capture_output=True, text=True, env=env, timeout=120, check=False)
        assert (second.returncode, "another model server says by it where it is" in second.stderr) == (1, True)
        serving.stdin.close()
        assert serving.wait(30) == 0
    assert not server.exists()


async def test_an_executor_of_ones_own_answers(vllm, tmp_path, key):
    vllm.parts = [chunk("Rivers "), chunk("meander."), chunk("", "stop")]
    (tmp_path / "my_cluster.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\ndef workers(): return ThreadPoolExecutor(1)\n"
    )
    file = tmp_path / "aiflow.toml"
    file.write_text(
        f'[tiers.hpc]\nexecutor = "python"\nfactory = "my_cluster:workers"\nworker_key = "{key.public}"\nlinger = 3\n'
    )
    paths = {"AIFLOW_CONFIG": str(file), "PYTHONPATH": str(tmp_path), "AIFLOW_MODEL_SERVER": vllm.url}
    done = await ask({**os.environ, **paths})
    assert (done.returncode, done.stdout) == (0, "Rivers meander.\n"), done.stderr
    assert "in one piece" not in done.stderr
