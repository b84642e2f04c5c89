"""Where a run's tokens come from, seen from the run: a request goes in, events come out.

The router, every provider and a recorded trace implement `Source`; the run knows no more of them than this, so
that `generate(tier=...)` imports neither tiers nor providers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NotRequired, Protocol, TypedDict, runtime_checkable

from aiflow_jupyter.events import Event

TIERS: Final = ("auto", "local", "hpc", "cloud")
"""What `Request.tier` may be; the first leaves the choice to the router."""
FLOORS: Final = ("local", "institution", "anywhere")
"""What `Request.stay` may be, the strictest first."""


class Message(TypedDict):
    """One turn of a chat, in the wire form that every provider takes.

    An `assistant` that called functions has `tool_calls`; each result is a turn of the role `tool`, with the function's
    `name` and the `tool_call_id` that it answers.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a source.

    Attributes:
        messages: the chat so far, oldest first.
        tier: `auto`, `local`, `hpc` or `cloud`; a provider is handed the tier that was chosen.
        model: the model's name, None for the tier's own.
        temperature: None for the server's default.
        max_tokens: the most tokens to generate, None for the server's default.
        seed: makes sampling repeatable where the server supports it.
        think: True has the model reason before it answers, False keeps it from that, None is the server's default.
        tools: the functions that the model may call, as `{"type": "function", "function": {...}}` with a JSON Schema.
        report: told what is being waited for until the first token ("submitted 12 s ago", "model loading").
        extra: further fields for the request body, for servers that take them (a grammar, for instance).
        node: the node of the graph that asks, empty outside one; for a recording, never sent.
        stay: how far the text may go: `local` (this machine), `institution` (its cluster too), `anywhere`. Nothing
            overrides it.
        fallback: whether a named tier may be left where it fails; `auto` always may.
        restart: whether an answer that broke off after its first token may be begun anew elsewhere, which a `restart`
            event says in the stream; else what came is a part, and the rest an error. None leaves it to the settings.
        conversation: the name of the conversation that this is a turn of, empty for none.
        decided: handed the decision about who answers, once it has been made; its `str` is for people.
        patience: seconds for which a server that can't be reached is tried again before it has failed, None for as long
            as its tier's settings say. The router sets it where another tier may take over.
    """

    messages: tuple[Message, ...]
    tier: str = "auto"
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    think: bool | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    report: Callable[[str], None] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    node: str = ""
    stay: Literal["local", "institution", "anywhere"] = "anywhere"
    fallback: bool = False
    restart: bool | None = None
    conversation: str = ""
    decided: Callable[[Any], None] | None = None
    patience: float | None = None


@runtime_checkable
class Source(Protocol):
    """Answers requests with one normalised stream of events.

    `stream` yields `token` events (`meta["phase"]` is `answer` or `reasoning`; `meta` also names `tier`, `model` and
    `provider`), `tool_fragment` events, at most one `usage`, and last exactly one `finish`. `source` is the
    provider's name, `sequence` counts from 0, `time` is stamped from `time.perf_counter_ns` on arrival. Closing the
    generator (or cancelling the task that reads it) closes the connection, so that the server stops generating. An
    answer that does not reach its `finish` raises `ProviderError`.

    A source that has `stamps = True` stamps its events with when they were due, also where nobody took them then: only
    then do a run's nodes tell how long after an event's arrival they served it.
    """

    def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request`; see the class for what comes out."""
        ...


class Provider(Source, Protocol):
    """A source that holds something open."""

    async def aclose(self) -> None:
        """Let go of connections and processes."""
        ...
