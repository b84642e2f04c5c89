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
