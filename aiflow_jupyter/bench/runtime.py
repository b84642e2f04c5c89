"""What the runtime costs, beside the same work written by hand with `asyncio.Queue(8)` and one task for each node.

Each figure is the median of rounds that take turns with what they are compared with.

    hop_ratio              a chain of 1, 3 and 10 nodes of an `async def` that never waits, source and sink included
    queued_hop_ratio       the same where every call waits for one turn of the loop, in a chain of 3
    threaded_hop_us        one hop through a plain function in its node's thread, in microseconds
    runs_ratio             many runs of 5 nodes at once, in wall time (1,000; fewer with `--quick`)
    main_thread_share      how much of its speed a Python loop in the main thread keeps beside a flooded run
    main_thread_worst_ms   the longest it stood still in that time
    events_per_second      what comes out of a chain of 5 plain functions that run on the loop
    bytes_per_idle_guardian  memory of a node that has not been sent anything, with its share of its run

Where the time goes: a hop is a push into a queue, the step of a worker, and two readings of the clock (service, wait);
a hand-written hop is two futures' worth of `asyncio.Queue`. A chain on the loop has no queue at all. A threaded hop is
two thread switches, and waits for the interpreter lock. The loop lets go of that lock at each of its turns and then
waits for an interval (5 ms) until a busy main thread gives it back, so the main thread keeps most of its speed and it
is the run that slows; what the main thread stands still is a slice of the loop plus what the system's scheduler adds.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.signatures import OperatorSignature
from aiflow_jupyter.graph.spec import EdgeSpec, GraphSpec, NodeSpec
from aiflow_jupyter.runtime.behaviour import Behaviour, Operator
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler

Step = Callable[[Event], Awaitable[Event]]

HOPS = (1, 3, 10)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything is measured."""

    rounds: int = 5
    events: int = 10_000
    threaded: int = 2_000
    runs: int = 1_000
    flood_s: float = 1.0
    idle: int = 1_000


QUICK = Size(rounds=1, events=200, threaded=50, runs=10, flood_s=0.05, idle=50)


async def never(event: Event) -> Event:
    """A step that does not wait."""
    return event


async def turn(event: Event) -> Event:
    """A step that waits for one turn of the loop."""
    await asyncio.sleep(0)
    return event


def _same(event: Event) -> Event:
    return event


def _run(scheduler: Scheduler, middle: Mapping[str, Behaviour], events: int) -> Run:
    """A chain: a source of so many events, the middle, and a sink."""

    def give(_event: Event) -> Iterator[Event]:
        return (Event("value", number) for number in range(events))

    def drop(_event: Event) -> None:
        return None

    behaviours = {"source": Behaviour("iterate", give), **middle, "sink": Behaviour("inline", drop)}
    operator = Operator(OperatorSignature("node"), lambda _args, binding: behaviours[binding.node])
    spec = GraphSpec(
        name="bench",
        nodes={name: NodeSpec(operator="node", policy=Policy()) for name in behaviours},
        edges=[EdgeSpec(source=a, port=None, target=b) for a, b in pairwise(behaviours)],
    )
    return Run(spec, {"node": operator}, scheduler)


async def _ours(nodes: int, step: Step, events: int, runs: int = 1) -> float:
    scheduler = Scheduler(asyncio.get_running_loop())
    middle = {f"n{i}": Behaviour("await", step) for i in range(nodes)}
    start = time.perf_counter()
    await asyncio.gather(*(_run(scheduler, middle, events).run("go") for _ in range(runs)))
    return time.perf_counter() - start


