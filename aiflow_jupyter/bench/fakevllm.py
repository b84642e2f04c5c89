"""A fake vLLM for measurements: it speaks vLLM's real wire, and its tokens come by the clock.

`python -m aiflow_jupyter.bench.fakevllm TOKENS RATE` prints its address and serves until standard input ends. Every
token begins with a stamp of CLOCK_MONOTONIC. `max_tokens` shortens an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

MODEL = "fake"


class FakeVllm:
    """Answers chats of an OpenAI client with tokens at a steady rate.

    Args:
        tokens: of an answer.
        rate: tokens a second; the first comes at once.
    """

    def __init__(self, tokens: int, rate: float) -> None:
        self._tokens = tokens
        self._rate = rate

    async def serve(self) -> asyncio.Server:
        """Listen on loopback."""
        return await asyncio.start_server(self._connection, "127.0.0.1", 0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.lower().split(":", 1) for line in head.splitlines()[1:] if ":" in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if head.split()[1].endswith("/models"):
                    listing = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
                    writer.write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                        b"content-length: %d\r\n\r\n%b" % (len(listing), listing)
                    )
                else:
                    await self._stream(writer, min(self._tokens, json.loads(body).get("max_tokens") or self._tokens))
        writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, tokens: int) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        due = time.monotonic()
        for number in range(tokens):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += 1 / self._rate
            delta: dict[str, Any] = {"content": f"{time.monotonic_ns():020d} token\n"}
            if not number:
                delta["role"] = "assistant"
            _write(writer, _chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]))
            await writer.drain()
        _write(writer, _chunk([{"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": "stop"}]))
        usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
        _write(writer, _chunk([], usage=usage))
        _write(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _chunk(choices: list[dict[str, Any]], **further: Any) -> str:
    said = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": choices}
    return json.dumps(said | further)


def _write(writer: asyncio.StreamWriter, data: str) -> None:
    event = f"data: {data}\n\n".encode()
    writer.write(b"%x\r\n%b\r\n" % (len(event), event))


async def _main(tokens: int, rate: float) -> None:
    server = await FakeVllm(tokens, rate).serve()
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)  # noqa: T201  # for the parent
    await server.serve_forever()


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2])))
