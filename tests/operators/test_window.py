"""`window`: lists by number and by time; driven by hand, and in runs in virtual time."""

from __future__ import annotations

import pytest
from driven import END, Node, Scripted, build, error, finish, tell, token, told, value
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import run as virtually

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.operators.window import SIGNATURE


def lists(events):
    return [e.payload for e in events if e.kind == "value"]


def test_a_window_is_full_at_its_count_and_what_is_left_goes_out_at_finish():
    node = Node("window", count=2)
    out = node.put(*(token(text, n) for n, text in enumerate("abcde")), finish())
    assert lists(out) == [["a", "b"], ["c", "d"], ["e"]]
    assert [e.identity for e in out[:3]] == [("0/0.ask", 0), ("0/0.ask", 1), ("0/0.ask", 2)]
    assert (out[0].kind, out[0].source, out[0].phase, out[3].kind) == ("value", "n", "answer", "finish")
    assert all(e.complete for e in out)


def test_one_of_count_and_seconds_is_needed():
    with pytest.raises(ConfigError) as raised:
        Node("window")
    assert raised.value.code == "AF204"


def test_answers_have_windows_of_their_own_and_the_runs_inputs_share_one():
    node = Node("window", count=2)
    out = node.put(token("a"), token("b", lineage="1/0.ask"), value(1), value(2, 1, "1"), token("c"))
    assert lists(out) == [[1, 2], ["a", "c"]]
    assert out[0].identity == ("0", 0)
    out = node.put(value(3, 2, "2"), END)
    assert [(e.payload, e.complete) for e in out] == [(["b"], False), ([3], True)]


def test_reasoning_and_answer_are_never_in_one_window():
    out = Node("window", count=9).put(token("hm", phase="reasoning"), token("yes"), finish())
    assert [(e.payload, e.phase) for e in out[:2]] == [(["hm"], "reasoning"), (["yes"], "answer")]


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (finish(), [(["a", "b"], True)]),
        (told("flush"), [(["a", "b"], True)]),
        (told("flush", lineage=""), [(["a", "b"], True), (["c"], True), ([1, 2], True)]),
        (error(), [(["a", "b"], False)]),
        (error("0"), [([1, 2], False)]),
        (error("7"), []),
        (END, [(["a", "b"], False), (["c"], False), ([1, 2], True)]),
        (told("commit"), []),
        (told("skip", lineage="3"), []),
        (finish("7/0.ask"), []),
    ],
)
def test_control_events_let_go_what_they_are_about(event, left):
    node = Node("window", count=9)
    node.put(token("a"), token("b", 1), token("c", lineage="1/0.ask"), value(1), value(2, 1, "1"))
    out = node.put(event)
    assert [(e.payload, e.complete) for e in out[: len(left)]] == left
    assert [e.kind for e in out[len(left) :]] == [event.kind] * (event.kind != "end")
    rest = lists(node.put(END))
    assert sorted(map(str, [*rest, *(payload for payload, _ in left)])) == ["['a', 'b']", "['c']", "[1, 2]"]


@pytest.mark.parametrize("kind", ["restart", "retract"])
def test_what_is_void_is_discarded_with_the_answers_to_it(kind):
    node = Node("window", count=9)
    node.put(token("a"), token("b", lineage="0/0.ask/1.b"), value(1), value(2, 1, "1"))
    assert [e.kind for e in node.put(told(kind))] == [kind]
    assert node.behaviour.holds() == 2
    node.put(told(kind, lineage="0"))
    assert lists(node.put(END)) == [[2]]
    assert node.behaviour.holds() == 0


def test_skip_of_one_token_ends_at_the_window_of_its_answer():
    node = Node("window", count=9)
    node.put(token("a"))
    assert node.put(told("skip", sequence=1)) == []


def test_a_window_of_parts_is_a_part():
    (out,) = Node("window", count=2).put(token("a", complete=False), token("b"))
    assert not out.complete


def test_time_lets_a_window_go_and_is_counted_from_its_first_event():
    node = Node("window", count=3, seconds=2)
    node.put(token("a"), token("b"))
    ((seconds, due),) = node.timers.values()
    assert (seconds, due.kind, due.source) == (2, "flush", "n")
    assert lists(node.fire()) == [["a", "b"]]
    assert not node.timers
    node.put(token("c"), token("d"), token("e"))
    assert not node.timers, "a full window takes its timer back"
    assert node.put(due) == [], "a timer that was under way does not touch the next window"


def test_windows_by_time_in_a_run():
    async def story(loop):
        run = build(
            loop,
            'ask = generate()\nw = window(seconds=2.5)\nout = sink(var="x")\nask -> w -> out',
            Scripted(*"abcdef", pause=1),
        )
        return await run.run("hello")

    assert virtually(story).variables["x"] == [["a", "b", "c"], ["d", "e", "f"]]


def test_windows_by_count_in_a_run():
    text = 'ask = generate()\nw = window(count=4)\nout = sink(var="x")\nask -> w -> out'
    run, result = tell(text, Scripted(*"abcdef"))
    assert result.variables["x"] == [["a", "b", "c", "d"], ["e", "f"]]
    assert run.guardians["w"].bound == 8 + 1 + 16


def test_at_the_bound_the_window_that_waited_longest_goes_out_shorter():
    node = Node("window", policy={"hold": 3}, count=3)
    out = node.put(token("a", lineage="1/0.b"), token("b"), token("c", lineage="2/0.b"), token("d"))
    assert lists(out) == [["a"]]
    assert all(e.complete for e in out)
    assert SIGNATURE.holds({"count": 3}) == 12


def test_text_that_is_kept_is_bounded_in_bytes():
    node = Node("window", policy={"hold_bytes": 10}, count=100)
    out = node.put(*(token("語語") for _ in range(3)), token("x" * 30), token("y"), finish())
    assert lists(out) == [["語語"], ["語語"], ["語語"], ["x" * 30], ["y"]]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["data", "data", "data", "finish", "flush", "error", "fire"])),
        max_size=60,
    ),
    st.integers(1, 5),
    st.integers(1, 8),
)
def test_nothing_is_lost_or_given_twice_the_order_is_kept_and_identities_are_unique(script, count, hold):
    node = Node("window", policy={"hold": hold}, count=count, seconds=1)
    sent = {}
    for number, (lineage, what) in enumerate(script):
        name = f"{lineage}/0.ask" if lineage else str(number)
        if what == "data":
            node.put(token(number, number, name))
            sent.setdefault(name if lineage else "", []).append(number)
        elif what == "fire":
            node.fire()
        elif lineage:
            node.put({"finish": finish, "error": error}.get(what, lambda of: told("flush", of))(name))
    node.put(END)
    out = [e for e in node.given if e.kind == "value"]
    for name, numbers in sent.items():
        assert [n for e in out if ("/" in e.lineage) * e.lineage == name for n in e.payload] == numbers
    assert all(0 < len(e.payload) <= count for e in out)
    if not any(what == "finish" for _, what in script):
        assert len({e.identity for e in out}) == len(out)
    assert not node.timers
    assert node.behaviour.holds() == 0
