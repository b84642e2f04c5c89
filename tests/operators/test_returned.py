"""What a user's function may not return where a value is wanted, in every place that calls one."""

from __future__ import annotations

import asyncio
import functools
import itertools
import warnings
from concurrent.futures import Future

import pytest
from driven import Scripted, build, tell

from aiflow_jupyter.errors import GraphError, RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.returned import decision, value


async def later(*_):
    return False


class Client:
    async def check(self, _text):
        return False


@functools.wraps(later)
def wrapped(*given):
    return later(*given)


def generating(*_):
    return (each for each in "ab")


async def yielding(*_):
    yield "a"


class Awaits:
    def __await__(self):
        yield


UNFINISHED = {
    "a lambda around a coroutine function": lambda *given: later(*given),  # noqa: PLW0108 - it is what is tested
    "a decorator's wrapper": wrapped,
    "a lambda around a method": lambda *_: Client().check(""),
    "a lambda around an asynchronous generator": lambda *_: yielding(),
    "a generator": generating,
    "an object that can be awaited": lambda *_: Awaits(),
}
EITHER = ("", ", inline=true")
CALLED = [
    *(f"a = guard(f{inline})\nask -> a -> out" for inline in EITHER),
    *(f"a = filter(f{inline})\nask -> a -> out" for inline in EITHER),
    *(f"a = map(f{inline})\nask -> a -> out" for inline in EITHER),
    *(f"a = classify(function=f{inline})\nask -> a -> out" for inline in EITHER),
    *(f"a = reduce(function=f{inline})\nask -> a -> out" for inline in EITHER),
    "a = route(by=f)\nask -> a\na.else -> out",
    "x = map(str)\ny = map(str)\na = join(by=f)\nask -> x, y -> a -> out",
    "a = map(str) [state=partitioned, key=f, workers=2]\nask -> a -> out",
    "a = map(str) [state=partitioned, key=f]\nask -> a -> out",
    "a = sink(function=f)\nask -> a",
]


@pytest.mark.parametrize("function", UNFINISHED.values(), ids=UNFINISHED)
@pytest.mark.parametrize("graph", CALLED)
async def test_what_is_still_to_run_fails_its_event_and_nothing_of_it_passes(graph, function):
    run = build(
        asyncio.get_running_loop(),
        "ask = generate()\n" + ('out = sink(var="x")\n' if "out" in graph else "") + graph,
        Scripted("One. ", "Two."),
        f=function,
        str=str,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RunError) as raised:
            await run.run("go")
    cause = raised.value.__cause__ if raised.value.code != "AF303" else raised.value
    assert (raised.value.node, getattr(cause, "code", "")) == ("a", "AF303")
    assert "not a value" in str(raised.value)
    assert run.result().variables.get("x", []) == []


@pytest.mark.parametrize("inline", EITHER)
async def test_a_function_of_two_that_returns_what_is_still_to_run_fails_its_event(inline):
    text = f'ask = generate()\na = reduce(function=f{inline})\nout = sink(var="x")\nask -> a -> out'
    run = build(asyncio.get_running_loop(), text, Scripted("a", "b"), f=wrapped)
    with pytest.raises(RunError, match="'f' returned a coroutine, not a value"):
        await run.run("go")


def test_items_that_are_still_to_run_fail_too():
    text = 'a = flat_map(f, inline=true)\nout = sink(var="x")\na -> out'
    for function in (lambda _: later(), lambda _: [later()]):
        with pytest.raises(RunError, match="'f' returned a coroutine, not a value"):
            tell(text, None, f=function)


async def test_an_index_that_returns_what_is_still_to_run_is_told_so():
    text = 'a = retrieve(index=ix)\nout = sink(var="x")\na -> out'
    run = build(asyncio.get_running_loop(), text, ix=wrapped)
    with pytest.raises(RunError, match="returned a coroutine, not a value"):
        await run.run("q")


@pytest.mark.parametrize("said", [iter("ab"), map(str, []), itertools.count(), Future(), len, "".join, later])
def test_what_can_not_be_false_decides_nothing(said):
    assert value("f", said) is said
    with pytest.raises(RunError) as raised:
        decision("f", said)
    assert raised.value.code == "AF303"


@pytest.mark.parametrize("said", [True, None, 0, "x", ["x"], {"a": 1}, ("a",), object(), str, range(3)])
def test_values_are_values(said):
    assert value("f", said) is said
    assert decision("f", said) is said


def test_the_payload_of_an_event_counts():
    with pytest.raises(RunError, match="a generator"):
        value("f", Event("value", generating()))


# -- keys


@pytest.mark.parametrize("function", [later, yielding, lambda x: (yield x)])
def test_a_key_is_a_plain_functions(function):
    text = 'a = map(str) [state=partitioned, key=f]\nout = sink(var="x")\na -> out'
    with pytest.raises(GraphError) as raised:
        tell(text, None, f=function, str=str)
    assert raised.value.code == "AF303"
    assert "it has to be a plain function" in str(raised.value)


def test_a_key_function_is_given_the_event_where_it_says_so():
    seen = []

    def by_source(event: Event) -> str:
        seen.append(event)
        return event.lineage

    def count(text: str, state: dict) -> int:
        state["n"] = state.get("n", 0) + 1
        return state["n"]

    text = 'ask = generate()\na = map(count) [state=partitioned, key=by_source]\nout = sink(var="x")\nask -> a -> out'
    _, result = tell(
        text.replace("map(count)", "map(count, inline=true)"), Scripted("a", "b"), by_source=by_source, count=count
    )
    assert result.variables["x"] == [1, 2]
    assert {type(each) for each in seen} == {Event}
