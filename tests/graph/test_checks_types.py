"""What flows on the edges, as it is inferred from the inputs on."""

from __future__ import annotations

import pytest

from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.checks.arguments import check_nodes
from aiflow_jupyter.graph.checks.checking import examine
from aiflow_jupyter.graph.checks.review import Review
from aiflow_jupyter.graph.checks.types import Flows
from aiflow_jupyter.graph.hints import words
from tests.graph.signature_table import TABLE, parsed

OUT = '\nout = sink(var="x")\n'


def tidy(text: str) -> str: ...
def size(text: str) -> int: ...
def double(number: int) -> int: ...
def either(text: str) -> str | int: ...
def same(text): ...
def rows(text: str) -> list[float]: ...
def total(numbers: list[int]) -> float: ...
def maybe(text: str) -> bytes | None: ...
def whole(event: Event) -> Event: ...
def spread(text: str) -> list[int]:
    yield 1


FUNCTIONS = {f.__name__: f for f in (tidy, size, double, either, same, rows, total, maybe, whole, spread)}


@pytest.mark.parametrize(
    ("text", "kinds", "payloads"),
    [
        ("x = tidy", "value", "str"),
        ("x = size", "value", "int"),
        ("x = maybe", "value", "bytes"),
        ("x = same", "value", "Any"),
        ("x = whole", "any", "Any"),
        ("x = generate()", "token tool_fragment", "str or ToolFragment"),
        ("a = generate()\nx = tidy\na -> x", "token", "str"),
        ("a = generate()\nx = either\na -> x", "token value", "str or int"),
        ("a = generate()\nx = same\na -> x", "token tool_fragment value", "Any or str or ToolFragment"),
        ("a = generate()\nx = map(size)\na -> x", "value", "int"),
        ("a = generate()\nx = filter(size)\na -> x", "token tool_fragment", "str or ToolFragment"),
        ("a = generate()\nx = segment()\na -> x", "chunk", "str"),
        ("a = generate()\nx = window(count=2)\na -> x", "value", "list[Any]"),
        ("a = generate()\nb = segment()\nx = window(count=2)\na -> b -> x", "value", "list[str]"),
        ("a = generate()\nx = reduce(count)\na -> x", "value", "int"),
        ("x = reduce(total)", "value", "float"),
        ("x = flat_map(rows)", "value", "float"),
        ("x = map(rows)", "value", "list[float]"),
        ("x = spread", "value", "int"),
        ("a = size\nb = tidy\nx = filter(same)\na, b -> x", "value", "int or str"),
        ("x = filter(same)\ninject x: chunk", "chunk value", "Any or str"),
        ("x = double\nb = size\nx -> b\nb -> x [feedback]", "value", "int"),
        ("a = size\nx = filter(same)\nb = tidy\na -> x -> b\nb -> x [feedback]", "value", "int or str"),
        ("x = unknown", "any", "Any"),
        ("x = retrieve()", "any", "Any"),
    ],
)
def test_node_gives(text, kinds, payloads):
    source = parsed(text + "\nx -> out" + OUT)
    review = Review(source.spec, TABLE, FUNCTIONS, source)
    check_nodes(review)
    stream = Flows(review).out["x"]
    assert ("any" if stream.kinds is None else " ".join(sorted(stream.kinds))) == kinds
    assert sorted(words(stream.payloads()).split(" or ")) == sorted(payloads.split(" or "))


def test_window_whose_type_grows_on_every_round_of_a_loop_is_anything():
    source = parsed("a = size\nx = window(count=2)\na -> x\nb = filter(same)\nx -> b -> out\nb -> x [feedback]" + OUT)
    review = Review(source.spec, TABLE, FUNCTIONS, source)
    check_nodes(review)
    assert words(Flows(review).out["x"].payloads()).startswith("list")


@pytest.mark.parametrize(
    "text",
    [
        "a = generate()\nb = segment()\nc = tidy\na -> b -> c -> out",
        "a = generate()\nb = reduce(join)\nc = generate()\na -> b -> c -> out",
        "a = generate()\nb = map(same)\nc = map(double)\na -> b -> c -> out",
        "a = either\nb = filter(same)\nc = double\na -> b -> c -> out",
        "a = whole\nb = double\nc = segment()\na -> b, c -> out",
        "a = generate()\nb = size\nc = tidy\na -> b -> out\na.error -> out\na -> c -> out",
        "a = spread\nb = double\na -> b -> out",
    ],
)
def test_what_may_fit_is_no_error(text):
    source = parsed(text + OUT)
    assert examine(source.spec, TABLE, FUNCTIONS, source).errors == []


def test_function_without_hints_is_said_once():
    source = parsed("a = same\nb = map(same)\na -> b -> out" + OUT)
    (warning,) = examine(source.spec, TABLE, FUNCTIONS, source).warnings
    assert "'same' has no type hint for what it takes and gives: taken as Any" in warning.message
