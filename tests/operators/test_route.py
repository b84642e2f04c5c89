"""`route`, in real runs in virtual time."""

from __future__ import annotations

import pytest
from driven import Node, Scripted, tell, token

from aiflow_jupyter.errors import AiflowError, ConfigError, RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.operators.route import SIGNATURE


def test_route_by_phase_sends_each_token_to_its_lane_and_counts_what_has_none():
    text = 'ask = generate()\nlane = route(by="phase")\na = sink(var="a")\nask -> lane\nlane.answer -> a\n'
    source = Scripted(("hm", "reasoning"), "yes", " sir")
    run, result = tell(text, source)
    assert result["a"] == "yes sir"
    assert run.guardians["lane"].unrouted == 1
    _, result = tell(text + 'b = sink(var="b")\nlane.else -> b', Scripted(("hm", "reasoning"), "yes"))
    assert (result["a"], result["b"]) == ("yes", "hm")


def test_route_by_kind_has_a_port_for_each_kind():
    text = 'ask = generate()\nlane = route(by="kind")\na = sink(var="a")\nb = sink(var="b")\n'
    text += "ask -> lane\nlane.token -> a\nlane.tool_fragment -> b"
    _, result = tell(text, Scripted("yes", Event("tool_fragment", 1)))
    assert (result.variables["a"], result.variables["b"]) == (["yes"], [1])


def test_route_by_a_function_and_what_it_raises_is_the_nodes_failure():
    text = 'ask = generate()\nlane = route(by=pick)\na = sink(var="a")\nb = sink(var="b")\n'
    text += "ask -> lane\nlane.short -> a\nlane.else -> b"
    _, result = tell(text, Scripted("x", "xyz"), pick=lambda t: "short" if len(t) < 2 else "long")
    assert (result["a"], result["b"]) == ("x", "xyz")
    with pytest.raises(RunError, match="'lane' failed on event 0: ZeroDivisionError"):
        tell(text, Scripted("x"), pick=lambda _t: 1 / 0)


def test_route_sends_no_data_by_the_port_of_failures():
    text = 'ask = generate()\nlane = route(by=pick)\na = sink(var="a")\nb = sink(var="b")\n'
    text += "ask -> lane\nlane.x -> a\nlane.error -> b"
    _, result = tell(text, Scripted("x", "error", "x"), pick=str)
    assert result["a"] == "xx"
    (failure,) = result.variables["b"]
    assert (failure.node, failure.error.code) == ("lane", "AF303")


def test_route_by_a_function_that_is_no_plain_one_is_refused_before_the_run():
    async def pick(_text):
        return "a"

    async def yielding(_text):
        yield "a"

    with pytest.raises(AiflowError, match="plain function"):
        tell('lane = route(by=pick)\na = sink(var="a")\nlane.a -> a', None, pick=pick)
    for function in (pick, yielding):
        with pytest.raises(ConfigError, match="plain function"):
            Node("route", by="f", functions={"f": function})


def test_route_by_label_has_a_port_for_each_label_and_else_for_none():
    text = """
ask = generate()
kind = classify(patterns=(number="^[0-9]+$", word="^[a-z]+$"))
lane = route(by="label")
n = sink(var="n")
w = sink(var="w")
rest = sink(var="rest")
ask -> kind -> lane
lane.number -> n
lane.word -> w
lane.else -> rest
"""
    _, result = tell(text, Scripted("1", "a", "?", "22"))
    assert (result["n"], result["w"], result["rest"]) == ("122", "a", "?")


def test_route_sends_nothing_by_a_label_that_is_the_port_of_failures():
    with pytest.raises(RunError) as error:
        Node("route", by="label").put(token("x", label="error"))
    assert error.value.code == "AF303"


def test_route_by_a_function_that_gives_none_leaves_by_else():
    node = Node("route", by="f", functions={"f": lambda _text: None})
    assert node.put(token("x"))[0][0] == "else"


def test_route_by_a_function_is_given_the_event_and_the_state_where_it_asks_for_them():
    def f(event: Event, state):
        return f"{event.kind}{state['n']}"

    f.__annotations__["event"] = Event
    node = Node("route", by="f", functions={"f": f})
    assert node.behaviour.extras == {"state"}
    assert node.put(token("x"), state={"n": 1})[0][0] == "token1"


def test_ports_are_known_for_phases_and_kinds():
    assert SIGNATURE.ports({"by": "phase"}) == ("answer", "reasoning", "else")
    assert "tool_fragment" in SIGNATURE.ports({"by": "kind"})
    assert SIGNATURE.ports({"by": "label"}) is None


@pytest.mark.parametrize("policy", ["retry=3, backoff=0.1", "timeout=1, retry=3, backoff=0.1", "state=serialized"])
def test_policies_hold_for_a_function_that_routes(policy):
    tries = []

    def side(text):
        tries.append(text)
        if len(tries) % 2 and "retry" in policy:
            raise OSError("again")
        return "left" if text < "b" else "right"

    text = f"""
    ask = generate()
    way = route(by=side) [{policy}]
    one = sink(var="left")
    two = sink(var="right")
    ask -> way
    way.left -> one
    way.right -> two
    """
    _, result = tell(text, Scripted("a", "b", "a"), side=side)
    assert (result["left"], result["right"]) == ("aa", "b")
    assert len(tries) == (6 if "retry" in policy else 3)
