"""A run lists its last answers, and says how many there were before."""

from __future__ import annotations

import asyncio

import virtual

from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.runtime.answered import MOST_ANSWERS, Answered
from aiflow_jupyter.runtime.metrics import Answer
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler

MORE = 25


class Says:
    async def stream(self, request):
        await asyncio.sleep(0.5)
        yield Event("token", "yes", time=asyncio.get_running_loop().clock())
        yield Event("finish", Finish())


def run_of(loop, text, flows=None):
    spec = parse(text, "g", SIGNATURES).spec
    return Run(spec, OPERATORS, Scheduler(loop, loop.clock), source=Says(), flows=flows)


def test_open_run_lists_its_last_answers_and_tells_how_many_it_let_go():
    async def story(loop):
        run = run_of(loop, 'ask = generate()\nout = sink(var="o")\nask -> out')
        began = loop.time()
        for number in range(MOST_ANSWERS + MORE):
            await run.offer("ask", f"question {number}")
        await run.cancel(drain=True)
        result = run.result()
        assert loop.time() - began >= 500
        assert len(result.answers) == MOST_ANSWERS
        assert result.answers.let_go == MORE
        assert [answer.lineage for answer in result.answers[:2]] == ["25/25.ask", "26/26.ask"]
        assert result.status.warnings == ("the run lists its last 1,024 answers, and not the 25 before",)
        assert result.status.ttft_s == 0.5  # of the first answer, which is listed no more

    virtual.run(story)


def test_run_that_lets_none_go_warns_of_nothing():
    async def story(loop):
        run = run_of(loop, 'ask = generate()\nout = sink(var="o")\nask -> out')
        result = await run.run("why?")
        assert (len(result.answers), result.answers.let_go, result.status.warnings) == (1, 0, ())

    virtual.run(story)


def test_what_a_run_within_let_go_counts_in_the_outer_run():
    outer, inner = Answered(), Answered()
    for number in range(MOST_ANSWERS + 3):
        inner.append(Answer("ask", str(number), started=0))
    outer.append(Answer("ask", "before", started=0, first=7))
    outer.extend(inner)
    assert (len(outer), outer.let_go) == (MOST_ANSWERS, 4)
    assert outer.first_token == 7
    assert "before" not in [answer.lineage for answer in outer]
