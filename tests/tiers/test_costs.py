"""What was spent, as people see it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from aiflow_jupyter.tiers.costs import amount, svg, table
from aiflow_jupyter.tiers.ledger import Left, Open, Row

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
    assert "cloud 1.50 USD and at most 8.48 USD" in root.get("aria-label")
    assert "local 0.00 USD" in root.get("aria-label")
    assert "<b>" not in svg(ROWS, "tier")
    ET.fromstring(svg([], "day"))


def test_small_amounts_keep_their_digits():
    assert [amount(value, "USD") for value in (0.0, 0.0012, 12.345)] == ["0.00 USD", "0.0012 USD", "12.35 USD"]
