"""`sink`: files and functions in real threads; what is taken back."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from pathlib import Path

import pytest
from driven import Node, build, token, told

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import Event, Retrieval, ToolFragment, ToolResult, Usage
from aiflow_jupyter.operators.sink import MOST_SHOWN


async def test_jsonl_sink_writes_one_object_for_each_event_whatever_its_workers(tmp_path):
    path = tmp_path / "out.jsonl"
    text = f"m = map(f)\nout = sink(jsonl={json.dumps(str(path))}) [workers=4]\nm -> out\nm.error -> out"
    for value in ("é", None):
        run = build(asyncio.get_running_loop(), text, f=lambda t: {"t": t} if t else 1 / 0)
        await run.run(value)
    first, second = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert (first["kind"], first["payload"], first["lineage"]) == ("value", {"t": "é"}, "0")
    assert second["payload"]["node"] == "m"
    assert "ZeroDivisionError" in second["payload"]["error"]


async def test_jsonl_sink_that_cannot_write_fails_naming_its_node(tmp_path):
    text = f"out = sink(jsonl={json.dumps(str(tmp_path / 'no' / 'out'))})"
    with pytest.raises(RunError) as error:
        await build(asyncio.get_running_loop(), text).run("x")
    assert (error.value.code, error.value.node) == ("AF730", "out")
    assert error.value.message.count("'out'") == 1


async def test_function_sink_is_called_with_each_payload_and_display_with_each_event():
    called, shown = [], []
    loop = asyncio.get_running_loop()
    await build(loop, "out = sink(function=f)", f=called.append).run("x")
    await build(loop, "out = sink(display=true)", show=shown.append).run("y")
    assert (called, [e.payload for e in shown]) == (["x"], ["y"])


@pytest.mark.parametrize("kind", ["restart", "retract"])
def test_a_variable_loses_what_is_void_and_the_answers_to_it_and_keeps_the_rest(kind):
    node = Node("sink", var="x")
    node.put(
        token("a"), token("b", lineage="1/0.ask"), token("c", lineage="0/0.ask/2.more"), token("d", lineage="0/0.as")
    )
    assert node.variables["x"] == ["a", "b", "c", "d"]
    (passed,) = node.put(told(kind))
    assert passed.kind == kind
    assert node.variables["x"] == ["b", "d"]
    node.put(token("e"))
    assert node.variables["x"] == ["b", "d", "e"]
    assert node.variables["x"].tokens


async def test_two_sinks_of_one_variable_take_back_of_both():
    text = (
        'a = map(f, inline=true)\nb = map(g, inline=true)\none = sink(var="x")\ntwo = sink(var="x")\na -> one\nb -> two'
    )
    run = build(asyncio.get_running_loop(), text, f=str, g=str)
    await run.offer("a", 1)
    await run.offer("b", 2)
    await run.offer("a", 3)
    run.guardians["two"].signal(told("retract", lineage="0"))
    await run.start(4, to="b")
    await run.wait()
    assert run.variables["x"] == ["2", "3", "4"]


def test_commit_takes_nothing_back():
    node = Node("sink", var="x")
    node.put(token("a"), told("commit"))
    assert node.variables["x"] == ["a"]


@pytest.mark.parametrize("kind", ["restart", "retract"])
def test_a_file_gets_a_line_that_says_what_is_void_and_marks_parts(tmp_path, kind):
    path = tmp_path / "out.jsonl"
    node = Node("sink", jsonl=str(path))
    node.put(token("a", label="x"), token("b", sequence=1, complete=False), told(kind), told("commit"))
    node.behaviour.close()
    first, second, third = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert (first["payload"], first["label"], first.get("complete")) == ("a", "x", None)
    assert (second["payload"], second["complete"]) == ("b", False)
    assert (third["kind"], third["lineage"], third["payload"]) == (kind, "0/0.ask", None)


@pytest.mark.parametrize("kind", ["restart", "retract"])
def test_the_display_is_told_of_what_is_void_by_an_event_without_text(kind):
    shown = []
    node = Node("sink", display=True, show=shown.append)
    node.put(token("a"), Event(kind, "a reason", lineage="0/0.ask"), told("commit"))
    assert [(event.kind, event.payload) for event in shown] == [("token", "a"), (kind, None)]


def test_a_function_may_ask_for_a_key_and_for_the_event():
    called = []

    def pay(event: Event, idempotency_key):
        called.append((event.payload, idempotency_key))

    pay.__annotations__["event"] = Event
    node = Node("sink", function="pay", functions={"pay": pay})
    assert node.behaviour.extras == {"idempotency_key"}
    assert node.put(token("a"), idempotency_key="k") == []
    assert called == [("a", "k")]


async def test_a_file_is_told_of_what_is_void_in_a_run(tmp_path):
    path = tmp_path / "out.jsonl"
    text = f"m = map(f, inline=true)\nout = sink(jsonl={json.dumps(str(path))})\nm -> out"
    run = build(asyncio.get_running_loop(), text, f=str)
    await run.offer("m", "a")
    run.guardians["m"].signal(told("retract", lineage="0"))
    await run.start("b")
    await run.wait()
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(row["kind"], row["lineage"]) for row in rows] == [("value", "0"), ("retract", "0"), ("value", "1")]


# -- files


def read_strictly(path):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text("utf-8").splitlines()]


def test_every_line_of_a_file_is_json_by_its_standard(tmp_path):
    path = tmp_path / "out.jsonl"
    node = Node("sink", jsonl=str(path))
    endless = float("inf")
    value = {"n": [float("nan"), (endless,)], -endless: Retrieval("\ud83d", score=float("nan")), "f": 1.5}
    node.put(token("half \ud83d"), token("\ud83d\ude00", 1), Event("value", value))
    node.behaviour.close()
    half, whole, numbers = (row["payload"] for row in read_strictly(path))
    assert (half, whole) == ("half \ufffd", "\U0001f600")
    assert numbers["n"] == ["NaN", ["Infinity"]]
    assert (numbers["-Infinity"]["text"], numbers["-Infinity"]["score"], numbers["f"]) == ("\ufffd", "NaN", 1.5)


def test_a_value_that_holds_itself_is_a_failure_and_the_file_goes_on(tmp_path):
    path = tmp_path / "out.jsonl"
    node = Node("sink", jsonl=str(path))
    itself = {}
    itself["itself"] = itself
    with pytest.raises(ValueError, match="Circular"):
        node.put(Event("value", itself))
    node.put(token("a"))
    node.behaviour.close()
    assert [row["payload"] for row in read_strictly(path)] == ["a"]


def test_what_is_no_place_for_lines_is_refused_by_name(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, why in (
        (pipe, "it is a pipe"),
        (tmp_path, "Is a directory"),
        (tmp_path / "x\0y", "null byte"),
        (tmp_path / ("x" * 5000), "File name too long"),
    ):
        with pytest.raises(ConfigError, match=why) as raised:
            Node("sink", jsonl=str(path)).put(token("a"))
        assert raised.value.code == "AF730"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
async def test_a_disk_that_is_full_fails_the_event_and_nothing_is_raised_into_the_void():
    unheard = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: unheard.append(context))
    with pytest.raises(RunError, match="No space left") as raised:
        await build(loop, 'out = sink(jsonl="/dev/full")').run("x")
    assert (raised.value.code, raised.value.node) == ("AF730", "out")
    await asyncio.sleep(0.05)
    gc.collect()
    assert unheard == []


def test_a_file_has_the_permissions_of_the_umask(tmp_path):
    path = tmp_path / "out.jsonl"
    before = os.umask(0o027)
    try:
        node = Node("sink", jsonl=str(path))
        node.put(token("a"))
        node.behaviour.close()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


# -- the display


def test_values_are_displayed_as_json_and_results_as_their_text():
    shown = []
    node = Node("sink", display=True, show=shown.append)
    for kind, payload in (
        ("token", "Look:"),
        ("value", {"a": [1, None]}),
        ("value", 7),
        ("retrieval", Retrieval("a passage")),
        ("tool_result", ToolResult("c", "f", "sunny")),
        ("value", "text"),
        ("tool_fragment", ToolFragment(0, "c", "f", "{")),
        ("usage", Usage()),
        ("value", None),
    ):
        node.put(Event(kind, payload, lineage="0/0.ask"))
    assert "".join(event.payload for event in shown) == (
        'Look:\n\n```json\n{"a":[1,null]}\n```\n\n7\n\na passage\n\nsunny\n\ntext'
    )
    assert {event.lineage for event in shown} == {"0/0.ask"}


def test_what_is_displayed_of_a_value_is_bounded():
    shown = []
    Node("sink", display=True, show=shown.append).put(Event("value", {"a": ["x" * 100_000] * 1000}))
    assert len(shown[0].payload) < MOST_SHOWN + 100
    assert "[cut here" in shown[0].payload
