"""`generate`: asks a source and lets its tokens out as they come.

    ask = generate(tier="local", system="Answer in one sentence.")

Takes a prompt (a text), a list of messages, or passages that `retrieve` found, and gives tokens with their phase, tool
fragments, and `finish`. Usage rides on `finish` and stands in the run's result; it is no event of its own, so that a
function over text meets only text.

Each answer has a lineage of its own below that of what it answers (`0/0.ask`), so that whatever gathers by lineage
never glues two answers together: several for one input, or those of several models.

With `tools=` the model may call functions, which the node `tools` does; a feedback edge brings the results back:

    ask  = generate(tools=(weather, search))
    lane = route(by="kind")
    act  = tools(functions=(weather, search))
    out  = sink(display=true)

    ask -> lane
    lane.token         -> out
    lane.tool_fragment -> act
    act -> ask [feedback, limit=8, hops=5]

An answer that calls functions has a `finish` for `tool_calls`. Once every one of its calls has a result, in whatever
order they came, the model is asked again, with its calls and their results; that answer is the next turn
(`0/0.ask+1`). Answers that wait for results are remembered until then, or until they are void: with the results that
are there they are at most `hold` (256), and AF621 beyond.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from aiflow_jupyter.errors import CommandError, ConfigError, RunError, StreamCut
from aiflow_jupyter.events import Event, Retrieval, ToolResult, descends
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter
from aiflow_jupyter.operators.answers import answer_of
from aiflow_jupyter.operators.calls import Assembly, SaidCall, is_object
from aiflow_jupyter.operators.numbering import Recent
from aiflow_jupyter.operators.retrieve import Passages
from aiflow_jupyter.operators.schema import tools_of
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.metrics import Answer
from aiflow_jupyter.runtime.source import FLOORS, TIERS, Message, Request, Source

MOST_HELD: Final = 256
"""Answers that wait for results of their calls, and such results, unless the policy's `hold` says otherwise."""

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
        Parameter("stay", "choice", choices=FLOORS),
        Parameter("fallback", "boolean"),
        Parameter("tools", "functions", gets="arguments"),
    ),
    takes=frozenset({"value", "token", "chunk", "tool_result"}),
    gives=frozenset({"token", "tool_fragment"}),
    results="many",
    restarts=True,
    holds=lambda args: MOST_HELD if "tools" in args else 0,
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
    stay: str | None = None,
    fallback: bool | None = None,
    tools: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
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
        stay: how far the text may go: `local` (this machine), `institution` (its cluster too) or `anywhere` (the
            default); nothing overrides it.
        fallback: whether a named tier may be left where it fails before its first token; `auto` always may.
        tools: functions that the model may call; the same ones belong to `tools(functions=...)`.
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
        stay=stay,
        fallback=fallback,
        tools=tools,
    )


_KEYS: Final = ("role", "content", "tool_calls", "tool_call_id", "name")


def messages_of(payload: Any) -> tuple[Message, ...]:
    """The chat that a payload stands for: a text or some passages are one user turn, a list is taken as messages.

    Raises:
        CommandError: it is none of them, or it is empty.
    """
    if isinstance(payload, str) and not payload.strip():
        raise CommandError("the question is empty", code="AF802")
    if isinstance(payload, str):
        return (Message(role="user", content=payload),)
    if isinstance(payload, Passages):
        return (Message(role="user", content=payload.prompt()),)
    if isinstance(payload, list | tuple) and payload:
        if all(isinstance(each, Retrieval) for each in payload):
            return messages_of(Passages(payload[0].query, list(payload)))
        if all(isinstance(each, Mapping) and {"role", "content"} <= each.keys() for each in payload):
            return tuple(_message(each) for each in payload)
    raise CommandError(f"generate takes a text or a list of messages, not {type(payload).__name__}", code="AF302")


def _message(said: Mapping[str, Any]) -> Message:
    message: Any = {key: said[key] for key in _KEYS if key in said}
    found: Message = message
    return found


