"""Ollama's own API over llama.cpp's server: a shim for tests, since no package index has Ollama itself.

The model, its tokens, counts and durations are real; the form of what goes in and out is that of Ollama's API
documentation (`/api/chat`, `/api/tags`, `/api/ps`, `/api/show`, `/api/version`; NDJSON; an error in the middle of a
stream is a line of its own). What Ollama does beside that it does not: it never loads another model, and `num_ctx` and
`keep_alive` are noted and shown at `/api/ps`, not acted upon.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import httpx

from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.providers.thinking import thinking_grammar

OPTIONS = {
    "num_predict": "max_tokens",
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "repeat_penalty")},
    "ignore_eos": "ignore_eos",  # llama.cpp's, so that an answer goes on for as long as a test needs it to
}
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class OllamaShim:
    """`async with OllamaShim(url, key, model) as shim`: Ollama's API is at `shim.url`.

    `asked` has the body of every chat, `wire` the bytes of every answer to one.
    """

    def __init__(self, upstream: str, key: Secret, model: str) -> None:
        self.model = model
        self.asked: list[dict[str, Any]] = []
        self.wire: list[bytes] = []
        self._loaded: dict[str, Any] | None = None
        self._client = httpx.AsyncClient(
            base_url=upstream,
            headers={"Authorization": f"Bearer {key.reveal()}"},
            trust_env=False,
            timeout=httpx.Timeout(None, connect=5.0),
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._client.aclose()

    # -- HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)^content-length: *(\d+)", head, re.MULTILINE)
            sent = await reader.readexactly(int(length[1]) if length else 0)
            method, path = head.split()[:2]
            answering = asyncio.create_task(self._answer(method, path, json.loads(sent or b"{}"), writer))
            left = asyncio.create_task(reader.read(1))  # a client that leaves, whose answer nobody needs any more
            await asyncio.wait({answering, left}, return_when=asyncio.FIRST_COMPLETED)
            answering.cancel()
            left.cancel()
            await asyncio.gather(answering, left, return_exceptions=True)
        writer.close()

    async def _answer(self, method: str, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        try:
            if (method, path) == ("POST", "/api/chat"):
                await self._chat(body, writer)
            else:
                self._whole(writer, 200, await self._other(method, path, body))
        except Refused as refused:
            self._whole(writer, refused.status, {"error": str(refused)})
        await writer.drain()

    def _whole(self, writer: asyncio.StreamWriter, status: int, said: dict[str, Any]) -> None:
        text = json.dumps(said).encode()
        writer.write(
            f"HTTP/1.1 {status} Said\r\nContent-Type: application/json; charset=utf-8\r\nConnection: close\r\n"
            f"Content-Length: {len(text)}\r\n\r\n".encode()
            + text
        )

    async def _chat(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self._known(body)
        self.asked.append(body)
        self.wire.append(b"")
        number = len(self.wire) - 1
        self._load(body)
        async with aclosing(self._pieces(body)) as pieces:
            first = await anext(pieces)  # what is refused has a status of its own
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            await self._line(first, number, writer)
            async for piece in pieces:
                await self._line(piece, number, writer)
        writer.write(b"0\r\n\r\n")

    async def _line(self, piece: dict[str, Any], number: int, writer: asyncio.StreamWriter) -> None:
        line = json.dumps(piece, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self.wire[number] += line
        writer.write(b"%x\r\n%s\r\n" % (len(line), line))
        await writer.drain()

    # -- the API

    def _known(self, body: dict[str, Any]) -> None:
        if body.get("model", "").removesuffix(":latest") != self.model:
            raise Refused(404, f"model '{body.get('model', '')}' not found")

    def _load(self, body: dict[str, Any]) -> None:
        stays = body.get("keep_alive", "5m")
        if isinstance(stays, str):
            number, unit = re.fullmatch(r"(-?[\d.]+)(ms|s|m|h)", stays).groups()
            stays = float(number) * UNITS[unit]
        self._loaded = {
            "context_length": (body.get("options") or {}).get("num_ctx", 4096),
            "expires_at": _time(timedelta(seconds=stays if stays >= 0 else 1e9)),
        }

    async def _other(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        row = {
            "name": f"{self.model}:latest",
            "model": f"{self.model}:latest",
            "modified_at": _time(),
            "size": 98_000_000,
            "digest": "0" * 64,
            "details": {"parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"]},
        }
        match method, path:
            case "GET", "/api/version":
                return {"version": "0.13.0"}
            case "GET", "/api/tags":
                return {"models": [row]}
            case "GET", "/api/ps":
                return {"models": [row | {"size_vram": 0} | self._loaded] if self._loaded else []}
            case "POST", "/api/show":
                self._known(body)
                listed = (await self._client.get("/v1/models")).json()["data"][0]["meta"]
                info = {"general.architecture": "llama", "llama.context_length": listed["n_ctx_train"]}
                return {
                    "details": row["details"],
                    "model_info": info,
                    "capabilities": ["completion", "tools", "thinking"],
                }
        raise Refused(404, "404 page not found")

    async def _pieces(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        began, model, reason = time.monotonic_ns(), body["model"], "stop"
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        calls: dict[int, dict[str, str]] = {}
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=_asked(body)) as response:
                if not response.is_success:
                    raise Refused(response.status_code, json.loads(await response.aread())["error"]["message"])
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    chunk = json.loads(line[6:])
                    usage, timings = chunk.get("usage") or usage, chunk.get("timings") or timings
                    for choice in chunk["choices"]:
                        reason, delta = choice.get("finish_reason") or reason, choice["delta"]
                        if delta.get("content") or delta.get("reasoning_content"):
                            yield _piece(model, delta.get("content") or "", delta.get("reasoning_content"))
                        for call in delta.get("tool_calls", ()):
                            told = calls.setdefault(call["index"], {"name": "", "arguments": ""})
                            for part in told:
                                told[part] += call["function"].get(part) or ""
        except httpx.RequestError:
            yield {"error": "an error was encountered while running the model: unexpected EOF"}
            return
        if calls:
            called = [
                {"function": {"name": call["name"], "arguments": json.loads(call["arguments"])}}
                for call in calls.values()
            ]
            yield _piece(model, "", tool_calls=called)
        yield _piece(model, "") | {
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": time.monotonic_ns() - began,
            "load_duration": 0,
            "prompt_eval_count": usage.get("prompt_tokens", 0),
            "prompt_eval_duration": int(timings.get("prompt_ms", 0) * 1e6),
            "eval_count": usage.get("completion_tokens", 0),
            "eval_duration": int(timings.get("predicted_ms", 0) * 1e6),
        }


def _time(later: timedelta = timedelta()) -> str:
    return (datetime.now(UTC) + later).isoformat().replace("+00:00", "Z")


def _piece(model: str, content: str, thinking: str | None = None, **more: Any) -> dict[str, Any]:
    thought = {"thinking": thinking} if thinking else {}
    return {
        "model": model,
        "created_at": _time(),
        "message": {"role": "assistant", "content": content, **thought, **more},
        "done": False,
    }


def _asked(body: dict[str, Any]) -> dict[str, Any]:
    """The same chat in the words of llama.cpp's server."""
    options = body.get("options") or {}
    asked = {OPTIONS[name]: value for name, value in options.items() if name in OPTIONS}
    if body.get("think"):
        asked |= thinking_grammar()  # a small model thinks only where it is held to that
    elif body.get("think") is False:
        asked["chat_template_kwargs"] = {"enable_thinking": False}
    if body.get("tools"):
        asked["tools"] = body["tools"]
    return {
        "messages": [_message(message) for message in body["messages"]],
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": False,
        "return_progress": True,  # so that it sees a client leave also while it reads a prompt, as Ollama does
        **asked,
    }


def _message(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": call["function"]["name"], "arguments": json.dumps(call["function"]["arguments"])},
        }
        for number, call in enumerate(message.get("tool_calls") or ())
    ]
    told = {"role": message["role"], "content": message.get("content") or ""}
    return told | ({"tool_calls": calls} if calls else {})
