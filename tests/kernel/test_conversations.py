"""Conversations in real kernels: a cell goes by the identifier that its front end sends, whichever kernel runs it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from harness import Kernel

pytestmark = pytest.mark.kernel

# What answers says how many messages it was asked with; no model is needed for that.
SETUP = """
import aiflow_kernel.host as host
from aiflow_jupyter.events import Event, Finish

class Counting:
    async def stream(self, request):
        yield Event("token", f"asked with {len(request.messages)}", meta={"phase": "answer", "tier": "local"})
        yield Event("finish", Finish("stop"))

    async def aclose(self):
        pass

host._hosts[:] = [host.Host(Counting)]
%load_ext aiflow_jupyter
"""


def run(kernel, code, cell=None):
    """Run code as the cell of that identifier; gives all text that it showed."""
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
    ran = kernel.finished(kernel.send("execute_request", content, metadata={"cellId": cell} if cell else {}))
    assert ran.status == "ok", ran.reply.content
    updates = [m.content["data"].get("text/plain", "") for m in ran.published if "data" in m.content]
    return ran.stdout + "\n".join(updates)


def test_a_cell_that_is_run_again_replaces_its_turn_in_any_kernel(tmp_path):
    with ExitStack() as stack:
        env = {"AIFLOW_DATABASE": str(tmp_path / "own" / "aiflow.db")}
        one, other = (stack.enter_context(Kernel("python3", env=env)) for _ in range(2))
        for kernel in (one, other):
            run(kernel, SETUP)
        assert "asked with 1" in run(one, "%%aiflow -c talk\nfirst", "cell-a")
        assert "asked with 3" in run(other, "%%aiflow -c talk\nsecond", "cell-b")
        assert "asked with 1" in run(other, "%%aiflow -c talk\nfirst, again", "cell-a")
        assert "asked with 3" in run(one, "%%aiflow -c talk\nsecond, again", "cell-b")
        assert "asked with 5" in run(one, "%%aiflow -c talk\nwithout a cell")
        shown = run(other, "%aiflow conversation talk")
        assert shown.index("first, again") < shown.index("second, again") < shown.index("without a cell")
        assert "3 turns" in run(one, "%aiflow conversation")
