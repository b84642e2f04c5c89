"""What `aiflow ask` says of a wait: in a log a line now and then, on a terminal one that is written over."""

from __future__ import annotations

import sys

import pytest

from aiflow_jupyter.cli import _Shown


def test_a_log_has_a_line_for_each_new_thing_and_one_more_every_half_minute(capsys):
    now = 0
    shown = _Shown(lambda: now)
    for now in range(75):
        shown.wait(f"submitted {now} s ago")
    shown.wait("worker up")
    shown.wait("")
    said = capsys.readouterr().err.splitlines()
    assert said == ["submitted 0 s ago ...", "submitted 30 s ago ...", "submitted 60 s ago ...", "worker up ..."]


@pytest.mark.parametrize(("columns", "back"), [(80, "\r\x1b[J"), (20, "\x1b[2A\r\x1b[J")])
def test_a_terminal_has_one_line_which_may_take_several_rows(capsys, monkeypatch, columns, back):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = _Shown()
    words = "nothing answers at 127.0.0.1:9, 2 s of 1200 s"
    shown.wait(words)
    shown.wait(words)
    shown.text("Hello")
    assert capsys.readouterr().err == f"\r\x1b[J{words} ...{back}"
