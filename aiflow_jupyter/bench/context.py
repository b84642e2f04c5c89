"""Long conversations: does an easy question stay on the local tier, and what is left of the early turns?

The published test: five conversations of forty turns, past 41,000 tokens each; "2+2" is asked at five points of each.
Questions and answers are canned. Real are the store, the judge, the router, the folding, the local tier's model and its
answers to the probes. The hpc and the cloud tier would answer, so that leaving the local one is possible.

The local tier is held to a small window, a quarter of what its engine has: so the prompts are read within minutes on a
laptop's processor, and folding has to leave out twenty times what it keeps.

Ten facts stand in the first ten questions of each conversation. At its end the model is asked for each. Counted are
the facts that are in what the model is sent, and those that are in its answer: the first says what folding keeps, the
second what so small a model makes of it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.providers.embedded import EmbeddedModel
from aiflow_jupyter.runtime.source import Message, Request
from aiflow_jupyter.tiers.conversation.cache import Summaries
from aiflow_jupyter.tiers.conversation.folding import Folding
from aiflow_jupyter.tiers.conversation.store import Conversations
from aiflow_jupyter.tiers.conversation.summary import Summariser
from aiflow_jupyter.tiers.conversation.turns import Asked, Cell
from aiflow_jupyter.tiers.counting import TokenCounter
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.decision import Decision
from aiflow_jupyter.tiers.judging import ConfiguredJudge
from aiflow_jupyter.tiers.ledger import SqliteLedger
from aiflow_jupyter.tiers.making import is_demo
from aiflow_jupyter.tiers.router import Router
from aiflow_jupyter.tiers.sections import Config
from aiflow_jupyter.tiers.terms import Tier, TierName

PAST: Final = 41_000
PROBE: Final = "What is 2+2?"
_ANSWER: Final = 16
"""Tokens of a probe's answer."""

