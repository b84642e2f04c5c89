"""The hpc tier gives the same events as any other provider, whatever the way they came."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import pytest
from stage import QUICK, chunk, on_this_machine, payloads, recorded

from aiflow_jupyter.errors import ProviderError, StreamCut
from aiflow_jupyter.hpc.provider import HpcProvider
from aiflow_jupyter.hpc.remote import RelayAt
from aiflow_jupyter.providers.chunks import Chunks
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.relay.errors import KeyUnusable, RelayError
from aiflow_jupyter.relay.selfrelay import SelfRelay
from aiflow_jupyter.runtime.source import Request, Source


def asked(**fields) -> Request:
    return Request(({"role": "user", "content": "Why is the sky blue?"},), tier="hpc", **fields)


def plain(event):
    return event.kind, event.payload, event.source, event.sequence, dict(event.meta)


async def all_of(provider, request=None, into=None):
    events = [] if into is None else into
    async for event in provider.stream(request or asked()):
        events.append(event)
    return events


@pytest.fixture
async def provider(stage):
    made = HpcProvider(lambda: stage.executor, relay=stage.relay, worker_key=stage.key.public, timeouts=QUICK)
    yield made
    await made.aclose()


@pytest.mark.parametrize("name", ["vllm", "tools_vllm", "reasoning_vllm", "xllamacpp", "reasoning_llama"])
async def test_a_recorded_stream_gives_the_events_that_it_gives_locally(stage, provider, name):
    stage.vllm.parts = [recorded(name)]
    chunks = Chunks("hpc", "the server's model", "hpc", lambda: 0)
    local = [event for data in payloads(name) for event in chunks.feed(data)] + chunks.close()
    assert [plain(event) for event in await all_of(provider)] == [plain(event) for event in local]


async def test_events_name_tier_provider_and_the_model_that_answered(provider):
    first = (await all_of(provider))[0]
    assert {**first.meta} == {"phase": "answer", "tier": "hpc", "provider": "hpc", "model": "smollm2-135m"}


async def test_an_answer_in_one_piece_is_marked(stage):
    provider = HpcProvider(lambda: stage.executor, relay=None, worker_key=stage.key.public, timeouts=QUICK)
    events = await all_of(provider)
    assert all(event.meta["batch"] for event in events)
    assert events[-1].kind == "finish"


async def test_what_a_request_says_reaches_the_model_server(stage, provider):
    await all_of(provider, asked(model="m", temperature=0.1, max_tokens=9, seed=3, think=False, extra={"top_k": 2}))
    body = stage.vllm.asked[0]
    said = {name: body[name] for name in ("model", "temperature", "max_tokens", "seed", "top_k", "stream")}
    assert said == {"model": "m", "temperature": 0.1, "max_tokens": 9, "seed": 3, "top_k": 2, "stream": True}
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


async def test_the_patience_of_a_request_is_that_with_a_server_that_nothing_answers_for(provider, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", "http://127.0.0.1:9")
    with pytest.raises(ProviderError, match=r"nothing answers at 127\.0\.0\.1:9, tried for 0\.3 s") as given_up:
        await all_of(provider, asked(patience=0.3))
    assert (given_up.value.code, given_up.value.unread) == ("AF701", True)


async def test_what_is_waited_for_is_reported_to_the_request(stage, provider):
    reports: list[str] = []
    stage.vllm.loading = 1
    await all_of(provider, asked(report=reports.append))
    assert [report for report in reports if report.startswith("model loading")]


async def test_an_error_in_the_middle_is_a_cut_stream_with_its_code(stage, provider):
    stage.vllm.parts, stage.vllm.cut = [chunk("a")], True
    came = []
    with pytest.raises(StreamCut) as failed:
        await all_of(provider, into=came)
    assert failed.value.code == "AF702"
    assert [event.payload for event in came] == ["a"]


async def test_what_was_held_back_of_a_cut_answer_is_given(stage, provider):
    stage.vllm.parts, stage.vllm.cut = [chunk("<thi")], True  # it may be the beginning of a tag
    came = []
    with pytest.raises(StreamCut) as failed:
        await all_of(provider, into=came)
    assert [event.payload for event in came] == ["<thi"]
    assert "is a part of the answer" in failed.value.hint


async def test_an_error_object_in_the_stream_is_the_server_s_failure(stage, provider):
    stage.vllm.parts = [recorded("vllm_midstream_error")]
    with pytest.raises(ProviderError) as failed:
        await all_of(provider)
    assert failed.value.code == "AF707"


async def test_a_stream_without_a_finish_reason_is_cut(stage, provider):
    stage.vllm.parts = [chunk("a")]
    with pytest.raises(StreamCut):
        await all_of(provider)


async def test_an_error_of_the_relay_before_the_answer_is_a_provider_s_error_with_its_code(stage):
    relay = replace(stage.relay, key=Secret("wrong"))
    provider = HpcProvider(lambda: stage.executor, relay=relay, worker_key=stage.key.public, timeouts=QUICK)
    with pytest.raises(ProviderError) as failed:
        await all_of(provider)
    assert (failed.value.code, failed.value.unread) == ("AF911", True)


async def test_a_control_plane_that_can_not_be_set_up_is_a_provider_s_error(stage):
    def broken():
        raise ProviderError("no login", code="AF994")

    provider = HpcProvider(broken, relay=stage.relay, worker_key=stage.key.public)
    with pytest.raises(ProviderError, match="no login") as failed:
        await all_of(provider)
    assert failed.value.unread


def test_padding_out_of_bounds_is_refused_at_once():
    with pytest.raises(RelayError):
        HpcProvider(lambda: None, relay=None, worker_key="", pad=4096)


@pytest.mark.parametrize("text", ["", "x", "aiflow-x25519:", "aiflow-x25519:abc", "aiflow-x25519:\u00e9", "\ud800"])
def test_a_worker_key_that_is_none_is_refused_before_anything_is_started(text):
    with pytest.raises(KeyUnusable, match="worker_key: ") as refused:
        HpcProvider(lambda: pytest.fail("started"), relay=None, worker_key=text)
    assert "aiflow-worker.pyz keys" in refused.value.hint


async def test_a_relay_elsewhere_without_tls_names_what_can_be_set_in_the_file(stage):
    relay = RelayAt("http://relay.example.org", Secret("k"))
    provider = HpcProvider(lambda: stage.executor, relay=relay, worker_key=stage.key.public, timeouts=QUICK)
    with pytest.raises(ProviderError) as failed:
        await all_of(provider)
    assert failed.value.code == "AF917"
    assert 'relay = "https://' in failed.value.hint
    assert "relay_insecure = true" in failed.value.hint
    assert "allow_plain" not in failed.value.hint


async def test_a_relay_of_this_kernel_that_can_not_listen_names_what_can_be_set_in_the_file(stage):
    relay = partial(SelfRelay, "192.0.2.1", insecure=True)
    provider = HpcProvider(lambda: stage.executor, relay=relay, worker_key=stage.key.public, timeouts=QUICK)
    with pytest.raises(ProviderError) as failed:
        await all_of(provider)
    assert failed.value.code == "AF973"
    assert "relay_host" in failed.value.hint


@pytest.mark.parametrize(("parts", "a_part"), [([], False), ([chunk("")], False), ([chunk("a")], True)])
async def test_a_cut_answer_is_called_a_part_only_when_something_came(stage, provider, parts, a_part):
    stage.vllm.parts, stage.vllm.cut = parts, True
    with pytest.raises(ProviderError) as failed:
        await all_of(provider)
    assert (failed.value.code, failed.value.unread) == ("AF702", False)
    assert ("is a part of the answer" in failed.value.hint) is a_part
    assert "Run it again" in failed.value.hint


async def test_the_whole_tier_on_this_machine_needs_a_model_server_s_address_alone(vllm):
    vllm.parts = [recorded("reasoning_vllm")]
    provider = on_this_machine(vllm.url)
    assert isinstance(provider, Source)
    first = await all_of(provider)
    second = await all_of(provider)
    await provider.aclose()
    assert [plain(event) for event in first] == [plain(event) for event in second]
    assert first[-1].kind == "finish"


async def test_closing_ends_the_workers_and_the_relay_of_this_process(vllm):
    vllm.parts, vllm.free = [chunk("a")] * 3, 1
    vllm.gate.clear()
    provider = on_this_machine(vllm.url)
    async with aclosing(provider.stream(asked())) as events:
        await anext(events)
        opened = provider._opening.result()
        (pid,) = opened.executor.pids
        await provider.aclose()
        await vllm.stopped.wait()
        with pytest.raises(ProviderError):
            await anext(events)
    async with asyncio.timeout(20):
        while opened.executor.pids:
            await asyncio.sleep(0.01)
    assert not _alive(pid)
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", urlsplit(opened.relay.url).port)


async def test_a_relay_elsewhere_can_be_used_by_a_worker_on_this_machine(vllm, relay):
    provider = on_this_machine(vllm.url, relay=relay)
    assert (await all_of(provider))[-1].kind == "finish"
    await provider.aclose()


# What is started, whoever leaves meanwhile


class Plane(Executor):
    """A control plane that takes its time to start, and counts what is open."""

    def __init__(self, gate: threading.Event | None = None):
        self.started, self.shut = threading.Event(), 0
        self.gate = gate

    def make(self) -> Plane:
        self.started.set()
        if self.gate is not None:
            assert self.gate.wait(20)
        return self

    def submit(self, fn, /, *args, **kwargs):
        raise ProviderError("closed" if self.shut else "open")

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.shut += 1


class Relays:
    """Makes relays in this process, and remembers them."""

    def __init__(self):
        self.made: list[SelfRelay] = []

    def __call__(self) -> SelfRelay:
        self.made.append(SelfRelay())
        return self.made[-1]

    def listening(self) -> int:
        return sum(relay.server._listener is not None for relay in self.made)


@pytest.fixture
def starting(key):
    """A provider whose control plane is being started, with its relay there already."""
    gate = threading.Event()
    plane, relays = Plane(gate), Relays()
    yield HpcProvider(plane.make, relay=relays, worker_key=key.public, timeouts=QUICK), plane, relays
    gate.set()


async def test_closing_while_it_starts_closes_what_is_being_started(starting):
    provider, plane, relays = starting
    asking = asyncio.create_task(all_of(provider))
    assert await asyncio.to_thread(plane.started.wait, 20)
    closing = asyncio.create_task(provider.aclose())
    await asyncio.sleep(0)
    plane.gate.set()
    await closing
    assert (len(relays.made), relays.listening(), plane.shut) == (1, 0, 1)
    with pytest.raises(ProviderError):
        await asking


async def test_a_question_that_leaves_while_it_starts_forgets_nothing_of_it(starting):
    provider, plane, relays = starting
    asking = asyncio.create_task(all_of(provider))
    assert await asyncio.to_thread(plane.started.wait, 20)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    plane.gate.set()
    with pytest.raises(ProviderError, match="open"):
        await all_of(provider)  # the next one finds it started
    await provider.aclose()
    assert (len(relays.made), relays.listening(), plane.shut) == (1, 0, 1)


async def test_closing_is_done_to_its_end_also_when_whoever_asked_for_it_leaves(starting):
    provider, plane, relays = starting
    asking = asyncio.create_task(all_of(provider))
    assert await asyncio.to_thread(plane.started.wait, 20)
    closing = asyncio.create_task(provider.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    plane.gate.set()
    await asyncio.gather(asking, closing, return_exceptions=True)
    await provider.aclose()
    assert (relays.listening(), plane.shut) == (0, 1)


async def test_a_start_that_fails_leaves_no_relay_behind_and_the_next_one_may_succeed(key):
    relays, plane = Relays(), Plane()
    problems = [ProviderError("no login", code="AF994")]

    def make():
        if problems:
            raise problems.pop()
        return plane

    provider = HpcProvider(make, relay=relays, worker_key=key.public, timeouts=QUICK)
    with pytest.raises(ProviderError, match="no login"):
        await all_of(provider)
    assert relays.listening() == 0
    with pytest.raises(ProviderError, match="open"):
        await all_of(provider)
    assert relays.listening() == 1
    await provider.aclose()
    assert (relays.listening(), plane.shut) == (0, 1)


async def test_once_closed_it_starts_nothing(key):
    provider = HpcProvider(lambda: pytest.fail("started"), relay=Relays(), worker_key=key.public)
    await provider.aclose()
    with pytest.raises(ProviderError, match="closed") as failed:
        await all_of(provider)
    assert failed.value.code == "AF996"


async def test_questions_that_come_together_start_it_once(key):
    plane, relays = Plane(), Relays()
    provider = HpcProvider(plane.make, relay=relays, worker_key=key.public, timeouts=QUICK)
    await asyncio.gather(*(all_of(provider) for _ in range(3)), return_exceptions=True)
    assert len(relays.made) == 1
    await provider.aclose()
    assert plane.shut == 1


async def test_what_a_relay_of_this_kernel_needs_is_named_as_it_is_set_in_the_file(stage):
    relay = partial(SelfRelay, "0.0.0.0")
    provider = HpcProvider(lambda: stage.executor, relay=relay, worker_key=stage.key.public, timeouts=QUICK)
    with pytest.raises(ProviderError) as failed:
        await all_of(provider)
    assert failed.value.code == "AF973"
    assert "relay_insecure = true" in failed.value.hint
    assert "--" not in failed.value.hint


async def test_a_public_name_goes_without_tls_only_where_that_was_said(stage):
    relay = partial(SelfRelay, public_host="login1.cluster")
    provider = HpcProvider(lambda: stage.executor, relay=relay, worker_key=stage.key.public, timeouts=QUICK)
    with pytest.raises(ProviderError) as failed:
        await all_of(provider)
    await provider.aclose()
    assert failed.value.code == "AF917"
    assert "relay_insecure = true" in failed.value.hint


def _alive(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
