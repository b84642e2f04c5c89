"""The ledger: what answers cost, and hard budgets that hold across kernels.

An answer's worst case is written down as an intent before it is asked for, in one transaction with the look at the
budgets, so that two kernels can't both spend the last of one. It counts as spent until the answer is settled, also
where the kernel was killed meanwhile: a budget is never exceeded, at worst used up too soon (`release` frees it).

What a provider says an answer cost is what counts; else its tokens and the price list. Where nobody says it (an answer
that broke off, or came without its usage) the cost stays not known, and the worst case goes on counting as spent.
"""

from __future__ import annotations

import math
import re
import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from aiflow_jupyter.errors import ConfigError, plain
from aiflow_jupyter.events import Usage
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.terms import GROUPS, Group, Intent, OverBudgetError

_SPENT: Final = "SUM(CASE state WHEN 'settled' THEN COALESCE(cost, most) WHEN 'intent' THEN most ELSE 0 END)"


@dataclass(frozen=True, slots=True)
class Budgets:
    """The most that may be spent, in `currency`; None for no limit.

    Attributes:
        day: in one day of the local calendar.
        month: in one month of it.
        notebook: by one notebook, ever.
    """

    day: float | None = None
    month: float | None = None
    notebook: float | None = None
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Row:
    """What was spent on one thing.

    Attributes:
        key: the tier, model, conversation, notebook or day.
        cost: what answers cost, as far as that is known, in `currency`.
        at_most: the worst cases of those that are over and of which nobody said it.
        open: the worst cases of those that are under way.
    """

    key: str
    answers: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    at_most: float
    open: float
    currency: str


@dataclass(frozen=True, slots=True)
class Left:
    """A budget and what is left of it.

    Attributes:
        name: `day`, `month` or `notebook`.
        limit: the most that may be spent, in `currency`.
        spent: what counts as spent, worst cases included; None for that of a notebook outside of one.
    """

    name: str
    limit: float
    spent: float | None
    currency: str


@dataclass(frozen=True, slots=True)
class _Limit:
    """A budget that is set: where its entries are, and what its time or place is called."""

    name: str
    most: float
    where: str
    key: str
    words: str


@dataclass(frozen=True, slots=True)
class Open:
    """An intent that is not settled: an answer under way, or one whose kernel died."""

    id: str
    at: float
    tier: str
    model: str
    most: float
    currency: str


