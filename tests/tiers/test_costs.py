"""What was spent, as people see it."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers.command import cost
from aiflow_jupyter.tiers.costs import amount, svg, table
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.ledger import Left, Open, Row, SqliteLedger
from aiflow_jupyter.tiers.terms import Intent

ROWS = [
    Row("cloud", 3, 12_000, 900, 1.5, 8.23, 0.25, "USD"),
    Row("<b>\x1b[31mlocal", 40, 5, 6, 0.0, 0.0, 0.0, "USD"),
]


def test_table_is_lined_up_and_steers_no_terminal():
    lines = table(ROWS, "tier", [Open("ab12", 0.0, "cloud", "big", 0.25, "USD")]).splitlines()
    assert lines[0].split()[-5:] == ["plus", "at", "most", "under", "way"]
    assert lines[1].split()[-6:] == ["1.50", "USD", "8.23", "USD", "0.2500", "USD"]
    assert "nobody said what these cost" in lines[3]
    assert "12,000" in lines[1]
    assert "1.50 USD" in lines[1]
    assert "\x1b" not in "".join(lines)
    assert "aiflow cost --release ab12" in lines[-1]
    assert table([], "tier") == "nothing has been asked yet"
    assert table([], "tier", since="today") == "nothing has been asked in that time"
    assert table(ROWS[1:], "tier").splitlines()[0].split() == [
        "tier",
        "answers",
        "tokens",
        "in",
        "tokens",
        "out",
        "cost",
    ]


def test_what_is_left_of_each_budget_stands_below():
    left = [Left("day", 2.0, 0.5, "USD"), Left("month", 3.0, 9.0, "USD"), Left("notebook", 1.0, None, "USD")]
    assert table(ROWS, "tier", (), left).splitlines()[-3:] == [
        "budget of today: 1.50 USD left of 2.00 USD",
        "budget of this month: 0.00 USD left of 3.00 USD",
        "budget of each notebook: 1.00 USD; in a notebook %aiflow cost says what is left of its own",
    ]


def test_picture_is_whole_and_says_itself_in_words():
    root = ET.fromstring(svg(ROWS, "tier"))
    assert root.get("role") == "img"
    assert "cloud 1.50 USD and at most 8.48 USD more" in root.get("aria-label")
    assert "local 0.00 USD" in root.get("aria-label")
    assert ">at most 0.2500 USD<" in svg([Row("hpc", 1, 0, 0, 0.0, 0.25, 0.0, "USD")], "tier")
    assert "<b>" not in svg(ROWS, "tier")
    ET.fromstring(svg([], "day"))


def test_small_amounts_keep_their_digits():
    said = ["0.00 USD", "0.00002 USD", "0.0012 USD", "12.35 USD"]
    assert [amount(value, "USD") for value in (0.0, 0.00002, 0.0012, 12.345)] == said


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """The user's file, beside a ledger with an answer of which nobody said what it cost."""
    file = tmp_path / "aiflow.toml"
    file.write_text("[budget]\nday = 2.0\nnotebook = 1.0\n")
    monkeypatch.setenv("AIFLOW_CONFIG", str(file))
    monkeypatch.setenv("AIFLOW_DATABASE", str(tmp_path / "aiflow.db"))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    book = SqliteLedger(Database())
    book.settle(book.intend(Intent("cloud", "big", 0.5, notebook="/a.ipynb")), None, None)
    return file


def test_the_command_says_what_is_not_known_and_what_is_left(settings, monkeypatch):
    said = CliRunner().invoke(cost, ["--since", "today"]).output.splitlines()
    assert said[1].split() == ["cloud", "1", "0", "0", "0.00", "USD", "0.5000", "USD"]
    assert said[3] == "budget of today: 1.50 USD left of 2.00 USD"
    assert said[4].startswith("budget of each notebook: 1.00 USD; in a notebook %aiflow cost")
    monkeypatch.setenv("JPY_SESSION_NAME", "/a.ipynb")  # as where a cell starts it
    shown = json.loads(CliRunner().invoke(cost, ["--json"]).output)
    assert shown["rows"][0]["at_most"] == 0.5
    assert [(each["name"], each["spent"]) for each in shown["budgets"]] == [("day", 0.5), ("notebook", 0.5)]


def test_what_was_spent_is_said_also_where_the_settings_have_a_mistake(settings):
    settings.write_text("[budget]\ndya = 2.0\n")
    said = CliRunner().invoke(cost).output
    assert "0.5000 USD" in said
    assert "what is left of the budgets is not known: " in said
    assert "budget.dya: unknown setting" in said


@pytest.mark.parametrize("day", ["banana", "9999-12-31"])
def test_the_command_refuses_a_day_that_is_none(settings, day):
    assert isinstance(CliRunner().invoke(cost, ["--since", day]).exception, ConfigError)
