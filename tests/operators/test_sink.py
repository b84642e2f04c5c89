"""`sink`: files and functions in real threads; what is taken back."""

from __future__ import annotations

import asyncio
import json

import pytest
from stage import Node, build, token, told

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event


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
