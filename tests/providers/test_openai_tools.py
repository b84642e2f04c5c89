"""Functions and their calls on OpenAI's wire: in a request, and in a conversation with a server that checks it."""

from __future__ import annotations

import asyncio
import json

from provider_replies import all_of, asked, provider, recorded

from aiflow_jupyter.events import Finish
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.source import Message, Request

LOOP = """
ask  = generate(tools=(weather))
lane = route(by="kind")
act  = tools(functions=(weather))
out  = sink(var="x")
ask -> lane
lane.token         -> out
lane.tool_fragment -> act
act -> ask [feedback, limit=8, hops=5]
"""


class Server:
    """A server on loopback that takes a chat as OpenAI's does: it refuses messages that its API would refuse."""

    def __init__(self):
        self.bodies = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return OpenAICompatible(f"http://127.0.0.1:{port}/v1", model="m")

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length"))
        body = json.loads(await reader.readexactly(size))
        self.bodies.append(body)
        deltas, reason = self._reply(body["messages"])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for delta in [*deltas, {}]:
            choice = {"index": 0, "delta": delta, "finish_reason": None if delta else reason}
            writer.write(
                b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"
            )
            await writer.drain()
        writer.write(b"data: [DONE]\n\n")
        writer.close()

    def _reply(self, messages):
        asked = {}
        for message in messages:
            assert isinstance(message["content"], str)
            for call in message.get("tool_calls", []):
                assert (message["role"], call["type"]) == ("assistant", "function")
                asked[call["id"]] = json.loads(call["function"]["arguments"])
            if message["role"] == "tool":
                assert asked.pop(message["tool_call_id"]) is not None
        assert not asked, "every call has to be answered before the next turn"
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if results:
            return [{"content": " and ".join(results)}], "stop"
        return [
            {
                "tool_calls": [
                    {"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": ""}}
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Lu'}}]},
            {
                "tool_calls": [
                    {
                        "index": 1,
                        "id": "call_b",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
                    }
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": 'nd"}'}}]},
        ], "tool_calls"


async def weather(city: str, unit: str = "C") -> str:
    """The weather of a city."""
    return f"{city}: 20 {unit}"


async def test_a_model_calls_functions_over_the_wire_and_answers_with_their_results():
    server = Server()
    async with server as source:
        parsed = parse(LOOP, "g", SIGNATURES)
        require(parsed.spec, SIGNATURES, {"weather": weather}, parsed)
        run = Run(
            parsed.spec, OPERATORS, Scheduler(asyncio.get_running_loop()), functions={"weather": weather}, source=source
        )
        result = await run.run("How warm is it?")
        await source.aclose()
    assert result["x"] == "Lund: 20 C and Oslo: 20 C"
    assert [answer.finish.reason for answer in result.answers] == ["tool_calls", "stop"]
    for body in server.bodies:
        assert body["tools"] == [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather of a city.",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}, "unit": {"type": "string", "default": "C"}},
                        "required": ["city"],
                        "additionalProperties": False,
                    },
                },
            }
        ]


async def test_a_request_without_functions_names_none():
    seen = []

    def answer(request):
        import httpx

        seen.append(json.loads(request.content))
        data = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
        body = f"data: {json.dumps(data)}\n\ndata: [DONE]\n\n"
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body.encode())

    events = await all_of(provider(answer), asked())
    assert events[-1].payload == Finish("stop")
    assert "tools" not in seen[0]
    said = Message(role="tool", content="4", tool_call_id="a", name="f")
    await all_of(provider(answer), Request((said,), tier="local"))
    assert seen[1]["messages"] == [{"role": "tool", "content": "4", "tool_call_id": "a", "name": "f"}]


async def test_the_calls_of_a_recorded_answer_are_checked_and_the_model_is_told():
    """A small model on vLLM: its one call has arguments that are no object, and the answer was cut at its limit."""
    streams = [recorded("tools_vllm"), recorded("vllm")]
    seen = []

    def answer(request):
        import httpx

        seen.append(json.loads(request.content))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=streams.pop(0))

    async def get_weather(city: str) -> str:
        raise AssertionError(city)

    text = LOOP.replace("weather", "get_weather")
    parsed = parse(text, "g", SIGNATURES)
    functions = {"get_weather": get_weather}
    require(parsed.spec, SIGNATURES, functions, parsed)
    source = provider(answer)
    run = Run(parsed.spec, OPERATORS, Scheduler(asyncio.get_running_loop()), functions=functions, source=source)
    result = await run.run("What is the weather?")
    assert result["x"].startswith("I'm")
    said, told = seen[1]["messages"][1:]
    assert said["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": "{}"}
    assert told["tool_call_id"] == said["tool_calls"][0]["id"] == "chatcmpl-tool-a303d2eb833b24a6"
    assert "wrong arguments" in told["content"]
