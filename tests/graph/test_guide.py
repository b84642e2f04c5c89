"""The guide's graphs are graphs, and its tables name what there is."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest

import aiflow_jupyter.graph
from aiflow_jupyter.events import CONTROL, DATA, Event, Finish
from aiflow_jupyter.graph.checks.checking import examine, require
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.notebook.hosting import Background
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.operators.guard import MOST_CONTEXT
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler
from tests import virtual

GUIDE = (Path(aiflow_jupyter.graph.__file__).parent / "GRAPHS.md").read_text(encoding="utf-8")
GRAPHS = re.findall(r"```aiflow\n(.*?)```", GUIDE, re.DOTALL)
FUNCTIONS = ("no_secrets", "speak", "weather", "search", "papers")


@pytest.mark.parametrize("text", GRAPHS)
def test_every_graph_of_the_guide_passes_the_checks(text):
    parsed = parse(text, "guide", SIGNATURES)
    require(parsed.spec, SIGNATURES, FUNCTIONS, parsed)


@pytest.mark.parametrize("text", GRAPHS)
def test_nothing_is_warned_of_that_the_guide_could_avoid(text):
    parsed = parse(text, "guide", SIGNATURES)
    assert [each.code for each in examine(parsed.spec, SIGNATURES, FUNCTIONS, parsed).warnings] == []


def test_the_guide_has_graphs():
    assert len(GRAPHS) == 4


def test_every_operator_and_every_policy_is_in_a_table():
    rows = "\n".join(line for line in GUIDE.splitlines() if line.startswith("| `"))
    for name in SIGNATURES:
        assert f"`{name}(" in rows, name
    for key in Policy.model_fields:
        assert re.search(rf"`{key}\b|{key}=|\b{key}`", rows), key


def rows(heading):
    """The rows of the table with a heading, as lists of cells."""
    table = GUIDE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]


def codes(cells):
    return set(re.findall(r"`(\w+)`", " ".join(cells)))


def test_every_kind_of_event_is_in_a_table():
    assert codes(row[0] for row in rows("data")) == DATA
    assert codes(row[0] for row in rows("control")) == CONTROL


def test_the_kinds_that_operators_give_are_said_to_come_from_them():
    for kind, _, source in rows("data"):
        for name in codes([source]):
            gives = SIGNATURES[name].given({"index": "papers"}).gives
            assert kind.strip("`") in (gives or ()), (kind, name)


def test_what_a_job_can_do_is_as_the_code_has_it():
    for name, arguments in re.findall(r"`job\.(\w+)\(([^)]*)\)", GUIDE):
        call = ast.parse(f"f({arguments})", mode="eval").body
        inspect.signature(getattr(Background, name)).bind(
            None, *[None for _ in call.args], **{each.arg: None for each in call.keywords}
        )
    assert "timeout=5" in GUIDE


def test_a_compensation_is_called_as_the_guide_says():
    undone = []

    async def work(text: str) -> str:
        if not undone:
            raise ValueError("once")
        return text

    async def compensate(payload, error):
        undone.append((payload, type(error)))

    text = """
    do  = map(work) [retry=2, backoff=0.01, effect=non_idempotent, compensate=compensate]
    out = sink(var="x")
    do -> out
    """
    assert ran(text, ["hello"], work=work, compensate=compensate) == ["hello"]
    assert undone == [("hello", ValueError)]
    assert "`compensate(payload, error)`" in GUIDE


def test_a_join_gives_nothing_for_what_timed_out():
    async def late(text: str) -> str:
        await asyncio.sleep(9 if text == "a" else 0)
        return text

    async def early(text: str) -> str:
        return text

    text = """
    one  = map(early)
    two  = map(late) [workers=4, order=none]
    both = join(timeout=5)
    out  = sink(var="x")
    put  = map(early)
    put -> one, two -> both -> out
    """
    assert ran(text, ["a", "b"], early=early, late=late) == [{"one": "b", "two": "b"}]


class Says:
    """A source of one answer."""

    async def stream(self, _request):
        for number, word in enumerate(["One. ", "Two. ", "Three. ", "Four."]):
            yield Event("token", word, source="says", sequence=number)
        yield Event("finish", Finish())


def test_a_check_is_given_text_that_accumulates():
    seen = []

    def check(text: str) -> bool:
        seen.append(text)
        return True

    text = """
    ask  = generate()
    look = guard(check, inline=true)
    out  = sink(var="x")
    ask -> look -> out
    """
    assert ran(text, ["hello"], Says(), check=check) == "One. Two. Three. Four."
    assert len(seen) > 1
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
    assert "1,000 characters" in GUIDE
    assert MOST_CONTEXT == 1_000


def ran(text, values, source=None, **functions):
    """What a sink named `out` has after a run in virtual time."""

    async def story(loop):
        spec = parse(text, "g", SIGNATURES).spec
        run = Run(spec, OPERATORS, Scheduler(loop, loop.clock), functions=functions, source=source)
        for value in values:
            await run.offer(spec.inputs()[0], value)
        await run.close_inputs()
        return (await run.wait())["x"]

    return virtual.run(story)
