"""What crosses the control plane: sealed, of one version, bounded."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.fates import said_by_worker
from aiflow_jupyter.hpc.record import Record
from aiflow_jupyter.hpc.task import LIMIT, Result, Task, open_task, pack_result, seal_task, unpack_result
from aiflow_jupyter.hpc.timeouts import Timeouts
from aiflow_jupyter.relay.crypto import WorkerKey
from aiflow_jupyter.relay.errors import RequestUnreadable
from aiflow_jupyter.relay.frames import Status

KEY = WorkerKey.generate()
SECRET = bytes(range(32))
CHANNEL = "0a" * 16


def task(text="Why?", **fields) -> Task:
    return Task({"messages": [{"role": "user", "content": text}]}, SECRET, CHANNEL, 2e9, **fields)


def test_a_task_comes_out_as_it_went_in():
    went = task("ä€😀", relay="https://relay.example.org", capability="cap", model="m", timeouts=Timeouts(linger=7.0))
    assert open_task(seal_task(went, KEY.public), KEY) == went


def test_neither_prompt_nor_secret_nor_capability_can_be_read_in_the_argument():
    argument = seal_task(task("CANARY-PROMPT", relay="https://RELAY-HOST", capability="CANARY-CAP"), KEY.public)
    assert not [word for word in ("CANARY", "RELAY-HOST", SECRET.hex(), CHANNEL, "messages") if word in argument]
    assert set(json.loads(argument)) == {"v", "kid", "sealed"}


def test_two_prompts_of_nearly_the_same_length_give_arguments_of_the_same_length():
    assert len(seal_task(task("Yes"), KEY.public)) == len(seal_task(task("No, never"), KEY.public))


def test_a_task_for_another_worker_is_refused_before_it_is_opened():
    with pytest.raises(RequestUnreadable, match="another key"):
        open_task(seal_task(task(), WorkerKey.generate().public), KEY)


def test_a_task_that_was_changed_is_refused():
    argument = json.loads(seal_task(task(), KEY.public))
    argument["sealed"] = ("B" if argument["sealed"][90] == "A" else "A").join(
        (argument["sealed"][:90], argument["sealed"][91:])
    )
    with pytest.raises(RequestUnreadable):
        open_task(json.dumps(argument), KEY)


def test_a_task_of_another_version_says_what_to_install():
    argument = json.dumps({**json.loads(seal_task(task(), KEY.public)), "v": 2})
    with pytest.raises(HpcError, match="version 2") as refused:
        open_task(argument, KEY)
    assert refused.value.code == "AF982"
    assert "same release" in refused.value.hint


def test_fields_of_a_later_release_are_passed_over():
    @dataclass(frozen=True)
    class LaterTimeouts(Timeouts):
        nap: float = 1.0

    @dataclass(frozen=True)
    class Later(Task):
        temper: str = "good"

    went = Later(task().body, SECRET, CHANNEL, 2e9, timeouts=LaterTimeouts())
    assert open_task(seal_task(went, KEY.public), KEY) == task()


@pytest.mark.parametrize("times", [None, 7, ["start"]])
def test_a_task_whose_timeouts_are_none_is_not_whole(times):
    with pytest.raises(HpcError, match="not whole"):
        open_task(seal_task(task(timeouts=times), KEY.public), KEY)


def test_a_worker_waits_for_its_consumer_as_long_as_it_does_without_one_and_long_enough_to_know_a_lost_relay():
    assert Timeouts().consumer == Timeouts().linger
    assert Timeouts(linger=0, beat=1, relay=1).consumer == 3
    assert Timeouts(linger=0, beat=1, relay=60).consumer > 60
    assert task(timeouts=Timeouts(linger=0, beat=1)).limits().linger == 3


def test_a_request_larger_than_the_control_plane_takes_is_refused_with_numbers():
    with pytest.raises(HpcError, match=r"takes [\d,]+ bytes once sealed.*8,388,608") as refused:
        seal_task(task("x" * LIMIT), KEY.public)
    assert refused.value.code == "AF981"


def test_a_result_comes_out_as_it_went_in():
    went = Result("streamed", ("AF984", "words"), "ab" * 8, 3, ("x", {"status": "y"}), (Status.ERROR, "why"))
    assert unpack_result(pack_result(went, task()), SECRET, CHANNEL) == went


def test_an_answer_can_not_be_read_in_a_result():
    packed = pack_result(Result("batch", items=("CANARY-ANSWER",), end=(Status.ERROR, "CANARY-SERVER")), task())
    assert "CANARY" not in packed
    assert set(json.loads(packed)) == {"v", "status", "sealed"}


def test_a_result_of_another_stream_is_refused():
    packed = pack_result(Result("batch", items=("x",)), task())
    with pytest.raises(HpcError, match="not what the worker sent"):
        unpack_result(packed, bytes(32), CHANNEL)
    with pytest.raises(HpcError, match="not what the worker sent"):
        unpack_result(packed, SECRET, "0b" * 16)


def test_the_status_of_a_sealed_result_is_the_sealed_one():
    packed = json.dumps({**json.loads(pack_result(Result("batch", items=("x",)), task())), "status": "cancelled"})
    assert unpack_result(packed, SECRET, CHANNEL).status == "batch"


def test_words_that_stand_in_clear_are_made_printable():
    packed = json.dumps({"v": 1, "status": "failed", "error": {"code": "AF985", "message": "a\x1b[31m\nb" + "x" * 999}})
    error = unpack_result(packed, SECRET, CHANNEL).error
    assert error is not None
    assert error[1].isprintable()
    assert len(error[1]) == 400


@given(
    st.one_of(
        st.text(),
        st.none(),
        st.builds(
            json.dumps,
            st.fixed_dictionaries(
                {"v": st.just(1), "status": st.sampled_from(["batch", "streamed", "x", 1])},
                optional={"sealed": st.one_of(st.text(), st.integers()), "error": st.one_of(st.text(), st.none())},
            ),
        ),
    )
)
def test_whatever_comes_as_a_result_is_read_or_refused_by_name(text):
    try:
        unpack_result(text, SECRET, CHANNEL)
    except AiflowError as refused:
        assert refused.code


@given(st.one_of(st.text(), st.builds(lambda sealed: json.dumps({"v": 1, "sealed": sealed}), st.text())))
def test_whatever_comes_as_an_argument_is_opened_or_refused_by_name(text):
    with pytest.raises(AiflowError):
        open_task(text, KEY)


def test_a_record_forgets_only_the_oldest_items_and_knows_how_many():
    record = Record(limit=100)
    for number in range(20):
        record.add(f"item {number}")
    assert record.truncated
    assert [*record.items] == [f"item {number}" for number in range(record.first, 20)]
    assert record.first + len(record.items) == 20


def test_what_a_worker_says_as_an_error_is_cleaned_and_its_code_is_one():
    error = said_by_worker(json.dumps({"code": "x\x1b", "message": "a\x1b[2J\ud800", "hint": "\u202eb"}))
    assert (error.code, error.message, error.hint) == ("AF985", "a[2J\ufffd", "b")
    assert said_by_worker("[" * 100_000).code == "AF985"
