"""`tools`: makes the calls that a model asks for, and gives their results.

    ask  = generate(tools=(weather, search))
    lane = route(by="kind")
    act  = tools(functions=(weather, search))  [workers=4]
    out  = sink(display=true)

    ask -> lane
    lane.token         -> out
    lane.tool_fragment -> act
    act -> ask [feedback, limit=8, hops=5]

Fragments are put together as they come; once the answer has its `finish`, its calls are checked against the functions'
hints and made, up to `workers` at once: a plain `def` in the node's threads, `async def` on the loop. One
`tool_result` leaves for each, in the order of the calls, with the answer's lineage; `generate`, which the feedback
edge leads to, asks on when it has all of them. So the edge's `limit` has to hold the calls of one answer. What is no
fragment passes by.

What goes wrong with a call is a result too, marked failed, that tells the model: JSON that is none, arguments that do
not fit, a function that there is not, an exception, a time limit, an iterator instead of a list. The policy holds for
each call by itself: `timeout`, `retry`, `state`; a parameter `idempotency_key` gets a text of the answer and the call's
place in it, which stays the same however often anything is tried, while the ids that servers give to calls may not.

An answer that broke off, lost a part to overflow, was retracted or has no `finish` has no calls made. A result that is
longer than `hold_bytes` is cut, and says so. At most `hold` calls (64) are put together at once, which is AF620 beyond,
with at most `hold_bytes` of arguments in all: a call that is longer fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Final

from aiflow_jupyter.errors import AiflowError, RunError, words
from aiflow_jupyter.events import Event, ToolCall, ToolFragment, ToolResult, descends, text_bytes
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.calls import Assembly, SaidCall
from aiflow_jupyter.operators.json_text import beginning, json_text
from aiflow_jupyter.operators.numbering import Recent
from aiflow_jupyter.operators.schema import WrongArgumentsError, tools_of
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.returned import whole

MOST_CALLS: Final = 64

SIGNATURE = OperatorSignature(
    "tools",
    (Parameter("functions", "functions", required=True, gets="arguments"),),
    takes=frozenset({"tool_fragment"}),
    gives=frozenset({"tool_result"}),
    results="gathered",
    holds=lambda _args: MOST_CALLS,
)


def tools(functions: Callable[..., Any] | tuple[Callable[..., Any], ...] | list[Callable[..., Any]]) -> OperatorCall:
    """Make the calls that a model asks for.

    Args:
        functions: what it may call; each takes its arguments by name and returns what the model is told. The same ones
            belong to `generate(tools=...)`.
    """
    return call("tools", functions=functions)


class _Open:
    """The calls of one answer that come in."""

    __slots__ = ("assembly", "bytes", "last")

    def __init__(self, lineage: str, first: Event) -> None:
        self.assembly = Assembly(lineage)
        self.last = first
        self.bytes = 0


class _Made:
    """An answer's calls, complete, on their way to be made."""

    __slots__ = ("answer",)

    def __init__(self, answer: _Open) -> None:
        self.answer = answer


