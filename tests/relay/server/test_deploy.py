"""What the how-to says is what the relay does."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import aiflow_jupyter.relay
from aiflow_jupyter.relay.command import relay
from aiflow_jupyter.relay.limits import Limits

ROOM = Path(aiflow_jupyter.relay.__file__).parent


def test_the_table_of_limits_holds_every_limit_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| ([0-9]+)[ |]", (ROOM / "DEPLOY.md").read_text(), re.MULTILINE)
    assert {name: float(value) for name, value in rows} == dataclasses.asdict(Limits())


def test_every_option_in_the_table_exists():
    options = {name for parameter in relay.params for name in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)[` ]", (ROOM / "DEPLOY.md").read_text())) <= options


def test_the_unit_starts_the_relay_with_options_that_exist_behind_the_proxy_of_the_caddyfile():
    unit = (ROOM / "deploy" / "aiflow-relay.service").read_text()
    _, _, *words = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1])
    chosen = relay.make_context("relay", words).params
    assert chosen["behind_proxy"]
    assert chosen["host"] == "127.0.0.1"
    assert f"reverse_proxy 127.0.0.1:{chosen['port']} " in (ROOM / "deploy" / "Caddyfile").read_text()
    stop = float(re.search(r"TimeoutStopSec=(\d+)", unit)[1])
    assert stop > chosen["drain"] + Limits().close_timeout
    assert float(re.search(r"LimitNOFILE=(\d+)", unit)[1]) > 2 * Limits().sockets
