"""The hpc tier from a cell of a real kernel: local executor, relay in the kernel, a real model as the cluster's."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.model]

SETUP = """
import os, tempfile, time
from pathlib import Path
from aiflow_jupyter.providers.engine import Engine
from aiflow_jupyter.providers.models import default_model
server = Engine(default_model(), 1); server.start()
os.environ["CLUSTER_MODEL_KEY"] = server.key.reveal()
config = Path(tempfile.mkdtemp(), "aiflow.toml")
os.environ["AIFLOW_CONFIG"] = str(config)
settings = f'[tiers.hpc]\\nexecutor = "local"\\nrelay = "self"\\nmodel_server = "{server.url}/v1"\\n'
config.write_text(settings + 'model_server_key_env = "CLUSTER_MODEL_KEY"\\n')
"""
BUSY = """
import httpx
def busy():
    headers = {"Authorization": "Bearer " + os.environ["CLUSTER_MODEL_KEY"]}
    return any(s["is_processing"] for s in httpx.get(server.url + "/slots", headers=headers, trust_env=False).json())
"""


@pytest.fixture
def cluster(aiflow_kernel, model):
    assert aiflow_kernel.run(SETUP + BUSY, timeout=60).status == "ok"
    yield aiflow_kernel
    aiflow_kernel.run("server.end()")


def test_a_question_streams_from_the_worker_and_says_what_it_waits_for(cluster):
    ran = cluster.run("%%aiflow --tier hpc --max-tokens 40 -o answer\nWhat is a river?", timeout=90)
    assert ran.status == "ok", ran.reply.content
    texts = [m.content["data"]["text/markdown"] for m in ran.published if "text/markdown" in m.content.get("data", {})]
    lengths = [len(text) for text in texts if not text.startswith("*")]
    assert any(text.startswith("*") and text.endswith("…*") for text in texts), "nothing was said while it waited"
    assert len(set(lengths)) > 3, "the answer did not come in pieces"
    assert "hpc" in texts[-1].split("<small>")[1]
    assert cluster.run("answer.tier").value == "'hpc'"


def test_cancel_travels_back_and_the_model_stops(cluster):
    cluster.run("%%aiflow --tier hpc --max-tokens 2000 -b -o job\nTell me a very long story.", timeout=90)
    cluster.run("while not job.text: time.sleep(0.05)", timeout=90)
    assert cluster.run("busy()").value == "True"
    assert "cancelled" in cluster.run("%aiflow cancel").stdout
    waits = "until = time.time() + 20\nwhile busy() and time.time() < until: time.sleep(0.05)\nbusy()"
    assert cluster.run(waits, timeout=60).value == "False"


def test_without_configuration_the_tier_is_off_and_says_so(aiflow_kernel):
    ran = aiflow_kernel.run("%%aiflow --tier hpc\nHi")
    assert (ran.status, ran.error) == ("error", "ConfigError")
    assert "not configured" in ran.reply.content["evalue"]
    assert len(ran.reply.content["traceback"]) <= 3
