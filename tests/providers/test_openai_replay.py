"""Real servers' streams, replayed whole; `test_conformance.py` has them in pieces and cut short."""

from __future__ import annotations

import json

import httpx
import pytest
from provider_replies import all_of, asked, provider, recorded, replying, text

from aiflow_jupyter.errors import ProviderError, StreamCut
from aiflow_jupyter.events import Finish, ToolFragment, Usage
from aiflow_jupyter.runtime.source import Source

WHOLE = {
    # name: (finish reason, answer begins, reasoning begins, usage, model)
    "xllamacpp": ("length", "", "", Usage(40, 50, None, 24), "smollm2-135m"),
    "llama_server": ("length", "Hello, I'm here to help", "", Usage(37, 12, None, 24), "smollm2-135m"),
    "llama_cpp_python": ("length", "The", "", None, "smollm2-135m"),
    "vllm": ("length", "I'm", "", Usage(37, 12), "smollm2-135m"),
    "hpc_as_api": ("length", "Hello, I'm here to help", "", Usage(37, 12, None, 24), "smollm2-135m"),
    "reasoning_llama": ("stop", "", "The capital of", Usage(16, 37, None, 0), "smollm2-think"),
    "reasoning_vllm": ("length", "", "The sky is", Usage(21, 40, 12), "smollm2-think"),
    "tools_vllm": ("length", "", "", Usage(20, 60 - 20, 0), "smollm2-think"),
}


@pytest.mark.parametrize("name", WHOLE)
async def test_recorded_stream_comes_out_in_the_one_normalised_form(name):
    reason, answer, reasoning, usage, model = WHOLE[name]
    events = await all_of(replying([recorded(name)], name="there"))
    assert isinstance(replying([]), Source)
    assert [event.sequence for event in events] == list(range(len(events)))
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert {event.source for event in events} == {"there"}
    assert events[-1].kind == "finish"
    assert events[-1].payload == Finish(reason, usage)
    kinds = [event.kind for event in events]
    assert kinds.count("finish") == 1
    assert [event.payload for event in events if event.kind == "usage"] == ([usage] if usage else [])
    assert usage is None or kinds[-2] == "usage"
    assert text(events).startswith(answer)
    assert text(events, "reasoning").startswith(reasoning)
    assert all(event.payload for event in events if event.kind == "token")
    for event in events:
        assert (event.meta["model"], event.meta["tier"], event.meta["provider"]) == (model, "local", "there")


async def test_reasoning_and_answer_are_told_apart_in_both_dialects():
    for name in ("reasoning_llama", "reasoning_vllm"):
        events = [event for event in await all_of(replying([recorded(name)])) if event.kind == "token"]
        phases = [event.phase for event in events]
        turn = phases.index("answer")
        assert set(phases[:turn]) == {"reasoning"}
        assert set(phases[turn:]) == {"answer"}
        assert len({id(event.meta) for event in events}) == 2
        with pytest.raises(TypeError):
            events[0].meta["phase"] = "answer"


async def test_tool_fragments_keep_their_call_s_index():
    events = await all_of(replying([recorded("tools_vllm")]))
    fragments = [event.payload for event in events if event.kind == "tool_fragment"]
    assert fragments[0] == ToolFragment(0, "chatcmpl-tool-a303d2eb833b24a6", "get_weather", "")
    assert {fragment.index for fragment in fragments} == {0}
    assert "".join(fragment.arguments for fragment in fragments).startswith('"a_')


async def test_error_object_inside_a_stream_fails_with_what_the_server_said():
    got = []
    with pytest.raises(ProviderError, match="Internal server error") as caught:
        await all_of(replying([recorded("vllm_midstream_error")]), into=got)
    assert not isinstance(caught.value, StreamCut)
    assert caught.value.code == "AF707"
    assert text(got, "reasoning").startswith("The sky is")
    assert "finish" not in [event.kind for event in got]


def chunk(delta: dict | None = None, **fields) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, **fields}]
    return b"data: " + json.dumps({"model": "m", "choices": choices}).encode() + b"\n\n"


async def test_comments_blank_data_and_a_done_without_its_last_line_end_are_no_trouble():
    parts = [
        b": PROCESSING\n\n",
        b"data:\n\n",
        chunk({"content": "Hé"}),
        b": ping\r\n\r\n",
        chunk({}, finish_reason="stop"),
    ]
    events = await all_of(replying([*parts, b"data: [DONE]"]))
    assert [(event.kind, event.payload) for event in events] == [("token", "Hé"), ("finish", Finish("stop"))]


async def test_nothing_is_read_after_done():
    parts = [chunk({"content": "a"}, finish_reason="stop"), b"data: [DONE]\n\n", chunk({"content": "more"})]
    assert text(await all_of(replying(parts, httpx.ReadError("gone")))) == "a"


@pytest.mark.parametrize(
    "piece",
    [b"data: {oops\n\n", b"data: [1]\n\n", chunk({"content": [{"text": "a"}]}), chunk({"tool_calls": ["x"]})],
)
async def test_piece_that_cannot_be_understood_is_an_error_and_not_skipped(piece):
    parts = [chunk({"content": "a"}), piece, chunk({}, finish_reason="stop"), b"data: [DONE]\n\n"]
    with pytest.raises(ProviderError) as caught:
        await all_of(replying(parts))
    assert caught.value.code == "AF708"


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        (b'data: {"error":"no luck"}\n\n', "no luck"),
        (b'data: {"object":"error","message":"old style"}\n\n', "old style"),
        (chunk({"content": ""}, finish_reason="error"), "no reason given"),
    ],
)
async def test_other_forms_of_an_error_in_a_stream_are_seen_too(piece, said):
    with pytest.raises(ProviderError, match=said):
        await all_of(replying([chunk({"content": "a"}), piece, b"data: [DONE]\n\n"]))


async def test_done_without_a_finish_reason_is_a_cut():
    with pytest.raises(StreamCut):
        await all_of(replying([chunk({"content": "a"}), b"data: [DONE]\n\n"]))


async def test_request_goes_out_as_asked():
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        body = chunk({"content": "a"}, finish_reason="stop")
        return httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, content=body)

    source = provider(answer)
    await all_of(
        source, asked(temperature=0.0, max_tokens=5, seed=3, extra={"grammar": "root ::= [a]", "stream": False})
    )
    await all_of(source, asked(model="other", extra={"stream_options": None}))
    first, second = (json.loads(request.content) for request in seen)
    assert seen[0].url == "http://127.0.0.1:1/v1/chat/completions"
    assert first == {
        "model": "asked",
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "temperature": 0.0,
        "max_tokens": 5,
        "seed": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "grammar": "root ::= [a]",
    }
    assert second.keys() == {"model", "messages", "stream"}
    assert second["model"] == "other"
    assert "authorization" not in seen[0].headers