async def _by_hand(nodes: int, step: Step, events: int, runs: int = 1) -> float:
    async def one() -> None:
        queues: list[asyncio.Queue[Event | None]] = [asyncio.Queue(8) for _ in range(nodes)]

        async def source() -> None:
            for number in range(events):
                await queues[0].put(Event("value", number))
            await queues[0].put(None)

        async def node(index: int) -> None:
            after = queues[index + 1] if index + 1 < nodes else None
            while (event := await queues[index].get()) is not None:
                out = await step(event)
                if after is not None:
                    await after.put(out)
            if after is not None:
                await after.put(None)

        await asyncio.gather(source(), *(node(index) for index in range(nodes)))

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(runs)))
    return time.perf_counter() - start


def _ratio(nodes: int, step: Step, events: int, rounds: int, runs: int = 1) -> float:
    """How many times as long as by hand; the two take turns."""
    return statistics.median(
        asyncio.run(_ours(nodes, step, events, runs)) / asyncio.run(_by_hand(nodes, step, events, runs))
        for _ in range(rounds)
    )


async def _chain(mode: Any, nodes: int, events: int) -> float:
    """Seconds for each event through a chain of plain functions, on the loop or in threads."""
    run = _run(Scheduler(asyncio.get_running_loop()), {f"n{i}": Behaviour(mode, _same) for i in range(nodes)}, events)
    start = time.perf_counter()
    await run.run("go")
    return (time.perf_counter() - start) / events


def _count(seconds: float) -> tuple[int, float]:
    """What a loop of the main thread gets done, and the longest it stood still."""
    count, worst = 0, 0.0
    before = time.perf_counter()
    end = before + seconds
    while before < end:
        now = time.perf_counter()
        worst = max(worst, now - before)
        before = now
        count += 1
    return count, worst


def _beside(seconds: float) -> tuple[float, float]:
    """The main thread's share of its speed beside a flooded run in another thread, and its longest stop."""
    over = threading.Event()

    async def flood() -> None:
        run = _run(
            Scheduler(asyncio.get_running_loop()), {f"n{i}": Behaviour("await", never) for i in range(3)}, 1_000_000_000
        )
        await run.start("go")
        while not over.is_set():  # noqa: ASYNC110 - it is set by another thread
            await asyncio.sleep(0.01)
        await run.cancel()

    alone, _ = _count(seconds)
    thread = threading.Thread(target=lambda: asyncio.run(flood()), daemon=True)
    thread.start()
    time.sleep(min(0.2, seconds))
    shared, worst = _count(seconds)
    over.set()
    thread.join()
    return shared / alone, worst


async def _idle(nodes: int) -> float:
    scheduler = Scheduler(asyncio.get_running_loop())
    runs = [_run(scheduler, {}, 0)]  # what is made once is made before
    middle = {f"n{i}": Behaviour("await", never) for i in range(10)}
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = [_run(scheduler, middle, 0).guardians for _ in range(max(1, nodes // 10))]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del runs
    return (after - before) / sum(len(guardians) for guardians in kept)


def measure(size: Size | None = None) -> dict[str, Any]:
    """All figures; see the module."""
    size = size or Size()
    rounds = range(size.rounds)
    beside = [_beside(size.flood_s) for _ in rounds]
    threaded = statistics.median(asyncio.run(_chain("thread", 1, size.threaded)) for _ in rounds)
    each = statistics.median(asyncio.run(_chain("inline", 5, size.events)) for _ in rounds)
    return {
        "hop_ratio": {str(n): round(_ratio(n, never, size.events, size.rounds), 2) for n in HOPS},
        "queued_hop_ratio": round(_ratio(3, turn, size.events, size.rounds), 2),
        "threaded_hop_us": round(threaded * 1e6, 1),
        "runs_ratio": round(_ratio(3, turn, 20, size.rounds, size.runs), 2),
        "main_thread_share": round(statistics.median(share for share, _ in beside), 3),
        "main_thread_worst_ms": round(statistics.median(worst for _, worst in beside) * 1e3, 2),
        "events_per_second": round(1 / each),
        "bytes_per_idle_guardian": round(asyncio.run(_idle(size.idle))),
        "rounds": size.rounds,
    }