class _Talk:
    """An answer, and what it answers, as far as the next turn needs it.

    Attributes:
        asked: the event that the first turn answers.
        turn: the answer's number among those to this event.
        messages: what was asked this time.
        text: what the model said besides its calls.
        assembly: its calls as they come.
        calls: its calls, once it is complete.
        results: what came of them so far, by the calls' ids.
    """

    __slots__ = ("asked", "assembly", "calls", "lineage", "messages", "results", "text", "turn")

    def __init__(self, asked: Event, turn: int, messages: tuple[Message, ...], node: str) -> None:
        self.asked = asked
        self.turn = turn
        self.messages = messages
        self.lineage = asked.answer_lineage(node, turn)
        self.text: list[str] = []
        self.assembly = Assembly(self.lineage)
        self.calls: list[SaidCall] = []
        self.results: dict[str, ToolResult] = {}

    def note(self, out: Event) -> None:
        """Take in one event of the answer."""
        if isinstance(out.payload, str):
            if out.phase != "reasoning":
                self.text.append(out.payload)
        elif out.kind == "tool_fragment":
            self.assembly.add(out.payload)
        elif out.kind == "finish":
            self.calls = self.assembly.calls()
        elif out.kind == "restart":
            self.text.clear()
            self.assembly = Assembly(self.lineage)

    def following(self) -> tuple[Message, ...]:
        """The messages of the next turn."""
        said = Message(role="assistant", content="".join(self.text), tool_calls=[_wire(each) for each in self.calls])
        return (*self.messages, said, *(_told(each, self.results[each.id]) for each in self.calls))


def _told(said: SaidCall, result: ToolResult) -> Message:
    return Message(role="tool", content=result.content, tool_call_id=said.id, name=said.name or "unknown")


def _wire(said: SaidCall) -> dict[str, Any]:
    """A call in the form of messages. Servers read its arguments, so what is no JSON is not repeated to them."""
    arguments = said.arguments if is_object(said.arguments) else "{}"
    return {"id": said.id, "type": "function", "function": {"name": said.name or "unknown", "arguments": arguments}}


