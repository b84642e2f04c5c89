"""The relay's measurements measure what they say; how fast things are is not a test's business."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import ssl
import sys

import pytest
from click.testing import CliRunner

from aiflow_jupyter.bench import certificates, dual_channel, relay, relay_ends
from aiflow_jupyter.cli import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the processes share CLOCK_MONOTONIC")
PEER = importlib.util.find_spec("streamrelay") is not None


@pytest.fixture(scope="module")
def figures():
    told = []
    found = relay.measure(size=relay.QUICK, tell=told.append)
    assert told
    return found


def test_a_quick_run_has_every_figure(figures):
    size = figures["size"]
    for line in ("plain", "tls"):
        ours = figures[line]["aiflow"]
        for measure in ("latency_ms", "first_token_ms"):
            assert 0 < ours[measure]["p50"] <= ours[measure]["max"]
            assert ours[measure]["p50_range"][0] <= ours[measure]["p50"] <= ours[measure]["p50_range"][1]
        assert ours["latency_ms"]["p50"] <= ours["latency_ms"]["p95"] <= ours["latency_ms"]["p99"]
        assert ours["frame_by_frame"]["frames"] == size["burst"]
        assert 0 < ours["burst"]["frames"] < size["burst"]
        assert ours["burst"]["tokens_per_s"] > 0
    plain = figures["plain"]["aiflow"]
    assert plain["long_burst"]["frames"] < size["long_burst"]
    assert sorted(plain["channels"]) == ["1", "5"]
    for found in plain["channels"].values():
        assert 0 < found["p50"] <= found["p95"] <= found["p99"]
        assert found["relay_cpu_percent"] > 0
        assert found["relay_rss_mb"] > 0
    assert set(plain["knee"]) == {"p95_ms", "within", "beyond"}
    assert "channels" not in figures["tls"]["aiflow"]
    assert figures["machine"]["cpus"]
    json.dumps(figures)


def test_without_a_peer_there_is_no_ratio(figures):
    assert figures["latency_ratio"] is None
    assert figures["latency_ratio_fast"] is None
    assert "throughput_ratio" not in figures
    assert figures["goals"] == {}


def test_the_table_shows_each_measure_once(figures):
    text = "\n".join(relay.table(figures))
    for words in ("p50 ms", "connect to first token", "frame by frame", "5 channels", "both sides behind TLS"):
        assert words in text


def test_beside_the_peer_there_are_ratios(require):
    require("streamrelay", PEER, "pip install 'aiflow-jupyter[bench]'")
    small = relay.Size(
        rounds=1, tokens=30, skip=5, burst=500, long_burst=500, long_rounds=1, connects=1, channels=(2,), channel_s=0.5,
        channel_rounds=1, tls_rounds=1,
    )  # fmt: skip
    found = relay.measure(against="streamrelay", size=small)
    for name in ("latency_ratio", "latency_ratio_tls", "throughput_ratio", "frame_by_frame_ratio"):
        low, high = found[f"{name}_range"]
        assert 0 < low <= found[name] <= high
    assert set(found["goals"]) >= {"latency_ratio", "throughput_ratio"}
    assert "streamrelay" in "\n".join(relay.table(found))


def test_a_peer_that_is_not_installed_is_said_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(relay.importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["bench", "relay", "--json", "--against", "streamrelay"])
    assert done.exit_code == 1
    assert "streamrelay is not installed" in done.stderr
    assert "pip install 'aiflow-jupyter[bench]'" in done.stderr
    assert done.stdout == ""


async def test_a_process_that_ends_is_an_error():
    async with relay.child("producer", "aiflow", {}) as producer:
        with pytest.raises(relay.AiflowError, match="the producer of aiflow ended"):
            await producer.ask({"mode": "burst"})


def test_ratios_are_made_within_rounds():
    results = relay.Results()
    for ours, theirs in ((1.0, 2.0), (30.0, 20.0), (1.0, 4.0)):
        results.note("ours", "latency_ms", {"p50": ours})
        results.note("theirs", "latency_ms", {"p50": theirs})
    ratio = results.ratios("latency_ms", "p50", "ours", "theirs")
    assert ratio == {"median": 0.5, "range": [0.25, 1.5]}
    assert results.of("ours")["latency_ms"] == {"p50": 1.0, "p50_range": [1.0, 30.0]}


def test_the_knee_is_the_last_number_within_bounds():
    def channels(*p95s):
        return {str(10**place): {"p95": p95} for place, p95 in enumerate(p95s)}

    assert relay._knee(channels(1, 2, 30, 5)) == {"p95_ms": 20.0, "within": 10, "beyond": 100}
    assert relay._knee(channels(1, 2)) == {"p95_ms": 20.0, "within": 10, "beyond": None}
    assert relay._knee(channels(30)) == {"p95_ms": 20.0, "within": None, "beyond": 1}


def test_a_tally_leaves_out_each_channels_first_tokens():
    tally = relay_ends.Tally(each=True, skip=1)
    for note in (tally.channel(), tally.channel()):
        for _ in range(3):
            note(relay_ends.stamp())
    found = tally.figures()
    assert found["count"] == 6
    assert len(tally.delays) == 4
    assert len(relay_ends.stamp()) == 27


def test_the_certificates_are_trusted_by_who_trusts_their_authority(tmp_path):
    made = certificates.make(tmp_path)
    assert made.key.stat().st_mode & 0o077 == 0
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certificate, made.key)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=made.authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    other = server.wrap_bio(outgoing, incoming, server_side=True)
    for _ in range(4):
        for end in (client, other):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert client.version() is not None


def test_a_quick_run_of_both_channels(tmp_path):
    done = CliRunner().invoke(main, ["bench", "dual-channel", "--json", "--quick"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    shape = dual_channel.QUICK
    assert found["tokens"] == shape.tokens
    assert shape.control_s <= found["ttft_s"]["streamed"] < found["ttft_s"]["batch"]
    assert found["ttft_s"]["batch"] >= shape.whole_s - 0.1
    assert found["ttft_ratio"] > 1
    assert 0 < found["added_ms"]["p50"] <= found["added_ms"]["p95"]
    assert "goals" not in found  # not the published shape
    assert dual_channel.table(found)


def test_the_published_shape_has_as_many_tokens_as_fit():
    assert dual_channel.Shape().tokens == 294
