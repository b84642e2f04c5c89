"""`reduce`: makes one event of all of an answer, when it is complete.

    whole   = reduce("join")                   # the answer's text
    longest = reduce(function=longer)          # def longer(best: str, text: str) -> str, pair by pair
    mean    = reduce(function=average)         # def average(values: list[float]) -> float, all at once

A function of two parameters is called pair by pair as events come, so that one value is kept; a function of one gets
the list at the end. Functions run as those of `map` do. `join` puts texts together, with the white space that `segment`
took from between them; `count` counts; `last` is the last payload.

There is one result for each answer, at its `finish`, which stops here; it takes the place of the event that was asked:
its lineage and sequence. What did not come from an answer is gathered by the run's input that it came from, one result
for each at the end; a run whose inputs stay open takes no more of them than `hold`: there `window` gathers several. Of
an answer only its last part counts: what the model thought before it answered (phase `reasoning`), or said before it
called a tool (a finish for `tool_calls`), is left out unless nothing else came: behind `lane.reasoning` the reasoning
is what is gathered.

When an answer breaks off, what came goes out marked incomplete; so does what a `flush` lets go, and what comes after.
An answer that is empty has an empty text, a count of 0, and else no result: a `skip`. So has one that is retracted.

It keeps at most `hold` events (one for each open answer, all of them where a function gets the list) and `hold_bytes`
of text; beyond, the event fails with AF612, and the part that came goes out.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, get_args

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import Event, text_bytes
from aiflow_jupyter.graph import hints
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.answers import Answers, Gathered
from aiflow_jupyter.operators.functions import inlined, named, result_of
from aiflow_jupyter.runtime.admission import skip
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.returned import value

BUILT_IN: Final = ("join", "count", "last")
MOST_ANSWERS: Final = 64
MOST_LISTED: Final = 1_024


def _holds(args: Args) -> int:
    return MOST_ANSWERS if args.get("function") in BUILT_IN else MOST_LISTED


def _payload(args: Args, given: Any) -> Any:
    return {"join": str, "count": int}.get(args.get("function", ""), given)


SIGNATURE = OperatorSignature(
    "reduce",
    (
        Parameter("function", "choice_or_function", choices=BUILT_IN, required=True, gets="arguments"),
        Parameter("inline", "boolean"),
    ),
    gives=frozenset({"value"}),
    single=lambda _args: True,
    results="gathered",
    lineage="asked",
    holds=_holds,
    returns="function",
    payload=_payload,
)


def reduce(function: str | Callable[..., Any], *, inline: bool | None = None) -> OperatorCall:
    """Make one event of all of an answer.

    Args:
        function: `"join"`, `"count"`, `"last"`; or a function of two payloads, called pair by pair; or one of a list.
        inline: run a plain function on the loop: only for cheap ones.
    """
    return call("reduce", function=function, inline=inline)


# -- the ways to gather


class _All(list[Any]):
    """All payloads of an answer, on their way to the user's function."""


class _Join(Answers):
    empty = ""

    def add(self, gathered: Gathered, event: Event, /) -> None:
        text = event.payload
        if not isinstance(text, str):
            raise RunError(
                f"reduce(join) puts texts together, not {type(text).__name__}",
                code="AF301",
                hint="put a map before it that gives texts, or let text alone through with route(by=kind)",
            )
        text = event.meta.get("gap", "") + text if gathered.last is not None else text
        size = text_bytes(text)
        self._keep(event, 0, size)
        self._book(gathered, 0, size)
        if gathered.value is None:
            gathered.value = io.StringIO()
        gathered.value.write(text)

    def result(self, gathered: Gathered) -> str:
        text: str = gathered.value.getvalue()
        return text


class _Count(Answers):
    empty = 0

    def add(self, gathered: Gathered, _event: Event, /) -> None:
        gathered.value = (gathered.value or 0) + 1


class _Last(Answers):
    def add(self, gathered: Gathered, event: Event, /) -> None:
        gathered.value = event.payload


class _List(Answers):
    """All payloads, for a function."""

    def __init__(self, binding: Binding, most: int, *, whole_events: bool) -> None:
        super().__init__(binding, most)
        self._whole_events = whole_events

    def add(self, gathered: Gathered, event: Event, /) -> None:
        self.grow(gathered, event, text_bytes(event.payload) if isinstance(event.payload, str) else 0)
        if gathered.value is None:
            gathered.value = _All()
        gathered.value.append(event if self._whole_events else event.payload)


