"""What a full queue does to each kind of event, by count and by bytes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
import virtual
from graphs import Seen, make_run

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event, ToolResult
from aiflow_jupyter.graph.spec import Feedback
from aiflow_jupyter.runtime.behaviour import Behaviour


def given(*events: Event) -> Behaviour:
    """Gives the first event, waits until it is in service, then gives the rest at once."""

    async def give(_event: Event) -> AsyncIterator[Event]:
        for number, event in enumerate(events):
            event.sequence, event.lineage = number, event.lineage or "a"
            yield event
            if not number:
                await asyncio.sleep(0.1)

    return Behaviour("stream", give)


async def slow(event: Event) -> Event:
    await asyncio.sleep(1)
    return event


def told(policy, *events):
    """What comes out behind a slow node of that policy, and its guardian."""

    async def story(loop):
        seen = Seen()
        behaviours = {"src": given(*events), "slow": Behaviour("await", slow), "sink": seen.behaviour()}
        run = make_run(loop, behaviours, [("src", "slow"), ("slow", "sink")], {"slow": policy})
        await run.run("go")
        assert run.guardians["slow"].owned() == 0
        return seen, run.guardians["slow"]

    return virtual.run(story)


def values(*numbers):
    return [Event("value", number) for number in numbers]


def tokens(*texts, phase="answer"):
    return [Event("token", text, meta={"phase": phase}) for text in texts]


def test_each_kind_has_its_rule_and_drops_are_counted_by_kind():
    events = [*values(0), *values(1, 2), *tokens("a", "b", "c"), *values(3)]
    seen, guardian = told({"queue": 2, "overflow": {"token": "drop_newest", "value": "drop_oldest"}}, *events)
    assert seen.data == [0, 2, 3]
    assert guardian.drops == {"token": 3, "value": 1}
    assert guardian.dropped == 4


def test_rule_of_else_is_for_the_kinds_that_have_none():
    seen, guardian = told({"queue": 1, "overflow": {"token": "block", "else": "drop_newest"}}, *values(0, 1, 2, 3))
    assert seen.data == [0, 1]
    assert guardian.drops == {"value": 2}


@pytest.mark.parametrize("rule", ["drop_newest", "drop_oldest", "error", "conflate"])
def test_tool_results_are_never_dropped(rule):
    results = [Event("tool_result", ToolResult(str(n), "f", "x")) for n in range(6)]
    seen, guardian = told({"queue": 2, "overflow": rule}, *results)
    assert [result.id for result in seen.data] == ["0", "1", "2", "3", "4", "5"]
    assert guardian.dropped == guardian.errors == 0


def test_drop_oldest_leaves_what_may_not_be_dropped_and_blocks_where_nothing_may():
    keep = [Event("tool_result", ToolResult(str(n), "f", "x")) for n in range(3)]
    seen, guardian = told({"queue": 2, "overflow": "drop_oldest"}, *keep, *values(7, 8))
    assert [p if isinstance(p, int) else p.id for p in seen.data] == [
        "0",
        "1",
        "2",
        8,
    ]  # 7 waited, and was the oldest then
    assert guardian.drops == {"value": 1}
    seen, guardian = told({"queue": 2, "overflow": "drop_oldest"}, *keep[:2], *values(7, 8, 9))
    assert [p if isinstance(p, int) else p.id for p in seen.data] == ["0", "1", 9]
    assert guardian.drops == {"value": 2}


def test_conflate_merges_adjacent_text_and_loses_none():
    seen, guardian = told({"queue": 1, "overflow": "conflate"}, *tokens("a", "b", "c", "d"))
    assert seen.data == ["a", "bcd"]
    assert guardian.conflated == 2
    assert guardian.dropped == 0
    assert guardian.peak == 1


def test_conflate_keeps_phases_lineages_and_kinds_apart():
    apart = [
        *tokens("a", "b"),
        *tokens("x", phase="reasoning"),
        Event("token", "y", lineage="other", meta={"phase": "reasoning"}),
        Event("value", 1),
        *tokens("c", "d"),
    ]
    seen, guardian = told({"queue": 1, "overflow": "conflate"}, *apart)
    assert seen.data == ["a", "b", "x", "y", 1, "cd"]
    assert guardian.conflated == 1


def test_conflated_text_is_no_longer_than_hold_bytes():
    seen, _ = told({"queue": 1, "overflow": "conflate", "hold_bytes": 4}, *tokens("ab", "cd", "ef", "gh", "ij"))
    assert seen.data == ["ab", "cdef", "ghij"]


def test_conflated_text_counts_by_its_bytes():
    seen, _ = told({"queue": 1, "overflow": "conflate", "hold_bytes": 10}, *tokens("0", *["漢"] * 5))
    assert seen.data == ["0", "漢" * 3, "漢" * 2]


def test_queue_bytes_bounds_what_waits_and_nothing_is_lost_under_block():
    size = sys.getsizeof("x" * 100)
    texts = [f"{number:0100d}" for number in range(10)]
    most = []

    async def story(loop):
        seen = Seen()

        async def noting(event: Event) -> Event:
            guardian = run.guardians["slow"]
            most.append(guardian.bytes)
            assert guardian.bytes == sum(sys.getsizeof(e.payload) for e, _ in guardian.queue if e.kind == "token")
            return await slow(event)

        behaviours = {"src": given(*tokens(*texts)), "slow": Behaviour("await", noting), "sink": seen.behaviour()}
        policy = {"queue": 8, "queue_bytes": 3 * size}
        run = make_run(loop, behaviours, [("src", "slow"), ("slow", "sink")], {"slow": policy})
        await run.run("go")
        assert seen.data == texts
        assert run.guardians["slow"].bytes == 0

    virtual.run(story)
    assert max(most) == 3 * size


@pytest.mark.parametrize("rule", ["block", "drop_oldest", "drop_newest"])
def test_an_event_larger_than_queue_bytes_is_refused_by_name(rule):
    with pytest.raises(RunError) as raised:
        told({"queue_bytes": 1_000, "overflow": rule}, *tokens("a", "x" * 2_000))
    assert raised.value.code == "AF608"
    assert (raised.value.node, raised.value.sequence) == ("slow", 1)


def test_dropping_by_bytes_makes_room_for_a_large_one():
    small, large = "s" * 51, "L" * 251
    policy = {"queue": 8, "queue_bytes": sys.getsizeof(large) + 10, "overflow": "drop_oldest"}
    seen, guardian = told(policy, *tokens("a", small, small, small, large))
    assert seen.data == ["a", large]
    assert guardian.drops == {"token": 3}


def test_array_counts_by_what_it_holds():
    class Array:
        nbytes = 10_000

    with pytest.raises(RunError) as raised:
        told({"queue_bytes": 9_999}, Event("value", Array()))
    assert raised.value.code == "AF608"


class Unmeasured:
    """What can't be measured, from the `after`-th time on."""

    def __init__(self, after=0):
        self.times = after

    def __sizeof__(self):
        self.times -= 1
        if self.times < 0:
            raise RuntimeError("no size")
        return 1


