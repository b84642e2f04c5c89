"""One spec, three forms: whatever a spec can hold, each form says it, and is read back as the same spec."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from aiflow_jupyter.errors import GraphError
from aiflow_jupyter.graph.builder import Flow, call
from aiflow_jupyter.graph.forms.document import read_json
from aiflow_jupyter.graph.forms.language import read
from aiflow_jupyter.graph.forms.printing import WIDTH, as_json, as_text
from aiflow_jupyter.graph.forms.python import as_python
from aiflow_jupyter.graph.forms.source import read_python
from aiflow_jupyter.graph.spec import EdgeSpec, GraphSpec, NodeSpec
from aiflow_jupyter.operators import SIGNATURES
from tests.graph.graphs import Namespace, specs


def from_text(text: str, name: str) -> GraphSpec:
    parsed = read(text, name, SIGNATURES)
    assert parsed.problems == []
    return parsed.spec


def from_json(text: str) -> GraphSpec:
    parsed = read_json(text)
    assert parsed.problems == []
    return parsed.spec


def from_python(source: str) -> GraphSpec:
    namespace = Namespace()
    exec(source, {}, namespace)
    return namespace["flow"].spec


def same(one: GraphSpec, other: GraphSpec) -> bool:
    """Equal, with the order of nodes and edges (arguments have none), and 1 not taken for 1.0 or true."""
    documents = [json.dumps(spec.to_json(), sort_keys=True) for spec in (one, other)]
    return one == other and list(one.nodes) == list(other.nodes) and documents[0] == documents[1]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs())
def test_round_trip_through_all_forms_gives_the_same_spec(spec):
    text = as_text(spec, SIGNATURES)
    read_text = from_text(text, spec.name)
    assert same(read_text, spec), text
    document = as_json(read_text)
    read_document = from_json(document)
    assert same(read_document, spec), document
    source = as_python(read_document, SIGNATURES)
    assert same(from_python(source), spec), source
    assert same(read_python(source, None, SIGNATURES).spec, spec), source
    assert as_text(read_document, SIGNATURES) == text


# -- what the forms look like

TEXT = """\
ask    = generate(tier="auto", temperature=0.5)
lane   = route(by="phase")
parts  = segment(by="sentence")
safe   = filter(no_secrets)            [workers=2, overflow=(token=drop_oldest, else=block), retry_on=(TimeoutError,)]
tidy   = map(tidy, inline=true)
speech = sink(function=speak)          [effect=non_idempotent]
notes  = sink(jsonl="reasoning.jsonl") [queue=64, timeout=5]
clean  = scrub

ask -> lane
lane.answer    -> parts -> safe -> tidy -> speech
lane.reasoning -> notes
clean -> notes, speech
speech.error -> ask [feedback, hops=3]

inject ask: str
inject clean: token
"""

PYTHON = """\
from aiflow_jupyter import filter, Flow, generate, map, route, segment, sink

# defined elsewhere: no_secrets, tidy, speak, scrub
flow = Flow("support")
ask = flow.add("ask", generate(tier="auto", temperature=0.5))
lane = flow.add("lane", route(by="phase"))
parts = flow.add("parts", segment(by="sentence"))
safe = flow.add("safe", filter(no_secrets), workers=2, overflow={"token": "drop_oldest", "else": "block"}, retry_on=[TimeoutError])
tidy_ = flow.add("tidy", map(tidy, inline=True))
speech = flow.add("speech", sink(function=speak), effect="non_idempotent")
notes = flow.add("notes", sink(jsonl="reasoning.jsonl"), queue=64, timeout=5)
clean = flow.add("clean", scrub)

ask >> lane
lane["answer"] >> parts >> safe >> tidy_ >> speech
lane["reasoning"] >> notes
clean >> [notes, speech]
speech["error"].feedback(ask, hops=3)

