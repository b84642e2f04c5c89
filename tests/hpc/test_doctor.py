"""`aiflow doctor` looks at the settings and at all that the hpc tier needs, and shows no secret."""

from __future__ import annotations

import asyncio
import sys

import pytest

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.hpc import checks as reach
from aiflow_jupyter.hpc import globus
from aiflow_jupyter.relay.crypto import WorkerKey
from aiflow_jupyter.tiers import checks

LOCAL = '[tiers.hpc]\nexecutor = "local"\n'
GLOBUS = '[tiers.hpc]\nexecutor = "globus"\nendpoint = "4b116d3c-1703-4f8f-9f6f-39921e5864df"\n'


@pytest.fixture
def look(tmp_path, monkeypatch):
    """What is found with these settings, by name; asserts that no secret is in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIFLOW_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "config" / "aiflow-jupyter" / "aiflow.toml"

    async def examine(settings=None, *, secret="canary"):
        if settings is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(settings)
        findings = await asyncio.to_thread(checks.examine)
        said = "\n".join(finding.line() for finding in findings)
        assert secret not in said
        return {finding.what: finding for finding in findings}

    examine.file = file
    return examine


@pytest.fixture
def key_file(tmp_path, relay):
    path = tmp_path / "relay.key"
    path.write_text(relay.key.reveal())
    path.chmod(0o600)
    return path


def remote(relay, path, more=""):
    return f'{LOCAL}relay = "{relay.url}"\nrelay_key_file = "{path}"\n{more}'


async def test_where_the_settings_are_and_whether_they_were_read(look):
    found = await look()
    assert f"none; {look.file}, which is not there yet" in found["settings"].found
    assert str(look.file) in found["hpc tier"].found
    assert set(found) == {"settings", "local tier", "hpc tier", "cloud tier", "routing"}
    assert f"read: {look.file}" in (await look(""))["settings"].found
    mistake = (await look("[tiers.hcp]\n"))["settings"]
    assert (mistake.wrong, "did you mean hpc" in mistake.found) == (True, True)


async def test_all_that_is_well_is_said(look, vllm, relay, key_file):
    found = await look(remote(relay, key_file, f'model_server = "{vllm.url}"\n'), secret=relay.key.reveal())
    assert [finding.what for finding in found.values() if finding.wrong] == []
    assert found["relay key"].found == f"{key_file}, mode 0600"
    assert found["relay"].found == f"{relay.url} is ready"
    assert found["relay takes key"].found == "yes"
    assert "first-model" in found["model server"].found


async def test_a_key_that_the_relay_does_not_take(look, vllm, relay, key_file):
    key_file.write_text("afr_canary")
    found = await look(remote(relay, key_file, f'model_server = "{vllm.url}"\n'))
    assert found["relay takes key"].wrong
    assert "does not accept this key" in found["relay takes key"].found
    assert not found["relay"].wrong


async def test_a_key_file_that_others_may_read(look, relay, key_file):
    key_file.chmod(0o644)
    found = await look(remote(relay, key_file), secret=relay.key.reveal())
    assert (found["relay key"].wrong, found["relay key"].mend) == (True, f"chmod 600 {key_file}")
    assert "mode 0644" in found["relay key"].found
    assert "relay takes key" not in found


async def test_a_key_file_that_is_not_there(look, relay, tmp_path):
    found = await look(remote(relay, tmp_path / "gone"))
    assert (found["relay key"].wrong, "No such file" in found["relay key"].found) == (True, True)


@pytest.mark.parametrize("there", [False, True])
async def test_a_key_in_the_environment(look, relay, monkeypatch, there):
    monkeypatch.setenv("MY_RELAY", relay.key.reveal() if there else "")
    found = await look(f'{LOCAL}relay = "{relay.url}"\nrelay_key_env = "MY_RELAY"\n', secret=relay.key.reveal())
    assert found["relay key"].wrong is not there
    assert "MY_RELAY" in found["relay key"].found
    assert ("relay takes key" in found) is there


async def test_a_relay_that_can_not_be_reached(look, key_file):
    found = await look(f'{LOCAL}relay = "http://127.0.0.1:9"\nrelay_key_file = "{key_file}"\n')
    assert (found["relay"].wrong, "connection refused" in found["relay"].found) == (True, True)


async def test_what_is_no_relay(look, vllm, key_file):
    vllm.status, vllm.kind = 404, "text/html"
    found = await look(f'{LOCAL}relay = "{vllm.url}"\nrelay_key_file = "{key_file}"\n')
    assert (found["relay"].wrong, "not a relay's answer" in found["relay"].found) == (True, True)


async def test_a_model_server_that_is_not_there_or_refuses_the_key(look, vllm, monkeypatch):
    found = await look(f'{LOCAL}model_server = "http://127.0.0.1:9"\n')
    assert (found["model server"].wrong, "connection refused" in found["model server"].found) == (True, True)
    assert "own" in found["relay"].found
    vllm.status, vllm.kind = 401, "application/json"
    monkeypatch.setenv("MODEL_KEY", "canary")
    found = await look(f'{LOCAL}model_server = "{vllm.url}"\nmodel_server_key_env = "MODEL_KEY"\n')
    assert "refuses the key" in found["model server"].found
    assert "model_server_key_env" in found["model server"].mend


async def test_a_wait_has_a_deadline(look, vllm, monkeypatch):
    monkeypatch.setattr(reach, "PATIENCE", 0.2)
    vllm.silent = True
    found = await look(f'{LOCAL}model_server = "{vllm.url}"\n')
    assert "no answer within 0.2 s" in found["model server"].found


@pytest.mark.parametrize("good", [False, True])
async def test_a_worker_key_that_parses_or_not_and_a_login(look, relay, key_file, monkeypatch, good):
    def login():
        raise AiflowError("nobody is logged in to Globus on this machine", hint=globus.LOGIN)

    monkeypatch.setattr(globus, "logged_in", login)
    public = WorkerKey.generate().public
    shown = public if good else public[:-4]
    settings = f'{GLOBUS}worker_key = "{shown}"\nrelay = "{relay.url}"\nrelay_key_file = "{key_file}"\n'
    found = await look(settings, secret=relay.key.reveal())
    assert found["worker key"].wrong is not good
    assert found["globus login"].wrong
    assert "aiflow login" in found["globus login"].mend
    assert found["relay takes key"].found == "yes"


async def test_without_the_sdk_the_login_says_what_to_install(look, relay, key_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "globus_compute_sdk", None)
    settings = f'{GLOBUS}worker_key = "x"\nrelay = "{relay.url}"\nrelay_key_file = "{key_file}"\n'
    assert globus.INSTALL in (await look(settings, secret=relay.key.reveal()))["globus login"].mend
