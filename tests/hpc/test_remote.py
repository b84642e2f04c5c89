"""An answer from the cluster comes whole and in order, or an error says what is missing and why."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import Executor, Future
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import pytest
from stage import BODY, QUICK, Stage, all_of, chunk, payloads, recorded

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.hpc import modelserver, worker
from aiflow_jupyter.hpc import remote as remote_module
from aiflow_jupyter.hpc.record import Record
from aiflow_jupyter.hpc.remote import RelayAt
from aiflow_jupyter.hpc.task import Result, open_task, pack_result
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.relay.capability import Secret as RelaySecret
from aiflow_jupyter.relay.client import Status, StreamConsumer, StreamProducer, create_channel
from aiflow_jupyter.relay.crypto import WorkerKey
from aiflow_jupyter.relay.errors import PeerLost
from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.limits import Limits
from aiflow_jupyter.relay.server import RelayServer

NOWHERE = RelayAt("http://127.0.0.1:9", Secret("no-key"))


class Held(Executor):
    """A control plane in the test's hands: it takes tasks and does nothing by itself."""

    def __init__(self):
        self.tasks: list[tuple[str, Future[str]]] = []
        self.taken = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def submit(self, fn, /, *args, **kwargs):
        future: Future[str] = Future()
        self.tasks.append((args[0], future))
        self._loop.call_soon_threadsafe(self.taken.set)
        return future


async def failure(remote, into=None) -> AiflowError:
    with pytest.raises(AiflowError) as failed:
        await all_of(remote, into)
    return failed.value


@pytest.mark.parametrize("name", ["vllm", "tools_vllm", "reasoning_vllm", "vllm_midstream_error", "xllamacpp"])
async def test_every_event_of_the_model_server_arrives_as_it_was_sent(stage, name):
    stage.vllm.parts = [recorded(name)]
    assert await all_of(stage.ask()) == payloads(name)


async def test_the_request_reaches_the_model_server_whole(stage):
    body = {**BODY, "temperature": 0.5, "tools": [{"type": "function"}], "stop": ["x"]}
    await all_of(stage.ask(body, model="mine"))
    assert stage.vllm.asked == [
        {**body, "model": "mine", "stream": True, "stream_options": {"include_usage": True}},
    ]


async def test_without_a_model_s_name_the_server_s_first_is_asked(stage):
    await all_of(stage.ask())
    assert stage.vllm.asked[0]["model"] == "first-model"


async def test_what_is_being_waited_for_is_said_until_the_first_token(stage):
    stage.vllm.loading = 2
    assert await all_of(stage.ask()) == payloads("vllm")
    assert stage.reports[0].startswith("submitted ")
    assert "worker up" in stage.reports
    assert stage.reports[-1].startswith("model loading ")


async def test_a_token_does_not_wait_for_those_after_it(stage):
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b", "stop")], 1
    stage.vllm.gate.clear()
    async with aclosing(stage.ask().items()) as items:
        assert json.loads(await anext(items))["choices"][0]["delta"]["content"] == "a"
        stage.vllm.gate.set()
        assert json.loads(await anext(items))["choices"][0]["delta"]["content"] == "b"


async def test_two_answers_at_once_do_not_mix(stage):
    first, second = await asyncio.gather(all_of(stage.ask()), all_of(stage.ask()))
    assert first == second == payloads("vllm")


# What stops it


async def test_leaving_stops_the_model_server(stage):
    stage.vllm.parts, stage.vllm.free = [chunk("a")] * 5, 1
    stage.vllm.gate.clear()
    async with aclosing(stage.ask().items()) as items:
        await anext(items)
        assert stage.vllm.running == 1
    await stage.vllm.stopped.wait()
    assert stage.vllm.running == 0


async def test_leaving_before_the_first_token_stops_the_model_server(stage):
    stage.vllm.parts, stage.vllm.free = [chunk("a")] * 5, 0
    stage.vllm.gate.clear()
    asking = asyncio.create_task(all_of(stage.ask()))
    while not stage.vllm.running:
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await stage.vllm.stopped.wait()


async def test_leaving_before_the_job_has_started_cancels_it(stage):
    held = Held()
    asking = asyncio.create_task(all_of(stage.ask(executor=held)))
    await held.taken.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    while not held.tasks[0][1].cancelled():
        await asyncio.sleep(0.01)


