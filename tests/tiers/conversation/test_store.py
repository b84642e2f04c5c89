"""Conversations in full: a turn stands in its cell's place, nothing is lost, and what is forgotten is gone."""

from __future__ import annotations

import multiprocessing
import sqlite3
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_at_once

from aiflow_jupyter.errors import CommandError, ConfigError
from aiflow_jupyter.tiers.conversation.store import Conversations
from aiflow_jupyter.tiers.conversation.turns import Cell, chat
from aiflow_jupyter.tiers.database import Database

NO_CELL = Cell()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "own" / "aiflow.db"


def store(file, clock=None):
    ticks = iter(range(1, 100_000))
    return Conversations(Database(file), clock or (lambda: float(next(ticks))))


def said(book, name="talk"):
    return [message["content"] for message in chat(book.turns(name))]


def ask(book, question, name="talk", cell=NO_CELL, **more):
    """Ask as a cell does; gives what was asked with."""
    asked = book.asked(name, question, cell=cell, system=more.get("system"))
    book.record(name, question, f"<{question}>", cell=cell, **more)
    return [message["content"] for message in asked.messages]


def test_a_question_is_asked_with_all_turns_before_it(file):
    book = store(file)
    assert ask(book, "a") == ["a"]
    assert ask(book, "b") == ["a", "<a>", "b"]
    assert ask(store(file), "c") == ["a", "<a>", "b", "<b>", "c"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_who_answered_when_and_where_is_kept(file):
    store(file).record("talk", "a", "b", tier="hpc", model="big", cell=Cell("c1", "e1"))
    (turn,) = Conversations(Database(file)).turns("talk")
    assert (turn.tier, turn.model, turn.at, turn.cell) == ("hpc", "big", 1.0, Cell("c1", "e1"))
    assert turn.messages == ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


def test_who_answered_the_last_stored_turn_is_told(file):
    book = store(file)
    assert book.last_tier("talk") == ""
    for cell, tier in (("c1", "cloud"), ("c2", "hpc"), ("c1", "local")):
        ask(book, "a", tier=tier, cell=Cell(cell, tier))
    ask(book, "b", tier="cloud", store=False)
    assert book.last_tier("talk") == "hpc"


def test_a_turn_keeps_its_floor_and_with_it_every_later_one(file):
    book = store(file)
    ask(book, "a", cell=Cell("c1", "x"))
    ask(book, "b", stay="institution", cell=Cell("c2", "x"))
    ask(book, "c", stay="local", cell=Cell("c3", "x"))
    again = store(file)
    assert [turn.stay for turn in again.turns("talk")] == ["anywhere", "institution", "local"]
    assert again.asked("talk", "d").stay == "local"
    assert again.asked("talk", "C", cell=Cell("c3", "y")).stay == "institution"  # the turn before it
    assert again.asked("talk", "B", cell=Cell("c2", "y")).stay == "anywhere"
    ask(again, "C", cell=Cell("c3", "y"))  # asked anew without it
    ask(again, "B", cell=Cell("c2", "y"))
    assert store(file).asked("talk", "d").stay == "anywhere"


def test_a_floor_holds_for_what_is_not_stored_too(file):
    book = store(file)
    ask(book, "a", stay="local", store=False)
    assert book.asked("talk", "b").stay == "local"


def test_a_file_of_the_first_version_is_taken_over(file):
    ask(store(file), "a")
    with sqlite3.connect(file) as connection:
        connection.execute("ALTER TABLE turns DROP COLUMN stay")
        connection.execute("PRAGMA user_version = 1")
    assert [(turn.stay, len(turn.messages)) for turn in store(file).turns("talk")] == [("anywhere", 2)]
    assert ask(store(file), "b", stay="local") == ["a", "<a>", "b"]
    assert store(file).asked("talk", "c").stay == "local"


def test_a_floor_that_nobody_knows_is_the_nearest(file):
    ask(store(file), "a")
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE turns SET stay = 'moon'")
    assert store(file).asked("talk", "b").stay == "local"


def test_the_last_system_message_that_was_given_counts_and_stands_first(file):
    book = store(file)
    ask(book, "a", system="one")
    assert ask(book, "b") == ["one", "a", "<a>", "b"]
    assert ask(book, "c", system="two") == ["two", "a", "<a>", "b", "<b>", "c"]


def test_a_cell_that_is_run_again_replaces_its_turn_in_its_place(file):
    book = store(file)
    for number, question in enumerate("abc"):
        ask(book, question, cell=Cell(f"cell{number}", "first"))
    assert ask(book, "B", cell=Cell("cell1", "second")) == ["a", "<a>", "B"]
    assert said(book) == ["a", "<a>", "B", "<B>", "c", "<c>"]
    assert ask(book, "d", cell=Cell("cell3", "x"))[:4] == ["a", "<a>", "B", "<B>"]


def test_a_cell_that_asks_twice_replaces_both_when_it_is_run_again(file):
    book = store(file)
    for question in "ab":
        ask(book, question, cell=Cell("one", "1"))
    ask(book, "z", cell=Cell("two", "1"))
    assert ask(book, "A", cell=Cell("one", "2")) == ["A"]
    assert said(book) == ["A", "<A>", "z", "<z>"]
    assert ask(book, "B", cell=Cell("one", "2")) == ["A", "<A>", "B"]
    assert said(book) == ["A", "<A>", "B", "<B>", "z", "<z>"]


def test_without_a_cell_a_turn_goes_to_the_end(file):
    book = store(file)
    ask(book, "a")
    ask(book, "a")
    assert said(book) == ["a", "<a>", "a", "<a>"]


def test_what_is_not_stored_is_asked_with_and_never_on_the_disk(file):
    book = store(file)
    ask(book, "open")
    ask(book, "secret-word", store=False)
    assert ask(book, "after") == ["open", "<open>", "secret-word", "<secret-word>", "after"]
    assert not book.asked("talk", "x").stored
    assert said(store(file)) == ["open", "<open>", "after", "<after>"]
    assert all(b"secret-word" not in each.read_bytes() for each in file.parent.iterdir())
    (row,) = book.overview()
    assert (row.turns, row.unstored) == (3, 1)


def test_a_stored_cell_that_is_run_again_unstored_leaves_the_disk(file):
    book = store(file)
    ask(book, "open", cell=Cell("one", "1"))
    ask(book, "hidden", cell=Cell("one", "2"), store=False)
    assert said(book) == ["hidden", "<hidden>"]
    assert said(store(file)) == []


def test_undo_takes_the_last_turn(file):
    book = store(file)
    ask(book, "a")
    ask(book, "b", store=False)
    assert book.undo("talk").messages[0]["content"] == "b"
    assert book.undo("talk").messages[0]["content"] == "a"
    with pytest.raises(CommandError, match="no conversation is called 'talk'"):
        book.undo("talk")


def test_what_is_forgotten_is_nowhere_in_the_folder(file):
    book = store(file)
    ask(book, "unforgettable-word " * 300)
    ask(book, "other", name="kept")
    assert any(b"unforgettable-word" in each.read_bytes() for each in file.parent.iterdir())
    assert book.forget("talk") == 1
    assert all(b"unforgettable-word" not in each.read_bytes() for each in file.parent.iterdir())
    assert said(book, "kept") == ["other", "<other>"]


def test_what_was_made_of_a_conversation_can_be_forgotten_when_its_turns_are_gone(file):
    book = store(file)
    with book.database.transaction() as work:
        work.execute("INSERT INTO summaries VALUES ('talk', 'local', 'h', 2, 1.0, 'small', 'unforgettable-word')")
    assert book.forget("talk") == 0
    assert all(b"unforgettable-word" not in each.read_bytes() for each in file.parent.iterdir())
    with pytest.raises(CommandError, match="no conversation is called 'talk'"):
        book.forget("talk")


@pytest.mark.parametrize("name", ["", " a", "a ", "__x", "_", "a\nb", "-x", "a/b", "a\x1b[0m", "x" * 101, None, 3])
def test_a_name_that_could_mislead_is_refused(file, name):
    with pytest.raises(CommandError, match="no name of a conversation") as caught:
        store(file).asked(name, "hi")
    assert caught.value.code == "AF770"
    assert "\x1b" not in str(caught.value)


def test_a_damaged_file_is_moved_aside_and_said_so_once(file, caplog):
    ask(store(file), "a")
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    book = store(file)
    ask(book, "b")
    assert said(book) == ["b", "<b>"]
    kept = next(each for each in file.parent.iterdir() if "damaged" in each.name)
    (record,) = caplog.records
    assert kept.name in record.getMessage()
    assert kept.read_bytes()[:100] == whole[:100]


def test_a_file_that_breaks_while_it_is_used_is_a_coded_error_and_then_moved_aside(file, caplog):
    book = store(file)
    for number in range(50):
        book.record("talk", f"{number}" * 500, "x" * 2_000)
    book.database.clear_log()
    with file.open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\xff" * (file.stat().st_size - 4096))
    with pytest.raises(ConfigError) as caught:
        book.turns("talk")
    assert caught.value.code == "AF761"
    assert book.turns("talk") == []
    assert "is kept as" in caplog.text


def test_a_locked_file_is_a_coded_error_and_changes_nothing(file, monkeypatch):
    from aiflow_jupyter.tiers import database as databases

    monkeypatch.setattr(databases, "BUSY_S", 0.05)
    book = store(file)
    ask(book, "a", store=False)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for kept in (True, False):
        with pytest.raises(ConfigError, match="stayed locked"):
            book.record("talk", "b", "c", store=kept)
    other.execute("ROLLBACK")
    assert said(book) == ["a", "<a>"]


def _talks(file, mark, barrier):
    book = Conversations(Database(file))
    barrier.wait(30)
    for number in range(25):
        book.record("talk", f"{mark}{number}", "x", cell=Cell(f"{mark}{number}", "1"))


def test_two_processes_lose_nothing_of_each_other(file):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    run_at_once([context.Process(target=_talks, args=(file, mark, barrier)) for mark in "ab"])
    asked = [turn.messages[0]["content"] for turn in store(file).turns("talk")]
    assert len(asked) == 50
    for mark in "ab":
        assert [each for each in asked if each[0] == mark] == [f"{mark}{number}" for number in range(25)]


asks = st.tuples(st.sampled_from(["", "A", "B", "C"]), st.booleans())


@given(st.lists(asks, max_size=12))
@settings(deadline=None, max_examples=25)
def test_whatever_is_run_in_whatever_order_each_cell_has_its_last_turn_in_its_first_place(tmp_path_factory, runs):
    book = store(tmp_path_factory.mktemp("store") / "aiflow.db")
    expected = []
    for number, (cell, kept) in enumerate(runs):
        before = [question for _, question in expected]
        old = next((place for place, (own, _) in enumerate(expected) if cell and own == cell), None)
        seen = ask(book, str(number), cell=Cell(cell, str(number)) if cell else Cell(), store=kept)
        assert seen[::2] == [*(before if old is None else before[:old]), str(number)]
        if old is None:
            expected.append((cell, str(number)))
        else:
            expected[old] = cell, str(number)
    assert said(book)[::2] == [question for _, question in expected]