ask.inject(str)
clean.inject("token")
"""  # noqa: E501

JSON = """\
{
  "version": 1,
  "name": "g",
  "nodes": {
    "ask": {"operator": "generate", "args": {"tier": "größe\\u2028"}},
    "out": {"operator": "sink", "args": {"var": "x"}, "policy": {"queue": 2}}
  },
  "edges": [
    {"from": "ask", "to": "out"},
    {"from": "out", "port": "error", "to": "ask", "feedback": {}}
  ],
  "inject": {
    "ask": "str"
  }
}
"""


def test_text_is_printed_as_a_person_writes_it():
    assert as_text(from_text(TEXT, "support"), SIGNATURES) == TEXT


def test_several_sources_and_targets_share_a_line_where_their_edges_follow_one_another():
    spec = from_text("a = f\nb = f\nc = f\nd = f\na, b.x -> c -> d\nd -> a, b\na, b -> c, d\na -> a", "g")
    edges = as_text(spec, SIGNATURES).split("\n\n")[1].splitlines()
    assert edges == ["a, b.x -> c -> d -> a, b", "a -> c, d", "b -> c, d", "a -> a"]


def test_long_chains_go_on_in_a_line_of_their_own():
    names = [f"{'node' * 5}_{n}" for n in range(9)]
    text = "".join(f"{name} = f\n" for name in names) + " -> ".join(names)
    spec = from_text(text, "g")
    edges = as_text(spec, SIGNATURES).split("\n\n")[1].splitlines()
    assert len(edges) == 4
    assert all(len(line) <= WIDTH for line in edges)


def test_python_is_printed_as_a_person_writes_it():
    assert as_python(from_text(TEXT, "support"), SIGNATURES) == PYTHON


def test_json_is_printed_with_a_line_for_each_node_and_edge():
    spec = read_json(JSON).spec
    assert as_json(spec) == JSON


def test_python_source_hides_nothing_that_it_uses():
    text = "map = map(tidy)\ntidy = filter(map)\nlist = tidy\nFlow = f\nflow = class\nimport = f\nx = m(class=1)\n"
    text += "map -> import"
    source = as_python(from_text(text, "g"), SIGNATURES)
    namespace = Namespace()
    exec(source, {}, namespace)
    assert same(namespace["flow"].spec, from_text(text, "g"))
    assert {"map_", "tidy_", "list_", "Flow_", "flow_", "import_", "x"} <= namespace.keys()


def test_functions_of_printed_python_are_those_that_the_graph_calls():
    spec = from_text("a = map(tidy) [key=by_user, state=partitioned, retry_on=(Odd,)]\na -> a", "g")
    namespace = Namespace()
    exec(as_python(spec, SIGNATURES), {}, namespace)
    assert set(namespace["flow"].functions) == {"tidy", "by_user", "Odd"}


def test_an_edge_to_no_node_has_no_python():
    spec = from_text("a = f\na -> b, c\ninject d: str", "g")
    with pytest.raises(GraphError) as error:
        as_python(spec, SIGNATURES)
    assert [(p.code, p.path) for p in error.value.problems] == [
        ("AF206", ("edges", 0, "to")),
        ("AF206", ("edges", 1, "to")),
        ("AF206", ("inject", "d")),
    ]


def test_no_form_runs_what_it_names(tmp_path):
    trap = f"__import__('os').system('touch {tmp_path / 'ran'}')"
    spec = GraphSpec(
        name="g",
        nodes={
            "a": NodeSpec(operator="map", args={"function": trap}),
            "b": NodeSpec(operator="sink", args={"var": trap}),
        },
        edges=[EdgeSpec(source="a", target="b")],
    )
    assert same(from_text(as_text(spec, SIGNATURES), "g"), spec)
    assert same(from_json(as_json(spec)), spec)
    assert same(from_python(as_python(spec, SIGNATURES)), spec)
    assert not (tmp_path / "ran").exists()


# -- the builder


def tidy(text: str) -> str:
    return text


def speak(text: str) -> None:
    del text


def test_python_says_feedback_injections_and_several_sources():
    flow = Flow("g")
    a, b, c = (flow.add(name, tidy) for name in "abc")
    assert a >> b >> [c, a] == [c, a]
    assert [a, b["error"]] >> c is c
    assert c.feedback(a, limit=2) is a
    c["error"].feedback([a, b])
    assert a.inject(str) is a
    b.inject("token")
    c.inject(Any)
    text = "a = tidy\nb = tidy\nc = tidy\na -> b -> c, a\na, b.error -> c\n"
    text += "c -> a [feedback, limit=2]\nc.error -> a, b [feedback]\ninject a: str\ninject b: token, c: any"
    assert flow.spec == from_text(text, "g")


def test_python_names_functions_exceptions_and_objects_wherever_they_stand():
    class Index:
        pass

    index, other = Index(), Flow("other")
    flow = Flow("g")
    made = call("m", functions=[tidy, speak], patterns={"a": "^a"}, index=index, flow=other, none=None, items=(1, "x"))
    flow.add("a", made, key=tidy, state="partitioned", retry_on=(TimeoutError, OSError), compensate=speak, retry=2)
    node = flow.spec.nodes["a"]
    assert node.args == {
        "functions": ["tidy", "speak"], "patterns": {"a": "^a"}, "index": "Index", "flow": "other", "items": [1, "x"],
    }  # fmt: skip
    assert (node.policy.key, node.policy.compensate) == ("tidy", "speak")
    assert node.policy.retry_on == ["TimeoutError", "OSError"]
    assert flow.functions == {
        "tidy": tidy, "speak": speak, "Index": index, "other": other, "TimeoutError": TimeoutError, "OSError": OSError,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("build", "code", "says"),
    [
        (lambda f, a: a.feedback(a, hops=0), "AF105", "hops=0 is not a whole number of at least 1"),
        (lambda f, a: a.feedback(a, limit="x"), "AF105", "limit='x' is not a whole number"),
        (lambda f, a: a["no port"] >> a, "AF203", "'no port' is not a name"),
        (lambda f, a: [Flow("h").add("b", tidy)] >> a, "AF206", "different flows"),
        (lambda f, a: f.add("b", tidy, overflow={"token": "drop"}), "AF401", "overflow: token='drop'"),
        (lambda f, a: f.add("b", tidy, retry_on=5), "AF401", "is not a list"),
        (lambda f, a: f.add("b", call("m", x=[[1]])), "AF204", "node 'b'"),
        (lambda f, a: f.add("b", call("m", x="\ud800")), "AF204", "half of a character"),
        (lambda f, a: f.add("b", call("m", x=1 << 70)), "AF204", "node 'b'"),
        (lambda f, a: call("m", x=tidy, y=type("tidy", (), {})()), "AF205", "two different functions"),
        (lambda f, a: f.add("b", tidy, key=type("tidy", (), {})()), "AF205", "two different functions"),
        (lambda f, a: (a.inject("no type"), f.spec), "AF200", "inject"),
    ],
)
def test_mistake_in_python_is_a_graph_error(build, code, says):
    flow = Flow("g")
    with pytest.raises(GraphError) as error:
        build(flow, flow.add("a", tidy))
    (problem,) = error.value.problems
    assert problem.code == code
    assert says in problem.message
