"""`delegate`: another graph as one node.

    %%aiflow graph research
    find = retrieve(index=papers, together=true)
    ask  = generate()
    out  = sink(display=true)
    find -> ask -> out

    %%aiflow graph talk
    answer = delegate(flow=research)
    parts  = segment()
    speech = sink(function=speak)
    answer -> parts -> speech

Each event is one run of the other graph: it goes to its one input, and what that graph gives comes out. Where it has a
`sink(display=true)`, all that is shown there leaves as it comes, as one answer: with a lineage of its own, and a
`finish` once the inner run is done; what that graph shows waits for whoever takes it here, so memory stays bounded.
Else the `sink(var=...)`s make one `value`, with the event's identity: what was collected, joined if it is a model's
tokens, a list if it is several; by name where there are several sinks.

Both graphs share the functions, the source and the loop. A cancel goes down; a failure names the inner node; the
models' answers and what the inner run warns of stand in the outer run's result too, which is not complete where the
inner one is not. Of an answer that broke off inside, but was caught there, an `error` tells after what came of it; what
is retracted inside is retracted here.

A graph may delegate to graphs that delegate, `MOST_DEPTH` deep, but never to itself, by whatever way: AF625.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiflow_jupyter.errors import AiflowError, ConfigError, RunError
from aiflow_jupyter.events import CONTROL, DATA, Event, Failure, Finish, descends
from aiflow_jupyter.graph.builder import Flow, OperatorCall, call
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.operators.sink import SINK
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Collected, Operator
from aiflow_jupyter.runtime.endings import told

if TYPE_CHECKING:
    from aiflow_jupyter.runtime.run import Result, Run

MOST_DEPTH: Final = 8
NAMED: Final = frozenset({"idempotency_key"})

SIGNATURE = OperatorSignature(
    "delegate", (Parameter("flow", "flow", required=True),), gives=DATA, results="many", opaque=True
)


def delegate(flow: str | Flow) -> OperatorCall:
    """Run another graph for each event.

    Args:
        flow: the graph, or its name.
    """
    return call("delegate", flow=flow)


class _Shown:
    """What an inner graph shows, handed over one by one: the next one waits until the last was taken.

    Of what is told besides, only what makes something void that was shown has its place among that.

    Attributes:
        finish: the last finish of the inner graph.
        broken: an answer in it broke off, and its part is not told apart.
    """

    def __init__(self) -> None:
        self.finish = Finish()
        self.broken = False
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(1)
        self._lineages: set[str] = set()

    def operator(self) -> Operator:
        """`sink`, with this in place of the display."""

        def bind(args: Args, binding: Binding) -> Behaviour:
            return (
                Behaviour("await", self._take, control=self._told) if args.get("display") else SINK.bind(args, binding)
            )

        return Operator(SINK.signature, bind)

    async def _take(self, event: Event) -> None:
        await self._room.acquire()
        self._lineages.add(event.lineage)
        self._events.put_nowait(event)

    def _told(self, event: Event) -> Iterator[Event]:
        if event.kind == "finish":
            self.finish = event.payload
        elif event.kind == "error":
            self.broken = True
        elif event.kind in ("restart", "retract"):
            about = {each for each in self._lineages if descends(each, event.lineage)}
            if about:
                self._lineages -= about
                self._events.put_nowait(event)
        if event.kind != "end":
            yield event

    def close(self, _: object) -> None:
        """Nothing more comes."""
        self._events.put_nowait(None)

    async def events(self) -> AsyncGenerator[Event, None]:
        """What is shown, and what is told of it, until nothing more comes."""
        while (event := await self._events.get()) is not None:
            if event.kind not in CONTROL:
                self._room.release()
            yield event


class _Answer:
    """What one inner run shows, as an answer of this node's.

    Attributes:
        void: it was retracted.
    """

    def __init__(self, asked: Event, node: str) -> None:
        self.void = False
        self._asked = asked
        self._node = node
        self._lineage = asked.answer_lineage(node)
        self._hops = {"hops": asked.meta["hops"]} if "hops" in asked.meta else {}
        self._number = 0
        self._lineages: set[str] = set()

    def outer(self, inner: Event) -> Event | None:
        """What leaves for an event of the inner graph."""
        kind = inner.kind
        if self.void:
            return None
        if kind not in CONTROL:
            self._lineages.add(inner.lineage)
            self._number += 1
            return self.event(kind, inner.payload, self._number - 1, {**inner.meta, **self._hops})
        about = {each for each in self._lineages if descends(each, inner.lineage)}
        if kind == "retract" and about:
            self.void = True
            return self.event("retract", inner.payload)
        if kind == "restart" and about:
            if about != self._lineages:
                raise RunError(
                    "a part of what it shows began anew, and what was shown besides would be lost", code="AF626"
                )
            self._number = 0
            self._lineages.clear()
            return self.event("restart", inner.payload)
        return None

    def last(self, shown: _Shown) -> Event | None:
        """What ends the answer."""
        if self.void:
            return None
        if shown.broken:
            error = RunError(f"node {self._node!r}: an answer in its graph broke off", code="AF626")
            return self.event("error", Failure(self._node, self._asked.sequence, error), 0, {"complete": False})
        return self.event("finish", shown.finish, self._number, self._hops)

    def event(self, kind: Any, payload: Any, number: int = 0, meta: Mapping[str, Any] | None = None) -> Event:
        """An event of this answer."""
        asked = self._asked
        return Event(kind, payload, asked.conversation, self._node, number, asked.time, self._lineage, meta or {})


class _Delegate:
    """See the module."""

    def __init__(self, spec: GraphSpec, binding: Binding) -> None:
        self._spec = spec
        self._node = binding.node
        self._made = binding.inner
        self._answers = binding.answers
        self._withheld = binding.withheld

    async def stream(self, event: Event, idempotency_key: str = "") -> AsyncGenerator[Event, None]:
        """Run the graph for an event, and give what it shows; every try of the event is a run of the same name."""
        shown, answer = _Shown(), _Answer(event, self._node)
        run = self._made(self._spec, {"sink": shown.operator()}, idempotency_key)
        running = asyncio.ensure_future(self._run(run, event))
        running.add_done_callback(shown.close)
        try:
            async for inner in shown.events():
                out = answer.outer(inner)
                if out is not None:
                    yield out
            whole = running.result().complete
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait([running])
        end = answer.last(shown)
        if end is not None:
            yield end if whole else told(end, [end.lineage])

    async def value(self, event: Event, idempotency_key: str = "") -> Event:
        """Run the graph for an event, and give what it collected; the run's name is as in `stream`."""
        result = await self._run(self._made(self._spec, {}, idempotency_key), event)
        values = {name: _collected(each) for name, each in result.variables.items()}
        out = event.derive(values if len(values) > 1 else next(iter(values.values())), "value")
        if not result.complete:
            out.meta = {**event.meta, "complete": False}
        return out

    async def _run(self, run: Run, event: Event) -> Result:
        try:
            result = await run.run(event.payload)
        except AiflowError as error:
            raise RunError(
                f"node {self._node!r}: in graph {self._spec.name!r}: {error.message}", code=error.code, hint=error.hint
            ) from error
        finally:
            self._answers.extend(run.answers)
        if not result.complete:
            self._withheld(f"node {self._node!r}: what graph {self._spec.name!r} gave is not whole")
        return result


