"""`%aiflow graph NAME` prints a graph in each of its forms."""

from __future__ import annotations

import json

import pytest

from aiflow_jupyter.errors import CommandError

CELL = "%%aiflow graph flow\nask = generate() [queue=3] # mine\nout = sink(display=true)\nask -> out"


def printed(shell, capsys, line):
    capsys.readouterr()
    assert shell.ran(line).success
    return capsys.readouterr().out


def test_a_graph_of_a_cell_is_printed_in_each_form(shell, capsys):
    shell.ran(CELL)
    text = "ask = generate() [queue=3]\nout = sink(display=true)\n\nask -> out\n"
    assert printed(shell, capsys, "%aiflow graph flow") == text
    assert printed(shell, capsys, "%aiflow graph flow --as text") == text
    document = json.loads(printed(shell, capsys, "%aiflow graph flow --as json"))
    assert document["nodes"]["ask"] == {"operator": "generate", "policy": {"queue": 3}}
    source = printed(shell, capsys, "%aiflow graph flow --as python")
    assert 'ask = flow.add("ask", generate(), queue=3)' in source
    assert "ask  generate [queue=3] -> out" in printed(shell, capsys, "%aiflow graph flow --as svg")


def test_a_flow_of_python_is_printed_too_and_its_source_is_a_flow(shell, capsys):
    shell.ran("from aiflow_jupyter import Flow, map, sink\ndef tidy(x): return x")
    shell.ran("made = Flow('made'); made.add('a', map(tidy)) >> made.add('b', sink(var='x'))")
    source = printed(shell, capsys, "%aiflow graph made --as python")
    shell.ran(source.replace('"made"', '"again"'))
    assert shell.ran("flow.name, flow.spec.nodes == made.spec.nodes, flow.functions").result == (
        "again",
        True,
        {"tidy": shell.user_ns["tidy"]},
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%aiflow graph", "NAME"),
        ("%aiflow graph nothing", "no graph is called 'nothing'"),
        ("%aiflow graph flow --as yaml", "invalid choice"),
        ("%aiflow graph flow --a text", "unknown option"),
        ("%aiflow graph flow more", "unexpected word 'more'"),
    ],
)
def test_a_mistake_is_one_message(shell, line, says):
    shell.ran(CELL)
    ran = shell.ran(line)
    assert isinstance(ran.error_in_exec, CommandError)
    assert says in str(ran.error_in_exec)
