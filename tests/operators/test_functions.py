"""`map`, `filter`, `flat_map`: in runs in virtual time, driven by hand, and in real threads."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import time

import pytest
import virtual
from driven import END, Node, Replies, Scripted, build, finish, tell, token, told, value
from hypothesis import given
from hypothesis import strategies as st

from aiflow_jupyter.errors import AiflowError, ConfigError, RunError, StreamCut
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.hints import read
from aiflow_jupyter.operators.numbering import MOST_LINEAGES, Numbers


@pytest.mark.parametrize(
    ("function", "kind", "payload"),
    [
        (str.upper, "token", "AB"),
        (len, "value", 2),
        (lambda _t: Event("label", "HIGH", lineage="z"), "label", "HIGH"),
    ],
)
def test_map_gives_text_as_it_was_an_event_as_it_is_and_else_a_value(function, kind, payload):
    seen = []
    text = "ask = generate()\nm = map(f, inline=true)\nout = sink(function=see, inline=true)\nask -> m -> out"

    def see(event):
        seen.append((event.kind, event.payload))

    see.__annotations__["event"] = Event
    tell(text, Scripted("ab"), f=function, see=see)
    assert seen == [(kind, payload)]


CHAIN = 'ask = generate()\nm = {}(f, inline=true)\nout = sink(var="x")\nask -> m -> out'


def test_map_that_returns_none_drops_and_filter_keeps_what_is_true():
    assert tell(CHAIN.format("map"), Scripted("a", "b"), f=lambda t: None if t == "a" else t)[1]["x"] == "b"
    assert tell(CHAIN.format("filter"), Scripted("a", "", "b"), f=lambda t: t)[1]["x"] == "ab"


def test_map_may_not_return_a_control_event():
    with pytest.raises(RunError, match="control event"):
        tell(CHAIN.format("map"), Scripted("a"), f=lambda _t: Event("finish"))


@pytest.mark.parametrize("kind", ["token", "chunk"])
def test_map_may_not_return_a_text_event_without_text(kind):
    with pytest.raises(RunError, match=f"a {kind} event with an int in it, which is no text") as error:
        tell(CHAIN.format("map"), Scripted("a"), f=lambda _t: Event(kind, 5))
    assert error.value.code == "AF303"


def test_async_functions_are_awaited_also_in_partials_and_objects():
    async def slow(mark, text):
        await asyncio.sleep(1)
        return text + mark

    class Callable:
        async def __call__(self, text):
            return await slow("!", text)

    for function in (functools.partial(slow, "!"), Callable()):
        assert tell(CHAIN.format("map"), Scripted("a"), f=function)[1]["x"] == "a!"


def letters(text):
    yield from text


async def later_letters(text):
    for letter in text:
        await asyncio.sleep(0)
        yield letter


async def list_of_letters(text):
    return list(text)


@pytest.mark.parametrize("operator", ["map", "filter", "classify", "sink"])
@pytest.mark.parametrize("function", [letters, later_letters])
def test_function_that_yields_is_refused_where_it_has_to_return_and_told_of_flat_map(operator, function):
    with pytest.raises(ConfigError, match="yields") as error:
        Node(operator, function="f", functions={"f": function})
    assert error.value.code == "AF303"
    assert "flat_map(f)" in error.value.hint


def test_function_that_yields_is_refused_before_the_run():
    with pytest.raises(AiflowError) as error:
        tell(CHAIN.format("map"), Scripted("a"), f=letters)
    assert error.value.code == "AF303"
    assert "flat_map" in str(error.value)


@pytest.mark.parametrize("function", [lambda text: letters(text * 2), lambda text: list_of_letters(text * 2)])
def test_map_of_a_function_that_turns_out_to_yield_or_await_is_a_failure_not_a_value(function):
    with pytest.raises(RunError, match="returned a") as error:
        Node("map", function="f", functions={"f": function}, inline=True).put(token("a"))
    assert error.value.code == "AF303"


def test_function_that_needs_more_than_a_value_is_refused():
    with pytest.raises(ConfigError, match="also needs 'other'"):
        Node("map", function="f", functions={"f": lambda text, other: text})
    with pytest.raises(ConfigError, match="no function"):
        Node("map", function="g", functions={})


def test_event_of_a_map_keeps_its_kind_payload_and_meta_and_has_the_identity_of_what_came():
    asked = token("x", sequence=7, tier="local")
    (plain,) = Node("map", function="f", functions={"f": lambda _: Event("label", "A")}).put(asked)
    assert (plain.kind, plain.payload, plain.identity, plain.meta) == ("label", "A", asked.identity, asked.meta)
    own = Event("label", "A", lineage="z", sequence=1, meta={"phase": "reasoning"})
    assert Node("map", function="f", functions={"f": lambda _: own}).put(asked) == [own]


@pytest.mark.parametrize("operator", ["map", "flat_map"])
@pytest.mark.parametrize("own", [{}, {"lineage": "z"}, {"meta": {"phase": "answer", "complete": True, "hops": 0}}])
def test_event_of_a_functions_own_stays_a_part_and_has_come_round_as_often(operator, own):
    part = Event("value", "x", lineage="0", meta={"complete": False, "hops": 2})
    made = Event("value", 1, **own)
    (out,) = Node(operator, function="f", functions={"f": lambda _: made if operator == "map" else [made]}).put(part)
    assert (out.complete, out.meta["hops"]) == (False, 2)


def test_a_part_is_no_whole_one_because_a_function_made_an_event_of_it():
    seen = []

    def see(event: Event) -> None:
        seen.append(event.complete)

    see.__annotations__["event"] = Event
    text = """
