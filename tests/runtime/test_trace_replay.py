"""What `replay` says of what it can't take, and of real time that its virtual clock does not count."""

from __future__ import annotations

import time
import warnings

import pytest
from traces import MS, shape, trace_of

from aiflow_jupyter import Flow, generate, map, replay, sink  # noqa: A004
from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.providers.replay import NOTABLE_S

TRACE = trace_of(shape(5, MS, MS))


def flow_of(function):
    flow = Flow("flow")
    flow.add("ask", generate()) >> flow.add("work", map(function)) >> flow.add("out", sink(var="out"))
    return flow


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (("lecture", TRACE), "not 'lecture', a text", "%aiflow graph NAME --as python"),
        ((None, TRACE), "not a NoneType", "%aiflow trace replay FILE"),
        ((flow_of(str), 5), "a trace or its file, not an int", "replay(flow"),
    ],
)
def test_what_is_no_graph_and_no_trace_is_told(arguments, said, hint):
    with pytest.raises(CommandError) as caught:
        replay(*arguments)
    assert caught.value.code == "AF805"
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_a_function_that_sleeps_is_warned_of_and_changes_no_figure():
    def work(text: str) -> str:
        time.sleep(NOTABLE_S / 4)
        return text

    with pytest.warns(UserWarning, match="real time, which its virtual clock does not count.*service="):
        slept = replay(flow_of(work), TRACE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick = replay(flow_of(str), TRACE)
    assert slept.status.elapsed_s == quick.status.elapsed_s
    assert slept["out"] == quick["out"]
