"""What was spent and what is left, for people: a table, and a picture of it.

What is known is told apart from what is not: an answer of which nobody said what it cost, and one that is under way,
are shown at their worst case, as that much at most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from aiflow_jupyter.errors import ConfigError, plain
from aiflow_jupyter.tiers.ledger import Left, Open, Row, SqliteLedger
from aiflow_jupyter.tiers.terms import Group, amount

_BAR: Final = 320
_AMOUNTS: Final = 250
_LINE: Final = 24
_NAMES: Final = 190


def told(ledger: SqliteLedger, by: Group, since: str, notebook: str) -> tuple[str, list[Row]]:
    """What a ledger has, as text, and the rows of it.

    Args:
        ledger: reads the settings for what is left of the budgets; what was spent is told without them, too.
        by: what to add up by.
        since: the first day, see `SqliteLedger.report`.
        notebook: the one that asks, empty for none.
    """
    rows = ledger.report(by, since=since)
    left, problem = [], ""
    try:
        left = ledger.left(notebook)
    except ConfigError as error:
        problem = f"\nwhat is left of the budgets is not known: {error.message}"
    return table(rows, by, ledger.open(), left, since=since) + problem, rows


def table(
    rows: Sequence[Row], by: str, still_open: Sequence[Open] = (), left: Sequence[Left] = (), *, since: str = ""
) -> str:
    """The costs as lines of text, what is not settled below them, and what is left of each budget.

    Args:
        rows: what was spent.
        by: what it is added up by.
        still_open: what is not settled.
        left: the budgets.
        since: the first day, as it was asked for; empty for all time.
    """
    lines = _lines(rows, by) if rows else [f"nothing has been asked {'in that time' if since else 'yet'}"]
    if any(row.at_most for row in rows):
        lines.append("plus at most: nobody said what these cost; their worst case counts as spent")
    for each in still_open:
        if each.most:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.at))
            lines.append(
                f"not settled: {each.id}, {plain(each.model)} on {each.tier} since {when}, at most "
                f"{amount(each.most, each.currency)}; if its kernel is gone, then in a terminal: "
                f"aiflow cost --release {each.id}"
            )
    return "\n".join(line.rstrip() for line in [*lines, *(_remaining(each) for each in left)])


def _lines(rows: Sequence[Row], by: str) -> list[str]:
    """The rows below their heads, without the columns that none of them fills."""
    head = (by, "answers", "tokens in", "tokens out", "cost", "plus at most", "under way")
    cells = [
        (
            plain(row.key) or "(none)",
            str(row.answers),
            f"{row.prompt_tokens:,}",
            f"{row.completion_tokens:,}",
            amount(row.cost, row.currency),
            amount(row.at_most, row.currency) if row.at_most else "",
            amount(row.open, row.currency) if row.open else "",
        )
        for row in rows
    ]
    columns = [column for column in zip(head, *cells, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(pairs))
        for pairs in (zip(line, widths, strict=True) for line in zip(*columns, strict=True))
    ]


_PERIODS: Final = {"day": "today", "month": "this month", "notebook": "this notebook"}


def _remaining(budget: Left) -> str:
    limit = amount(budget.limit, budget.currency)
    if budget.spent is None:
        return f"budget of each notebook: {limit}; in a notebook %aiflow cost says what is left of its own"
    left = amount(max(0.0, budget.limit - budget.spent), budget.currency)
    return f"budget of {_PERIODS[budget.name]}: {left} left of {limit}"


def svg(rows: Sequence[Row], by: str) -> str:
    """The costs as bars, described for screen readers; what may be less, as nobody said it yet or ever, is hatched."""
    most = max((row.cost + _unsure(row) for row in rows), default=0.0) or 1.0
    width, height = _NAMES + _BAR + _AMOUNTS, 40 + _LINE * max(1, len(rows))
    label = f"Costs by {by}: " + "; ".join(f"{plain(row.key) or 'none'} {_words(row)}" for row in rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label={quoteattr(label)} font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(f'Costs by {by}')}</title>",
        '<defs><pattern id="aiflow-open" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<path d="M0 6L6 0" stroke="#2a7ab0" stroke-width="1.5"/></pattern></defs>',
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
        f'<text x="12" y="22" font-weight="600" fill="#1f2937">{escape(f"Costs by {by}")}</text>',
    ]
    for number, row in enumerate(rows):
        y = 36 + _LINE * number
        spent, open_ = (round(_BAR * part / most) for part in (row.cost, _unsure(row)))
        name = plain(row.key) or "(none)"
        name = name if len(name) <= 26 else f"{name[:25]}…"
        out += [
            f'<text x="{_NAMES - 8}" y="{y + 12}" text-anchor="end" fill="#374151">{escape(name)}</text>',
            f'<rect x="{_NAMES}" y="{y}" width="{spent}" height="15" fill="#2a7ab0"/>',
            f'<rect x="{_NAMES + spent}" y="{y}" width="{open_}" height="15" fill="url(#aiflow-open)" stroke="#2a7ab0" '
            f'stroke-width="{1 if open_ else 0}"/>',
            f'<text x="{_NAMES + spent + open_ + 6}" y="{y + 12}" fill="#111827">{escape(_words(row))}</text>',
        ]
    return "".join([*out, "</svg>"])


def _unsure(row: Row) -> float:
    """The worst cases of a row."""
    return row.at_most + row.open


def _words(row: Row) -> str:
    """What was spent on one thing, in a few words."""
    known = amount(row.cost, row.currency)
    if not _unsure(row):
        return known
    unsure = f"at most {amount(_unsure(row), row.currency)}"
    return f"{known} and {unsure} more" if row.cost else unsure
