"""Graphs that delegate to others, from cells and from Python."""

from __future__ import annotations

import pytest

import aiflow_jupyter as aiflow
from aiflow_jupyter.errors import ConfigError, GraphError

INNER = "%%aiflow graph inner\nask = generate()\nloud = map(shout)\nout = sink(display=true)\nask -> loud -> out"
OUTER = '%%aiflow graph outer\nsub = delegate(flow=inner)\nall = reduce("join")\nout = sink(var="x")\nsub -> all -> out'
SHOUT = "def shout(text: str) -> str:\n    return text.upper()"


@pytest.mark.parametrize("order", [(INNER, OUTER), (OUTER, INNER)])
def test_a_cell_delegates_to_a_graph_of_another_cell(shell, order):
    assert shell.ran(SHOUT).success
    for cell in order:
        assert shell.ran(cell).success
    result = shell.ran("%%aiflow run outer\nHi").result
    assert result.variables["x"] == ["HELLO WORLD"]
    assert [answer.node for answer in result.answers] == ["ask"]


def test_the_inner_graph_is_the_one_of_now(shell):
    for cell in (SHOUT, INNER, OUTER, INNER.replace("map(shout)", "map(whisper)")):
        shell.ran(cell)
    failed = shell.ran("%%aiflow run outer\nHi").error_in_exec
    assert isinstance(failed, GraphError)
    assert "AF205" in str(failed) or "whisper" in str(failed)
    assert shell.ran("def whisper(text: str) -> str:\n    return f'({text})'").success
    assert shell.ran(INNER.replace("map(shout)", "map(whisper)")).success
    assert shell.ran("%%aiflow run outer\nHi").result.variables["x"] == ["(Hello)( world)"]


def test_graphs_that_are_missing_or_run_themselves_are_said(shell):
    shell.ran(SHOUT)
    shell.ran(OUTER)
    failed = shell.ran("%%aiflow run outer\nHi").error_in_exec
    assert isinstance(failed, GraphError)
    assert "no graph is called 'inner'" in str(failed)
    shell.ran(OUTER.replace("graph outer", "graph inner").replace("flow=inner", "flow=outer"))
    failed = shell.ran("%%aiflow run outer\nHi").error_in_exec
    assert isinstance(failed, ConfigError)
    assert failed.code == "AF625"


def inner_flow(name="inner"):
    def shout(text: str) -> str:
        return text.upper()

    flow = aiflow.Flow(name)
    (
        flow.add("ask", aiflow.generate())
        >> flow.add("loud", aiflow.map(shout))
        >> flow.add("out", aiflow.sink(display=True))
    )
    return flow


def outer_flow(inner):
    flow = aiflow.Flow("outer")
    sub = flow.add("sub", aiflow.delegate(inner))
    sub >> flow.add("all", aiflow.reduce("join")) >> flow.add("out", aiflow.sink(var="x"))
    return flow


def test_a_flow_of_python_delegates_to_another(the_host):
    assert aiflow.run(outer_flow(inner_flow()), "Hi").variables["x"] == ["HELLO WORLD"]
    middle = aiflow.Flow("middle")
    middle.add("sub", aiflow.delegate(inner_flow())) >> middle.add("out", aiflow.sink(display=True))
    assert aiflow.run(outer_flow(middle), "Hi").variables["x"] == ["HELLO WORLD"]


def test_a_cell_delegates_to_a_flow_of_python_and_runs_one(shell):
    shell.user_ns["inner"] = inner_flow()
    shell.ran(OUTER)
    assert shell.ran("%%aiflow run outer\nHi").result.variables["x"] == ["HELLO WORLD"]
    shell.user_ns["whole"] = outer_flow(inner_flow("other"))
    assert shell.ran("%%aiflow run whole\nHi").result.variables["x"] == ["HELLO WORLD"]


def test_retrieve_finds_the_documents_of_a_cell(shell, provider):
    shell.ran('papers = ["Owls eat mice.", "Cats purr."]')
    cell = (
        "%%aiflow graph rag\nfind = retrieve(index=papers, together=true)\nask = generate()\nout = sink(display=true)"
    )
    assert shell.ran(f"{cell}\nfind -> ask -> out").success
    assert shell.ran("%%aiflow run rag\nWhat do owls eat?").success
    assert provider.requests[-1].messages[-1]["content"] == "[1] Owls eat mice.\n\nWhat do owls eat?"
