"""A run held from another thread: offering to it, pausing it, stopping parts of it, and what holds it up."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from aiflow_kernel.host import Host

from aiflow_jupyter import Flow, map, sink  # noqa: A004
from aiflow_jupyter.errors import CommandError, RunError


class Nobody:
    """Answers nothing: these graphs ask no model."""

    def stream(self, request):
        raise NotImplementedError

    async def aclose(self) -> None:
        return None


@pytest.fixture
def host():
    made = Host(Nobody)
    yield made
    made.stop()


def flow_of(function, **policy):
    flow = Flow("work")
    done = flow.add("done", map(function), **policy)
    done >> flow.add("kept", sink(var="kept"))
    return flow


def started(host, flow, value, **more):
    return host.start(flow.spec, value, functions=flow.functions, **more)


def test_values_are_offered_until_the_inputs_are_closed(host):
    handle = started(host, flow_of(lambda n: n * 10), 1, leave_open=True)
    for number in range(2, 30):
        handle.offer("done", number)
    with pytest.raises(CommandError, match="no node is called"):
        handle.offer("dine", 1)
    handle.close_inputs()
    assert handle.result(10)["kept"] == [n * 10 for n in range(1, 30)]
    with pytest.raises(RunError):
        handle.offer("done", 1)


def test_an_offer_to_a_full_queue_waits_and_gives_up_in_time(host):
    let_go = threading.Event()
    handle = started(host, flow_of(lambda n: let_go.wait(20) and n, queue=1), 0, leave_open=True)
    handle.offer("done", 1)
    refused = 0
    for number in range(2, 5):
        try:
            handle.offer("done", number, timeout=0.1)
        except TimeoutError:
            refused += 1
    assert refused
    let_go.set()
    handle.drain()
    kept = handle.result(10)["kept"]
    assert kept == list(range(len(kept)))
    assert len(kept) == 5 - refused


def test_a_paused_run_serves_nothing_and_goes_on(host):
    handle = started(host, flow_of(lambda n: n), 0, leave_open=True)
    handle.pause()
    for number in range(1, 5):
        handle.offer("done", number)
    time.sleep(0.2)  # what was in service may go on
    served = handle.status().nodes[0].processed
    time.sleep(0.1)
    assert handle.status().nodes[0].processed == served <= 1
    handle.resume()
    handle.drain()
    assert handle.result(10)["kept"] == [0, 1, 2, 3, 4]


def test_a_stopped_node_ends_the_run_and_marks_its_result(host):
    handle = started(host, flow_of(lambda n: n), 0, leave_open=True)
    handle.stop("done")
    handle.close_inputs()
    assert not handle.result(10).complete


def test_the_bottleneck_is_the_slow_node_below_the_blocked_one(host):
    flow = Flow("slow")
    quick = flow.add("quick", map(lambda n: n), queue=2)
    slow = flow.add("slow", map(lambda n: time.sleep(0.02) or n), queue=2)
    quick >> slow >> flow.add("kept", sink(var="kept"))
    handle = started(host, flow, 0, leave_open=True)
    for number in range(1, 25):
        handle.offer("quick", number)
    found = handle.bottleneck()
    handle.drain()
    assert found is not None
    assert found.node == "slow"
    assert "quick" in found.holds_up
    assert any("workers=2" in advice for advice in found.advice)
    assert "slow is the bottleneck" in str(found)


def test_code_on_the_loop_is_told_that_it_can_not_wait_for_its_loop(host):
    said, held = [], []

    async def asks(value):
        while not held:
            await asyncio.sleep(0.01)
        try:
            held[0].close_inputs()
        except RunError as error:
            said.append(error.code)
        return value

    flow = Flow("inner")
    flow.add("asks", map(asks)) >> flow.add("kept", sink(var="kept"))
    handle = started(host, flow, 1, leave_open=True)
    held.append(handle)
    while not said:
        time.sleep(0.01)
    handle.close_inputs()
    handle.result(10)
    assert said == ["AF604"]


def test_giving_up_an_await_leaves_the_run_as_it_is_and_it_can_still_be_cancelled(host):
    let_go = threading.Event()
    handle = started(host, flow_of(lambda n: let_go.wait(20) and n), 1, leave_open=True)

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(wait()), 0.1)

    async def wait():
        return await handle

    asyncio.run(give_up())
    assert not handle.done()
    assert handle.status().state == "running"
    let_go.set()
    assert handle.cancel()
    assert handle.status().state == "cancelled"


def test_a_handle_of_a_host_that_was_stopped_says_so(host):
    handle = started(host, flow_of(lambda n: n), 1, leave_open=True)
    host.stop()
    for act in (handle.pause, handle.resume, handle.close_inputs, lambda: handle.offer("done", 1)):
        with pytest.raises(RunError) as raised:
            act()
        assert raised.value.code == "AF605"


def test_what_is_no_name_is_no_node(host):
    handle = started(host, flow_of(lambda n: n), 1, leave_open=True)
    for act in (lambda: handle.offer(5, 1), lambda: handle.stop(None)):
        with pytest.raises(CommandError, match="no node is called"):
            act()
    handle.drain()


def test_an_offer_that_was_not_in_time_is_not_taken_in_and_one_that_was_is_told_so(host):
    async def work(number):
        await asyncio.sleep(0.002)
        return number

    handle = started(host, flow_of(work, queue=1), -1, leave_open=True)
    taken, late = set(), set()
    for number in range(400):
        try:
            handle.offer("done", number, timeout=(number % 7) / 1000)
            taken.add(number)
        except TimeoutError:
            late.add(number)
    handle.drain()
    assert set(handle.result(10)["kept"]) == taken | {-1}
    assert taken
    assert late
