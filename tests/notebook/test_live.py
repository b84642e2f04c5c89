"""The live widget's messages, and what stands in for it where no front end answers."""

from __future__ import annotations

import types

import comm
import pytest
from comm.base_comm import BaseComm

from aiflow_jupyter.errors import ProviderError
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.notebook import live
from aiflow_jupyter.notebook.frames import MIME, graph_of, ready
from aiflow_jupyter.notebook.live import FlowView, bundle_of
from aiflow_jupyter.notebook.widget import FlowWidget
from aiflow_jupyter.operators import SIGNATURES

SPEC = parse("ask = generate()\nout = sink(display=true)\nask -> out", "flow", SIGNATURES).spec
WAIT = 20.0
VIEW = "application/vnd.jupyter.widget-view+json"


class FakeComm(BaseComm):
    """Keeps what is sent."""

    def __init__(self, *args, **kwargs):
        self.sent = []
        super().__init__(*args, **kwargs)

    def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
        self.sent.append((msg_type, data))

    @property
    def custom(self):
        return [data["content"] for kind, data in self.sent if kind == "comm_msg" and data["method"] == "custom"]


@pytest.fixture
def comms(monkeypatch):
    made = []

    def create(*args, **kwargs):
        made.append(FakeComm(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(comm, "create_comm", create)
    return made


@pytest.fixture
def widget(comms):
    calls = []

    def cancel():
        calls.append("cancel")
        return made.live

    made = FlowWidget(graph_of(SPEC), ready(SPEC, "r1"), lambda: calls.append("hello"), cancel)
    made.live, made.calls = True, calls
    yield made
    made.close()


def custom(content):
    return {"content": {"data": {"method": "custom", "content": content}}, "buffers": []}


def receive(widget, content):
    widget._handle_msg(custom(content))


def test_a_view_is_opened_with_the_graph_and_a_snapshot(widget):
    kind, data = widget.comm.sent[0]
    assert kind == "comm_open"
    state = data["state"]
    assert state["graph"] == graph_of(SPEC)
    assert state["snapshot"] == ready(SPEC, "r1")


def test_a_cancel_that_finds_no_run_is_not_acknowledged(widget):
    widget.live = False
    receive(widget, {"kind": "cancel"})
    assert (widget.calls, widget.comm.custom) == (["cancel"], [])


def test_hello_and_cancel_are_told_on_and_only_cancel_is_acknowledged(widget):
    receive(widget, {"kind": "hello"})
    assert (widget.calls, widget.comm.custom) == (["hello"], [])
    receive(widget, {"kind": "cancel"})
    assert (widget.calls, widget.comm.custom) == (["hello", "cancel"], [{"kind": "ack", "action": "cancel"}])


@pytest.mark.parametrize(
    "garbage", [None, [], "cancel", 1, {}, {"kind": None}, {"kind": ["cancel"]}, {"KIND": "cancel"}]
)
def test_anything_else_is_ignored(widget, garbage):
    receive(widget, garbage)
    assert (widget.calls, widget.comm.custom) == ([], [])


def test_the_front_ends_choice_of_subshell_is_kept(comms, monkeypatch):
    monkeypatch.setattr(FakeComm, "_reply_subshell_for", lambda self, data, default: "main", raising=False)
    made = FlowWidget({}, {}, lambda: None, lambda: False)
    assert made.comm._reply_subshell_for({}, "subshell-1") == "subshell-1"
    made.close()


@pytest.fixture
def kernel_shell(comms, published):
    """What a view needs of a kernel's shell."""
    return types.SimpleNamespace(kernel=object(), display_pub=published)


def follow(host, view, seconds=WAIT):
    handle = host.start(SPEC, "Hi", beside=view.follow, run_id="r1")
    assert handle.wait(seconds)
    return handle


def test_hello_before_the_first_frame_gets_the_snapshot_of_the_run_to_come(kernel_shell, comms):
    FlowView(kernel_shell, SPEC, "r1", lambda: None)
    comms[-1].handle_msg(custom({"kind": "hello"}))
    assert comms[-1].custom == [{"kind": "snapshot", **ready(SPEC, "r1")}]


def test_frames_are_sent_and_the_last_says_how_it_ended(kernel_shell, comms, the_host):
    view = FlowView(kernel_shell, SPEC, "r1", lambda: None)
    follow(the_host, view)
    sent = comms[-1].custom
    assert [message["seq"] for message in sent] == list(range(1, len(sent) + 1))
    assert {message["kind"] for message in sent} == {"frame"}
    assert (sent[-1]["run"], sent[-1]["run_id"]) == ("done", "r1")
    assert view._widget is None, "its widget would stay for the kernel's life"


def test_the_output_ends_as_data_picture_and_text_that_stay_in_the_notebook(kernel_shell, published, the_host):
    follow(the_host, FlowView(kernel_shell, SPEC, "r1", lambda: None))
    first, last = published.kept[0], published.kept[-1]
    assert (first.update, last.update) == (False, True)
    assert first.id == last.id
    assert VIEW in first.data
    assert MIME not in first.data
    assert last.data[MIME]["snapshot"]["run"] == "done"
    assert last.data["image/svg+xml"].startswith("<svg")
    assert "flow: done" in last.data["text/plain"]


def test_text_gauges_stand_in_where_no_view_says_hello(kernel_shell, published, the_host, provider, monkeypatch):
    monkeypatch.setattr(live, "HELLO_TIMEOUT_S", 0.0)
    provider.pieces = ["Hello", None]
    handle = the_host.start(SPEC, "Hi", beside=FlowView(kernel_shell, SPEC, "r1", lambda: None).follow)
    while len({output.id for output in published.kept}) < 2:
        assert not handle.wait(0.01)
    texts = [output.data["text/plain"] for output in published.kept if output.id != published.kept[0].id]
    assert "pip install aiflow-jupyter" in texts[-1]
    assert "flow: running" in texts[-1]
    handle.cancel()
    first, second = published.kept[-1], published.kept[-2]
    assert {first.data["text/plain"] == "", second.data["text/plain"] == ""} == {True, False}


def test_no_text_gauges_where_a_view_said_hello(kernel_shell, comms, published, the_host, provider, monkeypatch):
    monkeypatch.setattr(live, "HELLO_TIMEOUT_S", 0.0)
    provider.pieces = [("answer", str(i)) for i in range(50)]
    view = FlowView(kernel_shell, SPEC, "r1", lambda: None)
    comms[-1].handle_msg(custom({"kind": "hello"}))
    follow(the_host, view)
    assert len({output.id for output in published.kept}) == 1


def test_a_picture_says_what_its_model_is_waited_for_and_no_more_once_it_answers(
    kernel_shell, comms, the_host, provider
):
    provider.pieces = [lambda request: request.report("submitted 4 s ago"), None]
    handle = the_host.start(SPEC, "Hi", beside=FlowView(kernel_shell, SPEC, "r1", lambda: None).follow)
    while not any(message["message"] == "ask: submitted 4 s ago" for message in comms[-1].custom):
        assert not handle.wait(0.01)
    handle.cancel()
    provider.pieces = [lambda request: request.report("submitted 4 s ago"), "Hello"]
    follow(the_host, FlowView(kernel_shell, SPEC, "r2", lambda: None))
    assert comms[-1].custom[-1]["message"] == ""


def test_a_picture_keeps_how_an_answer_came(kernel_shell, published, the_host, provider):
    note = "the relay could not be reached: the answer came in one piece"
    provider.pieces = [("answer", "Hello", {"batch": True, "note": note})]
    follow(the_host, FlowView(kernel_shell, SPEC, "r1", lambda: None))
    assert published.kept[-1].data[MIME]["snapshot"]["message"] == f"ask: {note}"
    assert published.kept[-1].data["text/plain"].endswith(f"\nask: {note}\n")


def test_a_failure_in_the_picture_has_its_hint(kernel_shell, comms, published, the_host, provider):
    provider.pieces = [ProviderError("the model server is away", hint="Start it.\x1b[2J")]
    follow(the_host, FlowView(kernel_shell, SPEC, "r1", lambda: None))
    assert comms[-1].custom[-1]["message"].startswith("node 'ask': the model server is away\nStart it.")
    assert published.kept[-1].data["text/plain"].endswith("node 'ask': the model server is away\nStart it.[2J\n")


def test_a_view_has_two_seconds_to_say_hello():
    assert live.HELLO_TIMEOUT_S == 2.0


def test_a_connection_that_breaks_takes_nothing_from_the_result(kernel_shell, comms, the_host, monkeypatch):
    view = FlowView(kernel_shell, SPEC, "r1", lambda: None)

    def broken(*_args, **_kwargs):
        raise OSError("gone")

    monkeypatch.setattr(comms[-1], "publish_msg", broken)
    assert follow(the_host, view).result().status.state == "done"


def test_a_graph_that_does_not_run_is_shown_without_figures():
    bundle = bundle_of(SPEC, ready(SPEC))
    assert "ask  generate [queue=8] -> out" in bundle["text/plain"]
    assert "peak" not in bundle["image/svg+xml"]
    assert bundle[MIME]["snapshot"]["run"] == "ready"
