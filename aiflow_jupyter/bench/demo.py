"""The main job, headless: a small real model answers through a graph whose last stage is slow.

The model reasons first (it is made to: its grammar has a place for a thought), `lane` parts the reasoning from the
answer, and `speech` takes `SPEECH_S` for each token in a plain `def` with `time.sleep`, as a text-to-speech engine
would. Beside it stands what waiting for the whole answer would have cost: a second request with the same prompt and
seed, read without delay, goes through the same graph only once it is complete.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.runtime.metrics import RunStatus
from aiflow_jupyter.runtime.run import Result, Run
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.source import Request, Source

PROMPT = "Why is the sky blue?"
SPEECH_S = 0.06
SEED = 7

GRAPH = """
ask    = generate(tier="local", think=true, temperature=0, seed=7)
lane   = route(by="phase")
tidy   = map(collapse, inline=true)
speech = sink(function=speak)          [queue=8, effect=non_idempotent]
notes  = sink(var="reasoning")         [queue=64]

ask -> lane
lane.answer    -> tidy -> speech
lane.reasoning -> notes
"""

STAGE = "speech"


@dataclass(frozen=True, slots=True)
class Report:
    """What the demo measured.

    Attributes:
        model_ttft_s: seconds from the request to the model's first delta.
        ttfpt_s: seconds until the first token of the answer entered `speech`.
        aggregate_ttfpt_s: the same when the answer is read to its end before it goes through the graph.
        whole_s: seconds until the last token was spoken.
    """

    model: str
    provider: str
    tokens: int
    model_ttft_s: float
    ttfpt_s: float
    aggregate_ttfpt_s: float
    whole_s: float
    status: RunStatus
    reasoning: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "model": self.model,
            "provider": self.provider,
            "tokens": self.tokens,
            "model_ttft_s": round(self.model_ttft_s, 4),
            "ttfpt_s": round(self.ttfpt_s, 4),
            "aggregate_ttfpt_s": round(self.aggregate_ttfpt_s, 4),
            "whole_s": round(self.whole_s, 3),
            "nodes": {n.node: {"queue": n.queue, "peak": n.peak, "processed": n.processed} for n in self.status.nodes},
            "reasoning": self.reasoning,
            "text": self.text,
        }


def collapse(text: str) -> str:
    """Turn line breaks into spaces: what is spoken has no lines."""
    return text.replace("\n", " ")


class _Whole:
    """A source that reads the answer to its end, at full speed, before it gives the first event."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `Source`."""
        events = self._inner.stream(request)
        async with aclosing(events):
            whole = [event async for event in events]
        for event in whole:
            yield event


async def measure(source: Source, prompt: str, watch: Callable[[Run], None]) -> Report:
    """Run the demo.

    Args:
        source: what answers.
        prompt: the question.
        watch: is handed the run before it starts, to show it.

    Raises:
        AiflowError: the model or a node failed.
    """
    spoken: list[str] = []

    def speak(text: str) -> None:
        time.sleep(SPEECH_S)
        spoken.append(text)

    parsed = parse(GRAPH, "demo", SIGNATURES)
    functions: Mapping[str, Callable[..., Any]] = {"collapse": collapse, "speak": speak}
    require(parsed.spec, SIGNATURES, functions, parsed)
    scheduler = Scheduler(asyncio.get_running_loop())

    def make(source: Source) -> Run:
        return Run(parsed.spec, OPERATORS, scheduler, functions=functions, source=source)

    # Both runs ask for the same; the first request of a fresh server also pays for reading the prompt, so a short one
    # comes before.
    await _warm(source, prompt)
    run = make(source)
    watch(run)
    result = await run.run(prompt)
    text = "".join(spoken)
    waited = make(_Whole(source))
    await waited.start(prompt)
    while (first := _first(waited.status())) is None and waited.state == "running":  # noqa: ASYNC110 - a figure, not an event
        await asyncio.sleep(0.005)
    await waited.cancel()
    if first is None:
        await waited.wait()
    return _report(result, text, first or 0.0)


async def _warm(source: Source, prompt: str) -> None:
    request = Request(({"role": "user", "content": prompt},), tier="local", max_tokens=1)
    events = source.stream(replace(request, temperature=0))
    async with aclosing(events):
        async for _ in events:
            pass


def _first(status: RunStatus) -> float | None:
    return next(node.first_s for node in status.nodes if node.node == STAGE)


def _report(result: Result, text: str, aggregate: float) -> Report:
    answer = result.answers[0]
    return Report(
        model=answer.model,
        provider=answer.provider,
        tokens=answer.tokens,
        model_ttft_s=answer.ttft or 0.0,
        ttfpt_s=_first(result.status) or 0.0,
        aggregate_ttfpt_s=aggregate,
        whole_s=result.status.elapsed_s,
        status=result.status,
        reasoning="".join(result["reasoning"]).strip(),
        text=text.strip(),
    )
