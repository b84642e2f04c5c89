"""A stage for the router: tiers that act as they are told on virtual time, and a ledger that knows what is open."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import SimpleNamespace

from aiflow_jupyter.events import Event, Finish, Usage
from aiflow_jupyter.runtime.source import Request
from aiflow_jupyter.tiers.counting import TokenCounter
from aiflow_jupyter.tiers.health import Health
from aiflow_jupyter.tiers.router import Router
from aiflow_jupyter.tiers.terms import NAMES, Fitted, Misfit, OverBudgetError, Price, Tier

HI = ({"role": "user", "content": "Hi"},)
GOING_ON = (*HI, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "And?"})
IMAGE = (
    {"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {}}]},
)
USAGE = Usage(10, 5)


class Actor:
    """A provider that plays one script for each request: numbers are seconds, texts tokens, errors are raised.

    `("report", words)` reports progress; a script without `...` at its end finishes by itself.
    """

    streaming = 0
    most = 0

    def __init__(self, name, *scripts):
        self.name = name
        self.scripts = list(scripts) or [["a", "b"]]
        self.requests = []
        self.closed = 0

    async def stream(self, request):
        self.requests.append(request)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        Actor.streaming += 1
        Actor.most = max(Actor.most, Actor.streaming)
        meta = {"tier": self.name, "model": "m", "phase": "answer"}
        sequence = 0
        try:
            for step in script:
                if isinstance(step, BaseException):
                    raise step
                if step is ...:
                    return
                if isinstance(step, tuple):
                    request.report(step[1])
                elif isinstance(step, str):
                    yield Event("token", step, sequence=sequence, meta=meta)
                    sequence += 1
                elif isinstance(step, Event):
                    yield step
                else:
                    await asyncio.sleep(step)
            yield Event("finish", Finish("stop", USAGE), sequence=sequence, meta=meta)
        finally:
            Actor.streaming -= 1

    async def aclose(self):
        self.closed += 1


class Book:
    """A ledger in memory: what is open, and how each entry was closed."""

    def __init__(self, limit=float("inf")):
        self.limit = limit
        self.open = {}
        self.closed = {}

    def allows(self, intent):
        if intent.most > self.limit:
            raise OverBudgetError("the budget of today is used up")

    def intend(self, intent):
        self.allows(intent)
        entry = f"e{len(self.open) + len(self.closed)}"
        self.open[entry] = intent
        return entry

    def _close(self, entry, how):
        assert entry not in self.closed, f"{entry} was closed twice"
        self.closed[entry] = (self.open.pop(entry), how)

    def settle(self, entry, usage, cost, model=""):
        self._close(entry, ("settled", usage, cost))

    def release(self, entry):
        self._close(entry, ("released",))

    @property
    def how(self):
        return [(intent.tier, how[0]) for intent, how in self.closed.values()]


class WholeChat:
    """A fitter that folds nothing: a chat fits as it is, or not at all."""

    def __init__(self, counter):
        self.counter = counter

    def misfit(self, messages, tier, output):
        tokens = self.counter.tokens(messages, tier)
        if tier.window is not None and tokens + output > tier.window:
            return Misfit(tokens, "the chat does not fit")
        return None

    async def fit(self, messages, tier, output, floor, conversation=""):
        tokens = self.counter.tokens(messages, tier)
        return self.misfit(messages, tier, output) or Fitted(tuple(messages), tokens)


def judge(label="LOW"):
    def fixed(messages, floor):
        fixed.floors.append(floor)
        said = label(messages) if callable(label) else label
        return SimpleNamespace(label=said, probabilities={said: 1.0}, seconds=0.0, why="fixed")

    fixed.floors = []
    return fixed


async def inline(call, /, *args):
    return call(*args)


def tier(actor, **fields):
    given = {"kind": "openai", "model": f"{actor.name}-model", "window": 8_192, "takes": frozenset({"tools"})}
    return Tier(actor.name, actor, **(given | fields))


def actors(**scripts):
    return {name: Actor(name, *scripts.get(name, ())) for name in NAMES}


def router(of, *, label="LOW", book=None, loop=None, fields=None, **more):
    """A router over some actors; `fields` are those of each tier."""
    clock = loop.clock if loop is not None else (lambda: 0)
    counter = TokenCounter()
    tiers = {name: tier(actor, **(fields or {}).get(name, {})) for name, actor in of.items()}
    given = {"judge": judge(label), "ledger": book or Book(), "fitter": WholeChat(counter), "counter": counter}
    return Router(tiers, clock=clock, aside=inline, health=Health(clock), **(given | more))


async def answer(source, messages=HI, **fields):
    """The kinds and texts that came, the decision, and the error it ended with."""
    got, decisions, error = [], [], None
    try:
        async with aclosing(source.stream(Request(messages, decided=decisions.append, **fields))) as events:
            async for event in events:
                got.append(event)
    except Exception as raised:  # noqa: BLE001
        error = raised
    assert [event.sequence for event in got] == list(range(len(got)))
    text = "".join(event.payload if event.kind == "token" else f"[{event.kind}]" for event in got)
    return SimpleNamespace(text=text, events=got, decision=decisions[-1] if decisions else None, error=error)


PRICED = {"cloud": {"price": Price(1.0, 10.0)}}
