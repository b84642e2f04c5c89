from __future__ import annotations

import asyncio
import importlib.util
import sys

import pytest

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.relay import loops


async def kind() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@pytest.mark.parametrize("wanted", ["", "uvloop"])
def test_uvloop_is_taken_where_it_is_installed(wanted, monkeypatch, require):
    require("uvloop", importlib.util.find_spec("uvloop"), "pip install 'aiflow-jupyter[fast]'")
    monkeypatch.setenv(loops.VARIABLE, wanted)
    assert loops.run(kind()) == "uvloop"


def test_it_is_left_alone_where_that_is_wanted(monkeypatch):
    monkeypatch.setenv(loops.VARIABLE, "asyncio")
    assert loops.run(kind()) == "asyncio"


def test_without_it_nothing_is_missed_unless_it_was_insisted_on(monkeypatch):
    monkeypatch.setattr(loops, "installed", lambda: False)
    monkeypatch.delenv(loops.VARIABLE, raising=False)
    assert loops.run(kind()) == "asyncio"
    monkeypatch.setenv(loops.VARIABLE, "uvloop")
    with pytest.raises(ConfigError, match=r"aiflow-jupyter\[fast\]"):
        loops.run(kind())


def test_another_word_is_refused(monkeypatch):
    monkeypatch.setenv(loops.VARIABLE, "quick")
    with pytest.raises(ConfigError, match="'quick'"):
        loops.run(kind())


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the loop of a thread")
def test_the_thread_of_a_plain_generator_has_one(monkeypatch):
    from aiflow_jupyter.relay.client import SyncProducer

    monkeypatch.setenv(loops.VARIABLE, "asyncio")
    producer = SyncProducer("http://127.0.0.1:9", "ab" * 16, "capability", bytes(32))
    assert type(producer._loop).__module__.startswith("asyncio")
    producer.close()