Figures = dict[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked.

    Attributes:
        conversations, turns: of each so many.
        probed: after which turns "2+2" is asked.
        sentences: of one canned answer.
        window: of the local tier, in tokens.
    """

    conversations: int = 5
    turns: int = 40
    probed: tuple[int, ...] = (8, 16, 24, 32, 40)
    sentences: int = 54
    window: int = 2_048


FULL: Final = Size()
QUICK: Final = Size(1, 12, (6, 12))

_FACTS: Final = (
    ("my name", "My name is {}.", ("Ada Novak", "Imre Solt", "Lena Brandt", "Tariq Aziz", "Noor Hadi")),
    ("my badge number", "My badge number is {}.", ("48213", "77120", "30958", "61447", "92306")),
    ("my cluster partition", "I run on the partition {}.", ("gpu-long", "bigmem2", "debug-a", "short-io", "amd-west")),
    ("the deadline", "The deadline is {}.", ("14 March", "2 June", "30 October", "9 January", "21 August")),
    ("my supervisor", "My supervisor is {}.", ("Dr Okafor", "Dr Lindqvist", "Dr Moreau", "Dr Petrov", "Dr Tanaka")),
    (
        "the data folder",
        "The data are in {}.",
        ("/data/echo7", "/data/terra2", "/data/mica", "/data/orbit9", "/data/fen"),
    ),
    ("my budget", "My budget is {} euros.", ("1840", "2765", "6190", "4120", "3305")),
    ("the random seed", "The random seed is {}.", ("1717", "2903", "4242", "8081", "5150")),
    ("the conference", "I submit to the conference {}.", ("PASC", "ISC", "HPDC", "CLUSTER", "SIAM PP")),
    ("my city", "I live in {}.", ("Graz", "Turku", "Leuven", "Porto", "Brno")),
)
"""What is asked for, how it is said, and its value in each conversation."""

_TOPICS: Final = ("meshes", "solvers", "checkpoints", "file systems", "schedulers", "profiling", "containers", "plots")
_SENTENCES: Final = (
    "A good first step for {topic} is to look at where the time goes before anything is changed.",
    "In one report run {n} took {x} hours on {m} cores, and half of that was spent waiting.",
    "That is why most groups begin with a small case that can be repeated in a few minutes.",
    "The usual advice is to change one thing at a time and to write down what came of it.",
    "{who} measured a speedup of {x} with {m} ranks, which did not hold on larger machines.",
    "Memory matters as much as speed here, since a node that swaps is slower than a laptop.",
    "If {topic} are the bottleneck, the gain from faster processors will be small.",
    "Version {x} fixed the worst of it, but the defaults were kept for compatibility.",
    "It helps to keep the raw output, because summaries hide the cases that are slow.",
    "Nothing in this depends on the language that the program is written in.",
)
_WHO: Final = ("Keller", "Ferrara", "Nakamura", "The Oslo group", "Singh")


class _Watched:
    """The local tier's provider, and what it was sent last."""

    def __init__(self, model: EmbeddedModel) -> None:
        self._model = model
        self.sent: tuple[Message, ...] = ()

    def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `runtime.source.Source`."""
        self.sent = request.messages
        return self._model.stream(request)

    async def count(self, text: str, model: str) -> int | None:
        """See `counting.Tokenizing`."""
        return await self._model.count(text, model)

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()


class _StandIn:
    """A tier that would answer, and says so."""

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `runtime.source.Source`."""
        meta = {"phase": "answer", "tier": request.tier, "model": "stand-in", "provider": "bench"}
        yield Event("token", "4", source="bench", time=time.perf_counter_ns(), meta=meta)
        yield Event("finish", Finish("stop"), source="bench", sequence=1, meta=meta)

    async def aclose(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class _Seen:
    """What came of one conversation."""

    tokens: int = 0
    tiers: list[str] = field(default_factory=list)
    correct: int = 0
    unfolded: int = 0
    sent: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def measure(size: Size = FULL, tell: Tell = lambda _: None) -> Figures:
    """All figures, as one JSON object.

    Args:
        size: how much is asked.
        tell: told what is being done.

    Raises:
        ModelMissing: there is no local model.
    """
    return asyncio.run(_measured(size, tell))


async def _measured(size: Size, tell: Tell) -> Figures:
    begun = time.perf_counter()
    model = EmbeddedModel()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder) / "own" / "aiflow.db")
        bench = _Bench(model, database, size.window)
        try:
            await model.start()
            seen = []
            for number in range(size.conversations):
                tell(f"conversation {number + 1} of {size.conversations}")
                seen.append(await bench.conversation(number, size, tell))
        finally:
            await bench.router.aclose()
    return _figures(size, seen, model.model, time.perf_counter() - begun)


