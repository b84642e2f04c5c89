"""What a kernel books to: a notebook's budget holds wherever the kernel runs."""

from __future__ import annotations

import pytest
from harness import Kernel

ASKED = "from aiflow_jupyter.notebook.naming import notebook_name; notebook_name()"
BUDGET = '[tiers.cloud]\nmodel = "m"\nurl = "http://127.0.0.1:9/v1"\nprice_in = 1\nprice_out = 1000\n[budget]\n'
SPENT = """
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.ledger import SqliteLedger
from aiflow_jupyter.tiers.terms import Intent
SqliteLedger(Database()).intend(Intent("cloud", "m", 0.75, notebook="/home/me/a.ipynb"))
"""


@pytest.fixture
def unnamed(tmp_path, monkeypatch):
    """A kernel that no Jupyter server started, under a budget for notebooks."""
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    settings = tmp_path / "aiflow.toml"
    settings.write_text(f"{BUDGET}notebook = 1\n")
    env = {"AIFLOW_CONFIG": str(settings), "AIFLOW_DATABASE": str(tmp_path / "aiflow.db")}
    with Kernel("python3", env=env) as kernel:
        yield kernel


def test_a_kernel_that_nobody_names_has_a_name_that_outlives_a_restart(unnamed):
    first = unnamed.run(ASKED).value
    assert first is not None
    assert "connection" in first
    unnamed.restart()
    assert unnamed.run(ASKED).value == first


def test_a_notebook_s_budget_holds_where_vs_code_names_it(unnamed):
    unnamed.run("__vsc_ipynb_file__ = '/home/me/a.ipynb'\n%load_ext aiflow_jupyter")
    unnamed.run(SPENT)
    refused = "\n".join(unnamed.run("%%aiflow --tier cloud\nHi").reply.content["traceback"])
    assert "the budget of this notebook is 1 USD: 0.75 is spent" in refused
    assert "aiflow cost (in a notebook: %aiflow cost)" in refused
    assert "budget of this notebook: 0.2500 USD left of 1.00 USD" in unnamed.run("%aiflow cost --since today").stdout


def test_jupyter_s_server_names_the_notebook(tmp_path):
    with Kernel("python3", env={"JPY_SESSION_NAME": "/home/me/b.ipynb"}) as kernel:
        kernel.run("__vsc_ipynb_file__ = '/home/me/a.ipynb'")
        assert kernel.run(ASKED).value == "'/home/me/b.ipynb'"


def test_where_no_kernel_runs_nothing_is_named(monkeypatch):
    from aiflow_jupyter.notebook.naming import notebook_name

    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert notebook_name() == ""
