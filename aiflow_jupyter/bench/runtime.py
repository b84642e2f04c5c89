"""What the runtime costs, beside the same work written by hand with `asyncio.Queue(8)` and one task for each node.

How: a ratio is the median over 7 rounds (many runs at once: 5) of our time over that by hand, after one round that does
not count; in a round each side runs once, whoever was second goes first in the next, and garbage is collected before
each. Both sides call the same steps with queues of 8, and everything that a node's status tells is counted. The time of
a ratio is that of the processor in this process, so that what else the machine does is not in it; nor are the sleeps
every 5 ms that leave the interpreter lock to other threads (0.12 ms each, 2 % of the wall time of a busy loop).

A chain alone (built before the clock starts, fed one event by one task, until its last node has taken the end):

    hop_ratio              1, 3 and 10 plain functions that run on the loop
    queued_hop_ratio       3 and 10 nodes, the last an `async def` that never waits and gives nothing: every event
                           queues and is held up on its way to it; the worse of the two, and each `_by_nodes`
    async_hop_ratio        1, 3 and 10 nodes that are an `async def` that never waits
    turn_hop_ratio         3 nodes, every call of which waits for one turn of the loop

Whole runs (making the run, its source and its sink, and closing it are in the time; by hand they are tasks, too):

    run_hop_ratio          one run, with 1, 3 and 10 plain functions between source and sink
    runs_ratio             1,000 runs at once of source, function, an `async def` that waits for a turn, function, sink;
                           100 events each (fewer runs with `--quick`); short_runs_ratio: 10 events each
    events_per_second      what comes out of a run with 5 plain functions, in wall time
    threaded_hop_us        one hop through a plain function in its node's thread, in wall time
    main_thread_share      how much of its speed a Python loop in the main thread keeps beside a flooded run
    main_thread_worst_ms   the longest it stood still in that time (median of the rounds)
    bytes_per_idle_guardian  memory of a node that has not been sent anything, with its share of its run

Where the time goes (Python 3.11, one core of a shared machine; by hand a hop took 1.05 us in a long chain, 1.6 alone):

- A hop on the loop, 0.45 us: no queue and no task, one call down the chain. A reading of the clock (0.05 to 0.08) and
  the counters of service are the dearest of it.
- A hop that queues, 0.7 us: 0.18 to get in, 0.5 to be taken out and served, with two readings of the clock.
- To be held up is to park, to go on from the ready list, and to book the time: done for each event it made a queued hop
  1.45 us (ratio 1.4). Senders go on for most of a queue at a time, so it is paid once for six events.
- A hop into an `async def` that never waits, 1.4 us in a long chain: 0.3 to get in, the rest in its worker. It is above
  the one by hand because a wake-up and a turn of the loop (2 us each, once for a full queue) come on top of counters.
- A run of 5 nodes costs 0.23 ms to make, to close and to read the counters of, by hand 0.07 (1,000 runs at once; 0.09
  of ours is garbage collection). What its graph alone decides is worked out once for each spec; what is left is to make
  the guardians. After that an event costs about 0.8 of one by hand, so short runs are dearer and long ones cheaper.
- A threaded hop is two switches of threads. The loop lets go of the interpreter lock at each of its turns and then
  waits for an interval (5 ms) until a busy main thread gives it back: the main thread keeps most of its speed, and it
  is the run that slows. The main thread stands still for a slice of the loop and what the system's scheduler adds.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.signatures import OperatorSignature
from aiflow_jupyter.graph.spec import EdgeSpec, GraphSpec, NodeSpec
from aiflow_jupyter.runtime.behaviour import Behaviour, Mode, Operator
from aiflow_jupyter.runtime.guardian import Guardian
from aiflow_jupyter.runtime.inline import InlineGuardian
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.workers import WorkerGuardian

Step = Callable[[Event], Event] | Callable[[Event], Awaitable[Event | None]]

HOPS: Final = (1, 3, 10)
QUEUE: Final = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything is measured."""

    rounds: int = 7
    events: int = 10_000
    threaded: int = 2_000
    runs: int = 1_000
    flood_s: float = 1.0
    idle: int = 1_000


QUICK = Size(rounds=1, events=200, threaded=50, runs=10, flood_s=0.05, idle=50)


def same(event: Event) -> Event:
    """A plain function: a step that runs on the loop."""
    return event


async def never(event: Event) -> Event:
    """A step that does not wait."""
    return event


async def take(event: Event) -> None:
    """The end of a chain that waits for nothing and gives nothing."""
    del event


async def turn(event: Event) -> Event:
    """A step that waits for one turn of the loop."""
    await asyncio.sleep(0)
    return event


