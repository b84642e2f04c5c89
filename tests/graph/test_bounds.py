"""Bounds and skews: what a graph may hold, and how far the branches of a join may be apart."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.graph.bounds import bounds, skews_of
from aiflow_jupyter.graph.shape import Shape
from tests.graph.signature_table import TABLE, parsed


def spec(text):
    return parsed(text).spec


def skew(graph, join):
    return skews_of(graph, Shape(graph), lambda node: TABLE[graph.nodes[node].operator])[join]


def test_bound_of_a_node_is_queue_workers_reorder_hold_and_feedback():
    graph = bounds(
        spec(
            """
            a = map(f) [queue=5, workers=3]
            b = window(count=7) [queue=2]
            c = window(count=7) [hold=4]
            d = map(f) [effect=speculative, hold=9, workers=2, order=none]
            e = flat_map(f) [state=transactional]
            g = map(f) [state=partitioned, key=f, keys=11]
            out = sink(var="x")
            a -> b -> c -> d -> e -> g -> out
            g -> a [feedback, limit=6]
            """
        ),
        TABLE,
    )
    rows = {n.node: (n.queue, n.workers, n.reorder, n.hold, n.feedback, n.keys) for n in graph.nodes}
    assert rows == {
        "a": (5, 3, 12, 0, 6, 0),
        "b": (2, 1, 0, 7, 0, 0),
        "c": (8, 1, 0, 4, 0, 0),
        "d": (8, 2, 0, 9, 0, 0),
        "e": (8, 1, 0, 64, 0, 0),
        "g": (8, 1, 0, 0, 0, 11),
        "out": (8, 1, 0, 0, 0, 0),
    }
    assert graph.events == sum(sum(row[:5]) for row in rows.values())
    assert (graph.keys, graph.bytes) == (11, None)


def test_bytes_are_known_where_every_node_declares_them():
    text = "a = map(f) [queue_bytes=100]\nb = window(count=2) [queue_bytes=50, hold_bytes=30]\na -> b"
    assert bounds(spec(text), TABLE).bytes == 180
    assert bounds(spec(text + "\nc = map(f)\nb -> c"), TABLE).bytes is None


def test_skew_is_what_the_longer_branch_can_own_and_one_in_hand():
    text = """
    a = map(f)
    b = map(f) [queue=3, workers=2]
    c = map(f) [queue=1]
    d = map(f) [queue=4]
    j = join()
    a -> b -> c -> j
    a -> d -> j
    """
    assert skew(spec(text), "j") == (3 + 2 + 8) + (1 + 1) + 1
    (join,) = [n for n in bounds(spec(text), TABLE).nodes if n.node == "j"]
    assert join.hold == 16


def test_skew_of_bare_edges_is_one():
    assert skew(spec("a = map(f)\nb = map(f)\nj = join()\na -> b\na -> j\nb -> j"), "j") == 10
    assert skew(spec("a = map(f)\nj = join()\na -> j"), "j") == 1
    assert skew(spec("j = join()"), "j") == 1


@settings(deadline=None, max_examples=200)
@given(
    branches=st.lists(st.lists(st.integers(1, 4), min_size=0, max_size=3), min_size=2, max_size=3),
    turns=st.lists(st.integers(0, 10), max_size=300),
)
def test_no_order_of_steps_takes_a_branch_further_ahead_than_the_skew(branches, turns):
    """A model: each node takes from its queue and gives when the next one has room; the split gives to all or waits."""
    names = [[f"n{i}_{k}" for k in range(len(branch))] for i, branch in enumerate(branches)]
    rows = ["split = map(f)", "join = join()"]
    for way, queues in zip(names, branches, strict=True):
        rows += [f"{name} = map(f) [queue={queue}]" for name, queue in zip(way, queues, strict=True)]
        rows.append(" -> ".join(["split", *way, "join"]))
    limit = skew(spec("\n".join(dict.fromkeys(rows))), "join")

    # One stage is a queue and an event in service; the join takes at once whatever comes, as its table has room.
    waiting = [[deque() for _ in branch] for branch in branches]
    serving: list[list[int | None]] = [[None for _ in branch] for branch in branches]
    arrived = [0 for _ in branches]
    owed: set[int] = set()  # branches that the event in the split's hand still has to go to
    number = 0

    def put(branch, stage, event):
        if stage == len(branches[branch]):
            arrived[branch] += 1
            return True
        if len(waiting[branch][stage]) >= branches[branch][stage]:
            return False
        waiting[branch][stage].append(event)
        return True

    steps = [("split", b, 0) for b in range(len(branches))]
    steps += [("node", b, k) for b, branch in enumerate(branches) for k in range(len(branch))]
    for turn in turns:
        what, branch, stage = steps[turn % len(steps)]
        if what == "split":
            if not owed:
                owed = set(range(len(branches)))
                number += 1
            if branch in owed and put(branch, 0, number):
                owed.discard(branch)
        else:
            if serving[branch][stage] is not None and put(branch, stage + 1, serving[branch][stage]):
                serving[branch][stage] = None
            if serving[branch][stage] is None and waiting[branch][stage]:
                serving[branch][stage] = waiting[branch][stage].popleft()
        assert max(arrived) - min(arrived) <= limit


def test_between_a_split_and_a_join_stand_the_nodes_of_some_branches_and_not_of_all():
    text = "a = map(f)\ns = map(f)\nb = map(f)\nc = map(f)\nj = join()\nd = map(f)\na -> s -> b -> c -> j -> d\ns -> j"
    shape = Shape(spec(text))
    assert shape.members(shape.between(["j"])) == ["b", "c"]
    assert shape.members(shape.between(["d"])) == []
    assert shape.members(shape.between([])) == []
