"""Answers as they stream, and live pictures, against a display that keeps what it is sent."""

from __future__ import annotations

import asyncio
import io
import re
import time
from itertools import pairwise

import pytest

from aiflow_jupyter.errors import CommandError, ProviderError, RunError
from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.notebook import answer as answers
from aiflow_jupyter.notebook.answer import AnswerView, Reply, question
from aiflow_jupyter.notebook.outputs import DisplayOutput, TerminalOutput
from aiflow_jupyter.runtime.metrics import Answer

WAIT = 20.0


def token(text, phase="answer"):
    return Event("token", text, meta={"phase": phase})


def ask(host, view, **arguments):
    """Ask with the view beside it; the handle when it is over."""
    handle = host.start(question(tier="local", **arguments), "Hi", show=view.feed, beside=view.follow)
    assert handle.wait(WAIT)
    return handle


def test_the_first_piece_is_shown_before_the_answer_is_complete(the_host, provider, published):
    provider.pieces = ["Hello", None]
    view = AnswerView(DisplayOutput(published))
    handle = the_host.start(question(), "Hi", show=view.feed, beside=view.follow)
    while not published.kept:
        assert not handle.wait(0.01)
    assert published.kept[0].data == {"text/markdown": "Hello", "text/plain": "Hello"}
    assert not published.kept[0].update
    handle.cancel()
    last = published.kept[-1]
    assert last.update
    assert last.id == published.kept[0].id
    assert "cancelled · this is a part of the answer" in last.data["text/plain"]


def test_the_last_update_has_the_whole_text_and_the_badge(the_host, provider, published):
    provider.pieces = ["*Hello*", " <b>world"]
    ask(the_host, AnswerView(DisplayOutput(published)))
    last = published.kept[-1].data
    assert last["text/markdown"].startswith("*Hello* &lt;b>world\n\n<small>local &#183; scripted")
    assert last["text/plain"].startswith("*Hello* <b>world\n\n[local · scripted · first token")


def test_a_note_is_shown_as_it_is_and_not_as_markdown(the_host, provider, published):
    provider.pieces = ["Hi", ProviderError("<img src=x> [x](javascript:alert(1)) *b*\nnext")]
    ask(the_host, AnswerView(DisplayOutput(published)))
    note = published.kept[-1].data["text/markdown"].partition("<small>")[2]
    assert not {"<i", "](", "*", "\n"} & {note[i : i + n] for i in range(len(note)) for n in (1, 2)}


NO_RELAY = "the relay r.example could not be reached (connection refused): the answer came in one piece"


def test_an_answer_in_one_piece_says_why_and_has_no_rate(the_host, provider, published):
    facts = {"batch": True, "note": NO_RELAY}
    provider.pieces = [("answer", "Hello", facts), ("answer", " world", facts)]
    handle = ask(the_host, view := AnswerView(DisplayOutput(published)))
    reply = Reply(view.text, view.reasoning, handle.result())
    assert (reply.batch, reply.note) == (True, NO_RELAY)
    assert reply.badge.endswith(" · in one piece")
    assert "tokens/s" not in reply.badge
    last = published.kept[-1].data
    assert last["text/plain"].endswith(f" · in one piece]\n[{NO_RELAY}]\n")
    assert last["text/markdown"].count("<small>") == 2


def test_an_answer_by_tokens_has_no_such_word(the_host, published):
    handle = ask(the_host, view := AnswerView(DisplayOutput(published)))
    reply = Reply(view.text, view.reasoning, handle.result())
    assert (reply.batch, reply.note) == (False, "")
    assert "in one piece" not in reply.badge


def test_an_answer_whose_rest_came_in_one_piece_says_so():
    finish = Event("finish", Finish("stop"), meta={"batch": True, "note": "the relay was lost: the rest came at once"})
    answer = Answer("ask", "0", started=1)
    answer.note(token("Hello"))
    answer.note(finish)
    assert answer.remark == "the relay was lost: the rest came at once"
    assert "in one piece" not in answer.badge()


def test_what_is_waited_for_is_shown_before_and_amid_the_answer_and_not_after_it(the_host, provider, published):
    def report(words):
        return lambda request: request.report(words)

    provider.pieces = [report("submitted 4 s ago"), None]
    view = AnswerView(DisplayOutput(published))
    handle = the_host.start(question(), "Hi", show=view.feed, beside=view.follow)
    shown(published, "submitted 4 s ago")
    handle.cancel()
    assert published.kept[-1].data["text/plain"] == "\n\n[cancelled while waiting: submitted 4 s ago]\n"
    assert "…" not in published.kept[-1].data["text/markdown"]

    provider.pieces = ["Hello", report("the relay is gone, trying again, 6 s"), None]
    view = AnswerView(DisplayOutput(published))
    handle = the_host.start(question(), "Hi", show=view.feed, beside=view.follow)
    shown(published, "Hello\n\n*the relay is gone")
    handle.cancel()
    assert "relay is gone" not in published.kept[-1].data["text/markdown"]


