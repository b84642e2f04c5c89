"""One spec, three forms: whatever a spec can hold, each form says it, and is read back as the same spec."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import GraphError
from aiflow_jupyter.graph.document import read_json
from aiflow_jupyter.graph.language import read
from aiflow_jupyter.graph.printing import WIDTH, as_json, as_text
from aiflow_jupyter.graph.python import as_python
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
    assert as_text(read_document, SIGNATURES) == text
