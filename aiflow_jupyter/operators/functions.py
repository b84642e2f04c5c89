"""`map`, `filter`: the user's functions as nodes.

    clean = map(tidy)
    safe  = filter(no_secrets)   [workers=2]

A plain `def` runs in the node's own threads, so that a `time.sleep` or a request in it does not freeze the loop; an
`async def` runs on the loop; `inline=true` runs a cheap plain function on the loop. The function is given the payload,
or the whole event when its first parameter is annotated `Event`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.events import DATA, Event
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator

_PARAMETERS = (Parameter("function", "function", required=True), Parameter("inline", "boolean"))


def _on_loop(args: Mapping[str, Any]) -> bool:
    return args.get("inline") is True


MAP_SIGNATURE = OperatorSignature("map", _PARAMETERS, single=_on_loop)
FILTER_SIGNATURE = OperatorSignature("filter", _PARAMETERS, single=_on_loop)


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


def user_behaviour(
    name: str, binding: Binding, finish: Callable[[Event, Any], Event | None], *, inline: bool = False
) -> Behaviour:
    """The behaviour of a node around a user's function.

    Args:
        name: the function's name among `binding.functions`.
        binding: the node's binding.
        finish: makes the node's result from the event and what the function returned.
        inline: run a plain function on the loop.

    Raises:
        ConfigError: no such function, or it is a generator.
    """
    function = binding.functions.get(name)
    if function is None:
        raise ConfigError(
            f"node {binding.node!r}: no function is called {name!r}",
            code="AF205",
            hint="define it in a cell before, then run again",
        )
    if calls(function, inspect.isgeneratorfunction) or calls(function, inspect.isasyncgenfunction):
        raise ConfigError(
            f"node {binding.node!r}: {name!r} yields; this version takes functions that return", code="AF303"
        )
    whole = wants_event(function)

    if calls(function, inspect.iscoroutinefunction):

        async def on_loop(event: Event) -> Event | None:
            return finish(event, await function(event if whole else event.payload))

        return Behaviour("await", on_loop)

    def plain(event: Event) -> Event | None:
        return finish(event, function(event if whole else event.payload))

    return Behaviour("inline" if inline else "thread", plain)


def calls(function: Callable[..., Any], kind: Callable[[Any], bool]) -> bool:
    """Whether calling `function` calls a function of a kind; looks into partials and into objects with `__call__`."""
    return kind(function) or kind(type(function).__call__)


def wants_event(function: Callable[..., Any]) -> bool:
    """Whether the function's first parameter is annotated `Event`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except Exception:  # noqa: BLE001 - an annotation may be any expression, and fail in any way
        return False
    return bool(parameters) and hints.get(parameters[0].name) is Event


def result_of(event: Event, result: Any) -> Event | None:
    """What a `map` emits: None drops, an `Event` is taken as it is, text stays text, the rest is a `value`."""
    if result is None:
        return None
    if isinstance(result, Event):
        if result.kind not in DATA:
            raise TypeError(f"a function may not return a control event ({result.kind})")
        return result
    if isinstance(result, str) and event.kind in ("token", "chunk"):
        return event.derive(result)
    return event.derive(result, "value")


def _kept(event: Event, result: Any) -> Event | None:
    return event if result else None


def bind_map(args: Mapping[str, Any], binding: Binding) -> Behaviour:
    """The behaviour of `map`."""
    return user_behaviour(args["function"], binding, result_of, inline=args.get("inline", False))


def bind_filter(args: Mapping[str, Any], binding: Binding) -> Behaviour:
    """The behaviour of `filter`."""
    return user_behaviour(args["function"], binding, _kept, inline=args.get("inline", False))


MAP = Operator(MAP_SIGNATURE, bind_map)
FILTER = Operator(FILTER_SIGNATURE, bind_filter)
