"""The harness itself, against a plain kernel."""

from __future__ import annotations

import importlib.metadata
import os
import time

import pytest
from harness import Kernel, KernelDiedError

pytestmark = pytest.mark.kernel


def test_code_runs_and_its_value_comes_back(kernel):
    ran = kernel.run("1+1")
    assert (ran.status, ran.value) == ("ok", "2")


def test_the_kernel_under_test_has_the_ipykernel_of_this_run(kernel):
    version = kernel.run("import ipykernel; print(ipykernel.__version__)").stdout.strip()
    assert version == importlib.metadata.version("ipykernel")
    assert version == os.environ.get("AIFLOW_IPYKERNEL", version)


def test_a_stream_message_arrives_while_its_cell_still_runs(kernel):
    request = kernel.submit("import time; print('early', flush=True); time.sleep(1)")
    early = kernel.wait_for(lambda m: m.type == "stream" and m.parent == request)
    ran = kernel.finished(request)
    assert early.content["text"] == "early\n"
    assert ran.stdout == "early\n"
    assert ran.reply.arrived - early.arrived > 0.5


def test_interrupt_ends_a_sleeping_cell(kernel):
    request = kernel.submit("import time; print('asleep', flush=True); time.sleep(60)")
    kernel.wait_for(lambda m: m.type == "stream" and m.parent == request)
    sent = kernel.interrupt()
    ran = kernel.finished(request)
    assert ran.error == "KeyboardInterrupt"
    assert ran.reply.arrived - sent < 5


def test_a_subshell_answers_while_the_main_shell_is_busy(kernel):
    subshell = kernel.create_subshell()
    busy = kernel.submit("import time; time.sleep(2)")
    ran = kernel.run("6 * 7", subshell=subshell)
    assert ran.value == "42"
    assert ran.reply.arrived < kernel.reply(busy).arrived
    kernel.delete_subshell(subshell)


def test_the_control_channel_answers_while_a_cell_runs(kernel):
    busy = kernel.submit("import time; time.sleep(2)")
    info = kernel.request("kernel_info_request", channel="control")
    assert info.channel == "control"
    assert info.arrived < kernel.reply(busy).arrived


def test_restart_forgets_what_the_kernel_knew(kernel):
    kernel.run("x = 1")
    before = kernel.pid
    kernel.restart()
    assert kernel.pid != before
    assert kernel.run("x").error == "NameError"


def test_waiting_for_a_killed_kernel_ends_at_once(kernel):
    request = kernel.submit("import time; time.sleep(60)")
    kernel.kill()
    start = time.monotonic()
    with pytest.raises(KernelDiedError):
        kernel.reply(request)
    assert time.monotonic() - start < 5


def test_a_closed_kernel_leaves_no_process():
    with Kernel() as kernel:
        pid = kernel.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_aiflow_kernelspec_starts_a_kernel(aiflow_kernel):
    assert aiflow_kernel.run("1+1").value == "2"
