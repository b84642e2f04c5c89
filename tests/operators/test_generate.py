"""`generate`, in real runs in virtual time."""

from __future__ import annotations

import asyncio

import pytest
import virtual
from stage import NUMBERS, Scripted, build, tell

from aiflow_jupyter.errors import RunError, StreamCut
from aiflow_jupyter.events import Event, Finish, Usage

ASK = 'ask = generate(system="Be brief.", temperature=0)\nout = sink(var="x")\nask -> out'


def test_generate_asks_with_the_system_message_and_gives_tokens_of_its_input():
    source = Scripted("a", "b")
    run, result = tell(ASK, source)
    assert [(m["role"], m["content"]) for m in source.requests[0].messages] == [
        ("system", "Be brief."),
        ("user", "hello"),
    ]
    assert source.requests[0].temperature == 0
    assert result["x"] == "ab"
    assert result.answers[0].usage == Usage(completion_tokens=7)
    assert (result.answers[0].node, result.answers[0].lineage, result.answers[0].pieces) == ("ask", "0/0.ask", 2)
    assert run.guardians["ask"].emitted == 2  # usage is no event of its own


class Letters:
    """Answers "abc" with the lines a, b and c, and one letter with two lines of it in capitals."""

    async def stream(self, request):
        asked = request.messages[-1]["content"]
        text = "\n".join(asked) if len(asked) > 1 else f"{asked * 3}\n{asked * 2}".upper()
        for number, token in enumerate(text):
            await asyncio.sleep(0.01)
            yield Event("token", token, sequence=number, meta=NUMBERS)
        if asked == "x":
            raise StreamCut("cut")
        yield Event("finish", Finish())


async def slowly(text):
    await asyncio.sleep(0.1)
    return text


SEVERAL = """
first = generate()
lines = segment(by="line")
ask   = generate() {ask}
left  = map(slowly) {left}
right = map(same, inline=true)
out   = segment(by="line")
seen  = sink(var="x")
first -> lines -> ask -> left, right
left, right -> out -> seen
"""


@pytest.mark.parametrize("ask", ["", "[workers=3]", "[workers=3, order=none]"])
@pytest.mark.parametrize("left", ["", "[workers=3]", "[workers=3, order=none]"])
def test_several_answers_to_one_input_are_never_glued_by_a_merge_or_a_segment(ask, left):
    text = SEVERAL.format(ask=ask, left=left)
    _, result = tell(text, Letters(), value="abc", slowly=slowly, same=lambda text: text)
    found = result.variables["x"]
    assert all(len(set(piece)) == 1 for piece in found), found
    assert sorted("".join(found)) == sorted(2 * "AAAAABBBBBCCCCC")
    assert sorted(answer.lineage for answer in result.answers) == [
        "0/0.first",
        *(f"0/0.first/{n}.ask" for n in range(3)),
    ]


def test_answers_of_two_models_to_one_input_are_never_glued():
    text = 'q = map(same, inline=true)\na = generate()\nb = generate()\nout = segment()\nseen = sink(var="x")\n'
    _, result = tell(text + "q -> a, b -> out -> seen", Letters(), value="a", same=lambda text: text)
    assert result.variables["x"] == ["AAA\nAA", "AAA\nAA"]


def test_answer_that_breaks_off_leaves_the_others_to_the_same_input_whole():
    shown = []
    text = SEVERAL.format(ask="", left="") + 'failed = sink(var="failed")\nask.error -> failed\nout -> all'
    text += "\nall = sink(function=see, inline=true)"

    def see(event: Event):
        shown.append((event.payload[0], event.complete))

    see.__annotations__["event"] = Event
    _, result = tell(text, Letters(), value="axb", slowly=slowly, same=lambda text: text, see=see)
    assert len(result.variables["failed"]) == 1
    assert {piece for piece, complete in shown if not complete} == {"X"}
    assert {piece for piece, complete in shown if complete} >= {"A", "B"}


def test_generate_takes_messages_and_refuses_what_is_neither():
    source = Scripted("a")
    tell(ASK, source, value=[{"role": "user", "content": "q"}])
    assert source.requests[0].messages[-1]["content"] == "q"
    with pytest.raises(RunError) as error:
        tell(ASK, source, value=3)
    assert (error.value.code, error.value.node) == ("AF302", "ask")


def test_answer_that_breaks_off_is_a_cut_stream():
    with pytest.raises(RunError) as error:
        tell(ASK, Scripted("a", cut=True))
    assert isinstance(error.value.__cause__, StreamCut)
    assert (error.value.code, error.value.node, error.value.sequence) == ("AF702", "ask", 0)


def test_source_is_closed_when_the_run_is_cancelled():
    async def story(loop):
        source = Scripted(*"abcdef", pause=1)
        run = build(loop, ASK, source)
        await run.start("hello")
        await asyncio.sleep(2.5)
        assert source.closed == 0
        await run.cancel()
        assert source.closed == 1
        assert run.variables["x"] == ["a", "b"]

    virtual.run(story)
