"""The ledger: worst cases count until they are settled, and no two kernels spend the last of a budget."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import sqlite3
import stat
import threading
from contextlib import suppress
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_at_once

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.events import Usage
from aiflow_jupyter.tiers import database as databases
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.ledger import Budgets, SqliteLedger
from aiflow_jupyter.tiers.mounts import local_file_system
from aiflow_jupyter.tiers.terms import Intent, OverBudgetError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "own" / "aiflow.db"


def intent(most=1.0, **more):
    return Intent("cloud", "big", most, **more)


def ledger(file, now=None, **budgets):
    clock = {"now": now} if now else {}
    return SqliteLedger(Database(file), lambda: Budgets(**budgets), **clock)


def test_an_intent_counts_as_spent_until_it_is_settled(file):
    book = ledger(file, day=3.0)
    first, second = book.intend(intent(1.5)), book.intend(intent(1.5))
    with pytest.raises(OverBudgetError, match="could cost 1"):
        book.intend(intent(1.0))
    book.settle(first, Usage(100, 10), 0.25)
    third = book.intend(intent(1.0))
    book.release(second)
    book.settle(third, None, None)
    (row,) = book.report("tier")
    assert (row.key, row.answers, row.prompt_tokens, row.completion_tokens) == ("cloud", 2, 100, 10)
    assert (row.cost, row.at_most, row.open) == (0.25, 1.0, 0)
    assert book.open() == []


def test_to_look_whether_a_budget_allows_it_writes_nothing(file):
    book = ledger(file, day=2.0)
    book.intend(intent(1.0))
    book.allows(intent(1.0))
    with pytest.raises(OverBudgetError, match="could cost 1"):
        book.allows(intent(1.1))
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT most, state FROM entries").fetchall() == [(1.0, "intent")]


def test_what_nobody_said_is_not_known_and_counts_at_its_worst_case(file):
    book = ledger(file, day=1.0)
    book.settle(book.intend(intent(0.8)), None, None)
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT state, cost, most FROM entries").fetchall() == [("settled", None, 0.8)]
    assert [each.spent for each in book.left()] == [0.8]
    with pytest.raises(OverBudgetError, match=r"0\.8 is spent"):
        book.intend(intent(0.3))


def test_what_was_settled_at_its_worst_case_before_stays_as_it_is(file):
    book = ledger(file, day=1.0)
    book.intend(intent(0.8))
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE entries SET state = 'settled', cost = most")
    (row,) = book.report("tier")
    assert (row.cost, row.at_most, book.left()[0].spent) == (0.8, 0.0, 0.8)


def test_settling_twice_changes_nothing(file):
    book = ledger(file)
    entry = book.intend(intent())
    book.settle(entry, Usage(1, 1), 0.5)
    book.settle(entry, Usage(9, 9), 9.0)
    book.release(entry)
    assert book.report("model")[0].cost == 0.5


def test_an_answer_that_was_released_by_hand_while_it_came_counts_once_it_is_settled(file):
    book = ledger(file, day=1.0)
    live = book.intend(intent())
    book.release(live)
    assert book.report("model") == []
    book.settle(live, Usage(9, 9), 0.75)
    assert book.left()[0].spent == 0.75


def test_each_budget_counts_its_own(file):
    times = [datetime(2026, 1, 31, 12).astimezone().timestamp()]
    book = SqliteLedger(Database(file), lambda: Budgets(day=1.0, month=1.5, notebook=0.6), lambda: times[0])
    book.intend(intent(0.6, notebook="a"))
    with pytest.raises(OverBudgetError, match="this notebook"):
        book.intend(intent(0.1, notebook="a"))
    with pytest.raises(OverBudgetError, match="today"):
        book.intend(intent(0.5, notebook="b"))
    times[0] = datetime(2026, 2, 1, 12).astimezone().timestamp()
    book.intend(intent(1.0))
    times[0] += 86_400
    with pytest.raises(OverBudgetError, match="this month"):
        book.intend(intent(0.6))
    assert [row.key for row in book.report("day")] == ["2026-01-31", "2026-02-01"]
    assert [row.key for row in book.report("day", since="2026-02-01")] == ["2026-02-01"]
    assert [(each.name, each.limit, each.spent) for each in book.left("a")] == [
        ("day", 1.0, 0.0),
        ("month", 1.5, 1.0),
        ("notebook", 0.6, 0.6),
    ]
    assert book.left()[2].spent is None


@pytest.mark.parametrize(
    ("since", "days"),
    [("", 4), ("today", 1), ("yesterday", 2), ("1d", 1), ("3d", 3), ("2026-02-27", 3), ("2025-12-31", 4)],
)
def test_a_first_day_is_a_date_or_a_word(file, since, days):
    now = [datetime(2026, 2, 26, 12).astimezone().timestamp()]
    book = ledger(file, now=lambda: now[0])
    for _ in range(4):
        book.intend(intent())
        now[0] += 86_400
    now[0] -= 86_400
    assert len(book.report("day", since=since)) == days


@pytest.mark.parametrize("since", ["banana", "2026-02-30", "0d", "-1d", "7", "99999d", "2026-03-01"])
def test_a_first_day_that_is_none_or_still_to_come_is_an_error(file, since):
    book = ledger(file, now=lambda: datetime(2026, 2, 28, 12).astimezone().timestamp())
    with pytest.raises(ConfigError, match=r"is no day|still to come") as raised:
        book.report("day", since=since)
    assert raised.value.code == "AF764"


def test_another_currency_is_refused_where_there_is_a_budget(file):
    with pytest.raises(OverBudgetError, match="the budget is in USD"):
        ledger(file, day=1.0).intend(intent(0.1, currency="EUR"))
    assert ledger(file).intend(intent(0.1, currency="EUR"))


@pytest.mark.parametrize("most", [math.nan, math.inf, -1.0])
def test_a_worst_case_that_is_no_amount_is_refused(file, most):
    with pytest.raises(ConfigError, match="can't be"):
        ledger(file).intend(intent(most))


def test_an_unknown_grouping_is_refused(file):
    with pytest.raises(ConfigError, match="not by 'cost; DROP'"):
        ledger(file).report("cost; DROP")


def spend(path, budget, amount, times, spent):
    book = SqliteLedger(Database(path), lambda: Budgets(day=budget))
    for _ in range(times):
        try:
            book.intend(Intent("cloud", "big", amount))
            with spent.get_lock():
                spent.value += 1
        except OverBudgetError:
            pass


def test_four_kernels_at_once_never_exceed_the_budget(file):
    context = multiprocessing.get_context("spawn")
    spent = context.Value("i", 0)
    kernels = [context.Process(target=spend, args=(file, 10.0, 1.0, 10, spent)) for _ in range(4)]
    run_at_once(kernels)
    assert spent.value == 10
    assert SqliteLedger(Database(file)).report("tier")[0].open == 10.0


def spend_and_settle(path, seed, sent):
    """A kernel that asks until it is killed: what is sent is owed, whatever the ledger is told of it."""
    book, chance = SqliteLedger(Database(path), lambda: Budgets(day=5.0)), random.Random(seed)
    while True:
        most = chance.uniform(0.01, 0.1)
        try:
            entry = book.intend(Intent("cloud", "big", most))
        except OverBudgetError:
            continue
        cost = most / 50 if chance.random() < 0.5 else most
        sent.send((entry, cost))  # before it is settled: a kernel may be killed between the two
        if cost < most:
            book.settle(entry, None, cost)


def test_kernels_that_are_killed_at_any_moment_never_exceed_the_budget(file):
    context = multiprocessing.get_context("fork")
    spent, seed, book = {}, 0, ledger(file, day=5.0)
    while seed < 3 or book.left()[0].spent < 4.0:
        seed += 1
        ours, theirs = context.Pipe(duplex=False)
        kernels = [context.Process(target=spend_and_settle, args=(file, 2 * seed + each, theirs)) for each in range(2)]
        for kernel in kernels:
            kernel.start()
        for _ in range(4):
            if ours.poll(0.5):
                spent.update([ours.recv()])
        for kernel in kernels:
            kernel.kill()
            kernel.join(60)
        theirs.close()
        with suppress(EOFError):
            while True:
                spent.update([ours.recv()])
    assert sum(spent.values()) <= book.left()[0].spent + 1e-9 <= 5.0 + 1e-9


def begin(path, barrier):
    barrier.wait()
    SqliteLedger(Database(path)).intend(Intent("local", "small", 0.5))


def test_kernels_that_begin_the_file_at_once_wait_for_each_other(tmp_path):
    context = multiprocessing.get_context("fork")
    for number in range(10):
        path = tmp_path / str(number) / "aiflow.db"
        barrier = context.Barrier(6)
        run_at_once([context.Process(target=begin, args=(path, barrier)) for _ in range(6)])
        assert len(SqliteLedger(Database(path)).open()) == 6


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from(["settle", "release", "leave"]), st.floats(0, 2)), max_size=20),
    st.floats(0, 6),
)
def test_what_is_spent_and_under_way_is_never_above_the_budget(tmp_path_factory, steps, limit):
    book = ledger(tmp_path_factory.mktemp("db") / "a.db", day=limit)
    spent = 0.0
    for most, then, cost in steps:
        try:
            entry = book.intend(intent(most))
        except OverBudgetError:
            assert spent + most > limit - 1e-9
            continue
        assert not most or spent + most <= limit + 1e-9
        if then == "settle":
            book.settle(entry, None, min(cost, most))
            spent += min(cost, most)
        elif then == "leave":
            spent += most
        else:
            book.release(entry)
    rows = book.report("tier")
    assert sum(row.cost + row.open for row in rows) == pytest.approx(spent)


def test_the_file_is_its_owners_alone(file):
    ledger(file).intend(intent())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o644)
    ledger(file).intend(intent())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", [b"this is no database at all" * 100, None])
def test_a_damaged_file_is_moved_aside_and_said_so(file, damage, caplog):
    ledger(file).intend(intent())
    whole = file.read_bytes()
    if damage is None:
        damage = whole[:4096] + os.urandom(len(whole) - 4096)
    file.write_bytes(damage)
    file.with_name("aiflow.db-wal").unlink(missing_ok=True)
    book = SqliteLedger(Database(file))
    entry = book.intend(intent())
    assert entry
    (kept,) = file.parent.glob("aiflow.db.damaged-*[0-9]")
    assert kept.read_bytes() == damage
    assert str(kept) in caplog.text
    assert len(book.open()) == 1


def test_a_locked_file_is_told_and_free_answers_go_on(file, monkeypatch):
    monkeypatch.setattr(databases, "BUSY_S", 0.05)
    book = ledger(file)
    book.intend(intent())
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(ConfigError, match="stayed locked") as raised:
        book.intend(intent())
    assert raised.value.code == "AF761"
    assert book.intend(intent(0.0)) == ""
    book.settle("", None, None)
    holder.execute("ROLLBACK")
    holder.close()
    assert book.intend(intent())


def test_a_file_of_a_newer_version_is_left_alone(file):
    ledger(file).intend(intent())
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="newer"):
        ledger(file).intend(intent())
    assert file.exists()


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"can't be made|not a file"):
        ledger(tmp_path).intend(intent())
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="can't be made"):
        ledger(tmp_path / "file" / "aiflow.db").intend(intent())


def test_many_threads_of_one_kernel_write_at_once(file):
    book = ledger(file)
    threads = [threading.Thread(target=lambda: [book.intend(intent(0.0)) for _ in range(10)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(book.open()) == 80


def test_the_journal_follows_the_file_system(file, monkeypatch):
    assert isinstance(local_file_system(file), bool)
    for local, journal in ((True, "wal"), (False, "delete")):
        monkeypatch.setattr(databases, "local_file_system", lambda _path, local=local: local)
        path = file.with_name(f"{journal}.db")
        ledger(path).intend(intent())
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone()[0] == journal