class _Generate:
    """See the module."""

    def __init__(self, args: Mapping[str, Any], binding: Binding, source: Source) -> None:
        self._binding = binding
        self._node = binding.node
        self._source = source
        self._hold = binding.policy.hold or MOST_HELD
        self._tools = tools_of(args["tools"], binding) if "tools" in args else {}
        self._request = Request(
            (),
            tier=args.get("tier", "auto"),
            model=args.get("model"),
            temperature=args.get("temperature"),
            max_tokens=args.get("max_tokens"),
            seed=args.get("seed"),
            think=args.get("think"),
            stay=args.get("stay", "anywhere"),
            fallback=args.get("fallback", False),
            restart=True if binding.policy.restart else None if binding.harmless else False,
            tools=tuple(tool.schema for tool in self._tools.values()),
            node=self._node,
        )
        system = args.get("system")
        self._system = (Message(role="system", content=system),) if system else ()
        self._talks: dict[str, _Talk] = {}
        self._void: Recent[bool] = Recent()

    async def stream(self, event: Event) -> AsyncGenerator[Event, None]:
        """Answer a question; or take in a result, and go on with its answer if it is the last."""
        if isinstance(event.payload, ToolResult):
            before = self._resulted(event, event.payload)
            if before is None:
                return
            talk = _Talk(before.asked, before.turn + 1, before.following(), self._node)
        elif event.kind in ("retrieval", "tool_result"):
            raise CommandError(
                f"a {event.kind} by itself is no question", code="AF302", hint="retrieve(..., together=true) gathers"
            )
        else:
            before = None
            talk = _Talk(event, 0, (*self._system, *messages_of(event.payload)), self._node)
        answers = self._answers(talk, event.meta.get("hops", 0))
        async with aclosing(answers):
            async for out in answers:
                if out.kind == "finish":
                    if before is not None:
                        self._talks.pop(before.lineage, None)
                    if talk.calls and self._tools:
                        self._remember(talk)
                yield out

    async def _answers(self, talk: _Talk, hops: int) -> AsyncGenerator[Event, None]:
        """One answer, in its lineage."""
        lineage, conversation, node = talk.lineage, talk.asked.conversation, self._node
        answer = Answer(node, lineage, started=self._binding.clock())
        self._binding.answers.append(answer)
        metas: dict[int, tuple[Any, Mapping[str, Any]]] = {}
        remembers = bool(self._tools)
        answers = self._source.stream(
            replace(
                self._request,
                messages=talk.messages,
                conversation=conversation,
                report=answer.report,
                decided=answer.decide,
            )
        )
        async with aclosing(answers):
            async for out in answers:
                answer.note(out)
                if out.kind == "usage":
                    continue
                if remembers:
                    talk.note(out)
                if hops:  # a mapping is shared by the events of a stream, and stays so
                    made = metas.get(id(out.meta))
                    if made is None:
                        made = metas[id(out.meta)] = out.meta, MappingProxyType({**out.meta, "hops": hops})
                    out.meta = made[1]
                out.lineage = lineage
                out.conversation = conversation
                out.source = node
                yield out
        if answer.finish is None:
            raise StreamCut("the answer broke off before it was complete")

    # -- answers that wait for results

    def _remember(self, talk: _Talk) -> None:
        self._room()
        self._talks[talk.lineage] = talk

    def _room(self) -> None:
        if self.holds() >= self._hold:
            raise RunError(
                f"node {self._node!r} remembers {counted(self._hold, 'answer')} with calls to wait for, and their "
                "results, which is the most it may",
                code="AF621",
                hint="raise hold=, or see that every call has its result",
            )

    def _resulted(self, event: Event, result: ToolResult) -> _Talk | None:
        """Note a result; gives the answer that has all of its results now."""
        talk = self._talks.get(event.lineage)
        if talk is None and event.lineage in self._void:
            return None
        if talk is None or all(result.id != each.id for each in talk.calls):
            raise RunError(
                f"a result of {result.name!r} (id {result.id!r}) answers no call that waits for one",
                code="AF621",
                hint="name the functions at generate too: generate(tools=...); leave lineage and id as they are",
            )
        if result.id not in talk.results:
            self._room()
            talk.results[result.id] = result
        return talk if len(talk.results) == len(talk.calls) else None

    def control(self, event: Event) -> Iterator[Event]:
        """Forget the answers that are void."""
        kind, lineage = event.kind, event.lineage
        if kind in ("retract", "restart"):
            self._forget([each for each in self._talks if descends(each, lineage) or _same(each, lineage)])
        elif kind == "error":
            self._forget([each for each in self._talks if _same(each, lineage)])
        elif kind == "end":
            self._forget(list(self._talks))
            return
        yield event

    def _forget(self, lineages: list[str]) -> None:
        for each in lineages:
            del self._talks[each]
            self._void.add(each)

    def holds(self) -> int:
        """Answers that wait for results, and the results that are there."""
        return sum(1 + len(talk.results) for talk in self._talks.values())


def _same(one: str, other: str) -> bool:
    """Whether two lineages are of one answer, be they of several turns."""
    return answer_of(one)[0] == answer_of(other)[0]


def bind(args: Mapping[str, Any], binding: Binding) -> Behaviour:
    """The node's behaviour; its source is the run's.

    Raises:
        ConfigError: nothing answers in this run, or a function of `tools` can't be called by a model.
    """
    if binding.source is None:
        raise ConfigError(f"node {binding.node!r}: this run has nothing that answers", code="AF721")
    made = _Generate(args, binding, binding.source)
    if "tools" not in args:
        return Behaviour("stream", made.stream)
    return Behaviour("stream", made.stream, control=made.control, holds=made.holds)


GENERATE = Operator(SIGNATURE, bind)