def _collected(values: Collected) -> Any:
    if values.tokens and values:
        return "".join(values)
    return values[0] if len(values) == 1 else list(values)


def depth_of(flow: str, flows: Mapping[str, GraphSpec], node: str) -> int:
    """How many graphs are within one another from a graph on.

    Raises:
        ConfigError: one is not known, one leads back to itself, or they are too many.
    """
    depths: dict[str, int] = {}

    def depth(name: str, way: tuple[str, ...]) -> int:
        if name in way:
            raise _too_deep(node, f"graph {name!r} would run itself", (*way[way.index(name) :], name))
        if name not in flows:
            hint = f"define it in a cell before: %%aiflow graph {name}"
            raise ConfigError(f"node {node!r}: no graph is called {name!r}", code="AF205", hint=hint)
        way = (*way, name)
        if name not in depths:
            below = [each.args.get("flow") for each in flows[name].nodes.values() if each.operator == "delegate"]
            depths[name] = 1 + max((depth(each, way) for each in below if isinstance(each, str)), default=0)
        if len(way) - 1 + depths[name] > MOST_DEPTH:
            raise _too_deep(node, f"more than {MOST_DEPTH} graphs within one another", way)
        return depths[name]

    return depth(flow, ())


def _too_deep(node: str, what: str, way: tuple[str, ...]) -> ConfigError:
    hint = "put some of them into one graph; a feedback edge leads back within one"
    return ConfigError(f"node {node!r}: {what}: {' -> '.join(way)}", code="AF625", hint=hint)


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `delegate`.

    Raises:
        ConfigError: there is no such graph, it can't be run for an event, or it leads back to itself.
        GraphError: it does not pass its checks.
    """
    name = args["flow"]
    depth_of(name, binding.flows, binding.node)
    spec = binding.flows[name]
    _check(spec, binding)
    made = _Delegate(spec, binding)
    sinks = [each.args for each in spec.nodes.values() if each.operator == "sink"]
    if any(each.get("display") for each in sinks):
        return Behaviour("stream", made.stream, extras=NAMED)
    if any("var" in each for each in sinks):
        return Behaviour("await", made.value, extras=NAMED)
    raise ConfigError(
        f"node {binding.node!r}: graph {name!r} gives nothing to go on with",
        code="AF624",
        hint='end it with sink(display=true), or with sink(var="...")',
    )


def _check(spec: GraphSpec, binding: Binding) -> None:
    binding.check(spec)
    inputs = spec.inputs()
    if len(inputs) != 1:
        raise ConfigError(
            f"node {binding.node!r}: graph {spec.name!r} has {len(inputs)} inputs: {', '.join(inputs)}",
            code="AF624",
            hint="lead them from one node",
        )


DELEGATE = Operator(SIGNATURE, bind)
