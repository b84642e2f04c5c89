"""`aiflow ask -c` and `aiflow conversation`, with a router that says what it was asked with."""

from __future__ import annotations

from typing import ClassVar

import pytest
from click.testing import CliRunner

from aiflow_jupyter.cli import main
from aiflow_jupyter.errors import ConfigError, StreamCut
from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.tiers import configured
from aiflow_jupyter.tiers.conversation.printing import view
from aiflow_jupyter.tiers.conversation.store import Conversations
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.terms import Fitted, Misfit

META = {"phase": "answer", "tier": "local", "model": "small"}


class Counting:
    requests: ClassVar = []
    cut = False

    async def stream(self, request):
        Counting.requests.append(request)
        yield Event("token", f"asked with {len(request.messages)}", meta=META)
        if Counting.cut:
            raise StreamCut("it broke off")
        yield Event("finish", Finish("stop"), meta=META)

    async def view(self, messages, tier, conversation):
        return Misfit(9, f"{len(messages)} messages of {conversation} are too long for {tier}")

    async def aclose(self):
        pass


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path):
    Counting.requests, Counting.cut = [], False
    monkeypatch.setattr(configured, "ConfiguredRouter", Counting)
    monkeypatch.setenv("AIFLOW_DATABASE", str(tmp_path / "own" / "aiflow.db"))
    return tmp_path / "own" / "aiflow.db"


def aiflow(*arguments):
    return CliRunner().invoke(main, arguments)


def test_a_question_is_a_turn_of_what_is_kept():
    assert "asked with 1" in aiflow("ask", "-c", "talk", "Hi").stdout
    assert "asked with 4" in aiflow("ask", "-c", "talk", "--system", "Be brief", "And?").stdout
    assert [request.conversation for request in Counting.requests] == ["talk", "talk"]
    whole = aiflow("conversation", "talk").stdout
    assert "user: Hi\nassistant: asked with 1" in whole
    assert "local small" in whole


def test_no_store_asks_with_the_conversation_and_keeps_nothing(file):
    aiflow("ask", "-c", "talk", "Hi")
    assert "asked with 3" in aiflow("ask", "-c", "talk", "--no-store", "hush-hush").stdout
    assert Counting.requests[-1].conversation == ""
    assert len(Conversations(Database(file)).turns("talk")) == 1
    assert all(b"hush-hush" not in each.read_bytes() for each in file.parent.iterdir())


def test_an_answer_that_broke_off_is_no_turn(file):
    Counting.cut = True
    assert aiflow("ask", "-c", "talk", "Hi").exit_code == 1
    assert Conversations(Database(file)).turns("talk") == []


def test_a_turn_that_can_not_be_kept_leaves_its_answer(monkeypatch):
    def broken(*_args, **_more):
        raise ConfigError("stayed locked", code="AF761")

    monkeypatch.setattr(Conversations, "record", broken)
    done = aiflow("ask", "-c", "talk", "Hi")
    assert (done.exit_code, done.stdout) == (1, "asked with 1\n")
    assert "AF761: the answer came, but this turn of 'talk' could not be kept: stayed locked" in done.stderr


def test_a_question_without_a_name_touches_no_file(file):
    assert aiflow("ask", "Hi").exit_code == 0
    assert not file.exists()


def test_what_is_done_with_a_conversation_is_said(tmp_path):
    aiflow("ask", "-c", "talk", "Hi")
    assert "talk  1 turn, " in aiflow("conversation").stdout
    assert "can't be made to fit: 2 messages of talk" in aiflow("conversation", "talk", "--view", "hpc").stdout
    path = str(tmp_path / "talk.jsonl")
    assert "talk: 1 turn written to" in aiflow("conversation", "export", "talk", path).stdout
    assert "other: 1 turn read from" in aiflow("conversation", "import", "other", path).stdout
    assert "0 left" in aiflow("conversation", "undo", "talk").stdout
    assert "other: 1 turn forgotten" in aiflow("conversation", "forget", "other").stdout


def test_a_time_beyond_every_calendar_is_an_unknown_one(file):
    Conversations(Database(file), clock=lambda: 1e300).record("talk", "Hi", "Ho")
    for words in ((), ("talk",)):
        assert "an unknown time" in aiflow("conversation", *words).stdout


def test_what_folding_put_in_is_told_from_what_was_said():
    said = tuple({"role": role, "content": role} for role in ("user", "assistant", "user"))
    fitted = Fitted(said, 9, 1, "why")
    assert view(fitted).split("\n\n") == [
        "user (put in by folding): user",
        "assistant (put in by folding): assistant",
        "user: user",
        "(1 older message folded; about 9 tokens; why)",
    ]
    assert "put in" not in view(Fitted(said, 9))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("talk",), "AF770"),
        (("a/b",), "AF770"),
        (("undo",), "AF801"),
        (("talk", "--diff"), "AF801"),
        (("import", "talk", "/no/such/file"), "AF772"),
    ],
)
def test_a_mistake_is_one_coded_message(arguments, code):
    done = aiflow("conversation", *arguments)
    assert (done.exit_code, code in done.stderr) == (1, True)
