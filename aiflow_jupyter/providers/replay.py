"""A recorded trace answers: in real time, faster, or on a virtual clock, where the same gives the same to the bit.

    Replay(load("run.jsonl"))                        # a provider like any other, at the pace of the recording
    result = replay(flow, "run.jsonl", service={"speech": 0.08})     # to its end, at once, on a virtual clock

A request is given the first answer, not yet given, to the same messages; else to the same node; else the first at all.
Its events come as long after the request as they did, and are stamped with when they were due, not with when somebody
took them: so a run tells how far behind the arrivals each node is, which a bounded queue hides.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Final, Literal, cast

from aiflow_jupyter.errors import CommandError, ProviderError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.builder import Flow
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.graph.parsed import Built
from aiflow_jupyter.graph.problems import counted, indefinite
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.runtime.replay.clock import VirtualLoop, VirtualScheduler, apart, simulate
from aiflow_jupyter.runtime.replay.faults import Fault, disturbed
from aiflow_jupyter.runtime.replay.reading import load
from aiflow_jupyter.runtime.replay.service import serviced
from aiflow_jupyter.runtime.replay.trace import Exchange, Trace, hash_of
from aiflow_jupyter.runtime.run import Result, Run
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.source import Request

QUESTION: Final = "(what was asked was not recorded)"
NOTABLE_S: Final = 1.0
WAITED: Final = (
    "the replay waited {:.1f} s of real time, which its virtual clock does not count: if a function of yours sleeps or "
    "asks a server, leave that out of it, and declare what it takes, as in service={{'node': seconds}}"
)
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Replay:
    """Gives a trace's answers; see the module.

    Args:
        trace: what was recorded.
        speed: how many times faster than it was; None for no waiting: every event is due when it is asked for.
        faults: what the answers suffer; faults of nodes are not for a provider.
        clock: nanoseconds; that of the loop and of the run.
    """

    name = "replay"
    stamps = True

    def __init__(
        self,
        trace: Trace,
        speed: float | None = 1.0,
        *,
        faults: Iterable[Fault] = (),
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if speed is not None and not 1e-3 <= speed <= 1e9:
            raise CommandError(
                f"the speed is {speed:g}", code="AF746", hint="1 for that of the recording, 10 for faster"
            )
        self._speed = speed
        self._clock = clock
        self._left = list(disturbed(trace, faults).exchanges)
        self._many = len(self._left)

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer `request` as it was answered; see `runtime.source.Source`."""
        began = self._clock()
        exchange = self._found(request)
        for sequence, recorded in enumerate(exchange.events):
            due = began + self._later(recorded.at - exchange.at)
            await self._until(due)
            yield recorded.event(sequence, due)
        if exchange.broken is not None:
            await self._until(began + self._later(exchange.broken.at - exchange.at))
            raise exchange.broken.raised()

    async def aclose(self) -> None:
        """Nothing is open."""

    def _later(self, after: int) -> int:
        if self._speed is None:
            return 0
        return after if self._speed == 1 else round(after / self._speed)

    async def _until(self, due: int) -> None:
        while (left := due - self._clock()) > 0:  # noqa: ASYNC110 - a clock, which may wake a little early
            await asyncio.sleep(left / 1e9)

    def _found(self, request: Request) -> Exchange:
        """The answer to a request.

        Raises:
            ProviderError: all were given.
        """
        if not self._left:
            raise ProviderError(
                f"the trace has {counted(self._many, 'answer')}, and this request is one more",
                code="AF744",
                hint="record a run that asks as often, or make a new Replay for each run",
            )
        wanted = hash_of(request.messages)
        found = next((each for each in self._left if each.hash == wanted), None)
        if found is None and request.node:
            found = next((each for each in self._left if each.node == request.node), None)
        found = found or self._left[0]
        self._left.remove(found)
        return found


