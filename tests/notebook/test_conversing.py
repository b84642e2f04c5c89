"""`-c NAME`: a question is a turn, in a cell and in Python, and only a whole answer is kept."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Timer
from types import SimpleNamespace

import pytest

import aiflow_jupyter
from aiflow_jupyter.errors import CommandError, ConfigError, ProviderError
from aiflow_jupyter.notebook import conversing
from aiflow_jupyter.notebook.conversing import running_cell
from aiflow_jupyter.tiers.conversation.turns import Cell
from aiflow_jupyter.tiers.terms import Fitted


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path):
    monkeypatch.setenv("AIFLOW_DATABASE", str(tmp_path / "own" / "aiflow.db"))
    return tmp_path / "own" / "aiflow.db"


def contents(request):
    return [message["content"] for message in request.messages]


def test_a_question_is_asked_with_the_turns_before_it(shell, provider):
    assert shell.ran("%%aiflow -c talk --system 'Be brief'\nHi").success
    assert shell.ran("%%aiflow --conversation talk\nAnd?").success
    assert contents(provider.requests[1]) == ["Be brief", "Hi", "Hello world", "And?"]
    assert [request.conversation for request in provider.requests] == ["talk", "talk"]


def test_without_a_name_nothing_is_kept(shell, provider, file):
    shell.ran("%%aiflow\nHi")
    shell.ran("%%aiflow\nHi")
    assert contents(provider.requests[1]) == ["Hi"]
    assert provider.requests[1].conversation == ""
    assert not file.exists()


def test_python_asks_in_the_same_conversation(shell, provider):
    shell.ran("%%aiflow -c talk\nHi")
    assert aiflow_jupyter.ask("And?", conversation="talk").text == "Hello world"
    assert contents(provider.requests[1]) == ["Hi", "Hello world", "And?"]
    assert len(shell.ran("import aiflow_jupyter; aiflow_jupyter.ask('x', conversation='talk')").result.text) > 0
    assert len(contents(provider.requests[2])) == 5


def test_no_store_stays_in_this_kernel_and_names_nothing_to_the_router(shell, provider, file):
    shell.ran("%%aiflow -c talk --no-store\nhush-hush")
    shell.ran("%%aiflow -c talk\nAnd?")
    assert contents(provider.requests[1]) == ["hush-hush", "Hello world", "And?"]
    assert [request.conversation for request in provider.requests] == ["", ""]
    assert all(b"hush-hush" not in each.read_bytes() for each in file.parent.iterdir())


def test_a_floor_holds_for_every_later_turn_and_is_told(shell, provider, capsys):
    shell.ran("%%aiflow -c talk --stay local\nmy secret")
    assert "--stay" not in capsys.readouterr().out
    shell.ran("%%aiflow -c talk\nAnd?")
    assert "asked with --stay local, as an earlier turn" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="--stay local"):
        aiflow_jupyter.ask("Now?", conversation="talk", stay="institution")
    assert [request.stay for request in provider.requests] == ["local", "local", "local"]


def test_a_question_that_failed_is_no_turn(shell, provider, the_host):
    provider.pieces = ["Hel", ProviderError("down")]
    assert isinstance(shell.ran("%%aiflow -c talk\nHi").error_in_exec, ProviderError)
    assert the_host.conversations.turns("talk") == []


def test_reasoning_is_not_kept(shell, provider, the_host):
    provider.pieces = [("reasoning", "hmm"), "Yes"]
    shell.ran("%%aiflow -c talk\nHi")
    (turn,) = the_host.conversations.turns("talk")
    assert turn.messages[-1]["content"] == "Yes"
    assert (turn.tier, turn.model) == ("auto", "scripted")


def test_in_the_background_the_turn_is_kept_when_the_answer_is_whole(shell, the_host):
    run = shell.ran("%%aiflow -b -c talk\nHi").result
    run.result(20)
    assert len(the_host.conversations.turns("talk")) == 1


def test_a_turn_that_can_not_be_kept_is_an_error_that_leaves_the_answer(shell, provider, the_host, monkeypatch):
    def broken(*_args, **_more):
        raise ConfigError("stayed locked", code="AF761")

    monkeypatch.setattr(the_host.conversations, "record", broken)
    error = shell.ran("%%aiflow -c talk -o answer\nHi").error_in_exec
    assert (error.code, "the answer came, but" in str(error)) == ("AF761", True)
    assert shell.user_ns["answer"].text == "Hello world"


def test_a_name_that_can_be_none_asks_nobody(shell, provider):
    assert isinstance(shell.ran("%%aiflow -c a/b\nHi").error_in_exec, CommandError)
    assert provider.requests == []


def test_the_cell_is_the_one_that_the_front_end_names():
    parent = {"header": {"msg_id": "m"}, "metadata": {"cellId": "c", "deletedCells": []}}
    kernel = SimpleNamespace(kernel=object(), get_parent=lambda: parent)
    assert running_cell(kernel) == Cell("c", "m")
    parent["metadata"] = {}
    assert running_cell(kernel) == Cell()
    assert running_cell(SimpleNamespace()) == Cell()


# -- %aiflow conversation


@pytest.fixture
def said(shell, capsys):
    """Runs a line and gives what it printed, or its error."""

    def run(line):
        capsys.readouterr()
        ran = shell.ran(line)
        return capsys.readouterr().out if ran.success else ran.error_in_exec

    return run


def test_the_list_the_whole_undo_and_forget(shell, provider, said):
    assert "no conversation is kept yet" in said("%aiflow conversation")
    shell.ran("%%aiflow -c talk\nHi")
    shell.ran("%%aiflow -c talk --no-store\nhush")
    assert "talk  2 turns" in (listed := said("%aiflow conversation"))
    assert "1 of them in this process only" in listed
    whole = said("%aiflow conversation talk")
    assert whole.index("user: Hi\nassistant: Hello world") < whole.index("not stored\nuser: hush")
    assert "the last turn is gone (hush); 1 left" in said("%aiflow conversation undo talk")
    assert "1 turn forgotten" in said("%aiflow conversation forget talk")
    assert said("%aiflow conversation talk").code == "AF770"


def test_a_conversation_goes_out_to_a_file_and_in_again(shell, said, tmp_path):
    shell.ran("%%aiflow -c talk\nHi")
    assert "1 turn written" in said(f"%aiflow conversation export talk '{tmp_path}/a b.jsonl'")
    assert "1 turn read" in said(f"%aiflow conversation import again '{tmp_path}/a b.jsonl'")
    assert "user: Hi" in said("%aiflow conversation again")


@pytest.mark.parametrize(
    "line",
    [
        "undo",
        "export talk",
        "talk more",
        "import talk a b",
        "talk --diff",
        "--view cloud",
        "undo talk --view cloud",
        "talk --view auto",
        "--nope",
    ],
)
def test_a_line_that_can_not_be_understood_is_one_message(said, line):
    assert said(f"%aiflow conversation {line}").code == "AF801"


def test_what_a_tier_is_sent_and_what_that_changes(shell, provider, said, the_host):
    asked = []

    async def view(messages, tier, conversation):
        asked.append((len(messages), tier, conversation))
        summary = ({"role": "user", "content": "[Earlier] gist"}, {"role": "assistant", "content": "ok"})
        return Fitted((*summary, *messages[2:]), 12, folded=2, note="by its own sentences")

    for number in range(2):
        shell.ran(f"%%aiflow -c talk\nquestion {number}")
    provider.view = view
    seen = said("%aiflow conversation talk --view local")
    assert "user (put in by folding): [Earlier] gist\n\nassistant (put in by folding): ok\n\nuser: question 1" in seen
    assert "(2 older messages folded; about 12 tokens; by its own sentences)" in seen
    diff = said("%aiflow conversation talk --view cloud --diff")
    assert "- user: question 0\n- assistant: Hello world\n+ user: [Earlier] gist\n+ assistant: ok\n  2 more" in diff
    shell.ran("%%aiflow -c talk --no-store\nhush")
    said("%aiflow conversation talk --view local")
    assert asked == [(4, "local", "talk"), (4, "cloud", "talk"), (6, "local", "")]


def test_what_a_tier_is_never_sent_is_said(shell, provider, said, the_host):
    async def view(messages, tier, conversation):
        return Fitted(tuple(messages), 12)

    shell.ran("%%aiflow -c talk --stay local\nhush")
    provider.view = view
    told = "cloud is never sent this, as it was asked with --stay local"
    assert told in said("%aiflow conversation talk --view cloud")
    assert "never" not in said("%aiflow conversation talk --view local")


class Late(Future):
    """Ends when whoever waits for it has just given up; else soon."""

    def __init__(self):
        super().__init__()
        Timer(0.3, self._end).start()

    def result(self, timeout=None):
        try:
            return super().result(timeout)
        except TimeoutError:
            self._end()
            raise

    def _end(self):
        if not self.done():
            self.set_result(Fitted((), 12))


def test_what_ends_just_when_it_is_looked_at_is_there(shell, provider, said, the_host, monkeypatch):
    provider.view = lambda *_: None
    shell.ran("%%aiflow -c talk\nHi")
    monkeypatch.setattr(the_host, "submit", lambda _: Late())
    assert "about 12 tokens" in said("%aiflow conversation talk --view local")


def test_what_a_model_said_acts_neither_in_a_front_end_nor_in_a_terminal(shell, provider, said, the_host):
    provider.pieces = ["<img src=x onerror=alert(1)> [a](javascript:alert(1)) \x1b[31mred"]
    shell.ran("%%aiflow -c talk\n<script>alert(1)</script>")
    assert "\x1b" not in said("%aiflow conversation talk")
    shown = conversing._markdown(the_host.conversations.turns("talk"))
    assert "<img" not in shown
    assert "<script" not in shown
    assert "](javascript" not in shown
