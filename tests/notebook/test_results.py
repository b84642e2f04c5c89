"""What a run leaves behind as people read it: its text, its figures as a table, and who held the others up."""

from __future__ import annotations

import time

import pytest

from aiflow_jupyter import Flow, flat_map, map, run, sink  # noqa: A004
from aiflow_jupyter.errors import RunError


@pytest.fixture
def made(shell, provider):
    """Runs a graph by its text and gives its result."""
    provider.pieces = ["one\n", "two\n", "three"]

    def make(text):
        assert shell.ran(f"%%aiflow graph flow\n{text}").success
        return shell.ran("%%aiflow run flow\nHi").result

    return make


def test_the_text_of_tokens_is_one_and_other_values_stand_one_below_the_other(made):
    assert made("ask = generate()\nout = sink(var='out')\nask -> out").text == "one\ntwo\nthree"
    counted = made("ask = generate()\nparts = segment(by='line')\nout = sink(var='out')\nask -> parts -> out")
    assert counted.text == "\n".join(counted["out"])
    two = made("ask = generate()\na = sink(var='a')\nb = sink(var='b')\nask -> a\nask -> b")
    assert two.text == "one\ntwo\nthree\n\none\ntwo\nthree"


def test_the_text_of_numbers_is_not_empty(the_host):
    flow = Flow("numbers")
    flow.add("double", map(lambda n: 2 * n)) >> flow.add("out", sink(var="out"))
    assert run(flow, 21).text == "42"


def test_the_text_of_a_graph_that_only_displays_is_what_it_displayed(made):
    assert made("ask = generate()\nout = sink(display=true)\nask -> out").text == "one\ntwo\nthree"


def test_figures_print_as_a_short_table_and_are_rows_of_a_data_frame(made, shell, capsys):
    status = made("ask = generate()\nout = sink(var='out')\nask -> out").status
    first, head, *rows = str(status).splitlines()
    assert first.startswith("flow: done, ")
    assert head.split() == ["node", "state", "events", "queue", "peak", "dropped", "errors", "busy", "blocked"]
    assert [row.split()[:4] for row in rows] == [["ask", "done", "1", "0/8"], ["out", "done", "3", "0/8"]]
    assert all(len(line) <= 100 for line in str(status).splitlines())
    assert [row["node"] for row in status.rows()] == ["ask", "out"]
    shell.user_ns["status"] = status
    capsys.readouterr()
    shell.ran("status")
    assert str(status) in capsys.readouterr().out


def test_figures_of_a_run_that_failed_say_why(shell, provider):
    provider.pieces = ["Hello", RuntimeError("down")]
    shell.ran("%%aiflow graph flow\nask = generate()\nout = sink(var='out')\nask -> out")
    shell.ran("%%aiflow run flow -o part\nHi")
    assert (
        str(shell.user_ns["part"].status)
        .splitlines()[-1]
        .startswith("node 'ask' failed on event 0: RuntimeError: down")
    )


def test_what_came_before_a_failure_is_the_errors(the_host):
    flow = Flow("breaks")
    many = flow.add("many", flat_map(lambda n: list(range(n, -1, -1))))
    many >> flow.add("inverse", map(lambda n: 6 / n)) >> flow.add("out", sink(var="out"))
    with pytest.raises(RunError, match="'inverse' failed on event 3: ZeroDivisionError") as raised:
        run(flow, 3)
    part = raised.value.result
    assert part["out"] == [2.0, 3.0, 6.0]
    assert not part.complete
    assert part.status.state == "failed"


def test_a_result_names_its_bottleneck(the_host):
    flow = Flow("slow")
    many = flow.add("many", flat_map(lambda n: list(range(n))), queue=2)
    slow = flow.add("slow", map(lambda n: time.sleep(0.01) or n), queue=2)
    many >> slow >> flow.add("kept", sink(var="kept"))
    found = run(flow, 30).bottleneck()
    assert found is not None
    assert found.node == "slow"
