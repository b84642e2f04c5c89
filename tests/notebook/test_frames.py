"""What the kernel sends to a live view."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiflow_jupyter.graph.forms import picture
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.spec import EdgeSpec, GraphSpec, NodeSpec
from aiflow_jupyter.notebook import frames
from aiflow_jupyter.notebook.frames import Frames, gauges_of, graph_of, ready
from aiflow_jupyter.notebook.live import bundle_of
from aiflow_jupyter.operators import SIGNATURES
from aiflow_jupyter.runtime.bottleneck import Bottleneck
from aiflow_jupyter.runtime.metrics import NodeState, NodeStatus, RunState, RunStatus

SHARED = json.loads((Path(__file__).parents[1] / "data/frames.json").read_text("utf-8"))
SPEC = parse("ask = generate()\nout = sink(display=true) [queue=4]\nask -> out", "flow", SIGNATURES).spec


FIRST = {
    "seq": 0,
    "elapsed": 0.0,
    "run_id": "r1",
    "run": "ready",
    "message": "",
    "nodes": {},
    "details": {},
    "bottleneck": "",
}


def node(name="ask", state="running", *, depth=0, peak=0, processed=0, emitted=0):
    figures = dict.fromkeys(("dropped", "errors", "unrouted"), 0) | dict.fromkeys(
        ("wait_s", "service_s", "blocked_s"), 0.0
    )
    return NodeStatus(
        node=name, state=state, queue=4, workers=1, bound=5, depth=depth, peak=peak, processed=processed,
        emitted=emitted, first_s=None, p50_s=None, p95_s=None, p99_s=None, **figures
    )  # fmt: skip


def status(*nodes, elapsed=1.0, state="running", message=""):
    return RunStatus("r1", "flow", state, elapsed, message, nodes or (node(),))


def fits(value, hint) -> None:
    assert set(value) == set(get_type_hints(hint))


def test_the_shared_fixture_has_the_shape_of_the_python_types():
    graph = SHARED["graph"]
    fits(graph, frames.Graph)
    for item in graph["nodes"]:
        fits(item, frames.GraphNode)
    for item in graph["edges"]:
        fits(item, frames.GraphEdge)
    for message in SHARED["messages"]:
        if message["kind"] == "ack":
            continue
        fits(message, frames.Frame)
        assert message["run"] in get_args(RunState)
        for values in message["nodes"].values():
            assert values[0] in get_args(NodeState)
            assert len(values) == len(ready(SPEC)["nodes"]["ask"])
        for values in message["details"].values():
            assert len(values) == len(Frames(FIRST).frame(status())["details"]["ask"])


def test_a_real_graph_and_frame_have_the_shape_of_the_shared_fixture():
    graph = graph_of(SPEC)
    assert set(graph) == set(SHARED["graph"])
    assert set(graph["nodes"][0]) == set(SHARED["graph"]["nodes"][0])
    assert set(graph["edges"][0]) == set(SHARED["graph"]["edges"][0])
    frame = Frames(FIRST).frame(status())
    assert set(frame) == set(SHARED["messages"][1])
    assert set(bundle_of(SPEC, ready(SPEC))[frames.MIME]) == set(SHARED["mime"])


def test_the_graph_is_told_in_the_order_of_its_declaration():
    assert graph_of(SPEC) == {
        "name": "flow",
        "nodes": [
            {"id": "ask", "operator": "generate", "queue": SPEC.nodes["ask"].policy.queue, "workers": 1},
            {"id": "out", "operator": "sink", "queue": 4, "workers": 1},
        ],
        "edges": [{"from": "ask", "port": None, "to": "out"}],
    }


def test_a_frame_names_only_the_nodes_that_changed():
    sender = Frames(FIRST)
    first = sender.frame(status(node("a"), node("b", "idle")))
    assert set(first["nodes"]) == {"a", "b"}
    second = sender.frame(status(node("a", depth=2, peak=2), node("b", "idle")))
    assert set(second["nodes"]) == {"a"}
    assert second["nodes"]["a"] == ["running", 2, 2, 0, None]


def test_nothing_is_sent_when_nothing_changed():
    sender = Frames(FIRST)
    assert sender.frame(status(elapsed=1.0)) is not None
    assert sender.frame(status(elapsed=1.1)) is None


def test_the_clock_alone_moves_twice_a_second():
    sender = Frames(FIRST)
    sent = [sender.frame(status(elapsed=i / 30)) for i in range(1, 61)]
    assert 4 <= sum(frame is not None for frame in sent) <= 5
    assert all(frame["nodes"] == {} for frame in sent[1:] if frame is not None)


def test_frames_are_numbered_without_gaps():
    sender = Frames(FIRST)
    numbers = []
    for i in range(20):
        frame = sender.frame(status(node(depth=i // 2)))
        if frame is not None:
            numbers.append(frame["seq"])
    assert numbers == list(range(1, 11))


def test_a_snapshot_has_every_node_and_the_number_of_the_last_frame():
    sender = Frames(FIRST)
    assert sender.snapshot() == {"kind": "snapshot", **FIRST}
    sender.frame(status(node("a"), node("b")))
    last = sender.frame(status(node("a", depth=1), node("b")))
    snapshot = sender.snapshot()
    assert snapshot["kind"] == "snapshot"
    assert snapshot["seq"] == last["seq"]
    assert snapshot["nodes"] == {"a": ["running", 1, 0, 0, None], "b": ["running", 0, 0, 0, None]}


SPEECH = Bottleneck("b", 0.97, {"a": 0.8}, ("it takes long",))


def test_details_and_the_bottleneck_are_looked_at_twice_a_second_and_told_where_they_changed():
    sender, asked = Frames(FIRST), []

    def find():
        asked.append(None)
        return SPEECH

    sent = {}
    for i in range(1, 61):
        busy = dataclasses.replace(node("b", depth=i % 3), busy=0.9 + i / 1e5, retries=i // 40)
        frame = sender.frame(status(node("a"), busy, elapsed=i / 30), None, find)
        assert frame["bottleneck"] == "b"
        if frame["details"]:
            sent[i] = frame["details"]
    assert len(asked) == 5
    assert list(sent) == [1, 45], "rounded shares that move little are no change"
    assert [list(details) for details in sent.values()] == [["a", "b"], ["b"]]
    assert sent[45]["b"] == [0, 1, 0, 0.9, 0.0, None, None, None, None, None, str(SPEECH)]
    assert sender.snapshot()["details"] == {"a": sent[1]["a"], "b": sent[45]["b"]}


def test_details_are_rounded_means():
    figures = dataclasses.replace(
        node(processed=3), wait_s=1.0, p95_s=0.067108864, first_s=0.12345, lag_s=2.0, held_loop_s=0.41, blocked=0.126
    )
    details = Frames(FIRST).frame(status(figures))["details"]["ask"]
    assert details == [0, 0, 0, 0.0, 0.13, 0.333, 0.0671, 0.1235, 2.0, 0.41, ""]


def test_the_last_frame_has_the_last_details():
    sender = Frames(FIRST)
    sender.frame(status(elapsed=1.1), None, lambda: SPEECH)
    last = sender.frame(status(dataclasses.replace(node(), retries=1), elapsed=1.2, state="done"))
    assert last["details"]["ask"][1] == 1
    assert last["bottleneck"] == ""


def test_snapshot_and_frames_add_up_to_the_same_picture():
    sender = Frames(FIRST)
    shown: dict[str, list] = {}
    for i in range(30):
        nodes = (node("a", depth=i % 3), node("b", processed=i // 7), node("c", "blocked" if i % 5 else "running"))
        frame = sender.frame(status(*nodes, elapsed=i / 10))
        if frame is not None:
            shown |= frame["nodes"]
        assert sender.snapshot()["nodes"] == shown


def test_the_rate_is_of_the_last_second_while_the_run_lives():
    sender = Frames(FIRST)
    for i in range(1, 11):
        sender.frame(status(node(processed=10 * i), elapsed=i * 1.0))
    assert sender.latest["nodes"]["ask"][4] == 10.0
    for i in range(1, 11):
        sender.frame(status(node(processed=100), elapsed=10.0 + i * 0.5))
    assert sender.latest["nodes"]["ask"][4] == 0.0


def test_the_rate_is_of_the_whole_run_once_it_is_over():
    sender = Frames(FIRST)
    sender.frame(status(node(processed=1), elapsed=0.1))
    frame = sender.frame(status(node(processed=50, state="done"), elapsed=10.0, state="done"))
    assert frame["nodes"]["ask"][4] == 5.0


def test_a_source_that_only_emits_has_a_rate_too():
    frame = Frames(FIRST).frame(status(node(emitted=30), elapsed=10.0, state="done"))
    assert frame["nodes"]["ask"][4] == 3.0


def test_the_last_frame_tells_how_the_run_ended():
    frame = Frames(FIRST).frame(status(node(state="failed"), state="failed", message="node 'ask' failed"))
    assert (frame["run"], frame["message"], frame["nodes"]["ask"][0]) == ("failed", "node 'ask' failed", "failed")


def test_what_is_waited_for_is_a_change_of_its_own_and_goes_again():
    sender = Frames(FIRST)
    assert sender.frame(status())["message"] == ""
    assert sender.frame(status(), "ask: submitted 4 s ago")["message"] == "ask: submitted 4 s ago"
    assert sender.frame(status(), "ask: submitted 4 s ago") is None
    assert sender.snapshot()["message"] == "ask: submitted 4 s ago"
    assert sender.frame(status(), "")["message"] == ""


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 99), st.integers(0, 10**15), st.sampled_from(get_args(RunState))),
        max_size=12,
    )
)
def test_every_frame_is_strict_json_with_rates_of_at_least_zero(steps):
    sender, elapsed, processed = Frames(FIRST), 0.0, 0
    for depth, more, pause, state in steps:
        elapsed, processed = elapsed + pause / 1e9, processed + more
        frame = sender.frame(status(node(depth=depth, processed=processed), elapsed=elapsed, state=state))
        if frame is None:
            continue
        json.dumps(frame, allow_nan=False)
        for values in frame["nodes"].values():
            assert values[4] is None or values[4] >= 0


def test_gauges_take_the_declared_queue_from_the_graph():
    latest = ready(SPEC) | {"nodes": {"out": ["blocked", 4, 4, 7, 2.5]}}
    assert gauges_of(latest, graph_of(SPEC)) == {"out": picture.Gauge("blocked", 4, 4, 4, 7, 2.5)}


HOSTILE_NAMES = ["<b>&\"'", "]]>", "</svg><script>", "&amp;", "Ünï日本🙂", "x" * 500, "--", "${x}"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_the_picture_is_well_formed_whatever_things_are_called(name):
    nodes = {each: NodeSpec.model_construct(operator=name, args={}, policy=Policy()) for each in (name, f"{name}2")}
    edge = EdgeSpec.model_construct(source=name, port=name, target=f"{name}2")
    spec = GraphSpec.model_construct(name=name, nodes=nodes, edges=[edge])  # past the checks, which refuse most names
    for current in (ready(spec), ready(spec) | {"run": "running"}):
        svg = ET.fromstring(bundle_of(spec, current)["image/svg+xml"])
        tags = {element.tag.rpartition("}")[2] for element in svg.iter()}
        assert tags <= {"svg", "title", "rect", "defs", "marker", "path", "text", "g"}
        assert name in svg.find("{http://www.w3.org/2000/svg}title").text


def test_the_picture_says_in_words_what_it_shows():
    latest = ready(SPEC) | {"run": "running", "elapsed": 2.0, "nodes": {"ask": ["running", 0, 1, 5, 3.0]}}
    svg = ET.fromstring(bundle_of(SPEC, latest)["image/svg+xml"])
    assert svg.attrib["role"] == "img"
    for word in ("ask", "running", "peak 1", "5 events"):
        assert word in svg.attrib["aria-label"]


STEERING = [
    chr(code) for code in (0x1B, 7, 0x9B, 0x61C, 0x200B, 0x200E, 0x200F, 0x202E, 0x2060, 0x2064, 0x2066, 0xFEFF)
]


@pytest.mark.parametrize("said", [None, "by the view"])
def test_what_is_said_of_a_run_steers_and_hides_nothing_in_any_form(said):
    message = f"a{''.join(STEERING)}b\nc\u200cd \U0001f469\u200d\U0001f680"
    view = Frames(FIRST)
    frame = view.frame(status(message="" if said else message), message if said else None)
    bundle = bundle_of(SPEC, {**view.latest, "nodes": ready(SPEC)["nodes"]})
    clean = "ab\nc\u200cd \U0001f469\u200d\U0001f680"
    assert frame["message"] == view.snapshot()["message"] == bundle[frames.MIME]["snapshot"]["message"] == clean
    written = json.dumps(bundle, ensure_ascii=False)
    assert not set(STEERING) & set(written)