ask   = generate()
whole = reduce("join")
own   = map(f, inline=true)
out   = sink(function=see, inline=true)
fell  = sink(var="fell")
ask -> whole -> own -> out
ask.error -> fell
"""
    tell(
        text,
        Replies(lambda _request: ["a", "b", StreamCut("cut")]),
        f=lambda text: Event("value", text, meta={"mine": 1}),
        see=see,
    )
    assert seen == [False]


@pytest.mark.parametrize("own", [{}, {"lineage": "0"}, {"meta": {"mine": 1}}])
def test_an_event_of_a_functions_own_goes_round_no_more_than_others(own):
    turns = []

    async def again(number: int) -> Event:
        turns.append(number)
        assert len(turns) < 50
        return Event("value", number + 1, **own)

    text = """
first = map(again)
back  = map(same, inline=true)
out   = sink(var="x")
first -> back, out
back -> first [feedback, limit=1, hops=3]
"""
    with pytest.raises(RunError) as raised:
        tell(text, None, 0, again=again, same=lambda each: each)
    assert raised.value.code == "AF606"
    assert len(turns) == 4


def test_extras_are_asked_for_by_name_and_passed_by_keyword():
    def f(text, *, state, idempotency_key="none"):
        state["seen"] = state.get("seen", 0) + 1
        return f"{text}{state['seen']}{idempotency_key}"

    node = Node("map", function="f", functions={"f": f})
    assert node.behaviour.extras == {"state", "idempotency_key"}
    state = {}
    assert [e.payload for e in node.put(value("a"), value("b"), state=state, idempotency_key="k")] == ["a1k", "b2k"]
    assert Node("map", function="f", functions={"f": lambda state: state}).put(value("a"))[0].payload == "a"


# -- flat_map

SPREADS = {
    "generator": letters,
    "async generator": later_letters,
    "list": list,
    "async list": list_of_letters,
    "partial": functools.partial(letters),
}
MODES = {
    "generator": "thread_iterate",
    "async generator": "stream",
    "list": "thread_iterate",
    "async list": "stream",
    "partial": "thread_iterate",
}


@pytest.mark.parametrize("name", SPREADS)
def test_flat_map_gives_each_item_numbered_per_lineage(name):
    node = Node("flat_map", function="f", functions={"f": SPREADS[name]})
    assert node.behaviour.mode == MODES[name]
    out = node.put(token("ab"), token("c", sequence=1), token("de", lineage="1/0.ask"))
    assert [(e.payload, *e.identity) for e in out] == [
        ("a", "0/0.ask", 0),
        ("b", "0/0.ask", 1),
        ("c", "0/0.ask", 2),
        ("d", "1/0.ask", 0),
        ("e", "1/0.ask", 1),
    ]
    assert {(e.kind, e.phase, e.source) for e in out} == {("token", "answer", "n")}


def test_flat_map_passes_none_through_as_nothing_and_an_event_with_its_kind():
    def f(_text):
        yield None
        yield Event("label", "A", lineage="theirs", sequence=99)
        yield 2
        yield None

    out = Node("flat_map", function="f", functions={"f": f}).put(token("x"))
    assert [(e.kind, e.payload, *e.identity) for e in out] == [("label", "A", "0/0.ask", 0), ("value", 2, "0/0.ask", 1)]
    assert Node("flat_map", function="f", functions={"f": lambda _: None}).put(token("x")) == []


@pytest.mark.parametrize("returned", ["text", b"bytes", 3, {"a": 1}, Event("value", 1)])
def test_flat_map_of_what_is_no_list_of_items_is_a_failure(returned):
    with pytest.raises(RunError, match="flat_map gives each item") as error:
        Node("flat_map", function="f", functions={"f": lambda _: returned}).put(token("x"))
    assert error.value.code == "AF303"


def test_flat_map_may_not_give_a_control_event():
    with pytest.raises(RunError, match="control event"):
        Node("flat_map", function="f", functions={"f": lambda _: [Event("end")]}).put(token("x"))


@pytest.mark.parametrize(
    ("kind", "workers", "number"), [("finish", 1, 0), ("restart", 1, 0), ("finish", 2, 0), ("restart", 2, 3)]
)
def test_flat_map_numbers_anew_where_a_lineage_is_over_or_one_worker_begins_it_again(kind, workers, number):
    node = Node("flat_map", function="f", functions={"f": letters}, policy={"workers": workers})
    node.put(token("abc"))
    assert [e.kind for e in node.put(told(kind))] == [kind]
    assert node.put(token("d"))[0].sequence == number
    assert node.put(END) == []


def test_flat_map_goes_on_with_its_numbers_after_an_error_so_that_none_is_given_twice():
    node = Node("flat_map", function="f", functions={"f": letters})
    node.put(token("ab"), told("error"))
    assert node.put(token("c"))[0].sequence == 2


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 3))
def test_no_number_is_given_twice_however_few_lineages_are_remembered(lineages, most):
    numbers = Numbers()
    numbers._next.most = most
    given_ = [(lineage, numbers.take(str(lineage))) for lineage in lineages]
    assert len(set(given_)) == len(given_)
    assert len(numbers._next) <= most


def test_numbers_remember_only_so_many_lineages():
    numbers = Numbers()
    for lineage in range(2 * MOST_LINEAGES):
        numbers.take(str(lineage))
    assert len(numbers._next) == MOST_LINEAGES
    assert numbers.take("0") == 1


ENDLESS = 'm = flat_map(f{}) [queue=2]\nout = sink(var="x")\nm -> out'


@pytest.mark.parametrize("how", ["", ", inline=true"])
async def test_endless_generator_is_cancelled_and_never_holds_the_loop(how):
    closed = threading.Event()

    def f(_value):
        try:
            yield from itertools.count()
        finally:
            closed.set()

    run = build(asyncio.get_running_loop(), ENDLESS.format(how), f=f)
    await run.start("x")
    while len(run.variables["x"]) < 1_000:
        await asyncio.sleep(0)
    await run.cancel()
    seen = len(run.variables["x"])
    await asyncio.get_running_loop().run_in_executor(None, closed.wait, 10)
    assert closed.is_set()
    assert len(run.variables["x"]) == seen
    assert run.variables["x"] == list(range(seen))


async def test_each_step_of_a_generator_runs_in_the_nodes_threads():
    names = []

    def f(number):
        for each in range(number):
            names.append(threading.current_thread().name)
            time.sleep(0.001)
            yield each

    text = 'm = flat_map(f)\nout = sink(var="x")\nm -> out'
    result = await build(asyncio.get_running_loop(), text, f=f).run(5)
    assert result.variables["x"] == [0, 1, 2, 3, 4]
    assert set(names) == {"aiflow:m"}


def test_async_generator_streams_as_it_yields():
    async def slow(_value):
        for each in range(3):
            await asyncio.sleep(1)
            yield each

    async def story(loop):
        run = build(loop, 'm = flat_map(f)\nout = sink(var="x")\nm -> out', f=slow)
        await run.start("x")
        await asyncio.sleep(1.5)
        assert run.variables["x"] == [0]
        await run.wait()
        assert run.variables["x"] == [0, 1, 2]

    virtual.run(story)


@pytest.mark.parametrize("how", ["", ", inline=true"])
async def test_generator_that_raises_leaves_what_came_and_names_the_node(how):
    def f(_value):
        yield 1
        raise ValueError("no more")

    run = build(asyncio.get_running_loop(), ENDLESS.format(how), f=f)
    with pytest.raises(RunError, match="'m'"):
        await run.run("x")
    assert run.variables["x"] == [1]


def test_of_a_function_it_is_known_whether_it_yields():
    functions = (len, letters, later_letters, list_of_letters, SPREADS["partial"])
    assert [read(each).yields for each in functions] == [False, True, True, False, True]


def test_finish_passes_a_map_as_it_is():
    assert [e.kind for e in Node("map", function="f", functions={"f": len}).put(finish())] == ["finish"]
