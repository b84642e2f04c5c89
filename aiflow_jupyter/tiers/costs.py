"""What was spent, for people: a table, and a picture of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from aiflow_jupyter.errors import plain
from aiflow_jupyter.tiers.ledger import Open, Row

_BAR: Final = 320
_LINE: Final = 24
_NAMES: Final = 190


def amount(value: float, currency: str) -> str:
    """An amount of money, as exact as it is small."""
    digits = 2 if value >= 1 or not value else 4
    return f"{value:.{digits}f} {currency}"


def table(rows: Sequence[Row], by: str, still_open: Sequence[Open] = ()) -> str:
    """The costs as lines of text, and what is not settled below them."""
    if not rows:
        return "nothing has been asked yet"
    head = (by, "answers", "tokens in", "tokens out", "cost", "under way")
    cells = [
        (
            plain(row.key) or "(none)",
            str(row.answers),
            f"{row.prompt_tokens:,}",
            f"{row.completion_tokens:,}",
            amount(row.cost, row.currency),
            amount(row.open, row.currency) if row.open else "",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (head, *cells)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in (head, *cells))
    ]
    for each in still_open:
        if each.most:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.at))
            lines.append(
                f"not settled: {each.id}, {plain(each.model)} on {each.tier} since {when}, "
                f"at most {amount(each.most, each.currency)}; `aiflow cost --release {each.id}` if its kernel is gone"
            )
    return "\n".join(line.rstrip() for line in lines)


def svg(rows: Sequence[Row], by: str) -> str:
    """The costs as bars, described for screen readers; what is under way is hatched."""
    most = max((row.cost + row.open for row in rows), default=0.0) or 1.0
    width, height = _NAMES + _BAR + 120, 40 + _LINE * max(1, len(rows))
    label = f"Costs by {by}: " + "; ".join(
        f"{plain(row.key) or 'none'} {amount(row.cost, row.currency)}" for row in rows
    )
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
        spent, open_ = (round(_BAR * part / most) for part in (row.cost, row.open))
        name = plain(row.key) or "(none)"
        name = name if len(name) <= 26 else f"{name[:25]}…"
        out += [
            f'<text x="{_NAMES - 8}" y="{y + 12}" text-anchor="end" fill="#374151">{escape(name)}</text>',
            f'<rect x="{_NAMES}" y="{y}" width="{spent}" height="15" fill="#2a7ab0"/>',
            f'<rect x="{_NAMES + spent}" y="{y}" width="{open_}" height="15" fill="url(#aiflow-open)" stroke="#2a7ab0" '
            f'stroke-width="{1 if open_ else 0}"/>',
            f'<text x="{_NAMES + spent + open_ + 6}" y="{y + 12}" fill="#111827">'
            f"{escape(amount(row.cost, row.currency))}</text>",
        ]
    return "".join([*out, "</svg>"])
