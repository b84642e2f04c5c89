"""What a user of handles and graphs sees in a real kernel after an interrupt or a failure; no model is asked."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.kernel

WORK = """
import time
def work(text: str) -> str:
    time.sleep(0.2)
    if text == "break":
        raise ValueError("no more")
    return text
"""
GRAPH = "%%aiflow graph flow\ninject a: str\na = map(work) [queue=1]\nout = sink(var='out')\na -> out"


@pytest.fixture
def loaded(kernel):
    for cell in ("%load_ext aiflow_jupyter", WORK, GRAPH):
        assert kernel.run(cell).status == "ok"
    return kernel


def traceback(ran):
    return [line for message in ran.published if message.type == "error" for line in message.content["traceback"]]


@pytest.mark.parametrize("call", ["job.result()", "job.offer('a', 'x')"])
def test_an_interrupt_of_a_handle_is_one_line_and_the_run_goes_on(loaded, call):
    assert loaded.run("%%aiflow run flow --open -o job\nfirst").status == "ok"
    request = loaded.submit(f"print('waits')\nwhile True: {call}")
    loaded.wait_for(lambda message: message.parent == request and message.type == "stream")
    loaded.interrupt()
    ran = loaded.finished(request)
    assert ran.error == "KeyboardInterrupt"
    assert traceback(ran) == ["KeyboardInterrupt: run 'flow' is not waited for any longer; it goes on"]
    assert loaded.run("print(job.status().state)").stdout == "running\n"
    assert loaded.run("job.cancel()").status == "ok"


def test_a_graph_that_fails_leaves_its_part_in_the_place_of_an_earlier_result(loaded):
    assert loaded.run("%%aiflow run flow -o done\nwhole").status == "ok"
    failed = loaded.run("%%aiflow run flow -o done\nbreak")
    assert failed.error == "RunError"
    assert failed.stdout == "done holds the part that came (complete=False)\n"
    part = loaded.run("print(list(done.variables['out']), done.complete, done.status.state)")
    assert part.stdout == "[] False failed\n"


def test_help_of_a_command_is_printed_in_a_cell(loaded):
    ran = loaded.run("%%aiflow run --help\n\n")
    assert ran.stdout.startswith("usage: %%aiflow run ")
    assert loaded.run("%aiflow trace --help").stdout.startswith("usage: %aiflow trace [--messages]")


def test_loading_the_extension_in_the_kernel_that_has_it_says_nothing(aiflow_kernel):
    ran = aiflow_kernel.run("%load_ext aiflow_jupyter")
    assert (ran.status, ran.stdout) == ("ok", "")
    assert aiflow_kernel.run("%aiflow runs").stdout == "no run yet\n"
