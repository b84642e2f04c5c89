"""`guard`: holds text back until a check of it says true, so that nothing leaves that was not looked at.

    ask  = generate()
    safe = guard(no_secrets)             # def no_secrets(text: str) -> bool
    tail = guard(no_secrets, hold=20)    # by tokens
    out  = sink(display=true)
    ask -> safe -> out

By sentences (the default) a sentence of an answer leaves once it was checked together with the `overlap` sentences
behind it (1), or with the end of the answer: so what spans two sentences is seen whole before any of it leaves. With
`overlap=0` a sentence leaves as soon as it is whole and was checked, and the first words come one sentence sooner. By a
count of n, tokens leave n at a time, checked together with the n behind them: so whatever spans up to n tokens is seen
whole before any of it leaves. A text is checked with up to `MOST_CONTEXT` characters of what left before it: of what
spans more than is held, a part has left when the rest is seen, and is taken back then. What was put into the run is no
answer and has no end to wait for: its sentences are checked and leave one by one.

Where the check says false, what is held is dropped, `retract` goes out for the answer with the reason, and nothing
further of it follows, no `finish` either: what left before is no answer, and whoever holds or shows it takes it back.
What was checked to the end has a `commit` before its `finish`. The port `verdict` carries these alone, to a node that
works ahead and whose outputs wait for them:

    act = search_web  [effect=speculative]
    ask -> act, safe
    safe.verdict -> act

A check is a plain function, run in the node's threads (`inline=true`: on the loop, if it is cheap), or an `async def`;
`retry`, `timeout` and `state` are for each check. One that raises, or returns what decides nothing (a coroutine, as a
lambda around an `async def` does), fails its answer like any node's function, and what is held is dropped. What is left
of an answer that broke off is checked, and leaves marked incomplete. What is no text is held with the text around it,
and not looked at.

It holds at most `hold` events (1,024; twice a count) and `hold_bytes` of text. At the bound the answer that holds most
is checked as it is, and the older half of it leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.events import TEXT, Event, Phase, descends, origin, text_bytes
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import VERDICT, Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.functions import inlined, user_function
from aiflow_jupyter.operators.numbering import Recent
from aiflow_jupyter.operators.segment import ByEnd, sentence_end
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.returned import decision

MOST_HELD: Final = 1_024
MOST_CONTEXT: Final = 1_000
OVERLAP: Final = 1


def _holds(args: Args) -> int:
    hold = args.get("hold")
    return 2 * hold if isinstance(hold, int) else MOST_HELD


SIGNATURE = OperatorSignature(
    "guard",
    (
        Parameter("check", "function", required=True),
        Parameter("hold", "choice_or_integer", choices=("sentence",), least=1),
        Parameter("inline", "boolean"),
        Parameter("overlap", "integer", least=0),
    ),
    takes=TEXT,
    ports=lambda _args: ("", VERDICT),
    single=lambda _args: True,
    results="some",
    holds=_holds,
    verdicts=True,
)


def guard(
    check: Callable[..., Any],
    *,
    hold: str | int | None = None,
    inline: bool | None = None,
    overlap: int | None = None,
) -> OperatorCall:
    """Hold text back until a check says true.

    Args:
        check: takes a text; returns something true where it may leave. May be `async`.
        hold: `"sentence"` (the default), or how many tokens leave together.
        inline: run a plain check on the loop: only for cheap ones.
        overlap: how many sentences behind one are checked together with it before it leaves; 1 if it is left out.
    """
    return call("guard", check=check, hold=hold, inline=inline, overlap=overlap)


class _Held:
    """What is held of one answer, and the end of what left before.

    Attributes:
        events: what is held, with the length of the answer's text so far behind each.
        phase: of all of it.
    """

    __slots__ = ("_context", "_cutter", "_ends", "_length", "events", "phase")

    def __init__(self, phase: Phase | None, *, by_sentence: bool) -> None:
        self.events: deque[tuple[Event, int]] = deque()
        self.phase = phase
        self._context = ""
        self._length = 0
        self._cutter = ByEnd(sentence_end) if by_sentence else None
        self._ends: deque[int] = deque()  # where the held sentences end

    def add(self, event: Event) -> bool:
        """Hold an event; whether a sentence is whole by it."""
        text = _text(event)
        self._length += len(text)
        self.events.append((event, self._length))
        if self._cutter is None:
            return False
        if event.kind == "chunk":  # a piece that somebody has cut is whole
            self._ends.append(self._length)
            return True
        if not list(self._cutter.feed(text)):
            return False
        self._ends.append(self._length - len(self._cutter.text))
        return True

    def whole(self, overlap: int) -> tuple[int, int]:
        """How many of the held events may leave, and how many have to be looked at before.

        Args:
            overlap: how many whole sentences stay behind those that leave.
        """
        if overlap >= len(self._ends):
            return 0, 0
        last, end = self._ends[-1 - overlap], self._ends[-1]
        leaving = sum(behind <= last for _, behind in self.events)
        seen = sum(behind < end for _, behind in self.events) + 1  # a token may end one sentence and begin the next
        return leaving, seen

    def take(self) -> Event:
        """The oldest event, which is held no more."""
        event, behind = self.events.popleft()
        while self._ends and self._ends[0] <= behind:
            self._ends.popleft()
        self._context = (self._context + _text(event))[-MOST_CONTEXT:]
        return event

    def text(self, count: int) -> str:
        """What is to be looked at before so many leave."""
        return self._context + "".join(_text(event) for event, _ in islice(self.events, count))


def _text(event: Event) -> str:
    """The text that an event adds to its answer, with the white space that was cut off before a piece."""
    return event.meta.get("gap", "") + event.payload if isinstance(event.payload, str) else ""


@dataclass(frozen=True, slots=True)
class _Rest:
    """Has what is held of an answer checked, and says what follows if it may leave.

    Attributes:
        whole: nothing of the answer is missing.
        then: what follows.
    """

    whole: bool
    then: tuple[Event, ...]


class _Guard:
    """See the module; while it checks, its one worker does nothing else."""

    def __init__(self, args: Args, binding: Binding) -> None:
        hold = args.get("hold", "sentence")
        self._count: int | None = hold if isinstance(hold, int) else None
        self._overlap: int = args.get("overlap", OVERLAP)
        self._node = binding.node
        self._name = args["check"]
        self._most = binding.policy.hold or _holds(args)
        self._most_bytes = binding.policy.hold_bytes
        self._dropped = binding.dropped
        self._withheld = binding.withheld
        self._open: dict[str, _Held] = {}
        self._void: Recent[bool] = Recent()
        self._kept = self._bytes = 0
        self._check = binding.govern(_checking(args, binding)).call

    # -- what comes

    async def stream(self, event: Event) -> AsyncGenerator[Event, None]:
        """Hold an event, and let go what may leave."""
        steps = self._rest(event, event.payload) if isinstance(event.payload, _Rest) else self._gather(event)
        async with aclosing(steps):
            async for out in steps:
                yield out

    async def _gather(self, event: Event) -> AsyncGenerator[Event, None]:
        lineage = event.lineage
        held = self._open.get(lineage)
        if held is not None and held.phase != event.phase:
            async for out in self._judged(lineage, len(held.events)):
                yield out
            self._open.pop(lineage, None)
        size = text_bytes(_text(event))
        while self._kept and (self._kept >= self._most or self._bytes + size > self._most_bytes):
            fullest = max(self._open, key=lambda each: len(self._open[each].events))
            count = len(self._open[fullest].events)
            async for out in self._judged(fullest, (count + 1) // 2, count):
                yield out
        if lineage in self._void:
            self._dropped(event.kind)
            return
        held = self._open.get(lineage)
        if held is None:
            held = self._open[lineage] = _Held(event.phase, by_sentence=self._count is None)
        more = held.add(event)
        self._kept += 1
        self._bytes += size
        leaving, seen = 0, len(held.events)
        if self._count is not None:
            leaving = self._count if seen >= 2 * self._count else 0
        elif more:
            leaving, seen = held.whole(0 if origin(lineage) is None else self._overlap)
        async for out in self._judged(lineage, leaving, seen):
            yield out

    async def _judged(
        self, lineage: str, count: int, seen: int = 0, *, whole: bool = True
    ) -> AsyncGenerator[Event, None]:
        """Look at the oldest of what is held of an answer, and let go some of it; or retract the answer.

        Args:
            lineage: the answer's.
            count: how many events leave.
            seen: how many are looked at, where these are more.
            whole: they are not marked incomplete.
        """
        if not count:
            return
        held = self._open[lineage]
        first = held.events[0][0]
        if not await self._check(first.derive(held.text(max(seen, count)), "chunk")):
            yield self._refused(lineage, first)
            return
        for _ in range(count):
            out = held.take()
            self._book(out)
            yield out if whole else _part(out)
        if not held.events and origin(lineage) is None:
            self._open.pop(lineage, None)  # what was put into the run has no finish at which to forget it

    async def _rest(self, event: Event, rest: _Rest) -> AsyncGenerator[Event, None]:
        """Let go all that is held of an answer, and what follows it."""
        held = self._open.get(event.lineage)
        async for out in self._judged(event.lineage, len(held.events) if held else 0, whole=rest.whole):
            yield out
        if rest.then:
            self._open.pop(event.lineage, None)
        void = event.lineage in self._void
        for out in rest.then:
            if not void or out.kind not in ("commit", "finish"):
                yield out

    def _refused(self, lineage: str, first: Event) -> Event:
        self._drop(lineage)
        reason = f"node {self._node!r}: {self._name!r} refused a part of it"
        self._withheld(f"{reason}; the answer was taken back")
        return Event("retract", reason, first.conversation, self._node, first.sequence, first.time, lineage)

    def _drop(self, lineage: str, *, void: bool = True) -> None:
        """Discard what is held of an answer, and what is to come of it."""
        held = self._open.pop(lineage, None)
        for event, _ in held.events if held is not None else ():
            self._book(event)
            self._dropped(event.kind)
        if void:
            self._void.add(lineage)
        else:
            self._void.pop(lineage, None)

    def _book(self, out: Event) -> None:
        self._kept -= 1
        self._bytes -= text_bytes(_text(out))

    # -- control events

    def control(self, event: Event) -> Iterator[Event]:
        """Have what a control event is about checked, or discard it."""
        kind, lineage = event.kind, event.lineage
        if kind == "finish":
            if lineage in self._void:
                del self._void[lineage]
            else:
                yield from self._closing(lineage, event, whole=True, then=(self._commit(event, lineage), event))
        elif kind == "error" and event.source != self._node:
            yield from self._closing(lineage, event, whole=False, then=(event,))
        elif kind in ("error", "retract", "restart"):
            for each in {lineage, *(each for each in self._open if descends(each, lineage))}:
                self._drop(each, void=kind != "restart")
            yield event
        elif kind in ("flush", "end"):
            yield from self._let_go(event)
        elif kind != "commit":  # its own takes the place of those of a guard before
            yield event

    def _let_go(self, event: Event) -> Iterator[Event]:
        end = event.kind == "end"
        for each in [event.lineage] if event.lineage and not end else list(self._open):
            whole = not end or (event.complete and origin(each) is None)
            yield from self._closing(
                each, event, whole=whole, then=(self._commit(event, each),) if whole and end else ()
            )
        if not end:
            yield event

    def _closing(self, lineage: str, event: Event, *, whole: bool, then: tuple[Event, ...]) -> Iterator[Event]:
        """What leaves an answer: at once where nothing of it is held, else once it was checked."""
        held = self._open.get(lineage)
        if held is not None and held.events:
            yield held.events[0][0].derive(_Rest(whole, then), "value")
            return
        if event.kind != "flush":
            self._open.pop(lineage, None)
        yield from then

    def _commit(self, event: Event, lineage: str) -> Event:
        return Event("commit", None, event.conversation, self._node, event.sequence, event.time, lineage)

    def holds(self) -> int:
        """Events that wait for their check."""
        return self._kept


def _part(event: Event) -> Event:
    out = event.derive(event.payload)
    out.meta = {**event.meta, "complete": False}
    return out


def _checking(args: Args, binding: Binding) -> Behaviour:
    """Calls the user's check.

    Raises:
        ConfigError: no such function, or it can't be called with one text, or it yields.
    """
    name = args["check"]
    user = user_function(name, binding)
    if user.yields:
        raise ConfigError(
            f"node {binding.node!r}: {name!r} yields; a check returns true or false", code="AF303", hint="return a bool"
        )
    submit = None if user.awaits or inlined(args) else binding.threads()

    def said(event: Event, extras: Mapping[str, Any]) -> bool:
        return bool(decision(name, user(event, extras)))

    async def check(event: Event, **extras: Any) -> bool:
        if user.awaits:
            return bool(decision(name, await user(event, extras)))
        return said(event, extras) if submit is None else await submit(said, event, extras)

    return Behaviour("await", check, extras=user.extras)


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `guard`.

    Raises:
        ConfigError: no such check, or it is no function of a text; or there is an `overlap` that nothing is held by.
    """
    if "overlap" in args and isinstance(args.get("hold"), int):
        raise ConfigError(
            f"node {binding.node!r}: overlap= has no effect here",
            code="AF204",
            hint="it goes with sentences; hold=n sees n tokens more before any leaves",
        )
    made = _Guard(args, binding)
    return Behaviour("stream", made.stream, control=made.control, holds=made.holds, recalls=True, governed=True)


GUARD = Operator(SIGNATURE, bind)
