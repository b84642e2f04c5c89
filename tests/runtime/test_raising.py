"""Whatever a user's code raises is its node's failure: the run fails by name, and the loop goes on."""

from __future__ import annotations

import asyncio

import pytest

from aiflow_jupyter.errors import ConfigError, GraphError, RunError
from aiflow_jupyter.graph.builder import Flow
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.operators import OPERATORS, SIGNATURES, flat_map, reduce, retrieve, route, sink
from aiflow_jupyter.operators import map as map_
from aiflow_jupyter.operators.schema import tools_of
from aiflow_jupyter.runtime.behaviour import Binding
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


RAISED = [
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
    BaseException,
    Mute,
    StopIteration,
    Exception,
]


async def ran(flow):
    require(flow.spec, SIGNATURES, flow.functions)
    run = Run(flow.spec, OPERATORS, Scheduler(asyncio.get_running_loop()), functions=flow.functions)
    return await asyncio.wait_for(run.run("x"), 10)


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("kind", ["plain", "inline", "async", "route", "steps", "inline steps", "async steps"])
async def test_whatever_a_function_raises_fails_its_node_and_no_more(raised, kind):
    def plain(text):
        raise raised

    async def on_loop(text):
        raise raised

    def steps(text):
        yield text
        raise raised

    async def async_steps(text):
        yield text
        raise raised

    flow = Flow("g")
    bad = {
        "steps": lambda: flat_map(steps),
        "inline steps": lambda: flat_map(steps, inline=True),
        "async steps": lambda: flat_map(async_steps),
        "plain": lambda: map_(plain),
        "inline": lambda: map_(plain, inline=True),
        "async": lambda: map_(on_loop),
        "route": lambda: route(plain),
    }[kind]()
    node, out = flow.add("bad", bad), flow.add("out", sink(var="out"))
    (node["else"] if kind == "route" else node) >> out
    with pytest.raises(RunError, match="bad") as caught:
        await ran(flow)
    assert caught.value.node == "bad"


@pytest.mark.parametrize("raised", RAISED)
async def test_a_failure_far_down_a_chain_fails_the_run(raised):
    def bad(text):
        raise raised

    flow = Flow("g")
    last = flow.add("n0", map_(same, inline=True))
    for index in range(1, 60):
        last = last >> flow.add(f"n{index}", map_(same, inline=True))
    last >> flow.add("bad", map_(bad, inline=True)) >> flow.add("out", sink(var="out"))
    with pytest.raises(RunError, match="bad"):
        await ran(flow)


def same(text):
    return text


async def test_an_empty_graph_is_refused_like_an_empty_text():
    with pytest.raises(GraphError, match="empty"):
        await ran(Flow("nothing"))


class Untouchable:
    def __init__(self, raised):
        self.__dict__["raised"] = raised

    def __getattr__(self, name):
        raise self.raised(name)


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt, SystemExit])
async def test_an_index_that_can_not_be_looked_at_is_told_by_node(raised):
    flow = Flow("g")
    flow.add("find", retrieve(Untouchable(raised))) >> flow.add("out", sink(var="out"))
    with pytest.raises(ConfigError, match="node 'find': retrieve can't look at an Untouchable") as caught:
        await ran(flow)
    assert caught.value.code == "AF303"


class Signature:
    """Something that is called, of which nothing else can be known."""

    def __init__(self, raised):
        self.__dict__["raised"] = raised

    @property
    def __signature__(self):
        raise self.__dict__["raised"]

    def __call__(self, text):
        return text


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_a_signature_that_raises_is_one_that_is_not_known(raised):
    for made in (map_, flat_map, reduce, retrieve):
        flow = Flow("g")
        flow.add("a", made(Signature(raised))) >> flow.add("out", sink(var="out"))
        assert "a" in flow.spec.nodes
        try:
            await ran(flow)
        except RunError as error:  # a text is no list of items
            assert error.node == "a"
    with pytest.raises(ConfigError, match="its parameters can't be read"):
        tools_of("f", Binding("n", {"f": Signature(raised)}, None, lambda: 0))


async def test_the_users_own_line_is_named_wherever_the_file_is(tmp_path):
    file = tmp_path / "aiflow_jupyter_course" / "cell.py"  # no code of this library, whatever its folder is called
    names = {}
    exec(compile("\n\ndef work(text):\n    raise ValueError\n", str(file), "exec"), names)
    flow = Flow("g")
    flow.add("a", map_(names["work"])) >> flow.add("o", sink(var="o"))
    with pytest.raises(RunError) as caught:
        await ran(flow)
    assert caught.value.hint == "in work, line 4"