_WAYS: Final[dict[str, type[Answers]]] = {"join": _Join, "count": _Count, "last": _Last}


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `reduce`.

    Raises:
        ConfigError: no such function, or it takes neither one nor two values.
    """
    how = args["function"]
    if how not in BUILT_IN:
        return _by_function(how, binding, _holds(args), inline=inlined(args))
    reducer = _WAYS[how](binding, _holds(args))
    return Behaviour("inline", partial(_add, reducer), control=reducer.control, holds=reducer.holds)


def _add(reducer: Answers, event: Event) -> None:
    gathered = reducer.take(event)
    if gathered is not None:
        reducer.add(gathered, event)
        reducer.count(gathered, event)


def _by_function(name: str, binding: Binding, most: int, *, inline: bool) -> Behaviour:
    function = named(name, binding)
    known = hints.read(function)
    if known.yields:
        raise ConfigError(f"node {binding.node!r}: {name!r} yields; reduce takes a function that returns", code="AF303")
    takes = _taken(name, function, binding)
    if takes == 2:
        return _in_pairs(_Last(binding, most), name, function, awaits=known.awaits, inline=inline)
    whole_events = any(get_args(each) == (Event,) for each in known.takes)
    reducer = _List(binding, most, whole_events=whole_events)
    return _at_once(reducer, name, function, awaits=known.awaits, inline=inline)


def _in_pairs(reducer: Answers, name: str, function: Callable[..., Any], *, awaits: bool, inline: bool) -> Behaviour:
    """A function that makes one value of two."""

    def taken(event: Event) -> Gathered | None:
        """What the event is to be paired with; the first one is only kept."""
        gathered = reducer.take(event)
        if gathered is not None and gathered.last is None:
            gathered.value = event.payload
            reducer.count(gathered, event)
            return None
        return gathered

    def pair(event: Event) -> None:
        if (gathered := taken(event)) is not None:
            gathered.value = value(name, function(gathered.value, event.payload))
            reducer.count(gathered, event)

    async def pair_on_loop(event: Event) -> None:
        if (gathered := taken(event)) is not None:
            gathered.value = value(name, await function(gathered.value, event.payload))
            reducer.count(gathered, event)

    if awaits:
        return Behaviour("await", pair_on_loop, control=reducer.control, holds=reducer.holds)
    return Behaviour("inline" if inline else "thread", pair, control=reducer.control, holds=reducer.holds)


def _at_once(reducer: Answers, name: str, function: Callable[..., Any], *, awaits: bool, inline: bool) -> Behaviour:
    """A function of a list: where it does not run on the loop, what `control` lets go is sent to it as to a `map`'s."""

    def gather(event: Event) -> Event | None:
        if isinstance(event.payload, _All):
            return _settled(event, value(name, function(list(event.payload))))
        _add(reducer, event)
        return None

    async def gather_on_loop(event: Event) -> Event | None:
        if isinstance(event.payload, _All):
            return _settled(event, value(name, await function(list(event.payload))))
        return gather(event)

    def settled(event: Event) -> Iterator[Event]:
        for out in reducer.control(event):
            yield gather(out) or out if isinstance(out.payload, _All) else out

    if awaits:
        return Behaviour("await", gather_on_loop, control=reducer.control, holds=reducer.holds, recalls=True)
    if inline:
        return Behaviour("inline", gather, control=settled, holds=reducer.holds)
    return Behaviour("thread", gather, control=reducer.control, holds=reducer.holds, recalls=True)


def _settled(event: Event, result: Any) -> Event:
    """What a function made of an answer; None leaves what was asked without a result."""
    return result_of(event, result) or skip(event, event.source)


def _taken(name: str, function: Callable[..., Any], binding: Binding) -> int:
    """How many values a function takes: 2 for pairs, 1 for a list; a builtin that does not say takes a list."""
    try:
        parameters: Sequence[inspect.Parameter] = list(inspect.signature(function).parameters.values())
    except BaseException:  # noqa: BLE001 - builtins have none that can be read, an object may fail in any way
        return 1
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in places)
    more = any(p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY)
    if not needed:
        needed = 2 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else min(len(places), 2)
    if more or needed not in (1, 2):
        raise ConfigError(
            f"node {binding.node!r}: {name!r} takes neither two values nor one list",
            code="AF303",
            hint="def f(so_far, payload): ... or def f(payloads: list): ...",
        )
    return needed


REDUCE = Operator(SIGNATURE, bind)