async def test_a_job_that_starts_when_nobody_waits_any_more_does_not_ask_the_model_server(stage):
    held = Held()
    asking = asyncio.create_task(all_of(stage.ask(executor=held)))
    await held.taken.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    argument = held.tasks[0][0]
    task = replace(open_task(argument, stage.key), timeouts=replace(QUICK, linger=0.2, relay=0.1, beat=0.1))
    result = await worker._Job(task, worker.Server.find, lambda: 0.0).result()
    assert result.status == "no_consumer"
    assert stage.vllm.headers == []


# What fails before the answer


async def test_no_worker_in_time_is_an_error_that_says_how_long(stage):
    failed = await failure(stage.ask(executor=Held(), timeouts=replace(QUICK, start=0.3)))
    assert (failed.code, failed.unread) == ("AF986", True)
    assert "within 0.3 s" in failed.message


async def test_a_job_that_fails_is_an_error_with_the_job_s_words(stage):
    held = Held()
    asking = asyncio.create_task(failure(stage.ask(executor=held)))
    await held.taken.wait()
    held.tasks[0][1].set_exception(RuntimeError("the node went down"))
    failed = await asking
    assert failed.code == "AF985"
    assert "RuntimeError: the node went down" in failed.message


async def test_a_job_that_was_cancelled_elsewhere_is_an_error(stage):
    held = Held()
    asking = asyncio.create_task(failure(stage.ask(executor=held)))
    await held.taken.wait()
    held.tasks[0][1].cancel()
    assert (await asking).code == "AF985"


async def test_a_control_plane_that_refuses_is_an_error(stage):
    class Refusing(Executor):
        def submit(self, fn, /, *args, **kwargs):
            raise OSError("no route")

    failed = await failure(stage.ask(executor=Refusing()))
    assert failed.code == "AF985"
    assert "no route" in failed.message


async def test_a_control_plane_that_hangs_is_an_error(stage):
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Hanging(Executor):
        def submit(self, fn, /, *args, **kwargs):
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
            return Future()

    failed = await failure(stage.ask(executor=Hanging(), timeouts=replace(QUICK, submit=0.2)))
    release.set()
    assert failed.code == "AF986"


@pytest.mark.parametrize("status", ["expired", "no_consumer", "cancelled", "failed", "version", "streamed", "batch"])
async def test_a_result_without_an_answer_is_an_error_of_its_own(stage, status):
    held = Held()
    asking = asyncio.create_task(failure(stage.ask(executor=held)))
    await held.taken.wait()
    held.tasks[0][1].set_result(pack_result(Result(status)))
    failed = await asking
    assert failed.code
    assert getattr(failed, "unread", False) is (status in {"expired", "no_consumer", "version"})
    assert failed.hint


@pytest.mark.parametrize("text", ["", "null", "<html>", '{"v": 9, "status": "streamed"}', None, 7])
async def test_a_result_that_is_none_is_an_error(stage, text):
    held = Held()
    asking = asyncio.create_task(failure(stage.ask(executor=held)))
    await held.taken.wait()
    held.tasks[0][1].set_result(text)
    assert (await asking).code in {"AF989", "AF982"}


async def test_a_worker_with_another_key_says_which_keys_to_compare(stage):
    failed = await failure(stage.ask(worker_key=WorkerKey.generate().public))
    assert failed.code == "AF941"
    assert "another key" in failed.message


async def test_a_worker_without_a_key_says_so(stage, monkeypatch, tmp_path):
    monkeypatch.delenv("AIFLOW_WORKER_KEY")
    monkeypatch.setenv("AIFLOW_WORKER_KEY_FILE", str(tmp_path / "none"))
    failed = await failure(stage.ask())
    assert failed.code == "AF940"


async def test_a_job_that_starts_too_late_does_not_ask_the_model_server(stage):
    task = {"relay": None, "worker_key": stage.key.public}
    held = Held()
    asking = asyncio.create_task(failure(stage.ask(executor=held, **task)))
    await held.taken.wait()
    late = await worker.work(held.tasks[0][0], worker.worker_key, clock=lambda: 4e9)
    held.tasks[0][1].set_result(late)
    assert (await asking).code == "AF983"
    assert stage.vllm.headers == []


async def test_a_wrong_relay_key_is_an_error_and_no_detour_by_the_control_plane(stage):
    failed = await failure(stage.ask(relay=replace(stage.relay, key=Secret("wrong"))))
    assert failed.code == "AF911"
    assert stage.vllm.headers == []


# What the model server does wrong


