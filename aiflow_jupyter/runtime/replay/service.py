"""Service times by declaration: what a node's calls take in a replay, and which of them fail.

On a virtual clock no code takes time and no thread may run, so a node's plain function is called on the loop, and takes
what was declared: a worker waits for it, and a node that runs inline holds the loop for it, as it would. In real time
the same waits are real, and in the node's own threads where its function is.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aiflow_jupyter.graph.policy import MOST_SECONDS
from aiflow_jupyter.graph.problems import nearest
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.replay.clock import VirtualLoop
from aiflow_jupyter.runtime.replay.faults import Fail, Fault, Slow, of_kind
from aiflow_jupyter.runtime.replay.trace import TraceError


class Service:
    """What each call of one node takes, and whether it fails.

    Args:
        node: the node's name.
        seconds: of one call, None for what its code takes.
        faults: the script.
        seed: of what is random.
    """

    def __init__(self, node: str, seconds: float | None, faults: Iterable[Fault], seed: int) -> None:
        faults = list(faults)
        self.seconds = seconds
        self._slow = of_kind(faults, Slow, node)
        self._fails = of_kind(faults, Fail, node)
        self._random = random.Random(f"{seed}/{node}")  # noqa: S311 - it has to come again
        self._calls = 0

    def factor(self) -> float:
        """By how much the next call is slower."""
        factor = 1.0
        for slow in self._slow:
            spread = slow.spread
            factor *= (
                slow.factor * math.exp(self._random.gauss(-spread * spread / 2, spread)) if spread else slow.factor
            )
        return factor

    def begin(self) -> tuple[float, Exception | None]:
        """Begin a call: the seconds that it takes by declaration, and what it raises in the end."""
        self._calls += 1
        failure = next((f for f in self._fails if f.call <= self._calls < f.call + f.times), None)
        seconds = (self.seconds or 0.0) * self.factor()
        return min(seconds, MOST_SECONDS), failure.raised() if failure is not None else None


def serviced(
    operators: Mapping[str, Operator],
    spec: GraphSpec,
    *,
    service: Mapping[str, float],
    faults: Iterable[Fault],
    seed: int = 0,
    loop: VirtualLoop | None,
) -> dict[str, Operator]:
    """The operators, with the nodes of a graph taking the times that were declared.

    Args:
        operators: the known operators.
        spec: the graph.
        service: seconds of one call, by node; the others take what their code takes (on a virtual clock: none).
        faults: the script; its faults of answers are not for here.
        seed: of what is random in it.
        loop: the virtual loop, None for real time.

    Raises:
        TraceError: a node is unknown, its time can't be, or it has none that a fault could multiply.
    """
    faults = list(faults)
    named = {*service, *(fault.node for fault in faults if isinstance(fault, Slow | Fail))}
    for node in named:
        if node not in spec.nodes:
            raise TraceError(f"no node is called {node!r}", code="AF745", hint=nearest(node, spec.nodes))
    for node, seconds in service.items():
        if not 0 <= seconds <= MOST_SECONDS:
            raise TraceError(f"the service time of {node!r} is {seconds} s", code="AF745", hint="as in speech=0.08")
    for fault in faults:
        if isinstance(fault, Slow) and service.get(fault.node) is None:
            raise TraceError(
                f"node {fault.node!r} has no service time that could be slower",
                code="AF745",
                hint=f"declare one: service={{{fault.node!r}: 0.08}}, in a terminal --service {fault.node}=0.08",
            )
    services = {node: Service(node, service.get(node), faults, seed) for node in named}

    def wrapped(operator: Operator) -> Operator:
        def bind(args: Mapping[str, Any], binding: Binding) -> Behaviour:
            if loop is not None:
                binding = replace(binding, threads=_at_once)
            return _staged(operator.bind(args, binding), services.get(binding.node), loop)

        return replace(operator, bind=bind)

    return {name: wrapped(operator) for name, operator in operators.items()}


Begin = Callable[[], tuple[float, Exception | None]]


def _staged(behaviour: Behaviour, service: Service | None, loop: VirtualLoop | None) -> Behaviour:
    """A behaviour whose calls take their time first, and need no thread where the time is virtual."""
    mode, call = behaviour.mode, behaviour.call
    plain = mode in ("thread", "thread_iterate") and loop is not None
    if service is None and not plain:
        return behaviour
    begin = service.begin if service is not None else _nothing
    if mode == "await" or (plain and mode == "thread"):
        return replace(behaviour, mode="await", call=_awaiting(call, begin, plain=plain))
    if mode == "stream" or plain:
        return replace(behaviour, mode="stream", call=_streaming(call, begin, plain=plain))
    return replace(behaviour, call=_holding(call, begin, time.sleep if loop is None else loop.hold))


def _holding(call: Callable[..., Any], begin: Begin, hold: Callable[[float], None]) -> Callable[..., Any]:
    """A plain function that takes its time where it is called: on the loop, or in a thread."""

    def held(*arguments: Any, **extras: Any) -> Any:
        seconds, failure = begin()
        hold(seconds)
        if failure is not None:
            raise failure
        return call(*arguments, **extras)

    return held


def _awaiting(call: Callable[..., Any], begin: Begin, *, plain: bool) -> Callable[..., Any]:
    async def awaited(*arguments: Any, **extras: Any) -> Any:
        await _waited(begin)
        result = call(*arguments, **extras)
        return result if plain else await result

    return awaited


def _streaming(call: Callable[..., Any], begin: Begin, *, plain: bool) -> Callable[..., Any]:
    async def streamed(*arguments: Any, **extras: Any) -> AsyncGenerator[Any, None]:
        await _waited(begin)
        if plain:
            for out in call(*arguments, **extras):
                yield out
            return
        async with aclosing(call(*arguments, **extras)) as stream:
            async for out in stream:
                yield out

    return streamed


async def _waited(begin: Begin) -> None:
    seconds, failure = begin()
    if seconds:
        await asyncio.sleep(seconds)
    if failure is not None:
        raise failure


def _nothing() -> tuple[float, Exception | None]:
    return 0.0, None


def _at_once() -> Callable[..., Awaitable[Any]]:
    """What stands for a node's threads where there are none."""

    async def call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return call