# -- a chain alone: what is timed begins with the first event put in and ends when the last node has taken the end


class _Chain:
    """Guardians in a row, without a run; it stands in the place of the run that they report to, and of their sender."""

    node = "feeder"
    watching = True

    def __init__(self, steps: Sequence[Step]) -> None:
        self.pending = 0
        self._loop = asyncio.get_running_loop()
        self._scheduler = Scheduler(self._loop)
        self._room: asyncio.Future[None] | None = None
        self._over = asyncio.Event()
        self._open = len(steps)
        self._nodes = [self._guardian(f"n{i}", step) for i, step in enumerate(steps)]
        for node, after in pairwise(self._nodes):
            node.connect({"": [after]})

    def _guardian(self, name: str, step: Step) -> Guardian:
        policy = Policy(queue=QUEUE)
        guardian: Guardian
        if _waits(step):
            guardian = WorkerGuardian(name, Behaviour("await", step), policy, self._scheduler, self)
        else:
            guardian = InlineGuardian(name, Behaviour("inline", step), policy, self._scheduler, self)
        guardian.inputs = 1
        return guardian

    def failed(self, guardian: Guardian, event: Event, error: BaseException) -> None:
        """No step fails."""
        del guardian, event
        raise error

    def ended(self, guardian: Guardian) -> None:
        """One node is through."""
        del guardian
        self._open -= 1
        if not self._open:
            self._over.set()

    def watch(self) -> None:
        """Never called: it says that somebody watches."""

    def withheld(self, node: str, text: str) -> None:
        del node, text

    def warn(self, node: str, text: str) -> None:
        del node, text

    def resume(self) -> None:
        """The head has taken the event that waited."""
        if self._room is not None:
            self._room.set_result(None)

    async def feed(self, events: int) -> None:
        """Put so many events in, one by one, and wait until all is through."""
        scheduler, head, event = self._scheduler, self._nodes[0], Event("value", 1)
        clock = scheduler.clock
        now = clock()
        scheduler.enter(self, now)
        for _ in range(events):
            if now >= scheduler.slice_end:
                await scheduler.yield_slice()
                now = clock()
                scheduler.enter(self, now)
            if not head.push(event, now):
                self._room = self._loop.create_future()
                head.park(event, self)
                await self._room
                scheduler.enter(self, clock())
            if scheduler.ready:
                scheduler.run_ready()
            now = clock()
        head.signal(Event("end"))
        scheduler.run_ready()
        await self._over.wait()
        assert all(node.processed == events for node in self._nodes)


async def _chain(steps: Sequence[Step], events: int) -> float:
    chain = _Chain(steps)
    start = time.process_time()
    await chain.feed(events)
    return time.process_time() - start


async def _chain_by_hand(steps: Sequence[Step], events: int) -> float:
    queues: list[asyncio.Queue[Event | None]] = [asyncio.Queue(QUEUE) for _ in steps]
    tasks = [asyncio.create_task(_task(*each)) for each in zip(steps, queues, [*queues[1:], None], strict=True)]
    event = Event("value", 1)
    start = time.process_time()
    for _ in range(events):
        await queues[0].put(event)
    await queues[0].put(None)
    await asyncio.gather(*tasks)
    return time.process_time() - start


async def _task(step: Any, queue: asyncio.Queue[Event | None], after: asyncio.Queue[Event | None] | None) -> None:
    """One node by hand: two loops, so that neither kind of step pays for the other."""
    if _waits(step):
        while (event := await queue.get()) is not None:
            out = await step(event)
            if after is not None:
                await after.put(out)
    else:
        while (event := await queue.get()) is not None:
            out = step(event)
            if after is not None:
                await after.put(out)
    if after is not None:
        await after.put(None)


# -- whole runs: building them, their source and sink, and closing them are inside the timing


@dataclass(frozen=True, slots=True)
class _Graph:
    """A chain: a source of so many events, the steps, and a sink."""

    spec: GraphSpec
    operators: Mapping[str, Operator]

    def run(self, scheduler: Scheduler) -> Run:
        return Run(self.spec, self.operators, scheduler)


def _graph(steps: Sequence[Step], events: int, mode: Mode = "inline") -> _Graph:
    """The graph of a chain; `mode` is that of its plain functions."""

    def give(_event: Event) -> Iterator[Event]:
        return (Event("value", number) for number in range(events))

    behaviours = {
        "source": Behaviour("iterate", give),
        **{f"n{i}": Behaviour("await" if _waits(step) else mode, step) for i, step in enumerate(steps)},
        "sink": Behaviour("inline", _drop),
    }
    spec = GraphSpec(
        name="bench",
        nodes={name: NodeSpec(operator="node", policy=Policy(queue=QUEUE)) for name in behaviours},
        edges=[EdgeSpec(source=a, port=None, target=b) for a, b in pairwise(behaviours)],
    )
    return _Graph(spec, {"node": Operator(OperatorSignature("node"), lambda _args, binding: behaviours[binding.node])})


