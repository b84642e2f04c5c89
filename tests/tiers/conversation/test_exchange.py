"""A conversation in a file: what is written is read back, and whatever else is refused with its line."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.tiers.conversation import exchange
from aiflow_jupyter.tiers.conversation.exchange import export_to, import_from
from aiflow_jupyter.tiers.conversation.store import Conversations
from aiflow_jupyter.tiers.conversation.turns import Cell, Turn, chat
from aiflow_jupyter.tiers.database import Database

HEAD = {"aiflow": "conversation", "version": 1, "name": "x", "turns": 1}
LINE = {"at": 1.0, "messages": [{"role": "user", "content": "hi"}]}


def written(tmp_path, *lines):
    path = tmp_path / "talk.jsonl"
    path.write_bytes(
        b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in lines)
    )
    return path


def test_what_is_exported_comes_back_in_another_file(tmp_path):
    book = Conversations(Database(tmp_path / "a" / "aiflow.db"))
    book.record("talk", "Grüße \ud83d", "  \n\x1b[31m", system="brief", tier="hpc", model="big", cell=Cell("c", "e"))
    book.record("talk", "b", "c", store=False)
    path = tmp_path / "talk.jsonl"
    export_to(path, "talk", book.turns("talk"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = Conversations(Database(tmp_path / "b" / "aiflow.db"))
    other.add("again", import_from(path))
    assert chat(other.turns("again")) == chat(book.turns("talk"))
    first, _ = other.turns("again")
    assert (first.tier, first.model, first.cell.id, first.at) == ("hpc", "big", "c", book.turns("talk")[0].at)
    with pytest.raises(CommandError, match="already") as caught:
        other.add("again", import_from(path))
    assert caught.value.code == "AF773"


def test_an_imported_cell_goes_on_where_it_was(tmp_path):
    book = Conversations(Database(tmp_path / "a" / "aiflow.db"))
    book.add("talk", import_from(written(tmp_path, HEAD, {**LINE, "cell": "c"})))
    book.record("talk", "new", "answer", cell=Cell("c", "now"))
    assert [message["content"] for message in chat(book.turns("talk"))] == ["new", "answer"]


def test_a_file_that_is_larger_than_it_says_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "MOST_BYTES", 100)
    with pytest.raises(CommandError, match="larger than 100 bytes"):
        import_from(written(tmp_path, HEAD, LINE))


def test_a_file_that_is_there_is_never_written_over(tmp_path):
    path = written(tmp_path, HEAD, LINE)
    with pytest.raises(CommandError, match="already") as caught:
        export_to(path, "x", [])
    assert caught.value.code == "AF772"
    assert len(import_from(path)) == 1


def called(**more):
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}", **more}}


def message(**more):
    return {**LINE, "messages": [{"role": "user", "content": "hi", **more}]}


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ((), "is empty"),
        (({**HEAD, "turns": 0},), "line 1: turns"),
        ((HEAD,), "line 1: it says that it has 1 turn, and it has 0"),
        ((HEAD, LINE, LINE), "line 1: it says"),
        (({**HEAD, "version": 2}, LINE), "line 1: version"),
        (({**HEAD, "code": "x"}, LINE), "line 1: code: extra inputs"),
        ((LINE, LINE), "line 1: aiflow"),
        ((HEAD, b"{"), "line 2: it is no JSON"),
        ((HEAD, b"\xff\xfe"), "line 2: it is no text"),
        ((HEAD, b"[" * 200_000), "line 2: it is nested too deeply"),
        ((HEAD, b'{"at": NaN, "messages": []}'), "line 2: nan is no number"),
        ((HEAD, b'{"at": 1e999, "messages": []}'), "line 2: 1e999 is no number"),
        ((HEAD, b'{"at": 1, "at": 2, "messages": []}'), "line 2: a field stands there twice"),
        ((HEAD, b""), "line 2: it is no JSON"),
        ((HEAD, 3), "line 2: the line"),
        ((HEAD, {**LINE, "messages": []}), "line 2: messages"),
        ((HEAD, {**LINE, "at": "1"}), "line 2: at"),
        ((HEAD, {**LINE, "at": -1}), "line 2: at"),
        ((HEAD, {**LINE, "at": 1e300}), "line 2: at"),
        ((HEAD, {**LINE, "at": 10**18}), "line 2: at"),
        ((HEAD, b'{"at": ' + b"9" * 5_000 + b', "messages": []}'), "line 2: a number has 5,000 digits"),
        ((HEAD, b'{"at": ' + b"9" * 5_000 + b'.0, "messages": []}'), "line 2: 99999999999999999999 is no number"),
        ((HEAD, {**LINE, "model": "m" * 201}), "line 2: model"),
        ((HEAD, message(role="developer")), "line 2: messages.0.role"),
        ((HEAD, message(content=None)), "line 2: messages.0.content"),
        ((HEAD, message(tool_calls=["f"])), "line 2: messages.0.tool_calls.0"),
        ((HEAD, message(run="rm")), "line 2: messages.0.run"),
        ((HEAD, message(tool_calls=[])), "line 2: messages.0.tool_calls"),
        ((HEAD, message(tool_calls=[{"x": 1}])), "line 2: messages.0.tool_calls.0.function"),
        ((HEAD, message(tool_calls=[called(name=3)])), "line 2: messages.0.tool_calls.0.function.name"),
        ((HEAD, message(tool_calls=[called(name="")])), "line 2: messages.0.tool_calls.0.function.name"),
        ((HEAD, message(tool_calls=[called(arguments={})])), "line 2: messages.0.tool_calls.0.function.arguments"),
        ((HEAD, message(tool_calls=[called(arguments="[" * 9_000)])), "the arguments of a call are a JSON object"),
        ((HEAD, message(tool_calls=[{**called(), "type": "code"}])), "line 2: messages.0.tool_calls.0.type"),
    ],
)
def test_whatever_else_is_refused_with_its_line(tmp_path, lines, where):
    with pytest.raises(CommandError) as caught:
        import_from(written(tmp_path, *lines))
    assert caught.value.code == "AF771"
    assert where in caught.value.message.lower().replace("json", "JSON")


def test_a_file_that_is_none_is_a_coded_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "no", tmp_path / "pipe", Path("/dev/zero"), Path("/dev/stdin")):
        with pytest.raises(CommandError) as caught:
            import_from(path)
        assert caught.value.code == "AF772"


contents = st.text(st.characters(), max_size=20)
messages = st.builds(
    lambda role, content, calls: {"role": role, "content": content, **({"tool_calls": calls} if calls else {})},
    st.sampled_from(["user", "assistant", "system"]),
    contents,
    st.lists(
        st.builds(
            lambda name, said: called(name=name, arguments=json.dumps(said)),
            st.text(min_size=1, max_size=20),
            st.dictionaries(contents, st.integers() | contents, max_size=2),
        ),
        max_size=2,
    ),
)
labels = st.text(max_size=20)  # of whole characters: the store holds no others
turns = st.builds(
    Turn,
    st.lists(messages, min_size=1, max_size=4).map(tuple),
    labels,
    labels,
    st.floats(0, 2e11),
    st.builds(Cell, labels),
)


@given(st.lists(turns, min_size=1, max_size=5), labels)
@settings(deadline=None, max_examples=100)
def test_any_conversation_comes_back(tmp_path_factory, said, name):
    path = tmp_path_factory.mktemp("exchange") / "talk.jsonl"
    export_to(path, name, said)
    assert [(each.messages, each.tier, each.model, each.at, each.cell.id) for each in import_from(path)] == [
        (each.messages, each.tier, each.model, each.at, each.cell.id) for each in said
    ]
