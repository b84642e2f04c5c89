"""What was spent, as people see it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from aiflow_jupyter.tiers.costs import amount, svg, table
from aiflow_jupyter.tiers.ledger import Open, Row

ROWS = [
    Row("cloud", 3, 12_000, 900, 1.5, 0.25, "USD"),
    Row("<b>\x1b[31mlocal", 40, 5, 6, 0.0, 0.0, "USD"),
]


def test_table_is_lined_up_and_steers_no_terminal():
    lines = table(ROWS, "tier", [Open("ab12", 0.0, "cloud", "big", 0.25, "USD")]).splitlines()
    assert lines[0].split() == ["tier", "answers", "tokens", "in", "tokens", "out", "cost", "under", "way"]
    assert "12,000" in lines[1]
    assert "1.50 USD" in lines[1]
    assert "\x1b" not in "".join(lines)
    assert "aiflow cost --release ab12" in lines[-1]
    assert table([], "tier") == "nothing has been asked yet"


def test_picture_is_whole_and_says_itself_in_words():
    root = ET.fromstring(svg(ROWS, "tier"))
    assert root.get("role") == "img"
    assert "cloud 1.50 USD" in root.get("aria-label")
    assert "<b>" not in svg(ROWS, "tier")
    ET.fromstring(svg([], "day"))


def test_small_amounts_keep_their_digits():
    assert [amount(value, "USD") for value in (0.0, 0.0012, 12.345)] == ["0.00 USD", "0.0012 USD", "12.35 USD"]