class _Tools:
    """See the module."""

    def __init__(self, args: Args, binding: Binding) -> None:
        policy = binding.policy
        self._node = binding.node
        self._known = tools_of(args["functions"], binding)
        self._hold = policy.hold or MOST_CALLS
        self._hold_bytes = policy.hold_bytes
        self._open: dict[str, _Open] = {}
        self._void: Recent[bool] = Recent()
        self._calls = self._bytes = 0
        self._slots = asyncio.Semaphore(policy.workers)
        if any(not tool.awaits for tool in self._known.values()):
            self._submit = binding.threads()
        self.extras = frozenset[str]().union(*(tool.extras for tool in self._known.values()))
        self._tried = binding.govern(Behaviour("await", self._once, extras=self.extras)).call

    async def stream(self, event: Event) -> AsyncGenerator[Event, None]:
        """Take in a fragment; or make the calls of an answer, and give their results."""
        if isinstance(event.payload, _Made):
            if not event.complete:  # a fragment was dropped on the way, and with it a part of a call, or a whole one
                return
            results = self._results(event, event.payload.answer)
            try:
                async for result in results:
                    yield result
            finally:
                await results.aclose()
        elif isinstance(event.payload, ToolFragment) and event.lineage not in self._void:
            self._gather(event, event.payload)

    # -- what comes in

    def _gather(self, event: Event, fragment: ToolFragment) -> None:
        answer = self._open.get(event.lineage)
        if answer is None:
            answer = self._open[event.lineage] = _Open(event.lineage, event)
        answer.last = event
        before = len(answer.assembly)
        size = answer.assembly.add(fragment, self._hold_bytes - self._bytes)
        answer.bytes += size
        self._bytes += size
        self._calls += len(answer.assembly) - before
        if self._calls > self._hold:
            self._take(event.lineage)
            raise RunError(
                f"node {self._node!r} puts {counted(self._hold, 'call')} together, which is the most it may, and "
                "another one came",
                code="AF620",
                hint="raise hold=, or tell the model to call fewer functions at once",
            )

    def _take(self, lineage: str) -> _Open | None:
        answer = self._open.pop(lineage, None)
        if answer is not None:
            self._calls -= len(answer.assembly)
            self._bytes -= answer.bytes
        return answer

    def control(self, event: Event) -> Iterator[Event]:
        """Have the calls of an answer made at its finish; forget those of one that is void."""
        kind, lineage = event.kind, event.lineage
        if kind == "finish":
            answer = self._take(lineage)
            if answer is not None:
                yield answer.last.derive(_Made(answer), "value")
            self._void.pop(lineage, None)
        elif kind in ("error", "retract", "restart"):
            for each in {lineage, *(each for each in self._open if descends(each, lineage))}:
                self._take(each)
                if kind == "restart":
                    self._void.pop(each, None)
                else:
                    self._void.add(each)
        elif kind == "end":
            self._open.clear()
            self._calls = self._bytes = 0
            return
        yield event

    def holds(self) -> int:
        """Calls that are put together."""
        return self._calls

    # -- the calls

    async def _results(self, event: Event, answer: _Open) -> AsyncGenerator[Event, None]:
        calls = answer.assembly.calls()
        meta = {key: value for key, value in event.meta.items() if key != "phase"}
        made = [asyncio.ensure_future(self._result(event, place, each)) for place, each in enumerate(calls)]
        try:
            for place, result in enumerate(made):
                await asyncio.wait([result])  # which, cancelled, does not cancel it alone and let another one begin
                payload = result.result()
                payload.calls = len(calls)
                yield Event(
                    "tool_result", payload, event.conversation, self._node, place, event.time, event.lineage, meta
                )
        finally:
            left = [each for each in made if not each.done()]
            for each in left:
                each.cancel()
            if left:
                await asyncio.wait(left)

    async def _result(self, event: Event, place: int, said: SaidCall) -> ToolResult:
        """What one call gives, whatever happens."""
        tool = self._known.get(said.name)
        wrong = ""
        if said.cut:
            wrong = f"the arguments are too long: at most {self._hold_bytes:,} bytes for all calls together"
        elif tool is None:
            known = ", ".join(self._known)
            wrong = f"there is no function {said.name!r}; there are: {known}" if said.name else f"name one of: {known}"
        else:
            try:
                payload = ToolCall(said.id, said.name, tool.arguments(said.arguments))
            except WrongArgumentsError as error:
                wrong = f"wrong arguments: {error}"
        if wrong:
            return ToolResult(said.id, said.name, f"Error: {wrong}", failed=True)
        one = Event("tool_call", payload, event.conversation, self._node, place, event.time, event.lineage, event.meta)
        try:
            async with self._slots:
                return ToolResult(said.id, said.name, await self._tried(one))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            wrong = words(error) or "it was cancelled"
        except AiflowError as error:
            wrong = error.message
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, and none of it is for the loop
            wrong = f"{type(error).__name__}: {words(error)}"
        return ToolResult(said.id, said.name, f"Error: {wrong}", failed=True)

    async def _once(self, event: Event, **extras: Any) -> str:
        """Call a function once, and write down what it returned where it ran."""
        tool = self._known[event.payload.name]
        given = event.payload.arguments | {name: extras[name] for name in tool.extras}
        if tool.awaits:
            return self._text(tool.name, await tool.function(**given))
        text: str = await self._submit(lambda: self._text(tool.name, tool.function(**given)))
        return text

    def _text(self, name: str, result: Any) -> str:
        """A function's result as the model is told it."""
        result = whole(name, result)
        if not isinstance(result, str):
            return json_text(result, self._hold_bytes)
        if text_bytes(result) <= self._hold_bytes:
            return result
        kept = beginning(result, self._hold_bytes)
        return f"{kept}\n[cut here: {counted(len(result) - len(kept), 'more character')}]"


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `tools`.

    Raises:
        ConfigError: no such function, or no model could call it.
    """
    made = _Tools(args, binding)
    return Behaviour("stream", made.stream, control=made.control, holds=made.holds, recalls=True, governed=True)


TOOLS = Operator(SIGNATURE, bind)