class _Bench:
    """The real parts, put together."""

    def __init__(self, model: EmbeddedModel, database: Database, window: int) -> None:
        self.model = model
        self.watched = _Watched(model)
        self.book = Conversations(database)
        self.counter = TokenCounter()
        tiers: dict[TierName, Tier] = {
            "local": Tier(
                "local",
                self.watched,
                "embedded",
                window=window,
                first_token_s=600,
                silence_s=600,
                demo=is_demo(model.model),
            ),
            "hpc": Tier("hpc", _StandIn(), "hpc", "stand-in", window=65_536),
            "cloud": Tier("cloud", _StandIn(), "openai", "stand-in", window=131_072),
        }
        self.local = tiers["local"]
        summariser = Summariser(lambda: self.local, self.counter)
        self.router = Router(
            tiers,
            judge=ConfiguredJudge(Config),
            ledger=SqliteLedger(database),
            fitter=Folding(self.counter, summariser, Summaries(database)),
            counter=self.counter,
        )

    async def conversation(self, number: int, size: Size, tell: Tell) -> _Seen:
        """One conversation from its first turn to the probes at its end."""
        seen, name, chance = _Seen(), f"bench{number}", random.Random(number)  # noqa: S311 - canned text
        for turn in range(1, size.turns + 1):
            question, answer = _turn(number, turn, size, chance)
            cell = Cell(f"cell{turn}", "1")
            asked = self.book.asked(name, question, cell=cell)
            await self.router.view(asked.messages, "local", name)  # what the turn would have been sent with
            self.book.record(name, question, answer, tier="local", model="canned", cell=cell)
            seen.tokens += await self._count(question) + await self._count(answer)
            if turn in size.probed:
                await self._probe(seen, name)
                tell(f"  turn {turn}: 2+2 on {seen.tiers[-1]}, {seen.sent[-1]:,} of {seen.tokens:,} tokens sent")
        for what, _, values in _FACTS[: size.turns]:
            fact = values[number % len(values)]
            asked = self.book.asked(name, f"What is {what}?")
            text, _ = await self._told(asked, name, "local")
            if any(fact in message["content"] for message in self.watched.sent):
                seen.kept.append(what)
            if fact.lower() in text.lower():
                seen.told.append(what)
        tell(f"  of {len(_FACTS)} facts {len(seen.kept)} were sent, {len(seen.told)} answered")
        return seen

    async def _probe(self, seen: _Seen, name: str) -> None:
        """Ask "2+2", which the router may send anywhere."""
        asked = self.book.asked(name, PROBE)
        begun = time.perf_counter()
        text, decision = await self._told(asked, name, "auto")
        seen.seconds.append(time.perf_counter() - begun)
        seen.tiers.append(decision.chosen or "none")
        seen.sent.append(decision.candidate(decision.chosen).tokens or 0 if decision.chosen else 0)
        seen.correct += "4" in text or "four" in text.lower()
        assert self.local.window is not None
        seen.unfolded += self.counter.tokens(asked.messages, self.local) + _ANSWER <= self.local.window

    async def _told(self, asked: Asked, name: str, tier: str) -> tuple[str, Decision]:
        """The answer, and who decided on it."""
        decisions: list[Decision] = []
        request = Request(asked.messages, tier=tier, max_tokens=_ANSWER, conversation=name, decided=decisions.append)
        async with aclosing(self.router.stream(request)) as events:
            said = [each.payload async for each in events if each.kind == "token"]
        return "".join(said), decisions[0]

    async def _count(self, text: str) -> int:
        """The tokens of a text, by the model's own tokenizer."""
        return await self.model.count(text, "") or self.counter.tokens(
            (Message(role="user", content=text),), self.local
        )


def _turn(number: int, turn: int, size: Size, chance: random.Random) -> tuple[str, str]:
    """A canned question, with a fact in the first ones, and its canned answer."""
    topic = chance.choice(_TOPICS)
    question = f"What should I know about {topic}, and how do I begin?"
    if turn <= len(_FACTS):
        _, said, values = _FACTS[turn - 1]
        question = f"{said.format(values[number % len(values)])} {question}"

    def sentence() -> str:
        return chance.choice(_SENTENCES).format(
            topic=topic,
            n=chance.randrange(10, 999),
            m=2 ** chance.randrange(3, 12),
            x=f"{chance.uniform(1, 40):.1f}",
            who=chance.choice(_WHO),
        )

    return question, " ".join(sentence() for _ in range(size.sentences))


def _figures(size: Size, seen: list[_Seen], model: str, seconds: float) -> Figures:
    probes = [tier for each in seen for tier in each.tiers]
    sent = [tokens for each in seen for tokens in each.sent]
    facts = min(len(_FACTS), size.turns)
    return {
        "model": model,
        "window": size.window,
        "summaries": "extractive (demo model)",
        "conversations": size.conversations,
        "turns": size.turns,
        "tokens_least": min(each.tokens for each in seen),
        "tokens_most": max(each.tokens for each in seen),
        "past_41k": all(each.tokens > PAST for each in seen),
        "probes": len(probes),
        "probes_local": probes.count("local"),
        "probes_correct": sum(each.correct for each in seen),
        "probes_that_fit_unfolded": sum(each.unfolded for each in seen),
        "tokens_sent_median": statistics.median(sent),
        "tokens_sent_most": max(sent),
        "probe_s_median": round(statistics.median(s for each in seen for s in each.seconds), 2),
        "facts": facts * len(seen),
        "facts_sent": sum(len(each.kept) for each in seen),
        "facts_answered": sum(len(each.told) for each in seen),
        "facts_sent_each": [len(each.kept) for each in seen],
        "facts_answered_each": [len(each.told) for each in seen],
        "seconds": round(seconds, 1),
    }