def shown(published, text):
    until = time.monotonic() + WAIT
    while not any(text.replace(",", "&#44;") in item.data["text/markdown"] for item in published.kept):
        assert time.monotonic() < until, published.kept
        time.sleep(0.01)


def test_reasoning_is_quoted_before_the_answer(the_host, provider, published):
    provider.pieces = [("reasoning", "Let me\n"), ("reasoning", "see <b>"), "Done"]
    view = AnswerView(DisplayOutput(published))
    ask(the_host, view)
    assert (view.reasoning, view.text) == ("Let me\nsee <b>", "Done")
    last = published.kept[-1].data
    assert last["text/markdown"].startswith("> *Reasoning*\n>\n> Let me\n> see &lt;b>\n\nDone")
    assert last["text/plain"].startswith("[reasoning] Let me\nsee <b>\n\nDone")


def test_a_terminal_shows_reasoning_and_answer_once(capsys):
    view = AnswerView(TerminalOutput())
    for text, phase in [
        ("Let ", "reasoning"),
        ("me ", "reasoning"),
        ("see", "reasoning"),
        ("A", "answer"),
        ("B", "answer"),
    ]:
        view.feed(token(text, phase))
        view.show()
    assert capsys.readouterr().out == "[reasoning] Let me see\n\nAB"


class Clocked:
    """A run that lasts until the test ends it, and a loop time that the view's pauses move."""

    def __init__(self, monkeypatch):
        self.over = asyncio.Event()
        self.now = 0.0
        self.state = "done"
        self.error = None
        self.answers = []
        wait = asyncio.wait

        async def timed(waited, *, timeout=None, **rest):  # noqa: ASYNC109 - asyncio's own name
            if timeout is None:
                return await wait(waited, **rest)
            self.now += timeout
            await asyncio.sleep(0)
            return await wait(waited, timeout=0, **rest)

        monkeypatch.setattr(answers.asyncio, "wait", timed)

    async def wait(self):
        await self.over.wait()


async def test_a_long_answer_sends_at_most_200_kilobytes_a_second(monkeypatch):
    run, sent = Clocked(monkeypatch), []

    class Counted:
        def show(self, bundle):
            sent.append((run.now, sum(len(value.encode()) for value in bundle.values())))

    view = AnswerView(Counted())
    following = asyncio.ensure_future(view.follow(run))
    while run.now < 60:
        view.feed(token("wörd " * 40))
        await asyncio.sleep(0)
    run.over.set()
    await following
    assert sent[0][0] == 0.0
    for start in range(59):
        within = [size for at, size in sent if start <= at < start + 1]
        largest = max(size for _, size in sent if _ < start + 1)
        assert sum(within) <= 200_000 + largest
    pauses = [after - before for (before, _), (after, _) in pairwise(sent[:-1])]
    assert min(pauses) >= answers.SHORTEST_PAUSE_S - 1e-9
    assert sent[-1][1] == max(size for _, size in sent)


def test_a_display_that_raises_takes_nothing_from_the_result(the_host, caplog):
    class Broken:
        def show(self, bundle):
            raise OSError("no display")

    view = AnswerView(Broken())
    handle = ask(the_host, view)
    assert handle.result().status.state == "done"
    assert view.text == "Hello world"
    assert "no display" in caplog.text


def test_a_view_that_ends_early_leaves_the_run_alone(the_host):
    async def beside(run):
        del run

    handle = the_host.start(question(), "Hi", beside=beside)
    assert handle.wait(WAIT)
    assert handle.result().status.state == "done"


def test_a_provider_that_can_not_be_made_is_an_error_and_no_hang():
    from aiflow_kernel.host import Host

    def make():
        raise RuntimeError("no configuration")

    host = Host(make)
    with pytest.raises(RuntimeError, match="no configuration"):
        host.start(question(), "Hi")


