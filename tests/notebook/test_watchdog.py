"""Code that holds the event loop is named, in real time; code in threads is not."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.notebook.live import message_of
from aiflow_jupyter.operators import SIGNATURES


def blocks(text):
    time.sleep(0.4)
    return text


async def blocks_on_the_loop(text):
    await asyncio.sleep(0.01)
    time.sleep(0.4)  # noqa: ASYNC251 - the mistake that is to be found
    return text


def line_of(function):
    return function.__code__.co_firstlineno + (1 if function is blocks else 2)


def ran(host, node, function):
    text = f'ask = generate()\nwork = {node}\nout = sink(var="out")\nask -> work -> out'
    spec = parse(text, "flow", SIGNATURES).spec
    handle = host.start(spec, "Hi", functions={"work_on": function})
    assert handle.wait(20)
    return handle, next(each for each in handle.status().nodes if each.node == "work")


def watchdogs():
    return [thread for thread in threading.enumerate() if thread.name == "aiflow-watchdog" and thread.is_alive()]


@pytest.mark.parametrize(
    ("node", "function"), [("map(work_on)", blocks_on_the_loop), ("map(work_on, inline=true)", blocks)]
)
def test_a_node_that_holds_the_loop_is_named_with_its_function_and_line(the_host, provider, node, function):
    provider.pieces = ["Hello"]
    handle, work = ran(the_host, node, function)
    (warning,) = handle.result().status.warnings
    assert "'work'" in warning
    assert f"in {function.__name__}, line {line_of(function)}," in warning
    assert 0.25 <= work.held_loop_s <= 5
    assert all(each.held_loop_s == 0 for each in handle.status().nodes if each.node != "work")


def test_the_warning_stands_with_the_picture(the_host, provider):
    provider.pieces = ["Hello"]
    handle, _ = ran(the_host, "map(work_on, inline=true)", blocks)
    assert message_of(handle.run, handle.status()).startswith("warning: node 'work' held the event loop for 0.")


def test_one_that_works_in_threads_is_not(the_host, provider):
    provider.pieces = ["Hello", " world"]
    handle, work = ran(the_host, "map(work_on)", blocks)
    assert handle.result().status.warnings == ()
    assert work.held_loop_s == 0
    assert work.service_s >= 0.8


def test_it_watches_only_while_runs_live(the_host, provider):
    provider.pieces = [None]
    spec = parse('ask = generate()\nout = sink(var="out")\nask -> out', "flow", SIGNATURES).spec
    before = len(watchdogs())
    first, second = (the_host.start(spec, "Hi") for _ in range(2))
    assert len(watchdogs()) == before + 1
    assert first.cancel()
    assert len(watchdogs()) == before + 1
    assert second.cancel()
    deadline = time.monotonic() + 5
    while len(watchdogs()) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(watchdogs()) == before
