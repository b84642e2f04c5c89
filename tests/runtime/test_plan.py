"""A plan is worked out once for a spec, goes with it, and is never that of another graph or other operators."""

from __future__ import annotations

import gc

import pytest
from graphs import spec_of

from aiflow_jupyter.graph.bounds import bounds
from aiflow_jupyter.graph.signatures import OperatorSignature
from aiflow_jupyter.graph.spec import EdgeSpec, Feedback, GraphSpec, NodeSpec
from aiflow_jupyter.operators import OPERATORS
from aiflow_jupyter.runtime import plan as plans
from aiflow_jupyter.runtime.behaviour import Behaviour, Operator
from aiflow_jupyter.runtime.edges import Entrance
from aiflow_jupyter.runtime.plan import plan_of


def operator(**signature) -> Operator:
    return Operator(OperatorSignature("node", **signature), lambda _args, _binding: Behaviour("inline", lambda _: None))


NODE = {"node": operator()}


def window(count: int) -> GraphSpec:
    return GraphSpec(name="g", nodes={"w": NodeSpec(operator="window", args={"count": count})})


def test_same_spec_and_signatures_have_one_plan_whatever_else_is_registered():
    spec = spec_of("ab", [("a", "b")], {})
    first = plan_of(spec, NODE)
    assert plan_of(spec, {**NODE, "other": operator()}) is first
    assert plan_of(spec.model_copy(), NODE) is not first


def test_an_operator_that_binds_in_another_way_has_the_plan_of_its_signature():
    spec = spec_of("ab", [("a", "b")], {})
    first = plan_of(spec, NODE)
    assert plan_of(spec, {"node": Operator(NODE["node"].signature, lambda _a, _b: Behaviour("await", print))}) is first


def test_another_signature_of_the_same_name_makes_another_plan():
    spec = spec_of("abc", [("a", "c"), ("b", "c")], {})
    assert plan_of(spec, NODE).nodes["c"].entrance is None
    pairing = plan_of(spec, {"node": operator(pairs=True)}).nodes["c"]
    assert (pairing.entrance, pairing.policy.hold) == (Entrance, 10)
    assert plan_of(spec, NODE).nodes["c"].policy.hold is None
    assert plan_of(spec, {}).nodes["c"].entrance is None


def change_args(spec: GraphSpec) -> None:
    spec.nodes["w"].args["count"] = 90


def change_type(spec: GraphSpec) -> None:
    spec.nodes["w"].args["count"] = 3.0


def change_node(spec: GraphSpec) -> None:
    spec.nodes["w"] = NodeSpec(operator="window", args={"count": 90})


def add_node(spec: GraphSpec) -> None:
    spec.nodes["x"] = NodeSpec(operator="window", args={"count": 90})


def add_edge(spec: GraphSpec) -> None:
    spec.edges.append(EdgeSpec(source="w", port=None, target="w", feedback=Feedback(limit=90)))


@pytest.mark.parametrize("change", [change_args, change_type, change_node, add_node, add_edge])
def test_a_spec_that_was_changed_in_place_has_a_new_plan(change):
    spec = window(3)
    signatures = {name: each.signature for name, each in OPERATORS.items()}
    before = {name: each.bound for name, each in plan_of(spec, OPERATORS).nodes.items()}
    change(spec)
    after = {name: each.bound for name, each in plan_of(spec, OPERATORS).nodes.items()}
    assert after != before
    assert after == {each.node: each.events for each in bounds(spec, signatures).nodes}


def test_nodes_in_another_order_make_another_plan():
    spec = spec_of("ab", [], {})
    assert list(plan_of(spec, NODE).nodes) == ["a", "b"]
    spec.nodes["a"] = spec.nodes.pop("a")
    assert list(plan_of(spec, NODE).nodes) == ["b", "a"]


def test_a_plan_goes_with_its_spec():
    spec = spec_of("ab", [("a", "b")], {})
    key = id(spec)
    plan_of(spec, NODE)
    plan_of(spec, {})  # takes the place of the first
    assert key in plans._KEPT
    del spec
    gc.collect()
    assert key not in plans._KEPT
