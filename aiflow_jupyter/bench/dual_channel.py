"""Time to the first token by both channels, beside the same answer in one piece, on the published timing shape.

The published shape: 0.5 s until a task that the control plane takes has its first token, 26.9 tokens a second, 11.4 s
in all. Everything but two parts is what the hpc tier uses: the model server is a fake that speaks vLLM's wire and keeps
to the shape, and the control plane is a local executor that hands its tasks on after the shape's half second. The
worker is a process that waits for its task, as on a cluster, the relay another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiflow_jupyter.bench.relay import child
from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.hpc.executors import LocalExecutor
from aiflow_jupyter.hpc.provider import HpcProvider
from aiflow_jupyter.hpc.remote import RelayAt
from aiflow_jupyter.providers.secret import Secret
from aiflow_jupyter.relay.crypto import WorkerKey
from aiflow_jupyter.runtime.source import Message, Request

GOAL: Final = 21.1
_BETWEEN: Final = 2.0  # seconds between two requests, in which the next worker starts
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """A timing shape.

    Attributes:
        control_s: from a task's submission until the model server is asked, if nothing on the way took any time.
        rate: tokens a second.
        whole_s: from the submission to the last token.
    """

    control_s: float = 0.5
    rate: float = 26.9
    whole_s: float = 11.4

    @property
    def tokens(self) -> int:
        """How many tokens the answer has."""
        return 1 + round((self.whole_s - self.control_s) * self.rate)


QUICK: Final = Shape(whole_s=1.5)


class ControlPlane(Executor):
    """A local executor behind a control plane that takes its time.

    Args:
        local: starts the workers.
        delay: seconds between a submission and its arrival there.
    """

    def __init__(self, local: LocalExecutor, delay: float) -> None:
        self._local = local
        self._delay = delay

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand the task on after the delay."""
        outer: Future[Any] = Future()

        def settle(inner: Future[Any]) -> None:
            if outer.set_running_or_notify_cancel():
                error = inner.exception()
                if error is not None:
                    outer.set_exception(error)
                else:
                    outer.set_result(inner.result())

        def start() -> None:
            if not outer.cancelled():
                inner = self._local.submit(fn, *args, **kwargs)
                outer.add_done_callback(lambda done: inner.cancel() if done.cancelled() else None)
                inner.add_done_callback(settle)

        timer = threading.Timer(self._delay, start)
        timer.daemon = True
        timer.start()
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers."""
        self._local.shutdown(wait, cancel_futures=cancel_futures)


@dataclass(slots=True)
class Answer:
    """When the tokens of one answer came.

    Attributes:
        first_s: from the request to the first token.
        whole_s: to the end.
        added_ms: of every token, from the model server's stamp to its arrival here.
        batch: it came in one piece.
    """

    first_s: float
    whole_s: float
    added_ms: list[float]
    batch: bool


def measure(*, shape: Shape | None = None, rounds: int = 3, tell: Callable[[str], None] = lambda _: None) -> Figures:
    """All figures, as one JSON object.

    Args:
        shape: the timing; the published one by default.
        rounds: how often each way is taken, in turns.
        tell: told what is being done.
    """
    return asyncio.run(_measure(shape or Shape(), rounds, tell))


async def _measure(shape: Shape, rounds: int, tell: Callable[[str], None]) -> Figures:
    load = os.getloadavg()[0]
    key = WorkerKey.generate()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(_model_server(shape))
        relay = await stack.enter_async_context(child("relay", "aiflow", {}))
        facts = await relay.ask({"certificate": "", "key": ""}, 30)
        local = LocalExecutor(key, server)
        stack.callback(local.shutdown)
        local.prepare()
        plane = ControlPlane(local, shape.control_s)
        stream, batch = (
            HpcProvider(lambda: plane, relay=at, worker_key=key.public)
            for at in (RelayAt(facts["url"], Secret(facts["key"])), None)
        )
        tell("a first request, which finds everything cold")
        cold = await _ask(stream, 1)
        streams: list[Answer] = []
        batches: list[Answer] = []
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}: streamed")
            streams.append(await _ask(stream, shape.tokens))
            tell(f"round {number + 1} of {rounds}: in one piece")
            batches.append(await _ask(batch, shape.tokens))
        usage = await relay.ask({})
    wrong = [answer for answer in streams if answer.batch] + [answer for answer in batches if not answer.batch]
    if wrong or any(len(answer.added_ms) != shape.tokens for answer in (*streams, *batches)):
        raise AiflowError("an answer was not whole, or came another way than it should", code="AF821")
    ratios = [one.first_s / other.first_s for one, other in zip(batches, streams, strict=True)]
    added = sorted(delay for answer in streams for delay in answer.added_ms)
    figures: Figures = {
        "ttft_ratio": round(statistics.median(ratios), 2),
        "ttft_ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "ttft_s": {"streamed": _median(streams, "first_s"), "batch": _median(batches, "first_s")},
        "ttft_s_cold": round(cold.first_s, 4),
        "whole_s": {"streamed": _median(streams, "whole_s"), "batch": _median(batches, "whole_s")},
        "added_ms": {"p50": round(added[len(added) // 2], 3), "p95": round(added[len(added) * 95 // 100], 3)},
        "tokens": shape.tokens,
        "rounds": rounds,
        "shape": {"control_s": shape.control_s, "rate": shape.rate, "whole_s": shape.whole_s},
        "relay_rss_mb": usage["rss_mb"],
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
        },
    }
    if shape == Shape():
        figures["goals"] = {"ttft_ratio": {"goal": f">= {GOAL}", "met": figures["ttft_ratio"] >= GOAL}}
    return figures


async def _ask(provider: HpcProvider, tokens: int) -> Answer:
    request = Request((Message(role="user", content="Replay the timing."),), max_tokens=tokens)
    await asyncio.sleep(_BETWEEN)
    began, first, added, batch = time.monotonic_ns(), 0, list[float](), False
    async with aclosing(provider.stream(request)) as events:
        async for event in events:
            if event.kind == "token" and event.payload:
                now = time.monotonic_ns()
                first = first or now
                batch = batch or bool(event.meta.get("batch"))
                added += [(now - int(line[:20])) / 1e6 for line in event.payload.splitlines()]
    return Answer((first - began) / 1e9, (time.monotonic_ns() - began) / 1e9, added, batch)


def _median(answers: list[Answer], figure: str) -> float:
    values: list[float] = [getattr(answer, figure) for answer in answers]
    return round(statistics.median(values), 4)


@asynccontextmanager
async def _model_server(shape: Shape) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "aiflow_jupyter.bench.fakevllm", str(shape.tokens), str(shape.rate)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            address = (await process.stdout.readline()).decode().strip()
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def table(figures: Figures) -> list[str]:
    """The figures for reading."""
    low, high = figures["ttft_ratio_range"]
    lines = [
        f"{'':<26}{'streamed':>10}{'in one piece':>14}",
        f"{'first token, s':<26}{figures['ttft_s']['streamed']:>10}{figures['ttft_s']['batch']:>14}",
        f"{'whole answer, s':<26}{figures['whole_s']['streamed']:>10}{figures['whole_s']['batch']:>14}",
        f"{'ratio of the first':<26}{figures['ttft_ratio']:>10}   ({low} to {high})",
        f"{'added to a token, ms':<26}{figures['added_ms']['p50']:>10}   (p95 {figures['added_ms']['p95']})",
    ]
    for name, goal in figures.get("goals", {}).items():
        lines.append(f"{name:<26}{'met' if goal['met'] else 'missed':>10}   (goal {goal['goal']})")
    return lines
