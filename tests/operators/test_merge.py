"""`merge`: several streams in one, by arrival or one behind the other; by hand under any interleaving, and in runs."""

from __future__ import annotations

import asyncio

import pytest
import virtual
from driven import END, Node, Replies, build, tell
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.runtime.edges import THROUGH

NAMES = ("a", "b", "c")


def node(inputs=NAMES, policy=None, order="source"):
    return Node("merge", policy, inputs=inputs, order=order)


def piece(name, sequence=0, question=0, payload=None):
    """A token of the answer that an input gives to a question."""
    payload = f"{name}{sequence}" if payload is None else payload
    return Event("token", payload, source=name, sequence=sequence, lineage=f"{question}/0.{name}")


def through(name, question=None):
    """What an edge says when its input has finished an answer, or has ended."""
    lineage = "" if question is None else f"{question}/0.{name}"
    return Event("flush", THROUGH, source=name, lineage=lineage)


def control(kind, name="a", lineage="0/0.a", sequence=0):
    return Event(kind, None, source=name, sequence=sequence, lineage=lineage)


def texts(events):
    return [event.payload for event in events if event.kind in ("token", "value")]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=3), st.data())
def test_answers_to_one_question_follow_one_another_under_any_interleaving(counts, data):
    left = {
        name: [
            each
            for q, of in enumerate(counts)
            for each in [*(piece(name, n, q) for n in range(of[place])), through(name, q)]
        ]
        for place, name in enumerate(NAMES)
    }
    for name in NAMES:
        left[name].append(through(name))
    given_node = node()
    out = []
    while any(left.values()):
        name = data.draw(st.sampled_from([name for name in NAMES if left[name]]))
        out += given_node.put(left[name].pop(0))
    assert given_node.behaviour.holds() == 0
    for q, of in enumerate(counts):
        found = [event.payload for event in out if event.lineage.startswith(f"{q}/")]
        assert found == [f"{name}{n}" for place, name in enumerate(NAMES) for n in range(of[place])]
    assert given_node.put(END) == []


def test_the_first_input_passes_at_once_and_the_next_when_it_is_through():
    given_node = node()
    assert texts(given_node.put(piece("b"), piece("a"), piece("c"))) == ["a0"]
    assert texts(given_node.put(through("a", 0))) == ["b0"]
    assert texts(given_node.put(piece("b", 1), piece("c", 1))) == ["b1"]
    assert texts(given_node.put(through("b", 0), piece("c", 2))) == ["c0", "c1", "c2"]
    assert given_node.put(through("c", 0)) == []


def test_questions_do_not_wait_for_each_other():
    given_node = node()
    assert texts(given_node.put(piece("b", 0, 0), piece("a", 0, 1))) == ["a0"]


def test_an_input_that_ended_is_through_with_all():
    given_node = node()
    given_node.put(piece("b", 0, 0), piece("b", 0, 1))
    assert texts(given_node.put(through("a"))) == ["b0", "b0"]
    assert texts(given_node.put(piece("b", 0, 2))) == ["b0"]


def test_what_comes_of_the_runs_inputs_is_through_when_a_later_one_follows():
    given_node = node(("a", "b"))

    def made(name, number):
        return Event("value", f"{name}{number}", source=name, sequence=number, lineage=str(number))

    assert texts(given_node.put(made("b", 0), made("b", 1), made("a", 0))) == ["a0"]
    assert texts(given_node.put(made("a", 1))) == ["b0", "a1"]
    assert texts(given_node.put(END)) == ["b1"]


@pytest.mark.parametrize(
    "event", [control("error"), control("retract"), control("error", lineage="0"), control("flush", "x", "")]
)
def test_an_input_whose_answer_is_over_lets_the_next_go_on(event):
    given_node = node(("a", "b"))
    given_node.put(piece("a"), piece("b"))
    out = given_node.put(event)
    assert texts(out) == ["b0"]
    assert [each.kind for each in out].count(event.kind) == 1


@pytest.mark.parametrize("kind", ["restart", "retract"])
def test_what_is_void_is_discarded(kind):
    given_node = node(("a", "b"))
    given_node.put(piece("b"), piece("b", 1, 1))
    assert texts(given_node.put(control(kind, "b", "0/0.b"))) == []
    assert given_node.behaviour.holds() == 1
    assert texts(given_node.put(through("a", 0))) == []
    assert texts(given_node.put(through("a", 1))) == ["b1"]