@pytest.mark.parametrize(
    ("status", "kind", "body", "code"),
    [
        (200, "text/html", b"<html>log in</html>", "AF708"),
        (401, "application/json", b'{"error": "no"}', "AF703"),
        (404, "application/json", b'{"error": {"message": "no such model"}}', "AF704"),
        (400, "application/json", b'{"object": "error", "message": "too long"}', "AF706"),
        (429, "text/plain", b"", "AF705"),
        (500, "text/html", b"<html>", "AF707"),
        (302, "text/plain", b"", "AF704"),
    ],
)
async def test_what_the_model_server_refuses_is_told_with_a_code(stage, status, kind, body, code):
    stage.vllm.status, stage.vllm.kind, stage.vllm.body = status, kind, body
    assert (await failure(stage.ask(model="m"))).code == code


async def test_the_model_server_s_own_words_arrive_and_its_key_does_not(stage, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER_KEY", "very-secret-key")
    stage.vllm.status, stage.vllm.kind = 400, "application/json"
    stage.vllm.body = b'{"message": "4096 tokens, and very-secret-key"}'
    failed = await failure(stage.ask(model="m"))
    assert "4096 tokens, and ***" in failed.message


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (400, "application/json", b'{"message": "bad very\\u002dsecret\\u002dkey"}'),
        (400, "application/json", json.dumps({"message": "\u200b".join("very-secret-key")}).encode()),
        (200, "text/very-secret-key", b"x"),
    ],
)
async def test_a_key_is_masked_however_the_model_server_spells_it(stage, monkeypatch, status, kind, body):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER_KEY", "very-secret-key")
    stage.vllm.status, stage.vllm.kind, stage.vllm.body = status, kind, body
    failed = await failure(stage.ask(model="m"))
    assert "***" in failed.message
    assert "very-secret-key" not in failed.message


async def test_a_key_is_masked_in_the_answer_before_it_leaves_the_cluster(stage, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER_KEY", "very-secret-key")
    stage.vllm.parts = [chunk("very-secret-key").replace(b"-", b"\\u002d"), chunk("", "very-secret-key")]
    assert [item.count("***") for item in await all_of(stage.ask())] == [1, 1]


async def test_an_answer_whose_finish_reason_came_is_whole_though_its_line_stays_open_or_is_lost(stage, monkeypatch):
    monkeypatch.setattr(modelserver, "_AFTER", 0.1)
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("", "stop"), chunk("late")], 2
    stage.vllm.gate.clear()
    assert len(await all_of(stage.ask())) == 2
    stage.vllm.gate.set()
    stage.vllm.parts, stage.vllm.cut = [chunk("a"), chunk("", "stop")], True
    assert len(await all_of(stage.ask())) == 2