def test_ask_in_python_gives_the_reply_and_raises_the_providers_error(the_host, provider):
    import aiflow_jupyter

    reply = aiflow_jupyter.ask("Hi", tier="local", system="s", max_tokens=3)
    assert (str(reply), reply.tier) == ("Hello world", "local")
    assert provider.requests[0].max_tokens == 3
    assert reply._repr_markdown_() == "Hello world"
    assert "local · scripted" in repr(reply)
    provider.pieces = [ProviderError("down")]
    with pytest.raises(ProviderError, match="down"):
        aiflow_jupyter.ask("Hi")


def test_run_in_python_gives_the_result(the_host):
    import aiflow_jupyter as af

    flow = af.Flow("flow")
    asked, heard = flow.add("ask", af.generate()), flow.add("heard", af.sink(var="heard"))
    asked >> heard
    assert af.run(flow, "Hi")["heard"] == "Hello world"


def test_stopping_the_host_ends_its_runs_and_lets_their_waiters_go(the_host, provider):
    provider.pieces = ["Hello", None]
    view = AnswerView(None)
    handle = the_host.start(question(), "Hi", show=view.feed, beside=view.follow)
    the_host.stop()
    assert handle.done()
    assert (provider.open, provider.closed) == (0, 1)
    assert not the_host.running


def test_a_host_that_was_stopped_starts_again(the_host):
    ask(the_host, AnswerView(None))
    the_host.stop()
    assert ask(the_host, AnswerView(None)).result().status.state == "done"


def test_a_blocked_loop_is_told_by_the_name_of_its_node_and_starts_nothing_later(the_host, provider, monkeypatch):
    import threading

    from aiflow_kernel import life

    from aiflow_jupyter.graph.forms.language import parse
    from aiflow_jupyter.operators import SIGNATURES

    inside, let_go = threading.Event(), threading.Event()

    async def blocks(text):
        inside.set()
        let_go.wait(WAIT)
        return text

    monkeypatch.setattr(life, "LAUNCH_TIMEOUT_S", 0.2)
    spec = parse("bad = map(blocks)\nout = sink(var='out')\nbad -> out", "g", SIGNATURES).spec
    holding = the_host.start(spec, "x", functions={"blocks": blocks})
    assert inside.wait(WAIT)
    with pytest.raises(RunError, match="code of node 'bad' holds the event loop"):
        the_host.start(question(), "Hi")
    let_go.set()
    assert holding.wait(WAIT)
    ask(the_host, AnswerView(None))
    assert len(provider.requests) == 1


def test_a_host_that_is_used_again_while_it_stops_keeps_what_is_new(the_host, provider):
    first = the_host.life
    the_host.stop()
    ask(the_host, AnswerView(None))
    assert the_host.life is not first
    first.stop()
    ask(the_host, AnswerView(None))
    assert not first.alive


def test_code_on_the_loop_that_asks_is_told_that_it_can_t_wait(the_host):
    from aiflow_jupyter.graph.forms.language import parse
    from aiflow_jupyter.operators import SIGNATURES

    async def asks(text):
        the_host.start(question(), text)

    spec = parse("n = map(asks)\nout = sink(var='out')\nn -> out", "g", SIGNATURES).spec
    with pytest.raises(RunError, match="can't wait for a run of its own"):
        the_host.start(spec, "x", functions={"asks": asks}).result(WAIT)