class Ambiguous:
    """What can't be compared, as an array of numbers."""

    __hash__ = None

    def __eq__(self, _other):
        raise ValueError("ambiguous")


def failures(policy, before, *events):
    """What comes out behind a slow node, and what of its own port `error`; `before` is the mode of the node before."""

    async def wait(event: Event) -> Event:
        return event

    async def story(loop):
        seen, errors = Seen(), Seen()
        behaviours = {
            "src": given(*events),
            "same": Behaviour(before, wait if before == "await" else lambda event: event),
            "slow": Behaviour("await", slow),
            "sink": seen.behaviour(),
            "bad": errors.behaviour(),
        }
        edges = [("src", "same"), ("same", "slow"), ("slow", "sink"), ("slow", "bad", "error")]
        run = make_run(loop, behaviours, edges, {"slow": policy})
        await asyncio.wait_for(run.run("go"), 1_000)
        return seen.data, [(failure.node, failure.sequence) for failure in errors.data]

    return virtual.run(story)


@pytest.mark.parametrize("before", ["inline", "await"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_payload_that_cant_be_measured_is_a_failure_of_its_event_where_it_would_wait(before, after):
    odd = Unmeasured(after)
    data, failed = failures({"queue": 1, "queue_bytes": 100}, before, *values(0, 1), Event("value", odd), *values(3, 4))
    served = data != [0, 1, 3, 4]
    assert served is (odd.times >= 0)
    assert failed == ([] if served else [("slow", 2)])


@pytest.mark.parametrize("before", ["inline", "await"])
def test_text_that_cant_be_compared_with_the_one_before_is_a_failure_of_its_event(before):
    texts = tokens("a", "b", "c", "d")
    for event in texts[:3]:
        event.meta = {**event.meta, "vector": Ambiguous()}
    data, failed = failures({"queue": 1, "overflow": "conflate"}, before, *texts)
    assert (data, failed) == (["a", "b", "d"], [("slow", 2)])


def test_token_that_is_no_text_is_a_failure_where_it_would_be_conflated():
    odd = [*tokens("a", "b"), Event("token", 5, meta={"phase": "answer"}), *tokens("c")]
    assert failures({"queue": 1, "overflow": "conflate"}, "inline", *odd) == (["a", "b", "c"], [("slow", 2)])


def test_payload_that_changes_while_it_waits_counts_as_it_came():
    async def story(loop):
        lists = [[0] * 60 for _ in range(9)]

        async def serve(_event: Event) -> None:
            await asyncio.sleep(1)
            for each in lists[:3]:
                each.clear()

        policy = {"queue": 8, "queue_bytes": 2 * sys.getsizeof(lists[0])}
        behaviours = {"src": given(*values(*lists)), "slow": Behaviour("await", serve)}
        run = make_run(loop, behaviours, [("src", "slow")], {"slow": policy})
        await asyncio.wait_for(run.run("go"), 1_000)
        assert run.guardians["slow"].bytes == 0
        assert run.guardians["slow"].processed == len(lists)

    virtual.run(story)


def test_what_is_raised_between_two_inline_nodes_ends_the_run():
    async def story(loop):
        def odd(event: Event) -> tuple[str, Event]:
            event.meta = {"hops": "many"}
            return "again", event

        behaviours = {
            "head": Behaviour("inline", lambda event: event),
            "odd": Behaviour("inline", odd, routes=True),
            "sink": Seen().behaviour(),
        }
        edges = [("head", "odd"), ("odd", "head", "again", Feedback(limit=4, hops=4)), ("odd", "sink", "out")]
        run = make_run(loop, behaviours, edges)
        with pytest.raises(RunError) as raised:
            await asyncio.wait_for(run.run("go"), 1_000)
        assert (raised.value.code, raised.value.node) == ("AF603", "odd")

    virtual.run(story)
