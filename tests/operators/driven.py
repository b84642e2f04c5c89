"""What the tests of operators share: a scripted source, a run in virtual time, and one node driven by hand."""

from __future__ import annotations

import asyncio

import virtual

from aiflow_jupyter.events import CONTROL, Event, Finish, ToolFragment, Usage
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.runtime.behaviour import Binding
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler

NUMBERS = {"phase": "answer", "tier": "local", "model": "m", "provider": "scripted"}


class Scripted:
    """A source that answers every request with the same events."""

    def __init__(self, *script, pause=0.0, cut=False):
        self.script, self.pause, self.cut = script, pause, cut
        self.requests, self.closed = [], 0

    async def stream(self, request):
        self.requests.append(request)
        try:
            for number, item in enumerate(self.script):
                await asyncio.sleep(self.pause)
                if isinstance(item, Event):
                    yield item
                else:
                    text, phase = item if isinstance(item, tuple) else (item, "answer")
                    yield Event("token", text, source="scripted", sequence=number, meta={**NUMBERS, "phase": phase})
            if not self.cut:
                usage = Usage(completion_tokens=7)
                yield Event("usage", usage)
                yield Event("finish", Finish("stop", usage))
        finally:
            self.closed += 1


class Replies:
    """A source whose answer to each request is made by a function of the request: events, or texts."""

    def __init__(self, reply, pause=0.0):
        self.reply, self.pause = reply, pause
        self.requests = []

    async def stream(self, request):
        self.requests.append(request)
        reason = "stop"
        for number, item in enumerate(self.reply(request)):
            await asyncio.sleep(self.pause)
            if isinstance(item, ToolFragment):
                reason = "tool_calls"
                yield Event("tool_fragment", item, source="scripted", sequence=number, meta=NUMBERS)
            elif isinstance(item, Exception):
                raise item
            else:
                yield Event("token", item, source="scripted", sequence=number, meta=NUMBERS)
        yield Event("finish", Finish(reason))


def build(loop, text, source=None, show=None, **functions):
    parsed = parse(text, "g", SIGNATURES)
    require(parsed.spec, SIGNATURES, functions, parsed)
    clock = getattr(loop, "clock", None)
    scheduler = Scheduler(loop, clock) if clock else Scheduler(loop)
    return Run(parsed.spec, OPERATORS, scheduler, functions=functions, source=source, show=show)


def tell(text, source, value="hello", **functions):
    """Run a graph in virtual time; the run and its result."""

    async def story(loop):
        run = build(loop, text, source, **functions)
        return run, await run.run(value)

    return virtual.run(story)


class Node:
    """One operator's behaviour, called as its guardian would, without queue and workers.

    `given` is all that left it; `timers` are the events that it asked for later, with their seconds, until taken back;
    `dropped` the kinds of what it said that it discarded. Its threads are none: what it calls in one returns at once.
    """

    def __init__(
        self, operator, policy=None, functions=None, show=None, source=None, inputs=(), arguments=None, **args
    ):
        self.dropped = []
        self.withheld = []
        self.timers = {}
        self.given = []
        known = OPERATORS[operator]
        binding = Binding(
            "n",
            functions or {},
            source,
            lambda: 0,
            policy=Policy(**(policy or {})),
            inputs=inputs,
            show=show,
            later=self._later,
            threads=lambda: _at_once,
            govern=lambda behaviour: behaviour,
            dropped=self.dropped.append,
            withheld=self.withheld.append,
        )
        self.variables, self.binding = binding.variables, binding
        args |= arguments or {}
        self.behaviour = known.bind(args, binding)
        self.most = binding.policy.hold or known.signature.holds(args)
        self._timer = 0

    def _later(self, seconds, event):
        self._timer += 1
        number = self._timer
        self.timers[number] = (seconds, event)
        return lambda: self.timers.pop(number, None)

    def put(self, *events, **extras):
        """Hand it events; gives what leaves."""
        out = []
        for event in events:
            out += self._control(event) if event.kind in CONTROL else self._call(event, extras)
            assert self.behaviour.holds is None or self.behaviour.holds() <= self.most
        self.given += out
        return out

    def fire(self):
        """Let the timers come, in their order."""
        due = [event for _, event in self.timers.values()]
        self.timers.clear()
        return self.put(*due)

    def _call(self, event, extras):
        behaviour = self.behaviour
        if behaviour.mode in ("iterate", "thread_iterate"):
            return list(behaviour.call(event, **extras))
        if behaviour.mode == "stream":
            return asyncio.run(_all(behaviour.call(event, **extras)))
        out = behaviour.call(event, **extras)
        if behaviour.mode == "await":
            out = asyncio.run(_of(out))
        return [] if out is None else [out]

    def _control(self, event):
        out = []
        for each in [] if self.behaviour.control is None else self.behaviour.control(event):
            out += self._call(each, {}) if self.behaviour.recalls and each.kind not in CONTROL else [each]
        return [event] if self.behaviour.control is None else out


async def _at_once(function, *args, **named):
    return function(*args, **named)


async def _all(stream):
    return [out async for out in stream]


async def _of(awaitable):
    return await awaitable


def token(text, sequence=0, lineage="0/0.ask", phase="answer", **meta):
    """A token of an answer."""
    return Event("token", text, source="ask", sequence=sequence, lineage=lineage, meta={"phase": phase, **meta})


def value(payload, sequence=0, lineage="0"):
    """A value that was put into the run."""
    return Event("value", payload, source="run", sequence=sequence, lineage=lineage)


def finish(lineage="0/0.ask", reason="stop"):
    return Event("finish", Finish(reason), source="ask", lineage=lineage)


def error(lineage="0/0.ask", sequence=0):
    return Event("error", None, source="ask", sequence=sequence, lineage=lineage, meta={"complete": False})


def told(kind, lineage="0/0.ask", sequence=0):
    """A control event of another kind."""
    return Event(kind, None, source="elsewhere", sequence=sequence, lineage=lineage)


END = Event("end", source="run")
