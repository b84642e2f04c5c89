"""`map`, `filter`, `flat_map`: the user's functions as nodes.

    clean = map(tidy)
    safe  = filter(no_secrets)   [workers=2]
    words = flat_map(split)      # def split(text): yield from text.split()
    same  = tidy                 # a function's name stands for map(tidy), or flat_map(tidy) where it yields

A plain `def`, and each step of a generator, runs in the node's own threads, so that a `time.sleep` or a request in it
does not freeze the loop; `async def` runs on the loop; `inline=true` runs a cheap plain function on the loop. The
function is given the payload, or the whole event when its first parameter is annotated `Event`; a further parameter
called `state` is given the node's state, one called `idempotency_key` the same text for every try of one event.

What `map` returns takes the place of the payload: None drops the event, text stays the kind of text that it was, an
`Event` keeps its kind, payload and meta. `flat_map` does so with each item that its function yields, or of the iterable
that it returns, and numbers them per lineage.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import DATA, TEXT, Event
from aiflow_jupyter.graph import hints
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.problems import indefinite
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.numbering import Numbers
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Mode, Operator
from aiflow_jupyter.runtime.returned import decision, value

_PARAMETERS = (Parameter("function", "function", required=True), Parameter("inline", "boolean"))


def inlined(args: Args) -> bool:
    """Whether a plain function is to run on the loop, one event at a time."""
    return args.get("inline") is True


MAP_SIGNATURE = OperatorSignature("map", _PARAMETERS, single=inlined, results="some", returns="function")
FILTER_SIGNATURE = OperatorSignature("filter", _PARAMETERS, single=inlined, results="some")
FLAT_MAP_SIGNATURE = OperatorSignature("flat_map", _PARAMETERS, single=inlined, results="many", returns="function")


def map(function: Callable[..., Any], *, inline: bool | None = None) -> OperatorCall:  # noqa: A001 - the operator's name
    """Replace each payload by what the function returns for it; None drops the event.

    Args:
        function: takes a payload (or an `Event`); may be `async`.
        inline: run a plain function on the loop: only for cheap, pure ones.
    """
    return call("map", function=function, inline=inline)


def filter(function: Callable[..., Any], *, inline: bool | None = None) -> OperatorCall:  # noqa: A001 - the operator's name
    """Keep the events for which the function returns something true.

    Args:
        function: takes a payload (or an `Event`); may be `async`.
        inline: run a plain function on the loop: only for cheap, pure ones.
    """
    return call("filter", function=function, inline=inline)


def flat_map(function: Callable[..., Any], *, inline: bool | None = None) -> OperatorCall:
    """Replace each payload by all that the function yields for it (or by the items that it returns), as they come.

    Args:
        function: takes a payload (or an `Event`); a generator, or a function that returns an iterable; may be `async`.
        inline: run a plain function, and each step of it, on the loop: only for cheap ones.
    """
    return call("flat_map", function=function, inline=inline)


# -- a user's function, as nodes call it


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function of the user's, found by its name.

    Attributes:
        name: as written in the graph.
        function: itself.
        event: it is given the whole `Event`.
        awaits: it is a coroutine or asynchronous generator function.
        yields: it is a generator function.
        extras: which of `state` and `idempotency_key` it takes besides.
    """

    name: str
    function: Callable[..., Any]
    event: bool
    awaits: bool
    yields: bool
    extras: frozenset[str]

    def __call__(self, event: Event, extras: Mapping[str, Any]) -> Any:
        """Call it for one event."""
        return self.function(event if self.event else event.payload, **extras)


def named(name: str, binding: Binding) -> Callable[..., Any]:
    """The function of that name.

    Raises:
        ConfigError: there is none.
    """
    function = binding.functions.get(name)
    if function is None or not callable(function):
        raise ConfigError(
            f"node {binding.node!r}: no function is called {name!r}",
            code="AF205",
            hint="define it in a cell before, then run again",
        )
    found: Callable[..., Any] = function
    return found


def user_function(name: str, binding: Binding) -> UserFunction:
    """The function of that name, for a node that calls it with one event.

    Raises:
        ConfigError: there is none, or it can't be called with one value.
    """
    function = named(name, binding)
    known = hints.read(function)
    if known.problem:
        raise ConfigError(
            f"node {binding.node!r}: {name!r} can't be called with one value: {known.problem}",
            code="AF303",
            hint="give its other parameters defaults",
        )
    first = next(iter(_parameters(function)), None)
    extras = (known.parameters & hints.EXTRAS) - {first}
    return UserFunction(name, function, known.event, known.awaits, known.yields, extras)


def _parameters(function: Callable[..., Any]) -> Iterable[str]:
    try:
        return inspect.signature(function).parameters
    except BaseException:  # noqa: BLE001 - builtins have none that can be read, an object may fail in any way
        return ()


