"""The demo's measurement on a provider whose every token comes when the test says."""

from __future__ import annotations

import asyncio
import io
import time

import pytest
from rich.console import Console

from aiflow_jupyter.bench import demo
from aiflow_jupyter.bench.terminal import LiveRun, gauges, summary
from aiflow_jupyter.errors import AiflowError, ProviderError
from aiflow_jupyter.events import Event, Finish, Usage

TOKENS = [("reasoning", "Let me "), ("reasoning", "see."), *(("answer", f"w{i}\n") for i in range(20))]


class Provider:
    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        self.requests = []
        self.open = 0

    async def stream(self, request):
        self.requests.append(request)
        self.open += 1
        try:
            for number, (phase, text) in enumerate(TOKENS[: request.max_tokens]):
                if len(self.requests) > 1 and number == self.fails_at:
                    raise ProviderError("down")
                await asyncio.sleep(0.002)
                meta = {"phase": phase, "tier": "local", "model": "m", "provider": "p"}
                yield Event("token", text, sequence=number, time=time.perf_counter_ns(), meta=meta)
            yield Event("finish", Finish("stop", Usage(completion_tokens=len(TOKENS))))
        finally:
            self.open -= 1


@pytest.fixture
async def report(monkeypatch):
    monkeypatch.setattr(demo, "SPEECH_S", 0.005)
    return await demo.measure(Provider(), "Hi", lambda _run: None)


async def test_the_report_is_of_what_was_asked_and_spoken(report):
    assert report.reasoning == "Let me see."
    assert report.text == " ".join(f"w{i}" for i in range(20))
    assert (report.model, report.provider, report.tokens) == ("m", "p", len(TOKENS))


async def test_streaming_speaks_before_waiting_would(report):
    assert report.model_ttft_s <= report.ttfpt_s < report.aggregate_ttfpt_s
    assert report.ttfpt_s < report.whole_s


async def test_every_node_keeps_to_its_queue_and_serves_all(report):
    nodes = report.as_dict()["nodes"]
    assert all(node["peak"] <= node["queue"] for node in nodes.values())
    assert nodes["speech"]["processed"] == 20
    assert nodes["notes"]["processed"] == 2


async def test_both_ways_ask_the_same_after_a_short_first_request(monkeypatch):
    monkeypatch.setattr(demo, "SPEECH_S", 0.0)
    provider = Provider()
    await demo.measure(provider, "Hi", lambda _run: None)
    warm, streamed, waited = provider.requests
    assert warm.max_tokens == 1
    for name in ("messages", "tier", "model", "temperature", "max_tokens", "seed", "think"):
        assert getattr(streamed, name) == getattr(waited, name)
    assert streamed.seed == demo.SEED
    assert provider.open == 0


@pytest.mark.parametrize("fails_at", [0, 5, 21])
async def test_a_failure_is_raised_and_nothing_stays_open(monkeypatch, fails_at):
    monkeypatch.setattr(demo, "SPEECH_S", 0.0)
    provider = Provider(fails_at)
    with pytest.raises(AiflowError, match="down"):
        await demo.measure(provider, "Hi", lambda _run: None)
    assert provider.open == 0


async def test_the_terminal_shows_each_node_with_its_gauge(report):
    out = io.StringIO()
    console = Console(file=out, width=120)
    console.print(gauges(report.status.nodes, 2.0))
    console.print(summary(report))
    with LiveRun(console):
        pass
    text = out.getvalue()
    for word in (
        "ask",
        "speech",
        "0/8",
        "had it waited for the whole answer",
        "m (p), 22 tokens",
        "starting the embedded",
    ):
        assert word in text