def test_an_interrupt_while_a_run_starts_leaves_no_run_behind(the_host, provider, monkeypatch):
    import concurrent.futures

    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    provider.pieces = ["Hello", None]  # it can't be over before it is cancelled
    with monkeypatch.context() as patch:
        patch.setattr(concurrent.futures, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            the_host.start(question(), "Hi")
    # It may have begun before the interrupt came; then it is being cancelled.
    until = time.monotonic() + WAIT
    while not all(run.done() for run in the_host.handles()):
        assert time.monotonic() < until, "the run goes on, and nobody holds it"
        time.sleep(0.01)
    assert all(run.status().state == "cancelled" for run in the_host.handles())
    provider.pieces = ["Hello"]
    ask(the_host, AnswerView(None))
    assert provider.open == 0


@pytest.mark.parametrize("second", [False, True])
def test_an_interrupted_wait_stops_the_run_in_one_line(the_host, provider, monkeypatch, second):
    provider.pieces = ["Hello", None]
    view = AnswerView(None)
    handle = the_host.start(question(), "Hi", show=view.feed, beside=view.follow)
    wait, calls = handle.wait, []

    def interrupted(timeout=None):
        calls.append(timeout)
        if len(calls) == 1 or (second and len(calls) == 2):
            raise KeyboardInterrupt
        return wait(timeout)

    monkeypatch.setattr(handle, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        answers.finish(handle)
    assert len(caught.value._render_traceback_()) == 1
    assert "'question'" in caught.value._render_traceback_()[0]
    assert wait(WAIT)
    assert provider.open == 0


def test_a_host_that_is_stopped_from_its_own_loop_stops_without_waiting_for_itself(the_host):
    from aiflow_jupyter.graph.forms.language import parse
    from aiflow_jupyter.operators import SIGNATURES

    async def stops(text):
        the_host.stop()
        return text

    spec = parse("n = map(stops)\nout = sink(var='out')\nn -> out", "g", SIGNATURES).spec
    handle = the_host.start(spec, "x", functions={"stops": stops})
    assert handle.wait(WAIT)
    assert not the_host.running


@pytest.mark.parametrize(
    ("prompt", "arguments", "says"),
    [
        (5, {}, "no text but int"),
        (None, {}, "no text but NoneType"),
        (["Hi"], {}, "no text but list"),
        (" ", {}, "empty"),
        ("Hi", {"temperature": float("inf")}, "temperature is inf"),
        ("Hi", {"temperature": float("nan")}, "temperature is nan"),
        ("Hi", {"temperature": "warm"}, "not a number"),
        ("Hi", {"temperature": True}, "not a number"),
        ("Hi", {"system": {}}, "system is {}, not text"),
        ("Hi", {"model": 5}, "model is 5, not text"),
        ("Hi", {"tier": []}, "tier is [], not text"),
        ("Hi", {"tier": "xx"}, "tier is 'xx', not auto, local, hpc or cloud"),
        ("Hi", {"stay": "here"}, "stay is 'here', not local, institution or anywhere"),
        ("Hi", {"max_tokens": 10**9}, "max_tokens is 1000000000"),
        ("Hi", {"max_tokens": 0}, "max_tokens is 0"),
        ("Hi", {"max_tokens": 1.5}, "not a whole number"),
        ("Hi", {"seed": "x"}, "not a whole number"),
        ("Hi", {"seed": 10**30}, "not a number of 64 bits"),
    ],
)
def test_an_argument_that_can_not_be_meant_is_one_error_that_says_so(the_host, provider, prompt, arguments, says):
    with pytest.raises(CommandError, match=re.escape(says)):
        answers.ask(the_host, prompt, **arguments)
    assert provider.requests == []


def test_a_view_that_breaks_shows_the_answer_once_more_as_plain_text(the_host, provider, published, monkeypatch):
    provider.pieces = [("reasoning", "Hm"), "Hello", " world"]
    monkeypatch.setattr(answers, "sanitise", lambda _text: 1 / 0)
    ask(the_host, AnswerView(DisplayOutput(published)))
    (shown,) = published.kept
    assert list(shown.data) == ["text/plain"]
    assert shown.data["text/plain"].startswith("[reasoning] Hm\n\nHello world\n\n[local · scripted")


def test_half_a_character_is_shown_as_such_and_breaks_nothing(the_host, provider, published, capsys):
    provider.pieces = ["a\ud83d", "b"]
    ask(the_host, AnswerView(DisplayOutput(published)))
    for text in published.kept[-1].data.values():
        assert text.startswith("a\ufffdb")
    DisplayOutput(published).show({"text/plain": "\ud83d"})
    assert published.kept[-1].data == {"text/plain": "\ufffd"}
    TerminalOutput().show({"text/plain": "\ud83d!"})
    assert capsys.readouterr().out == "\ufffd!"


def test_a_terminal_of_few_letters_is_shown_what_it_has(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    TerminalOutput().show({"text/plain": "Größe"})
    assert written.getvalue() == b"Gr??e"


def test_a_reply_can_not_steer_a_terminal_by_its_repr(the_host, provider):
    provider.pieces = ["\x1b[2Jhi"]
    assert "\x1b" not in repr(answers.ask(the_host, "Hi"))


def test_what_is_taken_back_leaves_the_screen_and_the_rest_stays():
    view = AnswerView(None)
    for lineage, text in [("0/0.a", "one "), ("0/0.b", "two "), ("0/0.a/3.c", "below "), ("0/0.a", "three")]:
        view.feed(Event("token", text, lineage=lineage, meta={"phase": "answer"}))
    view.feed(Event("token", "thought", lineage="0/0.a", meta={"phase": "reasoning"}))
    view.feed(Event("retract", None, lineage="0/0.a"))
    assert (view.text.strip(), view.reasoning) == ("two", "")
    view.feed(Event("restart", None, lineage="0/0.b"))
    view.feed(Event("token", "anew", lineage="0/0.b", meta={"phase": "answer"}))
    assert view.text == "anew"