class SqliteLedger:
    """See the module; implements `terms.Ledger`.

    Args:
        database: the file.
        budgets: gives what may be spent now; read for every answer, so that a change counts at once.
        now: seconds since the epoch.
    """

    def __init__(
        self, database: Database, budgets: Callable[[], Budgets] = Budgets, now: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._budgets = budgets
        self._now = now

    def intend(self, intent: Intent) -> str:
        """Book the worst case as spent; see `terms.Ledger`.

        An answer that can cost nothing is answered also where the file can't be written; it is then not counted.
        """
        _amount(intent)
        budgets = self._budgets()
        entry = secrets.token_hex(8)
        at = self._now()
        day = _day(at)
        try:
            with self._database.transaction() as work:
                if intent.most or not intent.known:
                    self._within(work, intent, budgets, day)
                work.execute(
                    "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL, 'intent')",
                    (
                        entry,
                        at,
                        day,
                        intent.tier,
                        intent.model,
                        intent.conversation,
                        intent.notebook,
                        intent.currency,
                        intent.most,
                    ),
                )
        except OverBudgetError:
            raise
        except ConfigError:
            if intent.most or not intent.known:
                raise
            return ""
        return entry

    def allows(self, intent: Intent) -> None:
        """Look whether the budgets allow it; see `terms.Ledger`."""
        _amount(intent)
        if intent.most or not intent.known:
            budgets, day = self._budgets(), _day(self._now())
            with self._database.transaction() as work:
                self._within(work, intent, budgets, day)

    def _within(self, work: sqlite3.Connection, intent: Intent, budgets: Budgets, day: str) -> None:
        for limit in _limits(budgets, day, intent.notebook):
            if limit.name == "notebook" and not intent.notebook:
                continue
            if not intent.known:
                raise OverBudgetError(
                    f"the price of {intent.model!r} is not known, so no budget would hold",
                    hint=f'say it in your aiflow.toml: [tiers.{intent.tier}.models."{plain(intent.model)}"] with '
                    "price_in and price_out",
                )
            if intent.currency != budgets.currency:
                raise OverBudgetError(
                    f"the budget is in {budgets.currency} and {intent.model} costs {intent.currency}",
                    hint="give the tier's prices in the budget's currency",
                )
            spent = _spent(work, limit, budgets.currency)
            if spent + intent.most > limit.most:
                raise OverBudgetError(
                    f"the budget of {limit.words} is {limit.most:.4g} {budgets.currency}: {spent:.4g} is spent or "
                    f"under way, and this answer could cost {intent.most:.4g}",
                    hint=f"ask for fewer tokens (--max-tokens), raise budget.{limit.name} in aiflow.toml, or look at "
                    "aiflow cost (in a notebook: %aiflow cost)",
                )

    def left(self, notebook: str = "") -> list[Left]:
        """The budgets that are set, and what is left of each now.

        Args:
            notebook: whose, empty outside of one.
        """
        budgets, day = self._budgets(), _day(self._now())
        with self._database.transaction() as work:
            return [
                Left(
                    limit.name,
                    limit.most,
                    _spent(work, limit, budgets.currency) if limit.key else None,
                    budgets.currency,
                )
                for limit in _limits(budgets, day, notebook)
            ]

    def settle(self, entry: str, usage: Usage | None, cost: float | None, model: str = "") -> None:
        """Put what it cost in its place; without a cost the worst case counts on. See `terms.Ledger`.

        An entry that somebody released by hand while its answer was under way counts again.
        """
        if not entry:
            return
        known = cost if cost is not None and math.isfinite(cost) and cost >= 0 else None
        with self._database.transaction() as work:
            work.execute(
                "UPDATE entries SET state = 'settled', cost = ?, prompt_tokens = ?, "
                "completion_tokens = ?, model = CASE model WHEN '' THEN ? ELSE model END "
                "WHERE id = ? AND state != 'settled'",
                (
                    known,
                    usage.prompt_tokens if usage else None,
                    usage.completion_tokens if usage else None,
                    model,
                    entry,
                ),
            )

    def release(self, entry: str) -> None:
        """Nothing was used; see `terms.Ledger`."""
        if entry:
            with self._database.transaction() as work:
                work.execute("UPDATE entries SET state = 'released' WHERE id = ? AND state = 'intent'", (entry,))

    def open(self) -> list[Open]:
        """The intents that are not settled, oldest first."""
        with self._database.transaction() as work:
            rows = work.execute(
                "SELECT id, at, tier, model, most, currency FROM entries WHERE state = 'intent' ORDER BY at"
            ).fetchall()
        return [Open(*row) for row in rows]

    def report(self, by: Group, *, since: str = "") -> list[Row]:
        """What was spent, by one of `GROUPS`, dearest first (days in their order).

        Args:
            by: what to add up by.
            since: the first day: `2026-01-31`, `today`, `yesterday`, or `7d` for the last 7; empty for all time.

        Raises:
            ConfigError: there is no such grouping, or no such day so far.
        """
        if by not in GROUPS:
            raise ConfigError(f"costs are added up by {', '.join(GROUPS)}, not by {by!r}", code="AF764")
        first = _first_day(since, self._now()) if since else ""
        order = "1" if by == "day" else "known + most_of_others DESC, 1"
        query = (
            f"SELECT {by}, COUNT(*), COALESCE(SUM(prompt_tokens), 0), COALESCE(SUM(completion_tokens), 0), "  # noqa: S608 - one of GROUPS
            "COALESCE(SUM(CASE state WHEN 'settled' THEN cost END), 0) AS known, "
            "COALESCE(SUM(CASE WHEN state = 'settled' AND cost IS NULL THEN most END), 0) AS most_of_others, "
            "COALESCE(SUM(CASE state WHEN 'intent' THEN most END), 0), currency "
            f"FROM entries WHERE state != 'released' AND day >= ? GROUP BY 1, currency ORDER BY {order}"
        )
        with self._database.transaction() as work:
            return [Row(*row) for row in work.execute(query, (first,)).fetchall()]


def _amount(intent: Intent) -> None:
    """See that a worst case is an amount."""
    if not (math.isfinite(intent.most) and intent.most >= 0):
        raise ConfigError(f"the worst case of an answer can't be {intent.most} {intent.currency}", code="AF763")


def _day(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().date().isoformat()


def _limits(budgets: Budgets, day: str, notebook: str) -> list[_Limit]:
    """The budgets that are set, for a day and a notebook."""
    each = (
        ("day", budgets.day, "day = ?", day, "today"),
        ("month", budgets.month, "substr(day, 1, 7) = ?", day[:7], "this month"),
        ("notebook", budgets.notebook, "notebook = ?", notebook, "this notebook"),
    )
    return [_Limit(name, most, *how) for name, most, *how in each if most is not None]


def _spent(work: sqlite3.Connection, limit: _Limit, currency: str) -> float:
    """What counts as spent of a budget."""
    query = f"SELECT {_SPENT} FROM entries WHERE {limit.where} AND currency = ?"  # noqa: S608 - no word of a user's
    return work.execute(query, (limit.key, currency)).fetchone()[0] or 0.0


def _first_day(said: str, now: float) -> str:
    """The day that somebody means by `--since`."""
    today = date.fromisoformat(_day(now))
    days = {"today": 1, "yesterday": 2}.get(said)
    if found := re.fullmatch(r"([1-9]\d{0,3})d", said):
        days = int(found[1])
    try:
        first = today - timedelta(days=days - 1) if days else date.fromisoformat(said)
    except ValueError:
        raise ConfigError(
            f"{said!r} is no day", code="AF764", hint="2026-01-31, today, yesterday, or 7d for the last 7 days"
        ) from None
    if first > today:
        raise ConfigError(f"{first} is still to come", code="AF764", hint=f"today is {today}")
    return first.isoformat()
