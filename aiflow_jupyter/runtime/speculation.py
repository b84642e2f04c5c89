"""Speculative nodes: what one gives is held until a verdict on its lineage arrives.

The verdict comes as `commit` or `retract` from a node such as `guard`, over an edge from its port `verdict`. A verdict
holds for its lineage and all answers below it, also for what is made after it. Without one by `timeout` seconds after
the first event of a lineage, or by the end, what is held is retracted: an event that nobody vouched for never leaves.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import DATA, Event
from aiflow_jupyter.graph.bounds import MOST_SPECULATIVE
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding
from aiflow_jupyter.runtime.endings import close

MOST_VERDICTS: Final = 1_024
"""Verdicts that are remembered for what is made after them."""


def speculate(behaviour: Behaviour, binding: Binding) -> Behaviour:  # noqa: C901 - four ways to be called
    """A behaviour that holds what the given one gives until its verdict.

    Args:
        behaviour: of a mode that runs on the loop, and does not route.
        binding: the node's binding.
    """
    held = _Held(binding)
    call = behaviour.call

    def inline(event: Event) -> Iterator[Event]:
        out = call(event)
        if out is not None:
            yield from held.take(out)

    def iterate(event: Event) -> Iterator[Event]:
        for out in call(event):
            yield from held.take(out)

    async def awaited(event: Event) -> AsyncGenerator[Event, None]:
        out = await call(event)
        if out is not None:
            for each in held.take(out):
                yield each

    async def stream(event: Event) -> AsyncGenerator[Event, None]:
        async for out in call(event):
            for each in held.take(out):
                yield each

    calls: dict[str, tuple[Any, Callable[..., Any]]] = {
        "inline": ("iterate", inline),
        "iterate": ("iterate", iterate),
        "await": ("stream", awaited),
        "stream": ("stream", stream),
    }
    mode, changed = calls[behaviour.mode]
    inner = behaviour.control

    def control(event: Event) -> Iterator[Event]:
        own = inner(event) if inner is not None else () if event.kind == "end" else (event,)
        yield from held.control(event, own)

    return replace(behaviour, mode=mode, call=changed, control=control, holds=held.count)


class _Held:
    """What waits for a verdict, by lineage, and the verdicts there were."""

    def __init__(self, binding: Binding) -> None:
        self._node = binding.node
        self._later = binding.later
        self._timeout = binding.policy.timeout
        self._most = binding.policy.hold or MOST_SPECULATIVE
        self._events: dict[str, list[Event]] = {}
        self._timers: dict[str, Callable[[], None]] = {}
        self._verdicts: dict[str, bool] = {}

    def count(self) -> int:
        """Data events held now."""
        return sum(event.kind in DATA for events in self._events.values() for event in events)

    def take(self, out: Event) -> Iterator[Event]:
        """Let an event out, hold it, or discard it."""
        verdict = self._verdict(out.lineage)
        if verdict is None:
            if self.count() >= self._most:
                raise RunError(
                    f"node {self._node!r} holds {self._most} events that wait for a verdict, which is the most it may",
                    code="AF613",
                    hint="raise hold=, or see that the verdict comes sooner",
                )
            self._hold(out)
        elif verdict:
            yield out

    def _hold(self, out: Event) -> None:
        events = self._events.setdefault(out.lineage, [])
        if not events and self._timeout is not None:
            late = Event("retract", "no verdict came in time", out.conversation, self._node, 0, out.time, out.lineage)
            self._timers[out.lineage] = self._later(self._timeout, late)
        events.append(out)

    def _verdict(self, lineage: str) -> bool | None:
        while lineage:
            if (verdict := self._verdicts.get(lineage)) is not None:
                return verdict
            lineage = lineage.rpartition("/")[0]
        return None

    def control(self, event: Event, own: Iterable[Event]) -> Iterator[Event]:
        """Act on a control event; `own` is what the node's operator makes of it."""
        yield from self._judge(event)
        for out in own:
            if out.kind in DATA:
                yield from self.take(out)
            elif out.kind != "finish":
                yield out
            elif out.lineage in self._events:
                self._events[out.lineage].append(out)
            else:
                yield out if self._verdict(out.lineage) is not False else close(out, broken=False)

    def _judge(self, event: Event) -> Iterator[Event]:
        """Let go or discard what a control event decides on."""
        kind = event.kind
        if kind in ("commit", "retract"):
            self._verdicts[event.lineage] = kind == "commit"
            if len(self._verdicts) > MOST_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
            for lineage in [each for each in self._events if _covers(event.lineage, each)]:
                for out in self._settle(lineage):
                    if kind == "commit":
                        yield out
                    elif out.kind == "finish":
                        yield close(out, broken=False)
        elif kind in ("error", "restart"):
            self._settle(event.lineage)
            self._verdicts.pop(event.lineage, None)
        elif kind == "end":
            for lineage in list(self._events):
                self._settle(lineage)

    def _settle(self, lineage: str) -> list[Event]:
        """What was held of a lineage, which is held no more."""
        cancel = self._timers.pop(lineage, None)
        if cancel is not None:
            cancel()
        return self._events.pop(lineage, [])


def _covers(verdict: str, lineage: str) -> bool:
    return lineage == verdict or lineage.startswith(f"{verdict}/")