def user_behaviour(
    name: str,
    binding: Binding,
    finish: Callable[[Event, Any], Event | None],
    *,
    inline: bool = False,
    result_as: Callable[[str, Any], Any] = value,
) -> Behaviour:
    """The behaviour of a node around a user's function that returns.

    Args:
        name: the function's name among `binding.functions`.
        binding: the node's binding.
        finish: makes the node's result from the event and what the function returned.
        inline: run a plain function on the loop.
        result_as: what its results are for: `value`, or `decision`.

    Raises:
        ConfigError: no such function, or it can't be called with one value, or it is a generator.
    """
    user = user_function(name, binding)
    if user.yields:
        raise ConfigError(
            f"node {binding.node!r}: {name!r} yields; here a function has to return",
            code="AF303",
            hint=f"{binding.node} = flat_map({name}) gives each item that it yields",
        )

    def settled(event: Event, result: Any) -> Event | None:
        return finish(event, result_as(name, result))

    if user.awaits:

        async def on_loop(event: Event, **extras: Any) -> Event | None:
            return settled(event, await user(event, extras))

        return Behaviour("await", on_loop, extras=user.extras)

    def plain(event: Event, **extras: Any) -> Event | None:
        return settled(event, user(event, extras))

    return Behaviour("inline" if inline else "thread", plain, extras=user.extras)


def result_of(event: Event, result: Any) -> Event | None:
    """What a `map` emits: None drops, an `Event` keeps what it says, text stays text, the rest is a `value`.

    That what came is a part, and how often it has come round, stays so whatever a function says.

    Raises:
        RunError: it is a control event, or a text one without text.
    """
    if result is None:
        return None
    if isinstance(result, Event):
        if result.kind not in DATA:
            raise RunError(f"a function may not return a control event ({result.kind})", code="AF303")
        if result.kind in TEXT and not isinstance(result.payload, str):
            payload = indefinite(type(result.payload).__name__)
            raise RunError(
                f"a function returned a {result.kind} event with {payload} in it, which is no text",
                code="AF303",
                hint='give it a text, or make it a "value"',
            )
        if result.lineage:
            return _still(event, result)
        made = event.derive(result.payload, result.kind)
        made.meta = result.meta or event.meta
        return _still(event, made)
    if isinstance(result, str) and event.kind in TEXT:
        return event.derive(result)
    return event.derive(result, "value")


def _still(event: Event, made: Event) -> Event:
    """An event of a function's own: as much of a part, and as often round a loop, as the one that it was given."""
    told: dict[str, Any] = {} if event.complete else {"complete": False}
    if "hops" in event.meta:
        told["hops"] = event.meta["hops"]
    if told.items() <= made.meta.items():
        return made
    still = made.derive(made.payload)
    still.meta = {**made.meta, **told}
    return still


# -- the operators


def bind_map(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `map`."""
    return user_behaviour(args["function"], binding, result_of, inline=inlined(args))


def bind_filter(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `filter`."""
    return user_behaviour(args["function"], binding, _kept, inline=inlined(args), result_as=decision)


def _kept(event: Event, result: Any) -> Event | None:
    return event if result else None


def bind_flat_map(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `flat_map`."""
    each = _Each(user_function(args["function"], binding), binding)
    if each.user.awaits:
        return Behaviour("stream", each.stream, control=each.control, extras=each.user.extras)
    mode: Mode = "iterate" if inlined(args) else "thread_iterate"
    return Behaviour(mode, each.steps, control=each.control, extras=each.user.extras)


class _Each:
    """Gives every item of what a function yields or returns, numbered."""

    def __init__(self, user: UserFunction, binding: Binding) -> None:
        self.user = user
        self._node = binding.node
        self._numbers = Numbers(binding.policy.workers)

    def steps(self, event: Event, **extras: Any) -> Iterator[Event]:
        results = _items(self.user, self.user(event, extras))
        try:
            for result in results:
                if (out := self._output(event, result)) is not None:
                    yield out
                    event = _further(event)
        finally:
            if inspect.isgenerator(results):
                results.close()

    async def stream(self, event: Event, **extras: Any) -> AsyncGenerator[Event, None]:
        async with aclosing(_arriving(self.user, event, extras)) as results:
            async for result in results:
                if (out := self._output(event, result)) is not None:
                    yield out
                    event = _further(event)

    def control(self, event: Event) -> Iterator[Event]:
        self._numbers.heed(event)
        if event.kind != "end":
            yield event

    def _output(self, event: Event, result: Any) -> Event | None:
        made = result_of(event, value(self.user.name, result))
        if made is None:
            return None
        number = self._numbers.take(event.lineage)
        return Event(
            made.kind, made.payload, event.conversation, self._node, number, event.time, event.lineage, made.meta
        )


def _further(event: Event) -> Event:
    """The event for its further items: the white space before it (`segment`) is before the first alone."""
    if "gap" not in event.meta:
        return event
    further = event.derive(event.payload)
    further.meta = {**event.meta, "gap": ""}
    return further


async def _arriving(user: UserFunction, event: Event, extras: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
    """What an asynchronous function yields, or the items of what it returns."""
    if not user.yields:
        for result in _items(user, await user(event, extras)):
            yield result
        return
    results: AsyncIterator[Any] = user(event, extras)
    try:
        async for result in results:
            yield result
    finally:
        if inspect.isasyncgen(results):
            await results.aclose()


def _items(user: UserFunction, result: Any) -> Iterable[Any]:
    """The items of what a function returned; none where that is None."""
    if result is None:
        return ()
    if isinstance(result, Awaitable):
        value(user.name, result)
    if isinstance(result, (str, bytes, Mapping)) or not isinstance(result, Iterable):
        raise RunError(
            f"{user.name!r} returned {type(result).__name__}; flat_map gives each item of a list or of what is yielded",
            code="AF303",
            hint="return a list, or yield",
        )
    return result


MAP = Operator(MAP_SIGNATURE, bind_map)
FILTER = Operator(FILTER_SIGNATURE, bind_filter)
FLAT_MAP = Operator(FLAT_MAP_SIGNATURE, bind_flat_map)
