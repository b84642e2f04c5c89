"""The JSON form: strict, and every mistake is found with its pointer and a hint, whatever comes."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import GraphError
from aiflow_jupyter.graph.forms.document import read_json, schema
from aiflow_jupyter.graph.forms.strict import MOST_JSON
from aiflow_jupyter.graph.parsed import pointer
from aiflow_jupyter.graph.problems import MOST_PROBLEMS
from aiflow_jupyter.graph.spec import MOST_EDGES, MOST_NODES, GraphSpec
from tests.graph.graphs import specs

WHOLE = {
    "version": 1,
    "name": "g",
    "nodes": {
        "ask": {"operator": "generate", "args": {"tier": "auto", "x": [1, 2.5, True, None, "s"], "y": {"p": "q"}}},
        "out": {"operator": "sink", "args": {"var": "r"}, "policy": {"queue": 3, "overflow": {"token": "drop_oldest"}}},
    },
    "edges": [{"from": "ask", "port": "error", "to": "out"}, {"from": "out", "to": "ask", "feedback": {"hops": 2}}],
    "inject": {"ask": "str"},
}


def problems(text: str):
    try:
        return read_json(text).problems
    except GraphError as error:
        return error.problems


def changed(*path, value):
    """The whole document with another value at a path."""
    data = json.loads(json.dumps(WHOLE))
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(data)


def test_a_document_is_its_spec():
    assert read_json(json.dumps(WHOLE)).spec == GraphSpec.model_validate(WHOLE)
    assert read_json(json.dumps(WHOLE), "other").spec.name == "other"


@pytest.mark.parametrize(
    ("path", "value", "code", "says", "hint"),
    [
        (("version",), 2, "AF106", "'version' is 2, not 1", "only version"),
        (("version",), True, "AF106", "'version' is true, not 1", ""),
        (("version",), 1.0, "AF106", "'version' is 1.0, not 1", ""),
        (("name",), "a b", "AF103", "'a b' is not a name", "letters"),
        (("name",), 3, "AF106", "'name' is 3, not a name", "write a name"),
        (("name",), None, "AF106", "'name' is null, not a name", ""),
        (("nodes",), [], "AF106", "'nodes' is a list, not an object", "generate"),
        (("nodes",), {}, "AF102", "the graph is empty", "a node looks like"),
        (("nodes", "ask"), "generate", "AF106", "'ask' is 'generate', not an object", "operator"),
        (("nodes", "a b"), {"operator": "m"}, "AF103", "'a b' is not a name", "letters"),
        (("nodes", "x" * 65), {"operator": "m"}, "AF103", "at most 64 characters", "shorter"),
        (("nodes", "ﬁ"), {"operator": "m"}, "AF103", "form of Unicode", "write 'fi'"),
        (("nodes", "ask", "operator"), None, "AF106", "'operator' is null, not a name", ""),
        (("nodes", "ask", "args"), [1], "AF106", "'args' is a list, not an object", "tier"),
        (("nodes", "ask", "args", "a b"), 1, "AF103", "'a b' is not a name", ""),
        (("nodes", "ask", "args", "x", 0), [1], "AF106", "item 0 is a list, not a text", "no others"),
        (("nodes", "ask", "args", "y", "p"), {}, "AF106", "'p' is an object, not a text", "no others"),
        (("nodes", "ask", "args", "y", "p q"), 1, "AF103", "'p q' is not a name", ""),
        (("nodes", "ask", "args", "x", 0), 2**63, "AF103", "too large", "or a text"),
        (("nodes", "ask", "args", "x", 0), 10**4000, "AF103", "too large", "or a text"),
        (("nodes", "ask", "args", "x", 0), float("nan"), "AF103", "NaN is no JSON", "leave it out"),
        (("nodes", "ask", "args", "x", 0), float("-inf"), "AF103", "-Infinity is no JSON", "leave it out"),
        (("nodes", "ask", "args", "x", 0), "\ud800", "AF103", "half of a character", "pairs"),
        (("nodes", "ask", "args", "\udc00"), 1, "AF103", "is not a name", ""),
        (("nodes", "ask", "polcy"), {}, "AF106", "a node has no key 'polcy'", "did you mean 'policy'?"),
        (("nodes", "ask", "policy"), 3, "AF106", "'policy' is 3, not an object", "queue"),
        (("nodes", "out", "policy", "queue"), 0, "AF401", "queue=0 is not", "at least 1"),
        (("nodes", "out", "policy", "queue"), "8", "AF401", "queue='8' is not a whole number", ""),
        (("nodes", "out", "policy", "queue"), True, "AF401", "queue=True is not a whole number", ""),
        (("nodes", "out", "policy", "queue"), float("nan"), "AF103", "NaN is no JSON", ""),
        (("nodes", "out", "policy", "qeue"), 1, "AF401", "unknown policy 'qeue'", "did you mean 'queue'?"),
        (("nodes", "out", "policy", "overflow"), "drop", "AF401", "overflow='drop' is not one of", "drop_newest"),
        (("nodes", "out", "policy", "retry_on"), ["a b"], "AF401", "'a b' is not a name", "letters"),
        (("nodes", "out", "policy", "retry_on"), ["E"] * 21, "AF401", "not a list of at most 20", ""),
        (("edges",), {}, "AF106", "'edges' is an object, not a list", "an edge looks like"),
        (("edges", 0), 3, "AF106", "item 0 is 3, not an object", "from"),
        (("edges", 0, "source"), "ask", "AF106", "an edge has no key 'source'", "write 'from'"),
        (("edges", 0, "port"), 3, "AF106", "'port' is 3, not a name", ""),
        (("edges", 0, "to"), "a b", "AF103", "'a b' is not a name", ""),
        (("edges", 1, "feedback"), True, "AF106", "'feedback' is true, not an object", "limit, hops"),
        (("edges", 1, "feedback", "limit"), 0, "AF106", "'limit' is 0, not a whole number of at least 1", ""),
        (("edges", 1, "feedback", "hop"), 1, "AF106", "no key 'hop'", "did you mean 'hops'?"),
        (("inject",), ["ask"], "AF106", "'inject' is a list, not an object", "type"),
        (("inject", "ask"), 3, "AF106", "'ask' is 3, not a name", ""),
        (("nods",), {}, "AF106", "a graph has no key 'nods'", "did you mean 'nodes'?"),
        (("nodes",), {f"n{i}": {"operator": "m"} for i in range(MOST_NODES + 1)}, "AF101", "1,001 items", ""),
        (("edges",), [{"from": "a", "to": "b"}] * (MOST_EDGES + 1), "AF101", "20,001 items", ""),
        (("nodes", "ask", "args", "x"), [1] * 10_001, "AF101", "10,001 items", ""),
    ],
)  # fmt: skip
def test_mistake_has_a_code_a_pointer_and_a_hint(path, value, code, says, hint):
    (problem,) = problems(changed(*path, value=value))
    assert problem.code == code
    assert says in problem.message
    assert problem.path == path
    first, advice = problem.hint.split("\n", 1)
    assert first == f"at {pointer(path)}".encode(errors="replace").decode() or "\udc00" in first
    assert advice
    assert hint in advice


@pytest.mark.parametrize(
    ("text", "code", "says", "place", "hint"),
    [
        ("", "AF100", "not JSON", (1, 1), "begins with {"),
        ("{", "AF100", "not JSON", (1, 2), ""),
        ('{"a": 1,\n}', "AF100", "not JSON", (2, 1), "no comma"),
        ("{'a': 1}", "AF100", "not JSON", (1, 2), "double quotes"),
        ('{"a": True}', "AF100", "not JSON", (1, 7), "true, false, null"),
        ('{"a": 1} # x', "AF100", "extra data", (1, 10), "no comments"),
        ('{"a\0": 1}', "AF100", "control character", (1, 4), "as an escape"),
        ('{"a": "x\ny"}', "AF100", "control character", (1, 9), "as an escape"),
        ("\0", "AF100", "not JSON", (1, 1), ""),
        ("{} {}", "AF100", "extra data", (1, 4), ""),
        ("[" * 17, "AF101", "more than 16", (1, 17), "a graph is"),
        ('{"a":' * 100_000, "AF101", "more than 16", (1, 81), "a graph is"),
    ],
)
def test_what_is_no_json_has_a_line_and_a_column(text, code, says, place, hint):
    (problem,) = problems(text)
    assert (problem.code, problem.place) == (code, place)
    assert says in problem.message
    assert problem.hint.startswith(f"line {place[0]}, column {place[1]}: ")
    assert hint in problem.hint


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null", "true", "[[1]]"])
def test_a_document_is_an_object(text):
    (problem,) = problems(text)
    assert (problem.code, problem.path) == ("AF106", ())
    assert "at the top of the document" in problem.hint


def test_keys_that_are_missing_are_named():
    (name, nodes) = problems("{}")
    assert ("'name'" in name.message, "'nodes'" in nodes.message) == (True, True)
    (operator,) = problems('{"name": "g", "nodes": {"a": {}}}')
    assert (operator.path, "'operator'" in operator.message) == (("nodes", "a"), True)


def test_no_key_is_given_twice_at_any_depth():
    text = """{"name": "g", "name": "g", "nodes": {"a": {"operator": "m", "operator": "m",
        "args": {"x": 1, "x": {"y": 1, "y": 2}},
        "policy": {"queue": 1, "queue": 1, "overflow": {"token": "block", "token": "block"}}},
        "a": {"operator": "m", "args": {"z": 1, "z": 1}}},
        "edges": [{"from": "a", "from": "a", "to": "a", "feedback": {"hops": 1, "hops": 1}}],
        "inject": {"a": "str", "a": "int"}}"""
    found = problems(text)
    assert {p.code for p in found} == {"AF104"}
    assert [pointer(p.path) for p in found] == [
        "/name", "/nodes/a", "/nodes/a/args/z", "/edges/0/from", "/edges/0/feedback/hops", "/inject/a",
    ]  # fmt: skip


def test_mistakes_of_every_kind_are_told_in_one_go():
    text = """{"version": 3, "name": 1,
        "nodes": {"a": {"args": {"x": NaN, "y": 1e999}, "policy": {"queue": 0, "qeue": 1}},
        "b c": 1},
        "edges": [{"from": "a"}, {"from": "a", "to": "a", "feedback": {"hops": -1}}], "more": 1}"""
    assert [(p.code, pointer(p.path)) for p in problems(text)] == [
        ("AF106", "/more"),
        ("AF106", "/version"),
        ("AF106", "/name"),
        ("AF106", "/nodes/a"),
        ("AF103", "/nodes/a/args/x"),
        ("AF103", "/nodes/a/args/y"),
        ("AF401", "/nodes/a/policy/queue"),
        ("AF401", "/nodes/a/policy/qeue"),
        ("AF103", "/nodes/b c"),
        ("AF106", "/nodes/b c"),
        ("AF106", "/edges/0"),
        ("AF106", "/edges/1/feedback/hops"),
    ]


def test_a_wrong_policy_leaves_the_graph_known():
    parsed = read_json(changed("nodes", "out", "policy", value={"queue": 0, "workers": 0}))
    assert [p.code for p in parsed.problems] == ["AF401", "AF401"]
    assert list(parsed.spec.nodes) == ["ask", "out"]
    assert parsed.caret(("edges", 0, "to")) == "at /edges/0/to"


def test_a_pointer_escapes_what_a_key_may_hold():
    (problem,) = [p for p in problems(changed("nodes", "a/b~c", value={"operator": "m"})) if p.path]
    assert "at /nodes/a~1b~0c" in problem.hint


ITEMS = 100_000


def node(**parts):
    return json.dumps({"name": "g", "nodes": {"a": {"operator": "m", **parts}}})


HOSTILE = {
    "open brackets": "[" * 1_000_000,
    "open objects": '{"a":' * 200_000,
    "deep in a string's place": '{"nodes": {"a": {"args": {"x": ' + "[" * 900_000 + "]" * 900_000 + "}}}}",
    "backslashes": '"' + "\\" * 1_000_000,
    "quotes": '"' * 1_000_000,
    "nul": "\0" * 1_000_000,
    "spaces": " " * 1_000_000,
    "digits": '{"name": ' + "9" * 1_000_000 + "}",
    "digits after a point": '{"name": 1.' + "9" * 1_000_000 + "}",
    "an exponent": '{"name": 1e' + "9" * 1_000_000 + "}",
    "a long name": json.dumps({"name": "x" * 1_000_000, "nodes": {}}),
    "a long key": json.dumps({"x" * 1_000_000: 1}),
    "keys": json.dumps({f"x{i}": 1 for i in range(ITEMS)}),
    "one key": "{" + ",".join(['"x": 1'] * ITEMS) + "}",
    "nodes": json.dumps({"name": "g", "nodes": {f"n{i}": 1 for i in range(ITEMS)}}),
    "wrong nodes": json.dumps({"name": "g", "nodes": {f"n{i}": {"operator": [], "args": 1} for i in range(999)}}),
    "edges": json.dumps({"name": "g", "nodes": {"a": {"operator": "m"}}, "edges": [1] * ITEMS}),
    "wrong edges": json.dumps({**WHOLE, "edges": [{"a": 1, "b": 2, "c": 3}] * MOST_EDGES}),
    "arguments": node(args={f"x{i}": [[]] for i in range(ITEMS)}),
    "items": node(args={"x": [[]] * ITEMS}),
    "policies": node(policy={f"x{i}": 1 for i in range(ITEMS)}),
    "exceptions": node(policy={"retry_on": [3] * ITEMS}),
    "constants": '{"name": [' + "NaN," * 250_000 + "1]}",
    "halves": node(args={f"x{i}": "\ud800" for i in range(9_999)}),
    "too long": " " * (MOST_JSON + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_document_is_a_few_coded_problems(name):
    found = problems(HOSTILE[name])
    assert 1 <= len(found) <= MOST_PROBLEMS
    assert all(p.code.startswith(("AF1", "AF4")) and p.hint for p in found)
    assert all(len(line) < 400 for p in found for line in p.lines())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
PLACES = """version name nodes edges inject x nodes/ask nodes/new nodes/ask/operator nodes/ask/args nodes/ask/args/x
nodes/ask/policy nodes/out/policy/queue nodes/out/policy/overflow nodes/out/policy/retry_on nodes/out/policy/timeout
edges/0 edges/0/from edges/0/port edges/1/feedback edges/1/feedback/limit inject/ask"""
places = st.sampled_from(
    [tuple(int(step) if step.isdigit() else step for step in place.split("/")) for place in PLACES.split()]
)


@settings(max_examples=300, deadline=None)
@given(places, json_values)
def test_any_value_at_any_place_is_a_spec_or_coded_problems(path, value):
    text = changed(*path, value=value)
    try:
        parsed = read_json(text)
    except GraphError as error:
        assert all(p.path[: len(path)] == path or not p.path for p in error.problems) or path == ("nodes",)
        assert all(p.code.startswith("AF") and p.hint for p in error.problems)
    else:
        assert parsed.problems or read_json(json.dumps(parsed.spec.to_json())).spec == parsed.spec


@given(st.text() | st.text(st.sampled_from('{}[]",:\\1eNaN\ud800')))
def test_any_text_is_a_spec_or_a_graph_error(text):
    try:
        read_json(text)
    except GraphError as error:
        assert error.problems


# -- the schema


@pytest.fixture(scope="module")
def validator():
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


@settings(max_examples=50, deadline=None)
@given(specs())
def test_the_schema_takes_every_spec(spec):
    jsonschema.Draft202012Validator(schema()).validate(spec.to_json())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2),
        (("name",), "a b"),
        (("nodes", "a b"), {"operator": "m"}),
        (("nodes", "ask"), {}),
        (("nodes", "ask", "args", "x", 0), []),
        (("nodes", "ask", "args", "a b"), 1),
        (("nodes", "out", "policy", "queue"), 0),
        (("nodes", "out", "policy", "qeue"), 1),
        (("nodes", "out", "policy", "overflow"), "drop"),
        (("nodes", "out", "policy", "overflow"), {"tokn": "block"}),
        (("edges", 0, "source"), "ask"),
        (("edges", 1, "feedback", "limit"), 0),
        (("more",), 1),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(validator, path, value):
    document = json.loads(changed(*path, value=value))
    assert not validator.is_valid(document)
    assert problems(json.dumps(document))
    assert validator.is_valid(WHOLE)
