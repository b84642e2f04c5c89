"""The one file: begun and moved aside by one process at a time, told of, never another application's."""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys

import pytest
from processes import run_at_once

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers.conversation.store import Conversations
from aiflow_jupyter.tiers.database import APPLICATION, Database
from aiflow_jupyter.tiers.ledger import SqliteLedger
from aiflow_jupyter.tiers.terms import Intent

GARBAGE = b"GARBAGE" + os.urandom(2_000_000)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "own").mkdir(mode=0o700)
    return tmp_path / "own" / "aiflow.db"


def spend(file):
    return SqliteLedger(Database(file)).intend(Intent("cloud", "m", 1.0))


def entries(file):
    with sqlite3.connect(file) as connection:
        return connection.execute("SELECT COUNT(*) FROM entries").fetchone()[0]


def aside(file):
    return [each for each in file.parent.iterdir() if each.suffix.startswith(".damaged-") and each.name.count("-") == 3]


def _spends(file, barrier):
    ledger = SqliteLedger(Database(file))
    barrier.wait(60)
    for _ in range(5):
        ledger.intend(Intent("cloud", "m", 1.0))


def test_processes_that_find_a_damaged_file_together_lose_nothing_of_what_they_spend(file):
    context = multiprocessing.get_context("spawn")
    for _ in range(3):
        for each in file.parent.iterdir():
            each.unlink()
        file.write_bytes(GARBAGE)
        barrier = context.Barrier(6)
        run_at_once([context.Process(target=_spends, args=(file, barrier)) for _ in range(6)])
        assert entries(file) == 30
        assert [each.read_bytes() for each in aside(file)] == [GARBAGE]


@pytest.mark.parametrize("ask", [spend, lambda file: Conversations(Database(file)).overview()])
def test_whoever_finds_a_damaged_file_first_says_where_it_is_kept_and_that_budgets_start_anew(file, caplog, ask):
    file.write_bytes(GARBAGE)
    ask(file)
    ask(file)
    (record,) = caplog.records
    assert (record.levelno, record.name.split(".")[0]) == (logging.WARNING, "aiflow_jupyter")
    assert str(aside(file)[0]) in record.getMessage()
    assert "budgets start anew" in record.getMessage()


def test_a_terminal_shows_on_stderr_that_a_file_was_damaged(file):
    for words in (["conversation"], ["conversation", "talk"], ["cost"]):
        for each in file.parent.iterdir():
            each.unlink()
        file.write_bytes(GARBAGE)
        done = subprocess.run(
            [sys.executable, "-m", "aiflow_jupyter.cli", *words],
            env={**os.environ, "AIFLOW_DATABASE": str(file)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr.count("budgets start anew") == 1, done.stderr
        assert "budgets" not in done.stdout


def test_a_damaged_file_is_never_written_over_by_another_one(file):
    for _ in range(5):
        file.write_bytes(GARBAGE)
        spend(file)
    assert len(aside(file)) == 5


def test_a_damaged_file_that_can_not_be_moved_is_a_coded_error(file, monkeypatch):
    file.write_bytes(GARBAGE)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(file), "rename", refuse)
    with pytest.raises(ConfigError, match="can't be moved aside: Permission denied"):
        spend(file)
    assert file.read_bytes() == GARBAGE


@pytest.mark.parametrize("left", [(), ("-wal", "-shm")])
def test_a_file_that_is_deleted_while_it_is_used_is_begun_anew(file, left):
    book = Conversations(Database(file))
    reader = sqlite3.connect(file)  # keeps the journals in the folder
    book.record("talk", "a", "b")
    reader.execute("SELECT COUNT(*) FROM turns").fetchone()
    for each in file.parent.iterdir():
        if not each.name.endswith(left):
            each.unlink()
    book.record("talk", "c", "d")
    assert [turn.messages[0]["content"] for turn in book.turns("talk")] == ["c"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    reader.close()


def test_a_file_that_another_process_began_anew_is_gone_on_with(file):
    book, other = Conversations(Database(file)), Conversations(Database(file))
    book.record("talk", "a", "b")
    other.record("talk", "c", "d")
    file.with_name(file.name + "-wal").unlink(missing_ok=True)
    file.write_bytes(GARBAGE)
    for each in (book, other):
        each.record("talk", "e", "f")
    assert len(book.turns("talk")) == 2


def foreign(file, script):
    with sqlite3.connect(file) as connection:
        connection.executescript(script)
    file.chmod(0o644)
    return file.read_bytes()


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE moz_places (id INTEGER); INSERT INTO moz_places VALUES (1); PRAGMA user_version = 1",
        "CREATE TABLE notes (id INTEGER)",
        "CREATE TABLE entries (id INTEGER)",
        "PRAGMA application_id = 7",
        "CREATE TABLE notes (id INTEGER); PRAGMA user_version = 77",
    ],
)
def test_the_file_of_another_application_is_left_as_it_is(file, script):
    before = foreign(file, script)
    for _ in range(2):
        with pytest.raises(ConfigError, match="another application's file") as caught:
            spend(file)
        assert caught.value.code == "AF762"
    assert file.read_bytes() == before
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert aside(file) == []


def test_a_file_of_before_it_was_marked_as_ours_is_taken_over(file):
    spend(file)
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA application_id = 0")
    spend(file)
    assert entries(file) == 2
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION


def test_a_file_that_others_may_read_is_closed_to_them(file):
    spend(file)
    file.chmod(0o644)
    spend(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def _writes_where_nothing_more_fits(file, said):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    book = Conversations(Database(file))
    book.record("talk", "a", "b")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        book.record("talk", "x" * 1_000_000, "b")
    except ConfigError as error:
        said.put((error.code, error.message))


def test_a_write_that_fails_is_a_coded_error_and_changes_nothing(file):
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    other = context.Process(target=_writes_where_nothing_more_fits, args=(file, said))
    other.start()
    code, message = said.get(timeout=60)
    other.join(60)
    assert code == "AF761"
    assert str(file) in message
    assert len(Conversations(Database(file)).turns("talk")) == 1


@pytest.mark.parametrize(("words", "free"), [("database or disk is full", 10**12), ("disk I/O error", 4096)])
def test_a_full_disk_is_called_so(file, monkeypatch, words, free):
    from aiflow_jupyter.tiers import database as databases

    database = Database(file)
    spend(file)
    monkeypatch.setattr(databases.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    with pytest.raises(ConfigError, match="the disk is full"), database.transaction():
        raise sqlite3.OperationalError(words)
    monkeypatch.setattr(databases.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**12}))
    with pytest.raises(ConfigError, match="disk I/O error"), database.transaction():
        raise sqlite3.OperationalError("disk I/O error")
