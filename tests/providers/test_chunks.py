"""Pieces that no honest server sends: whole text comes out, or one error that says what came."""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from provider_replies import all_of, provider, replying, text

from aiflow_jupyter.errors import ConfigError, ProviderError
from aiflow_jupyter.providers.chunks import Chunks
from aiflow_jupyter.runtime.source import Request


def chunks() -> Chunks:
    return Chunks("there", "asked", "local", lambda: 0)


def piece(**fields) -> str:
    return json.dumps({"choices": [{"index": 0, **fields}]})


def fed(*deltas: dict) -> list[tuple[str, str]]:
    """Phase and text of each token of an answer in these deltas."""
    reader = chunks()
    events = [event for delta in deltas for event in reader.feed(piece(delta=delta))]
    reader.feed(piece(finish_reason="stop"))
    events += reader.close()
    return [(event.phase, event.payload) for event in events if event.kind == "token"]


def test_the_halves_of_a_character_come_out_as_one():
    assert fed({"content": "a\ud83d"}, {"content": "\ude42b"}) == [("answer", "a"), ("answer", "🙂b")]
    assert fed({"content": "\ud83d"}, {"content": ""}, {"content": "\ude42"}) == [("answer", "🙂")]


def test_a_half_that_stays_alone_is_shown_as_such_in_its_place():
    assert fed({"content": "a\ud83d"}) == [("answer", "a"), ("answer", "\ufffd")]
    assert fed({"content": "\ude42a\ud83db"}) == [("answer", "\ufffda\ufffdb")]
    assert fed({"reasoning": "a\ud83d"}, {"content": "\ude42"}) == [
        ("reasoning", "a"),
        ("reasoning", "\ufffd"),
        ("answer", "\ufffd"),
    ]


@given(st.lists(st.text(st.characters(categories=None) | st.sampled_from("\ud83d\ude42"), max_size=4), max_size=6))
def test_however_text_is_cut_it_comes_out_whole_and_encodable(pieces):
    whole = "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert "".join(text for _, text in fed(*({"content": text} for text in pieces))) == whole


@pytest.mark.parametrize(
    "data",
    [
        '{"choices": 5}',
        '{"choices": "abc"}',
        '{"choices": {"index": 0}}',
        '{"choices": [5]}',
        piece(delta=5),
        piece(delta={"content": 5}),
        piece(delta={"tool_calls": 5}),
        piece(delta={"tool_calls": "abc"}),
        piece(delta={"tool_calls": [5]}),
        piece(delta={"tool_calls": [{"function": 5}]}),
        piece(delta={"tool_calls": [{"id": 5}]}),
        piece(delta={"tool_calls": [{"function": {"arguments": {"a": 1}}}]}),
        piece(finish_reason={}),
        piece(finish_reason=5),
        "5",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"error": {"message": ' + "[" * 100_000,
        "9" * 10_000,
    ],
)
def test_a_piece_of_another_form_is_an_error_that_says_so(data):
    with pytest.raises(ProviderError) as caught:
        chunks().feed(data)
    assert caught.value.code == "AF708"


def test_the_model_s_name_is_one_short_line_whatever_the_server_calls_it():
    for said, shown in (
        ("a\x1b[2Jb\n c\u202e", "a[2Jb c"),
        ("x" * 10_000, "x" * 200),
        ("\x07\ud800", "asked"),
        (" ", "asked"),
    ):
        events = chunks().feed(json.dumps({"model": said, "choices": [{"delta": {"content": "hi"}}]}))
        assert events[0].meta["model"] == shown


async def test_halves_of_characters_in_a_question_reach_no_server():
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content)["messages"][0]["content"])
        body = f"data: {piece(delta={'content': 'hi'}, finish_reason='stop')}\n\n".encode()
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    asked = Request(({"role": "user", "content": "a\ud800b \ud83d\ude42"},), tier="local")
    assert text(await all_of(provider(answer), asked)) == "hi"
    assert sent == ["a\ufffdb 🙂"]


async def test_a_request_that_is_no_json_says_so():
    for extra in ({"top_p": float("nan")}, {"stop": object()}):
        with pytest.raises(ConfigError, match="can't be written as JSON"):
            await all_of(replying([]), Request(({"role": "user", "content": "Hi"},), extra=extra))
