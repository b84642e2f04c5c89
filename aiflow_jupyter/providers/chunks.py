"""The chunks of an OpenAI-compatible stream, read into events: no network, no clock of its own.

`Chunks` is fed the data of one server-sent event at a time and gives the events it stands for; `close` gives the
last ones once the stream is over, or raises `StreamCut` if no finish reason had come. The dialects that are told
apart here were recorded from real servers (`tests/data/wire`): `content` may be null, a finish reason may ride on the
last piece or come alone, reasoning is called `reasoning_content` (llama.cpp, DeepSeek) or `reasoning` (vLLM) or is left
in the content between tags, usage comes in a chunk without choices or not at all, and an error may be an object inside
a stream that began with 200.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from aiflow_jupyter.errors import ProviderError, StreamCut, encodable
from aiflow_jupyter.events import Event, Finish, Kind, Phase, ToolFragment, Usage
from aiflow_jupyter.providers.secret import Redaction, one_line
from aiflow_jupyter.providers.tags import Tags

DONE: Final = "[DONE]"
_LONGEST_NAME: Final = 200
_MOST_TOKENS: Final = 2**53
_MOST_COST: Final = 1e15
_PIECES: Final[tuple[tuple[str, Phase], ...]] = (
    ("reasoning_content", "reasoning"),
    ("reasoning", "reasoning"),
    ("content", "answer"),
    ("refusal", "answer"),
)


class Chunks:
    """One answer on its way in.

    Args:
        provider: the provider's name, for events and errors.
        model: the model that was asked for; the server's own name for it wins.
        tier: the tier that answers.
        clock: nanoseconds, stamped on every event as it arrives.
        redact: masks the key in all that the server says.
        facts: what else every event says in its `meta`.

    Attributes:
        finished: the finish reason, None until it came.
        done: True once the server said that nothing follows.
    """

    def __init__(
        self,
        provider: str,
        model: str,
        tier: str,
        clock: Callable[[], int],
        redact: Redaction | None = None,
        facts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.finished: str | None = None
        self.done = False
        self._provider = provider
        self._model = model
        self._tier = tier
        self._clock = clock
        self._redact = redact
        self._facts = facts
        self._sequence = 0
        self._usage: Usage | None = None
        self._cost: float | None = None
        self._metas: dict[Phase | None, Mapping[str, Any]] = {}
        self._tags = Tags()
        self._half: tuple[str, Phase] | None = None

    def feed(self, data: str) -> list[Event]:
        """The events that one server-sent event's data stands for.

        Raises:
            ProviderError: it is an error object, or no chunk that can be understood (dropping it unread would pass
                a part of the answer off as the whole).
        """
        if not data.strip():
            return []
        if data.strip() == DONE:
            self.done = True
            return []
        try:
            return self._read(data if self._redact is None else self._redact(data))
        except RecursionError as error:
            raise self._unreadable("a piece that is nested too deeply") from error

    def _read(self, data: str) -> list[Event]:
        chunk = self._chunk(data)
        if isinstance(name := chunk.get("model"), str) and not self._metas:
            self._model = self._shown(name) or self._model
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage, self._cost = _usage(usage), _cost(usage.get("cost"))
        events: list[Event] = []
        for choice in self._list(chunk, "choices"):
            if not isinstance(choice, dict):
                raise self._unreadable("a choice that is not an object")
            if choice.get("index", 0) == 0:
                events.extend(self._choice(choice))
        return events

    def left(self) -> list[Event]:
        """The text that was held back until more of it came; where a stream breaks off, the last that came of it."""
        return [*self._texts(self._tags.rest()), *self._alone()]

    def close(self) -> list[Event]:
        """What ends the stream: text that was held back, `usage` if the server said it, then `finish`.

        Where the server says what the answer cost, as OpenRouter does in US dollars, the `finish` has it as
        `meta["cost"]`.

        Raises:
            StreamCut: no finish reason had come.
        """
        if self.finished is None:
            raise StreamCut(
                f"the answer of {self._provider} ({self._model}) broke off before its end",
                hint="What came so far is a part of the answer. Run it again; if it breaks off again, look at the "
                "server's log.",
            )
        last = self.left()
        if self._usage is not None:
            last.append(self._event("usage", self._usage))
        finish = self._event("finish", Finish(self.finished, self._usage))
        if self._cost is not None:
            finish.meta = MappingProxyType({**finish.meta, "cost": self._cost})
        return [*last, finish]

    def _chunk(self, data: str) -> dict[str, Any]:
        try:
            chunk = json.loads(data)
        except ValueError:
            raise self._unreadable("a piece that is not JSON") from None
        if not isinstance(chunk, dict):
            raise self._unreadable("a piece that is not a JSON object")
        problem = chunk.get("error") or (chunk if chunk.get("object") == "error" else None)
        if problem:
            raise self._failed(problem)
        return chunk

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[Event]:
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict):
            raise self._unreadable("a delta that is not an object")
        yield from self._said(delta)
        calls = self._list(delta, "tool_calls")
        if calls:
            yield from self.left()
        for position, call in enumerate(calls):
            yield self._event("tool_fragment", self._fragment(call, position))
        reason = choice.get("finish_reason")
        if reason == "error":
            raise self._failed(choice.get("error") or "no reason given")
        if reason is not None and not isinstance(reason, str):
            raise self._unreadable("a finish reason that is not text")
        if reason:
            self.finished = self._shown(reason)

    def _said(self, delta: Mapping[str, Any]) -> Iterator[Event]:
        reasoning = ""
        for key, phase in _PIECES:
            text = delta.get(key)
            if not text:
                continue
            if not isinstance(text, str):
                raise self._unreadable(f"`{key}` in a form that is not text")
            # A gateway may send the same reasoning under both names.
            if phase == "reasoning" and text == reasoning:
                continue
            if phase == "reasoning":
                reasoning = text
                yield from self._texts(self._tags.none())
            yield from self._texts(self._tags.feed(text) if key == "content" else [(text, phase)])

    def _texts(self, pieces: Iterable[tuple[str, Phase]]) -> Iterator[Event]:
        """The texts as events; a server that cuts between the halves of a character has them put together again."""
        for piece, phase in pieces:
            text = piece
            if self._half is not None and self._half[1] == phase:
                text, self._half = self._half[0] + text, None
            yield from self._alone()
            if "\ud800" <= text[-1] <= "\udbff":
                text, self._half = text[:-1], (text[-1], phase)
            if text:
                yield self._event("token", encodable(text), phase)

    def _alone(self) -> Iterator[Event]:
        """The half of a character whose other half did not come."""
        if self._half is not None:
            (half, phase), self._half = self._half, None
            yield self._event("token", encodable(half), phase)

    def _list(self, said: Mapping[str, Any], key: str) -> list[Any]:
        found = said.get(key) or []
        if not isinstance(found, list):
            raise self._unreadable(f"`{key}` in a form that is not a list")
        return found

    def _fragment(self, call: object, position: int) -> ToolFragment:
        function = call.get("function") or {} if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise self._unreadable("a tool call that is not an object")
        texts = [call.get("id") or "", function.get("name") or "", function.get("arguments") or ""]
        if not all(isinstance(text, str) for text in texts):
            raise self._unreadable("a tool call whose parts are not text")
        identifier, name, arguments = map(encodable, texts)
        index = call.get("index")
        # Servers that send a call whole may leave its index out.
        return ToolFragment(index if isinstance(index, int) else position, identifier or None, name or None, arguments)

    def _event(self, kind: Kind, payload: Any, phase: Phase | None = None) -> Event:
        event = Event(kind, payload, "", self._provider, self._sequence, self._clock(), "", self._meta(phase))
        self._sequence += 1
        return event

    def _meta(self, phase: Phase | None) -> Mapping[str, Any]:
        """The one read-only mapping that all events of this stream and phase share."""
        meta = self._metas.get(phase)
        if meta is None:
            facts = {"tier": self._tier, "model": self._model, "provider": self._provider, **self._facts}
            meta = MappingProxyType({"phase": phase, **facts} if phase else facts)
            self._metas[phase] = meta
        return meta

    def _shown(self, name: str) -> str:
        """A name as the server gives it, in one short line that can be shown anywhere."""
        line = " ".join(name[: 100 * _LONGEST_NAME].split())
        line = "".join(letter for letter in line if letter.isprintable())
        return (line if self._redact is None else self._redact(line))[:_LONGEST_NAME]

    def _unreadable(self, what: str) -> ProviderError:
        return ProviderError(
            f"{self._provider} sent {what}",
            code="AF708",
            hint="Is the address that of an OpenAI-compatible API, and does the server speak its streaming form?",
        )

    def _failed(self, problem: object) -> ProviderError:
        said = (problem.get("message") if isinstance(problem, dict) else problem) or "no reason given"
        return ProviderError(
            f"{self._provider} ({self._model}) failed in the middle of its answer: "
            + one_line(str(said), self._redact, 500),
            code="AF707",
            hint="What came so far is a part of the answer. Run it again, or look at the server's log.",
        )


def counted(said: object) -> int | None:
    """A number of tokens that can be one; beyond 2**53 not even JSON's readers agree on what it is."""
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= _MOST_TOKENS else None


def _cost(said: object) -> float | None:
    """An amount that can be one."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= _MOST_COST:
        return None
    return float(said)


def _usage(said: Mapping[str, Any]) -> Usage:
    def count(*path: str) -> int | None:
        value: Any = said
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return counted(value)

    return Usage(
        prompt_tokens=count("prompt_tokens"),
        completion_tokens=count("completion_tokens"),
        reasoning_tokens=count("completion_tokens_details", "reasoning_tokens"),
        cached_tokens=count("prompt_tokens_details", "cached_tokens"),
    )