def replay(
    flow: Flow | GraphSpec,
    trace: Trace | str | Path,
    *,
    value: Any = None,
    to: str | None = None,
    faults: Iterable[Fault] = (),
    service: Mapping[str, float] = _NONE,
    functions: Mapping[str, Any] = _NONE,
    clock: Literal["virtual", "real"] = "virtual",
    speed: float | None = 1.0,
    seed: int = 0,
) -> Result:
    """Run a graph on a trace, to its result.

    On a virtual clock no code takes time but by its declared service time, and no thread runs; the same trace, graph,
    faults and seed give the same result and figures. Your functions are called all the same, one after the other, and
    what they really take is waited for: leave a `time.sleep` out, and declare it as `service`. A warning says where
    that was more than a second.

    Args:
        flow: the graph, built in Python or read from a document; for one of a cell see `%aiflow trace replay`, or
            `%aiflow graph NAME --as python`.
        trace: what answers, or the file that holds it.
        value: what goes to its input; None for what was asked first, where messages were recorded.
        to: the input node, where there are several.
        faults: what the answers suffer, and what nodes do wrong.
        service: seconds that one call takes, by node.
        functions: the user's functions by name, besides the flow's own.
        clock: `virtual`, or `real` for real waits.
        speed: see `Replay`.
        seed: of all that is random: faults, pauses before retries.

    Raises:
        CommandError: what is given as the graph or the trace is none.
        GraphError: the graph does not pass its checks.
        RunError: a node failed.
        TraceError: the file holds no trace, or a fault or service time fits no node.
    """
    began, cpu = time.monotonic(), time.process_time()
    run = replayed(
        flow, trace, value=value, to=to, faults=faults, service=service, functions=functions, clock=clock, speed=speed,
        seed=seed,
    )  # fmt: skip
    waited = time.monotonic() - began - (time.process_time() - cpu)
    if clock == "virtual" and waited > NOTABLE_S:
        warnings.warn(WAITED.format(waited), stacklevel=2)
    if run.error is not None:
        raise run.error
    return run.result()


def replayed(
    flow: Flow | GraphSpec,
    trace: Trace | str | Path,
    *,
    value: Any = None,
    to: str | None = None,
    faults: Iterable[Fault] = (),
    service: Mapping[str, float] = _NONE,
    functions: Mapping[str, Any] = _NONE,
    clock: Literal["virtual", "real"] = "virtual",
    speed: float | None = 1.0,
    seed: int = 0,
) -> Run:
    """The same as `replay`, but gives the run, which is over, also where it failed: for its figures."""
    spec = _graph(flow)
    functions = {**(flow.functions if isinstance(flow, Flow) else {}), **functions}
    faults = list(faults)
    recorded = _trace(trace)
    require(spec, SIGNATURES, functions, Built(spec))

    async def story(scheduler: Scheduler, loop: VirtualLoop | None) -> Run:
        run = Run(
            spec,
            serviced(OPERATORS, spec, service=service, faults=faults, seed=seed, loop=loop),
            scheduler,
            functions=functions if loop is None else _awaited(spec, functions),
            source=Replay(recorded, speed, faults=faults, clock=scheduler.clock),
            run_id="replay",
            random=Random(seed),  # noqa: S311 - it has to come again
        )
        try:
            await run.run(_asked(recorded) if value is None else value, to=to)
        except Exception:
            if run.error is None:
                raise
        return run

    if clock == "virtual":
        return apart(lambda: simulate(lambda loop: story(VirtualScheduler(loop), loop)))

    async def in_real_time() -> Run:
        return await story(Scheduler(asyncio.get_running_loop()), None)

    return apart(lambda: asyncio.run(in_real_time()))


def _graph(flow: Any) -> GraphSpec:
    spec = flow.spec if isinstance(flow, Flow) else flow
    if isinstance(spec, GraphSpec):
        return spec
    what = f"{flow!r:.60}, a text" if isinstance(flow, str) else indefinite(type(flow).__name__)
    raise CommandError(
        f"replay takes a Flow, not {what}",
        code="AF805",
        hint="%aiflow graph NAME --as python prints the graph of a cell as one;\n"
        "%aiflow trace replay FILE answers the next %%aiflow run NAME in the notebook",
    )


def _trace(trace: Any) -> Trace:
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, str | Path):
        return load(trace)
    raise CommandError(
        f"replay takes a trace or its file, not {indefinite(type(trace).__name__)}",
        code="AF805",
        hint='replay(flow, "run.jsonl")',
    )


def _asked(trace: Trace) -> Any:
    """What was asked first, without what the node added."""
    first = trace.exchanges[0].messages if trace.exchanges else None
    if not first:
        return QUESTION
    asked = [message for message in first if message.get("role") != "system"]
    return asked[0]["content"] if len(asked) == 1 else asked or QUESTION


def _awaited(spec: GraphSpec, functions: Mapping[str, Any]) -> dict[str, Any]:
    """The functions, those that undo a failed call as coroutine functions: there is no thread for a plain one."""
    found = dict(functions)
    for node in spec.nodes.values():
        name = node.policy.compensate
        if name is not None and name in found and not inspect.iscoroutinefunction(found[name]):
            found[name] = _as_coroutine(found[name])
    return found


def _as_coroutine(function: Callable[..., Any]) -> Callable[..., Any]:
    async def undo(payload: Any, error: Exception) -> Any:
        return function(payload, error)

    return cast("Callable[..., Any]", undo)