def test_more_than_may_wait_fail_by_name():
    given_node = node(policy={"hold": 2})
    given_node.put(piece("b"), piece("b", 1), piece("a"))
    with pytest.raises(RunError) as raised:
        given_node.put(piece("b", 2))
    assert raised.value.code == "AF622"
    assert texts(given_node.put(through("a", 0))) == ["b0", "b1"]
    big = node(policy={"hold_bytes": 10})
    big.put(piece("b", payload="x" * 9))
    with pytest.raises(RunError):
        big.put(piece("b", 1, payload="xy"))


def test_by_arrival_nothing_waits():
    events = [piece("b"), piece("a"), piece("b", 1)]
    assert node(order="arrival").put(*events) == events


def test_what_is_offered_from_outside_passes():
    assert texts(node().put(piece("run"))) == ["run0"]


# -- in runs

TWO = """
question = map(same, inline=true)
one = generate(model="one") {one}
two = generate(model="two") {two}
all = merge(order="{order}")
out = sink(var="x")
question -> one, two
one, two -> all -> out
"""


def same(payload):
    return payload


class Paced(Replies):
    """Each model at its own pace."""

    def __init__(self, reply, paces):
        super().__init__(reply)
        self.paces = paces

    async def stream(self, request):
        async for event in super().stream(request):
            await asyncio.sleep(self.paces[request.model])
            yield event


def words(request):
    return [f"{request.messages[-1]['content']}{request.model[0]}{n} " for n in range(5)]


@pytest.mark.parametrize("paces", [{"one": 1, "two": 0.1}, {"one": 0.1, "two": 1}, {"one": 0.5, "two": 0.5}])
@pytest.mark.parametrize("policy", ["", "[workers=3]", "[queue=1]"])
def test_the_second_model_follows_the_first_for_each_question(paces, policy):
    async def story(loop):
        text = TWO.format(order="source", one=policy, two=policy)
        run = build(loop, text, Paced(words, paces), same=same)
        for number in range(4):
            await run.offer("question", str(number))
        await run.close_inputs()
        result = await run.wait()
        found = result["x"].split()
        for number in range(4):
            mine = [word for word in found if word[0] == str(number)]
            assert mine == [f"{number}{model}{n}" for model in "ot" for n in range(5)]
        assert run.guardians["all"].most <= run.guardians["all"].bound

    virtual.run(story)


def test_the_first_model_streams_as_it_comes_and_the_second_once_it_is_through():
    async def story(loop):
        run = build(loop, TWO.format(order="source", one="", two=""), Paced(words, {"one": 1, "two": 0.1}), same=same)
        await run.start("0")
        await asyncio.sleep(2.5)
        assert run.variables["x"] == ["0o0 ", "0o1 "]
        await asyncio.sleep(3.6)
        assert len(run.variables["x"]) == 10
        await run.wait()

    virtual.run(story)


def test_a_model_that_breaks_off_lets_the_other_go_on():
    def reply(request):
        return ["part ", OSError("cut")] if request.model == "one" else words(request)

    text = TWO.format(order="source", one="", two="") + 'failed = sink(var="failed")\none.error -> failed'
    _, result = tell(text, Paced(reply, {"one": 1, "two": 0.1}), value="0", same=same)
    assert result["x"].split() == ["part", *(f"0t{n}" for n in range(5))]
    before = text.replace("part ", "")

    def at_once(request):
        return [OSError("cut")] if request.model == "one" else words(request)

    _, result = tell(before, Paced(at_once, {"one": 1, "two": 0.1}), value="0", same=same)
    assert result["x"].split() == [f"0t{n}" for n in range(5)]


def test_by_arrival_both_stream_at_once():
    _, result = tell(
        TWO.format(order="arrival", one="", two=""), Paced(words, {"one": 1, "two": 1}), value="0", same=same
    )
    assert sorted(result["x"].split()) == sorted(f"0{model}{n}" for model in "ot" for n in range(5))
    assert {word[1] for word in result["x"].split()[:2]} == {"o", "t"}


def test_a_full_merge_fails_and_does_not_stand_still():
    with pytest.raises(RunError) as raised:
        tell(
            TWO.format(order="source", one="", two="").replace('"source")', '"source") [hold=3]'),
            Paced(words, {"one": 9, "two": 0.1}),
            value="0",
            same=same,
        )
    assert (raised.value.code, raised.value.node) == ("AF622", "all")