def _waits(step: Step) -> bool:
    return asyncio.iscoroutinefunction(step)


def _drop(_event: Event) -> None:
    return None


async def _runs(steps: Sequence[Step], events: int, runs: int = 1) -> float:
    scheduler = Scheduler(asyncio.get_running_loop())
    graph = _graph(steps, events)
    start = time.process_time()
    await asyncio.gather(*(graph.run(scheduler).run("go") for _ in range(runs)))
    return time.process_time() - start


async def _runs_by_hand(steps: Sequence[Step], events: int, runs: int = 1) -> float:
    async def one() -> None:
        queues: list[asyncio.Queue[Event | None]] = [asyncio.Queue(QUEUE) for _ in range(len(steps) + 1)]

        async def source() -> None:
            for number in range(events):
                await queues[0].put(Event("value", number))
            await queues[0].put(None)

        nodes = zip([*steps, _drop], queues, [*queues[1:], None], strict=True)
        await asyncio.gather(source(), *(_task(*each) for each in nodes))

    start = time.process_time()
    await asyncio.gather(*(one() for _ in range(runs)))
    return time.process_time() - start


Timed = Callable[..., Coroutine[Any, Any, float]]


def _ratio(ours: Timed, by_hand: Timed, rounds: int, *args: Any) -> float:
    """How many times as long as by hand: the two take turns, after one turn of each that does not count."""
    ratios = []
    for number in range(rounds + 1):
        pair = {}
        for timed in (ours, by_hand) if number % 2 else (by_hand, ours):
            gc.collect()
            pair[timed] = asyncio.run(timed(*args))
        ratios.append(pair[ours] / pair[by_hand])
    return round(statistics.median(ratios[1:]), 2)


async def _each(mode: Mode, nodes: int, events: int) -> float:
    """Seconds for each event of a run through a chain of plain functions, on the loop or in threads."""
    run = _graph([same] * nodes, events, mode).run(Scheduler(asyncio.get_running_loop()))
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
        run = _graph([never] * 3, 1_000_000_000).run(Scheduler(asyncio.get_running_loop()))
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
    graph = _graph([never] * 10, 0)
    once = graph.run(scheduler)  # what is made once is made before
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = [graph.run(scheduler).guardians for _ in range(max(1, nodes // 10))]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del once
    return (after - before) / sum(len(guardians) for guardians in kept)


def measure(size: Size | None = None) -> dict[str, Any]:
    """All figures; see the module."""
    size = size or Size()
    rounds = range(size.rounds)

    def chains(last: Step, rest: Step, hops: Sequence[int] = HOPS) -> dict[str, float]:
        return {
            str(n): _ratio(_chain, _chain_by_hand, size.rounds, [rest] * (n - 1) + [last], size.events) for n in hops
        }

    queued = chains(take, same, HOPS[1:])
    beside = [_beside(size.flood_s) for _ in rounds]
    threaded = statistics.median(asyncio.run(_each("thread", 1, size.threaded)) for _ in rounds)
    each = statistics.median(asyncio.run(_each("inline", 5, size.events)) for _ in rounds)
    return {
        "hop_ratio": chains(same, same),
        "queued_hop_ratio": max(queued.values()),
        "queued_hop_ratio_by_nodes": queued,
        "async_hop_ratio": chains(never, never),
        "turn_hop_ratio": _ratio(_chain, _chain_by_hand, size.rounds, [turn] * 3, size.events // 4),
        "run_hop_ratio": {str(n): _ratio(_runs, _runs_by_hand, size.rounds, [same] * n, size.events) for n in HOPS},
        "threaded_hop_us": round(threaded * 1e6, 1),
        "runs_ratio": _ratio(_runs, _runs_by_hand, min(size.rounds, 5), [same, turn, same], 100, size.runs),
        "short_runs_ratio": _ratio(_runs, _runs_by_hand, min(size.rounds, 5), [same, turn, same], 10, size.runs),
        "main_thread_share": round(statistics.median(share for share, _ in beside), 3),
        "main_thread_worst_ms": round(statistics.median(worst for _, worst in beside) * 1e3, 2),
        "events_per_second": round(1 / each),
        "bytes_per_idle_guardian": round(asyncio.run(_idle(size.idle))),
        "rounds": size.rounds,
    }
