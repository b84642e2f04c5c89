"""`generate`: asks a source and lets its tokens out as they come.

    ask = generate(tier="local", system="Answer in one sentence.")

Takes a prompt (a text) or a list of messages; gives tokens with their phase, tool fragments, and `finish`. Usage rides
on `finish` and stands in the run's result; it is no event of its own, so that a function over text meets only text.

Each answer has a lineage of its own below that of what it answers (`0/0.ask`), so that whatever gathers by lineage
never glues two answers together: several for one input, or those of several models.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from aiflow_jupyter.errors import CommandError, ConfigError, StreamCut
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.metrics import Answer
from aiflow_jupyter.runtime.source import Message, Request

TIERS = ("auto", "local", "hpc", "cloud")

SIGNATURE = OperatorSignature(
    name="generate",
    parameters=(
        Parameter("tier", "choice", choices=TIERS),
        Parameter("model", "text"),
        Parameter("system", "text"),
        Parameter("temperature", "number", least=0),
        Parameter("max_tokens", "integer", least=1),
        Parameter("seed", "integer"),
        Parameter("think", "boolean"),
    ),
    takes=frozenset({"value", "token", "chunk"}),
    gives=frozenset({"token", "tool_fragment"}),
)


def generate(
    *,
    tier: str | None = None,
    model: str | None = None,
    system: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    think: bool | None = None,
) -> OperatorCall:
    """Ask a model; its tokens are the node's output.

    Args:
        tier: `auto` (the default), `local`, `hpc` or `cloud`.
        model: the model's name, for tiers that have several.
        system: a system message before the prompt.
        temperature: 0 for the likeliest token each time.
        max_tokens: the most tokens of one answer.
        seed: makes sampling repeatable where the server supports it.
        think: have the model reason before it answers (or keep it from that), where it can.
    """
    return call(
        "generate",
        tier=tier,
        model=model,
        system=system,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        think=think,
    )


def messages_of(payload: Any) -> tuple[Message, ...]:
    """The chat that a payload stands for: a text is one user turn, a list is taken as messages.

    Raises:
        CommandError: it is neither, or it is empty.
    """
    if isinstance(payload, str) and not payload.strip():
        raise CommandError("the question is empty", code="AF802")
    if isinstance(payload, str):
        return (Message(role="user", content=payload),)
    if isinstance(payload, (list, tuple)) and all(
        isinstance(m, Mapping) and {"role", "content"} <= m.keys() for m in payload
    ):
        return tuple(Message(role=m["role"], content=m["content"]) for m in payload)
    raise CommandError(f"generate takes a text or a list of messages, not {type(payload).__name__}", code="AF302")


def bind(args: Mapping[str, Any], binding: Binding) -> Behaviour:
    """The node's behaviour; its source is the run's."""
    source = binding.source
    if source is None:
        raise ConfigError(f"node {binding.node!r}: this run has nothing that answers", code="AF721")
    system = args.get("system")
    node = binding.node

    async def stream(event: Event) -> AsyncGenerator[Event, None]:
        messages = messages_of(event.payload)
        if system:
            messages = (Message(role="system", content=system), *messages)
        lineage = event.answer_lineage(node)
        answer = Answer(node, lineage, started=binding.clock())
        binding.answers.append(answer)
        request = Request(
            messages,
            tier=args.get("tier", "auto"),
            model=args.get("model"),
            temperature=args.get("temperature"),
            max_tokens=args.get("max_tokens"),
            seed=args.get("seed"),
            think=args.get("think"),
            report=answer.report,
            node=node,
        )
        answers = source.stream(request)
        async with aclosing(answers):
            async for out in answers:
                answer.note(out)
                if out.kind == "usage":
                    continue
                out.lineage = lineage
                out.conversation = event.conversation
                out.source = node
                yield out
        if answer.finish is None:
            raise StreamCut("the answer broke off before it was complete")

    return Behaviour("stream", stream, answers=True)


GENERATE = Operator(SIGNATURE, bind)