async def test_a_variable_of_the_worker_that_names_no_proxy_is_named(stage, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", "http://there.example")
    monkeypatch.setenv("HTTP_PROXY", "foo://there")
    failed = await failure(stage.ask())
    assert (failed.code, "HTTP_PROXY" in failed.message) == ("AF716", True)


async def test_a_model_server_that_is_not_there_is_an_error_once_it_is_late(stage, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", "http://127.0.0.1:9")
    failed = await failure(stage.ask(timeouts=replace(QUICK, first_token=0.5)))
    assert failed.code == "AF987"
    assert "nothing answers at 127.0.0.1:9" in failed.message
    assert "first_token_timeout" in failed.hint


@pytest.mark.parametrize("how", ["no answer", "an answer without a piece"])
async def test_a_model_server_that_says_nothing_is_an_error_once_the_first_token_is_late(stage, how):
    stage.vllm.silent = how == "no answer"
    stage.vllm.gate.clear()
    failed = await failure(stage.ask(timeouts=replace(QUICK, first_token=0.5)))
    assert failed.code == "AF709"
    assert "took the request and did not answer" in failed.message
    assert "first_token_timeout" in failed.hint


async def test_a_model_server_that_falls_silent_in_its_answer_is_an_error(stage):
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b")], 1
    stage.vllm.gate.clear()
    came: list[str] = []
    assert (await failure(stage.ask(timeouts=replace(QUICK, token=0.4)), came)).code == "AF709"
    assert len(came) == 1


async def test_what_a_404_was_said_to_is_named(stage):
    stage.vllm.status, stage.vllm.kind = 404, "application/json"
    assert f"{stage.vllm.url}/chat/completions" in (await failure(stage.ask(model="m"))).message
    assert f"{stage.vllm.url}/models" in (await failure(stage.ask())).message


@pytest.mark.parametrize("end", ["/v1", "/v1/", "", "/"])
async def test_a_model_server_is_named_with_or_without_its_v1(stage, monkeypatch, end):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", stage.vllm.url.removesuffix("/v1") + end)
    assert await all_of(stage.ask()) == payloads("vllm")
    assert [head.split()[1] for head in stage.vllm.headers] == ["/v1/models", "/v1/chat/completions"]


async def test_a_model_server_that_is_cut_off_is_an_error_after_what_came(stage):
    stage.vllm.parts, stage.vllm.cut = [chunk("a"), chunk("b")], True
    came: list[str] = []
    failed = await failure(stage.ask(), came)
    assert failed.code == "AF702"
    assert len(came) == 2


async def test_the_server_file_is_read_for_each_task_once_it_is_there(stage, monkeypatch, tmp_path):
    monkeypatch.delenv("AIFLOW_MODEL_SERVER")
    file = tmp_path / "server.json"
    monkeypatch.setenv("AIFLOW_MODEL_SERVER_FILE", str(file))
    asking = asyncio.create_task(all_of(stage.ask()))
    while not any(report.startswith("nothing says yet where the model server is, ") for report in stage.reports):
        await asyncio.sleep(0.01)
    file.touch(0o600)
    file.write_text(json.dumps({"url": stage.vllm.url, "key": "a-key"}))
    assert await asking == payloads("vllm")
    assert "authorization: bearer a-key" in stage.vllm.headers[-1].lower()


async def test_a_server_file_that_others_can_read_is_refused(stage, monkeypatch, tmp_path):
    monkeypatch.delenv("AIFLOW_MODEL_SERVER")
    file = tmp_path / "server.json"
    file.write_text("{}")
    file.chmod(0o644)
    monkeypatch.setenv("AIFLOW_MODEL_SERVER_FILE", str(file))
    failed = await failure(stage.ask())
    assert failed.code == "AF991"
    assert "chmod 600" in failed.hint


# What is lost on the way


async def test_without_a_relay_the_answer_comes_in_one_piece(stage):
    remote = stage.ask(relay=None)
    assert await all_of(remote) == payloads("vllm")
    assert remote.batch


async def test_a_relay_that_this_end_can_not_reach_is_done_without(stage):
    remote = stage.ask(relay=NOWHERE)
    assert await all_of(remote) == payloads("vllm")
    assert remote.batch
    why = "the relay 127.0.0.1:9 could not be reached (connection refused)"
    assert remote.note == f"{why}: the answer came in one piece"
    assert f"{why}; the answer will come in one piece" in stage.reports


async def test_a_relay_that_this_end_can_not_reach_is_an_error_where_no_other_way_is_wanted(stage):
    failed = await failure(stage.ask(relay=NOWHERE, fallback=False))
    assert failed.code == "AF910"
    assert "connection refused" in failed.message
    assert "fallback = false" in failed.hint
    assert stage.vllm.headers == []


async def test_a_relay_that_the_worker_can_not_reach_is_an_error_where_no_other_way_is_wanted(stage):
    held = Held()
    asking = asyncio.create_task(failure(stage.ask(executor=held, fallback=False)))
    await held.taken.wait()
    task = replace(open_task(held.tasks[0][0], stage.key), relay=NOWHERE.url, timeouts=replace(QUICK, relay=0.2))
    result = await worker._Job(task, worker.Server.find, lambda: 0.0).result()
    held.tasks[0][1].set_result(pack_result(result, task))
    failed = await asking
    assert (failed.code, "no relay for the worker" in failed.message) == ("AF910", True)
    assert stage.vllm.headers == []


async def test_a_relay_that_the_worker_can_not_reach_is_done_without(stage):
    held = Held()
    remote = stage.ask(executor=held)
    asking = asyncio.create_task(all_of(remote))
    await held.taken.wait()
    task = replace(open_task(held.tasks[0][0], stage.key), relay=NOWHERE.url, timeouts=replace(QUICK, relay=0.2))
    result = await worker._Job(task, worker.Server.find, lambda: 0.0).result()
    held.tasks[0][1].set_result(pack_result(result, task))
    assert await asking == payloads("vllm")
    assert remote.batch
    assert remote.note.startswith("for the worker, the relay 127.0.0.1:9 could not be reached (connection refused)")
    assert remote.note.endswith(": the answer came in one piece")


async def test_an_error_in_one_piece_is_told_as_well_as_in_a_stream(stage):
    stage.vllm.parts, stage.vllm.cut = [chunk("a")], True
    came: list[str] = []
    assert (await failure(stage.ask(relay=None), came)).code == "AF702"
    assert len(came) == 1


async def test_an_answer_too_large_for_the_control_plane_is_an_error(stage, monkeypatch):
    monkeypatch.setattr(worker, "Record", lambda: Record(2000))
    assert (await failure(stage.ask(relay=None))).code == "AF990"


async def test_a_consumer_that_vanishes_stops_the_model_server_and_its_rest_comes_as_the_result(stage):
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b"), chunk("c")], 1
    stage.vllm.gate.clear()
    held = Held()
    asking = asyncio.create_task(all_of(stage.ask(executor=held)))
    await held.taken.wait()
    task = replace(open_task(held.tasks[0][0], stage.key), timeouts=replace(QUICK, linger=1.5, beat=0.5))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    # A consumer of its own, which can vanish without a word.
    channel = await create_channel(stage.relay.url, stage.relay.key.reveal())
    task = replace(task, channel=channel.id, capability=channel.producer)
    consumer = StreamConsumer(channel.relay, channel.id, channel.consumer, task.secret, limits=task.limits())
    consumer.start()
    job = asyncio.create_task(worker._Job(task, worker.Server.find, lambda: 0.0).result())
    items = aiter(consumer)
    await anext(items)
    await anext(items)
    assert consumer._task is not None
    consumer._task.cancel()
    result = await job
    await stage.vllm.stopped.wait()
    assert result.status == "no_consumer"
    assert result.items is not None
    assert "a" in result.items[-1]
    assert result.end[0] is Status.CANCELLED


async def test_a_relay_that_restarts_in_the_middle_loses_nothing(vllm, key, threads, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", vllm.url)
    keys, secret = KeyStore(), RelaySecret.fresh()
    personal = keys.add("me")
    first = RelayServer(keys, secret=secret)
    await first.start()
    stage = Stage(vllm, RelayAt(first.url, Secret(personal)), key, threads)
    vllm.parts, vllm.free = [chunk(f"{n} ") for n in range(200)] + [chunk("", "stop")], 50
    vllm.gate.clear()
    remote = stage.ask(timeouts=replace(QUICK, relay=15))
    came = []
    async with aclosing(remote.items()) as items:
        async for item in items:
            came.append(item)
            if len(came) == 50:
                await first.abort()
                vllm.gate.set()
                second = RelayServer(keys, port=first.port, secret=secret)
                await second.start()
    await second.close()
    words = [json.loads(item)["choices"][0]["delta"]["content"] for item in came]
    assert words == [f"{n} " for n in range(200)] + [""]
    assert not remote.batch
    assert not remote.note


async def heard(stage, words):
    async with asyncio.timeout(20):
        while not any(words in report for report in stage.reports):
            await asyncio.sleep(0.02)


async def test_a_reader_is_told_that_the_relay_is_gone_and_that_it_is_back(vllm, key, threads, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", vllm.url)
    keys, secret = KeyStore(), RelaySecret.fresh()
    personal = keys.add("me")
    first = RelayServer(keys, secret=secret)
    await first.start()
    stage = Stage(vllm, RelayAt(first.url, Secret(personal)), key, threads)
    vllm.parts, vllm.free = [chunk("a"), chunk("b"), chunk("", "stop")], 1
    vllm.gate.clear()
    came: list[str] = []
    asking = asyncio.create_task(all_of(stage.ask(timeouts=replace(QUICK, relay=15)), came))
    while not came:
        await asyncio.sleep(0.02)
    await first.abort()
    await heard(stage, f"the relay 127.0.0.1:{first.port} is gone, trying again, ")
    second = RelayServer(keys, port=first.port, secret=secret)
    await second.start()
    vllm.gate.set()
    assert len(await asking) == 3
    await second.close()
    assert stage.reports[-1] == ""


async def test_a_reader_is_told_that_tokens_have_stopped_and_that_they_go_on(stage, monkeypatch):
    monkeypatch.setattr(remote_module, "_SILENCE", 0.1)
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b"), chunk("", "stop")], 1
    stage.vllm.gate.clear()
    asking = asyncio.create_task(all_of(stage.ask()))
    await heard(stage, "no token for ")
    stage.vllm.gate.set()
    assert len(await asking) == 3
    assert stage.reports[-1] == ""


async def test_before_the_first_token_a_reader_is_told_how_long_nothing_is_new(stage, monkeypatch):
    monkeypatch.setattr(remote_module, "_NEWS", 0.1)
    stage.vllm.silent = True
    asking = asyncio.create_task(failure(stage.ask(timeouts=replace(QUICK, first_token=3))))
    await heard(stage, "worker up; nothing new for ")
    assert (await asking).code == "AF709"


async def test_a_relay_that_goes_for_good_in_the_middle_is_completed_by_the_control_plane(
    vllm, key, threads, monkeypatch
):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", vllm.url)
    keys = KeyStore()
    relay = RelayServer(keys)
    personal = keys.add("me")
    await relay.start()
    stage = Stage(vllm, RelayAt(relay.url, Secret(personal)), key, threads)
    vllm.parts, vllm.free = [chunk(f"{n} ") for n in range(200)] + [chunk("", "stop")], 50
    vllm.gate.clear()
    remote = stage.ask()
    came = []
    async with aclosing(remote.items()) as items:
        async for item in items:
            came.append(item)
            if len(came) == 50:
                await relay.abort()
                vllm.gate.set()
    words = [json.loads(item)["choices"][0]["delta"]["content"] for item in came]
    assert words == [f"{n} " for n in range(200)] + [""]
    assert remote.batch
    assert remote.note.endswith(": the rest came in one piece")


async def test_an_event_too_large_for_the_relay_is_an_error_and_not_a_gap(stage):
    stage.vllm.parts = [chunk("a"), chunk("x" * (9 * 2**20)), chunk("b", "stop")]
    came: list[str] = []
    assert (await failure(stage.ask(), came)).code == "AF990"
    assert len(came) == 1


async def test_a_relay_that_is_away_while_the_job_is_queued_costs_nothing(vllm, key, threads, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", vllm.url)
    keys, secret = KeyStore(), RelaySecret.fresh()
    personal = keys.add("me")
    relay = RelayServer(keys, secret=secret)
    await relay.start()
    held = Held()
    stage = Stage(vllm, RelayAt(relay.url, Secret(personal)), key, held)
    asking = asyncio.create_task(all_of(stage.ask(timeouts=replace(QUICK, relay=0.2))))
    await held.taken.wait()
    await relay.abort()
    await asyncio.sleep(0.5)
    again = RelayServer(keys, port=relay.port, secret=secret)
    await again.start()
    result = await asyncio.to_thread(worker.run, held.tasks[0][0])
    assert await asking == payloads("vllm")
    assert json.loads(result)["status"] in {"streamed", "batch"}
    await again.close()


async def test_a_second_consumer_is_refused_and_the_first_one_goes_on(stage):
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b", "stop")], 1
    stage.vllm.gate.clear()
    remote = stage.ask()
    async with aclosing(remote.items()) as items:
        await anext(items)
        task = remote._task
        assert task is not None
        assert remote._consumer is not None
        capability = remote._consumer._link._headers["Authorization"].removeprefix("Bearer ")
        async with StreamConsumer(task.relay, task.channel, capability, task.secret) as thief:
            with pytest.raises(AiflowError):
                await thief.wait_for_producer(10)
        stage.vllm.gate.set()
        assert "b" in await anext(items)


async def test_a_job_that_was_started_twice_gives_one_answer(stage):
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b", "stop")], 1
    stage.vllm.gate.clear()
    held = Held()
    remote = stage.ask(executor=held)
    async with aclosing(remote.items()) as items:
        begun = asyncio.ensure_future(anext(items))
        await held.taken.wait()
        first = asyncio.create_task(worker.work(held.tasks[0][0], worker.worker_key))
        await begun
        second = await worker.work(held.tasks[0][0], worker.worker_key)
        held.tasks[0][1].set_result(second)
        stage.vllm.gate.set()
        assert "b" in await anext(items)
        await first
    assert len(stage.vllm.asked) == 1


async def test_a_worker_that_falls_silent_is_an_error_after_its_deadline(stage):
    """The job's future says nothing, as of a Globus endpoint that was killed."""
    stage.vllm.parts, stage.vllm.free = [chunk("a"), chunk("b")], 1
    stage.vllm.gate.clear()
    held = Held()
    remote = stage.ask(executor=held)
    async with aclosing(remote.items()) as items:
        begun = asyncio.ensure_future(anext(items))
        await held.taken.wait()
        task = open_task(held.tasks[0][0], stage.key)
        producer = StreamProducer(task.relay, task.channel, task.capability, task.secret, limits=task.limits())
        await producer.wait_for_consumer(10)
        await producer.send("a")
        await begun
        assert producer._task is not None
        producer._task.cancel()
        with pytest.raises(PeerLost, match="in the middle of the answer"):
            await anext(items)


async def test_a_worker_that_falls_silent_before_the_first_token_left_no_part(stage):
    held = Held()
    asking = asyncio.create_task(failure(stage.ask(executor=held)))
    await held.taken.wait()
    task = open_task(held.tasks[0][0], stage.key)
    producer = StreamProducer(task.relay, task.channel, task.capability, task.secret, limits=task.limits())
    await producer.wait_for_consumer(10)
    await producer.send({"status": "model loading", "seconds": 3.0, "worker": "w"})
    await heard(stage, "model loading 3 s")
    assert producer._task is not None
    producer._task.cancel()
    failed = await asking
    assert failed.code == "AF931"
    assert "nothing of the answer had come (model loading 3 s)" in failed.message
    assert "part" not in failed.hint


async def test_a_result_that_does_not_join_what_came_is_an_error(stage):
    held = Held()
    asking = asyncio.create_task(failure(stage.ask(executor=held)))
    await held.taken.wait()
    task = open_task(held.tasks[0][0], stage.key)
    held.tasks[0][1].set_result(pack_result(Result("streamed", first=3, items=("x",)), task))
    assert (await asking).code == "AF930"


async def test_nothing_is_left_running_after_an_answer(stage):
    before = asyncio.all_tasks()
    await all_of(stage.ask())
    async with asyncio.timeout(20):
        while not asyncio.all_tasks() <= before:  # the consumer stays a moment, to repeat its last word
            await asyncio.sleep(0.01)


async def test_a_request_that_is_too_large_is_refused_before_it_is_submitted_and_opens_no_channel(stage, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(remote_module, "create_channel", lambda url, *_, **__: opened.append(url))
    held = Held()
    body = {"messages": [{"role": "user", "content": "x" * 9_000_000}]}
    assert (await failure(stage.ask(body, executor=held))).code == "AF981"
    assert (held.tasks, opened) == ([], [])


async def test_whoever_is_cancelled_again_and_again_while_leaving_leaves_nothing_behind(stage):
    before = asyncio.all_tasks()
    held = Held()
    asking = asyncio.create_task(all_of(stage.ask(executor=held)))
    while not any(report.startswith("submitted ") for report in stage.reports):
        await asyncio.sleep(0.01)
    while not asking.done():
        asking.cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        while not (asyncio.all_tasks() <= before and held.tasks[0][1].cancelled()):
            await asyncio.sleep(0.01)


# A reader that takes its time


async def many(stage, into):
    """The items of a stream of 300 whose job is done when the first of them is taken."""
    stage.vllm.parts = [chunk(f"{n} ") for n in range(299)] + [chunk("", "stop")]
    remote = stage.ask()
    async with aclosing(remote.items()) as items:
        async for item in items:
            into.append(json.loads(item)["choices"][0]["delta"]["content"])
            if len(into) == 1:
                assert remote._future is not None
                await asyncio.wrap_future(remote._future)
            yield remote


async def test_a_slow_reader_of_a_job_that_is_done_gets_every_item(stage):
    came: list[str] = []
    async for remote in many(stage, came):
        if len(came) == 100:  # in the middle of what waits for the reader, with more behind it
            remote._now = lambda: asyncio.get_running_loop().time() + 1.0
    assert came == [f"{n} " for n in range(299)] + [""]


async def test_a_reader_that_holds_the_loop_when_it_has_all_that_waited_gets_what_is_behind_it(stage):
    came: list[str] = []
    async for remote in many(stage, came):
        if len(came) > 100 and not remote._inbox:  # time passes in which nothing can arrive
            remote._now = partial(lambda now, passed: now() + passed, remote._now, 1000.0)
    assert came == [f"{n} " for n in range(299)] + [""]


# A relay that keeps a channel for less than was asked


@pytest.fixture
async def brief(vllm, key, threads, monkeypatch):
    """A stage whose relay keeps a channel for two seconds."""
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", vllm.url)
    keys = KeyStore()
    personal = keys.add("me")
    async with RelayServer(keys, limits=Limits(max_lifetime=2)) as relay:
        yield Stage(vllm, RelayAt(relay.url, Secret(personal)), key, threads)


async def test_a_worker_is_waited_for_no_longer_than_the_relay_would_let_it_join(brief):
    failed = await failure(brief.ask(executor=Held(), timeouts=replace(QUICK, start=3600)))
    assert failed.code == "AF986"
    assert "within 3600 s" not in failed.message
    assert "The relay keeps a channel no longer" in failed.hint


async def test_a_job_that_starts_when_its_channel_has_expired_does_not_ask_the_model_server(brief):
    held = Held()
    asking = asyncio.create_task(failure(brief.ask(executor=held, timeouts=replace(QUICK, start=3600))))
    await held.taken.wait()
    argument = held.tasks[0][0]
    assert open_task(argument, brief.key).not_after <= time.time() + 2
    late = await worker.work(argument, worker.worker_key, clock=lambda: time.time() + 3)
    held.tasks[0][1].set_result(late)
    assert (await asking).code == "AF983"
    assert brief.vllm.headers == []


async def test_a_result_that_can_not_be_packed_is_a_failure_by_name(stage, monkeypatch, caplog):
    async def absurd(body, model, report, **_):
        await report("CANARY", 10**30)  # more than a result can hold
        yield "CANARY"

    monkeypatch.setattr(worker.modelserver, "answer", absurd)
    failed = await failure(stage.ask(relay=None))
    assert (failed.code, failed.message) == ("AF985", "the job failed: the worker failed (OverflowError)")
    assert "OverflowError at " in caplog.text
    assert "CANARY" not in caplog.text


async def test_a_complete_answer_does_not_wait_for_a_server_that_keeps_the_connection_open(stage):
    stage.vllm.parts, stage.vllm.free = [chunk("a", "stop") + b"data: [DONE]\n\n", b": still here\n\n"], 1
    stage.vllm.gate.clear()
    times = replace(QUICK, token=0.5)
    assert (await all_of(stage.ask(timeouts=times)))[-1] == "[DONE]"
    async with asyncio.timeout(10):
        await stage.vllm.stopped.wait()


async def test_while_nothing_answers_the_reports_say_so_and_do_not_speak_of_loading(stage, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", "http://127.0.0.1:9")
    await failure(stage.ask(timeouts=replace(QUICK, first_token=1.0)))
    assert "nothing answers at 127.0.0.1:9, 0 s of 1 s" in stage.reports
    assert not [report for report in stage.reports if "loading" in report]


async def test_a_wait_that_may_be_long_says_how_long_and_what_makes_it_shorter(stage, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", "http://127.0.0.1:9")
    asking = asyncio.create_task(all_of(stage.ask(timeouts=replace(QUICK, first_token=1200))))
    await heard(stage, "nothing answers at 127.0.0.1:9, 0 s of 1200 s at most (first_token_timeout); an interrupt ends")
    asking.cancel()
    await asyncio.wait({asking})


async def test_where_another_tier_may_answer_a_server_that_nothing_answers_for_is_given_up_soon(stage, monkeypatch):
    monkeypatch.setenv("AIFLOW_MODEL_SERVER", "http://127.0.0.1:9")
    failed = await failure(stage.ask(timeouts=replace(QUICK, reach=0.5)))
    assert failed.code == "AF701"
    assert failed.message == "nothing answers at 127.0.0.1:9, tried for 0.5 s as another tier may answer"
    assert "nothing answers at 127.0.0.1:9, 0 s of 0.5 s" in stage.reports


async def test_a_server_that_says_it_is_loading_is_not_given_up_for_that(stage):
    stage.vllm.loading = 3  # for 0.8 s
    assert (await all_of(stage.ask(timeouts=replace(QUICK, reach=0.1))))[-1] == "[DONE]"
    assert [report for report in stage.reports if report.startswith("model loading ")]


async def test_a_server_that_lists_no_model_yet_is_loading(stage):
    stage.vllm.models = b'{"data": []}'
    await failure(stage.ask(timeouts=replace(QUICK, first_token=1.0)))
    assert "model loading 0 s" in stage.reports


@pytest.mark.parametrize(
    ("models", "code"),
    [
        (b"[" * 200_000, "AF704"),
        (b'{"data": ' + b"[" * 200_000, "AF704"),
        (b'{"data": [1]}', "AF704"),
        (b" " * 1_100_000, "AF708"),
    ],
)
async def test_a_list_of_models_that_is_none_is_an_error_of_the_server(stage, models, code):
    stage.vllm.models = models
    assert (await failure(stage.ask())).code == code


async def test_the_words_of_a_model_server_can_neither_steer_a_terminal_nor_break_an_encoding(stage):
    stage.vllm.status, stage.vllm.kind = 400, "application/json"
    stage.vllm.body = b'{"message": "a\\u001b[31m b \\ud83d \\ud83d\\ude00 \\u202e"}'
    said = (await failure(stage.ask(model="m"))).message
    assert "a[31m b \ufffd \U0001f600" in said
    assert said.isprintable()


async def test_half_a_character_in_a_prompt_is_replaced_and_the_answer_comes(stage):
    body = {"messages": [{"role": "user", "content": "half \ud83d, whole \ud83d\ude00"}]}
    assert await all_of(stage.ask(body)) == payloads("vllm")
    assert stage.vllm.asked[0]["messages"][0]["content"] == "half \ufffd, whole \U0001f600"
