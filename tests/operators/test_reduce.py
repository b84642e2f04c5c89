"""`reduce`: one event for each answer; driven by hand, and in runs in virtual time and in real threads."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest
from driven import END, Node, Scripted, build, error, finish, tell, token, told, value
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.operators.reduce import SIGNATURE


def longer(best, text):
    return text if len(text) > len(best) else best


async def longer_later(best, text):
    await asyncio.sleep(0)
    return longer(best, text)


def average(values: list):
    return sum(values) / len(values)


async def average_later(values: list):
    await asyncio.sleep(0)
    return average(values)


def results(events):
    return [(e.payload, e.complete) for e in events if e.kind == "value"]


# -- what comes of an answer


@pytest.mark.parametrize(("how", "expected"), [("join", "abc"), ("count", 3), ("last", "c")])
def test_built_in_ways_give_one_event_at_finish_in_the_place_of_what_was_asked(how, expected):
    node = Node("reduce", function=how)
    assert node.behaviour.mode == "inline"
    assert node.put(token("a"), token("b", 1), token("c", 2)) == []
    (out,) = node.put(finish())
    assert (out.payload, out.kind, out.identity, out.source) == (expected, "value", ("0", 0), "n")
    assert (out.phase, out.complete) == ("answer", True)
    assert node.put(END) == []


@pytest.mark.parametrize(
    ("function", "mode"),
    [(longer, "thread"), (longer_later, "await"), (max, "thread"), (lambda *two: max(two), "thread")],
)
def test_functions_of_two_are_called_pair_by_pair_and_keep_one_value(function, mode):
    node = Node("reduce", function="f", functions={"f": function})
    assert node.behaviour.mode == mode
    values = ["b", "ccc", "aa"] if function in (longer, longer_later) else [1, 3, 2]
    node.put(*(token(v, n) for n, v in enumerate(values)))
    if function is not max:
        assert node.behaviour.holds() == 1
    assert results(node.put(finish())) == [(values[1], True)]


@pytest.mark.parametrize(
    ("function", "inline", "mode"),
    [
        (average, False, "thread"),
        (average, True, "inline"),
        (average_later, False, "await"),
        (sum, False, "thread"),
        (math.fsum, False, "thread"),
        (lambda values: values[-1], False, "thread"),
    ],
)
def test_functions_of_one_are_given_the_list(function, inline, mode):
    node = Node("reduce", function="f", functions={"f": function}, inline=inline)
    assert node.behaviour.mode == mode
    node.put(token(1), token(3))
    assert node.behaviour.holds() == 2
    (out,) = node.put(finish())
    assert (out.payload, out.identity) == (function([1, 3]) if mode != "await" else 2, ("0", 0))


def test_a_list_of_events_is_given_events():
    def kinds(events: list[Event]):
        return [f"{event.kind} {event.sequence}" for event in events]

    kinds.__annotations__["events"] = list[Event]
    node = Node("reduce", function="f", functions={"f": kinds})
    node.put(token("a"), token("b", 1))
    assert results(node.put(finish())) == [(["token 0", "token 1"], True)]


def test_what_a_function_returns_is_treated_as_by_map():
    node = Node("reduce", function="f", functions={"f": lambda values: None})
    assert [(e.kind, e.identity) for e in node.put(token(1), finish())] == [("skip", ("0", 0))]
    node = Node("reduce", function="f", functions={"f": lambda values: Event("label", "A")})
    (out,) = node.put(token(1), finish())
    assert (out.kind, out.payload, out.identity) == ("label", "A", ("0", 0))


@pytest.mark.parametrize(
    "function",
    [lambda a, b, c: a, lambda: 1, lambda a, *, b: a, Scripted.stream],
    ids=["three", "none", "named", "yields"],
)
def test_other_functions_are_refused(function):
    with pytest.raises(ConfigError) as raised:
        Node("reduce", function="f", functions={"f": function})
    assert raised.value.code == "AF303"


def test_answers_of_different_lineages_are_never_mixed():
    node = Node("reduce", function="join")
    for n in range(6):
        node.put(token(f"{n}", n, f"{n % 3}/{n % 3}.ask"))
    out = node.put(*(finish(f"{n}/{n}.ask") for n in (2, 0, 1)))
    assert [(e.payload, e.identity) for e in out] == [("25", ("2", 2)), ("03", ("0", 0)), ("14", ("1", 1))]


def test_what_the_model_thought_is_no_part_of_the_answer_unless_it_is_all_there_is():
    node = Node("reduce", function="join")
    node.put(token("hm ", phase="reasoning"), token("yes", 1), token("so", 2, phase="reasoning"), token("!", 3))
    (out,) = node.put(finish())
    assert (out.payload, out.phase) == ("yes!", "answer")
    node.put(token("hm ", lineage="1/0.ask", phase="reasoning"))
    (out,) = node.put(finish("1/0.ask"))
    assert (out.payload, out.phase) == ("hm ", "reasoning")


def test_what_was_said_before_a_tool_was_called_is_no_part_of_the_answer():
    node = Node("reduce", function="join")
    assert node.put(token("Let me look. "), finish(reason="tool_calls")) == []
    out = node.put(token("It is 5 °C.", lineage="0/0.ask+1"), finish("0/0.ask+1"))
    assert [(e.payload, e.identity, e.complete) for e in out] == [("It is 5 °C.", ("0", 0), True)]
    assert node.put(token("Tool only"), finish(reason="tool_calls"), END)[0].complete
    assert node.put(finish(reason="tool_calls")) == []


def test_segments_are_joined_with_the_white_space_that_was_between_them():
    text = "\nOne.  Two!\n\n1. Three: yes. end "
    graph = 'ask = generate()\ns = segment(by="clause")\nr = reduce("join")\nout = sink(var="x")\nask -> s -> r -> out'
    assert tell(graph, Scripted(*text))[1].variables["x"] == [text.strip()]


def test_join_is_for_texts():
    with pytest.raises(RunError) as raised:
        Node("reduce", function="join").put(value(3))
    assert raised.value.code == "AF301"


@pytest.mark.parametrize(("how", "empty"), [("join", [("", True)]), ("count", [(0, True)]), ("last", [])])
def test_an_empty_answer_is_an_empty_text_a_count_of_0_or_a_skip_of_what_was_asked(how, empty):
    out = Node("reduce", function=how).put(finish())
    assert results(out) == empty
    assert [(e.kind, e.identity) for e in out] == [("value" if empty else "skip", ("0", 0))]


def test_what_was_put_in_is_gathered_by_input_and_given_whole_at_the_end():
    node = Node("reduce", function="join")
    node.put(value("a", 0, "3"), value("b", 0, "4"), value("c", 1, "3"))
    out = node.put(END)
    assert [(e.payload, e.identity, e.complete) for e in out] == [("ac", ("3", 3), True), ("b", ("4", 4), True)]


def test_finish_of_an_answer_that_was_asked_on_about_is_not_for_here():
    node = Node("reduce", function="count")
    node.put(token("a", lineage="0/0.first/1.ask"))
    assert results(node.put(finish("0/0.first/1.ask"))) == [(1, True)]
    assert [e.kind for e in node.put(finish("0/0.first"))] == ["finish"]


# -- parts


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (error(), [("ab", False)]),
        (told("flush"), [("ab", False)]),
        (told("flush", lineage=""), [("ab", False), ("c", False)]),
        (END, [("ab", False), ("c", False)]),
        (told("commit"), []),
        (told("skip", lineage="5"), []),
        (error("7"), []),
    ],
)
def test_a_part_never_passes_as_the_whole(event, left):
    node = Node("reduce", function="join")
    node.put(token("a"), token("b"), token("c", lineage="1/0.ask"))
    out = node.put(event)
    assert results(out) == left
    assert [e.kind for e in out[len(left) :]] == [event.kind] * (event.kind != "end")


def test_what_comes_after_a_part_was_let_go_is_a_part():
    for event in (error(), told("flush")):
        node = Node("reduce", function="join")
        out = node.put(token("a"), event, token("b"), finish())
        assert results(out) == [("a", False), ("b", False)]
        assert results(node.put(token("c"), finish())) == [("c", True)], "a finish forgets what was before"


def test_what_comes_of_parts_is_a_part():
    assert results(Node("reduce", function="count").put(token("a", complete=False), token("b"), finish())) == [
        (2, False)
    ]


def test_an_input_that_broke_off_is_a_part_at_the_end():
    node = Node("reduce", function="join")
    assert results(node.put(value("a"), error("0"), value("b", 1), END)) == [("a", False), ("b", False)]


def test_an_answer_that_broke_off_before_anything_came_has_no_result():
    out = Node("reduce", function="join").put(error())
    assert [(e.kind, e.identity) for e in out] == [("skip", ("0", 0)), ("error", ("0/0.ask", 0))]


def test_a_restart_begins_anew():
    node = Node("reduce", function="join")
    out = node.put(token("a"), told("restart"), token("b"), finish())
    assert [e.kind for e in out] == ["restart", "value"]
    assert results(out) == [("b", True)]


def test_what_is_retracted_has_no_result_also_where_its_rest_still_comes():
    node = Node("reduce", function="join")
    node.put(token("a"), token("x", lineage="1/0.ask"), token("y", lineage="0/0.ask/0.b"))
    out = node.put(told("retract"), token("b"), finish())
    assert [(e.kind, e.identity) for e in out] == [
        ("retract", ("0/0.ask", 0)),
        ("skip", ("0", 0)),
        ("skip", ("0/0.ask", 0)),
    ]
    assert results(node.put(finish("1/0.ask"))) == [("x", True)]
    assert node.behaviour.holds() == 0


def test_skip_of_one_token_ends_here_and_others_pass():
    node = Node("reduce", function="count")
    node.put(token("a"))
    assert node.put(told("skip", sequence=1)) == []
    assert [e.kind for e in node.put(told("skip", lineage="0"))] == ["skip"]


# -- bounds


@pytest.mark.parametrize("function", [sum, "last"])
def test_more_events_than_may_be_kept_are_an_error_with_a_code(function):
    functions = {} if function == "last" else {"f": function}
    node = Node("reduce", policy={"hold": 3}, function="last" if function == "last" else "f", functions=functions)
    lineages = [f"{n}/0.ask" for n in range(4)] if function == "last" else 4 * ["0/0.ask"]
    node.put(*(token(1, n, lineages[n]) for n in range(3)))
    with pytest.raises(RunError) as raised:
        node.put(token(1, 3, lineages[3]))
    assert raised.value.code == "AF612"
    assert "larger hold" in raised.value.hint
    assert node.behaviour.holds() == 3


def test_more_values_than_may_be_put_in_are_told_of_window():
    node = Node("reduce", function="count")
    node.put(*(Event("value", 1, source="run", sequence=n, lineage=str(n)) for n in range(64)))
    with pytest.raises(RunError, match="may keep 64 events") as raised:
        node.put(Event("value", 1, source="run", sequence=64, lineage="64"))
    assert "window(count=...) gathers several" in raised.value.hint


def test_more_text_than_may_be_kept_is_an_error_and_the_part_goes_out():
    text = 'ask = generate()\nr = reduce("join") [hold_bytes=6]\nout = sink(var="x")\nfailed = sink(var="failed")\n'
    _, result = tell(text + "ask -> r -> out\nr.error -> failed", Scripted("é", "éé", "é"))
    assert result.variables["x"][0] == "ééé"
    (failure,) = result.variables["failed"]
    assert (failure.node, failure.error.code) == ("r", "AF612")
    assert not result.complete


def test_bounds_are_declared():
    assert SIGNATURE.holds({"function": "join"}) == 64
    assert SIGNATURE.holds({"function": "mine"}) == 1_024


# -- in runs


async def test_a_function_of_two_runs_in_the_nodes_threads():
    names = set()

    def f(so_far, text):
        names.add(threading.current_thread().name)
        return so_far + text

    text = 'ask = generate()\nr = reduce(f)\nout = sink(var="x")\nask -> r -> out'
    run = build(asyncio.get_running_loop(), text, Scripted(*"abc"), f=f)
    assert (await run.run("hello")).variables["x"] == ["abc"]
    assert names == {"aiflow:r"}


def test_each_answer_of_several_is_reduced_by_itself():
    text = 'q = flat_map(f, inline=true)\nask = generate() [workers=3]\nr = reduce("join")\nout = sink(var="x")\n'
    _, result = tell(text + "q -> ask -> r -> out", Scripted("a", "b"), f=lambda text: [text, text, text])
    assert result.variables["x"] == ["ab", "ab", "ab"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["data", "data", "data", "finish", "flush", "error"])), max_size=50
    ),
    st.sampled_from(["join", "list", "pairs"]),
)
def test_nothing_is_lost_or_given_twice_and_only_a_whole_answer_is_complete(script, how):
    functions = {"list": "".join, "pairs": lambda a, b: a + b}
    node = Node("reduce", function=how, functions=functions)
    sent, broken = {}, set()
    for number, (lineage, what) in enumerate(script):
        name = f"{lineage}/0.ask"
        if what == "data":
            sent.setdefault(lineage, []).append(f"{number},")
            node.put(token(f"{number},", number, name))
            continue
        whole = "".join(sent.pop(lineage, []))
        out = node.put({"finish": finish, "error": error}.get(what, lambda of: told("flush", of))(name))
        found = [e for e in out if e.kind == "value"]
        if whole or found:
            (result,) = found
            assert result.payload == whole
            assert result.complete == (what == "finish" and lineage not in broken)
        if what == "finish":
            broken.discard(lineage)
        if what == "error" or (what == "flush" and whole):
            broken.add(lineage)
    out = node.put(END)
    assert {e.lineage: e.payload for e in out} == {str(k): "".join(v) for k, v in sent.items()}
    assert not any(e.complete for e in out)
    assert node.behaviour.holds() == 0


@pytest.mark.parametrize("how", ["plain", "async"])
async def test_a_function_of_a_list_runs_in_the_nodes_threads_or_awaited(how):
    names = set()

    def f(texts: list):
        names.add(threading.current_thread().name)
        return "|".join(texts)

    async def g(texts: list):
        await asyncio.sleep(0)
        return "|".join(texts)

    text = 'ask = generate()\nr = reduce(f)\nout = sink(var="x")\nask -> r -> out'
    run = build(asyncio.get_running_loop(), text, Scripted(*"abc"), f=f if how == "plain" else g)
    assert (await run.run("hello")).variables["x"] == ["a|b|c"]
    assert names == ({"aiflow:r"} if how == "plain" else set())


async def test_a_function_of_a_list_that_raises_is_the_nodes_failure():
    text = 'ask = generate()\nr = reduce(f)\nout = sink(var="x")\nask -> r -> out'
    with pytest.raises(RunError, match="'r' failed on event 0: ZeroDivisionError"):
        await build(asyncio.get_running_loop(), text, Scripted("a"), f=lambda texts: 1 / 0).run("hello")


async def test_a_function_of_a_list_is_given_the_part_of_an_answer_that_broke_off():
    text = 'ask = generate()\nr = reduce(f)\nout = sink(function=see, inline=true)\nfailed = sink(var="failed")\n'
    seen = []

    def see(event: Event):
        seen.append((event.payload, event.complete))

    see.__annotations__["event"] = Event
    run = build(
        asyncio.get_running_loop(),
        text + "ask -> r -> out\nask.error -> failed",
        Scripted("a", "b", cut=True),
        f="|".join,
        see=see,
    )
    await run.run("hello")
    assert seen == [("a|b", False)]


async def test_a_list_that_grows_too_long_is_given_as_the_part_that_came():
    text = 'ask = generate()\nr = reduce(f) [hold=2]\nout = sink(var="x")\nfailed = sink(var="failed")\n'
    text += "ask -> r -> out\nr.error -> failed"
    run = build(asyncio.get_running_loop(), text, Scripted(*"abc"), f="|".join)
    result = await run.run("hello")
    assert result.variables["x"] == ["a|b"]
    assert [failure.error.code for failure in result.variables["failed"]] == ["AF612"]
