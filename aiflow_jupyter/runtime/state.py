"""State: what the calls of one node share, and who sees it when.

A function with a parameter named `state` is given a dict there. Whose it is says the node's policy:

    stateless      the node's one dict, for a node of one worker (the checks want a mode where there are more)
    serialized     the node's one dict, one call at a time, in order of admission
    partitioned    the dict of the event's key, one event of a key at a time (`partitioned.py`), at most `keys` of them
    transactional  a copy of the node's one dict, one call at a time: what the call changed and what it gave become
                   visible together once it has succeeded, and not at all where it failed

State lives in memory as long as its run.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.bounds import MOST_TOGETHER
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.behaviour import Behaviour

State = dict[Any, Any]


def keep(behaviour: Behaviour, node: str, policy: Policy, key: Callable[[Event], Hashable] | None) -> Behaviour:
    """A behaviour whose calls have the state that the policy declares; itself where they take none.

    `in_turn` sees that they come one at a time.

    Args:
        behaviour: of a mode that runs on the loop (`thread` ones already changed).
        node: names errors.
        policy: the node's policy.
        key: gives an event's key, for `partitioned`.
    """
    takes = "state" in behaviour.extras
    if not takes and policy.state not in ("serialized", "transactional"):
        return behaviour
    behaviour = replace(behaviour, extras=behaviour.extras - {"state"})
    if policy.state == "partitioned" and key is not None:
        return replace(behaviour, call=_by_key(behaviour, node, policy.keys, key))
    return replace(behaviour, call=_shared(behaviour, node, policy, takes=takes))


def _by_key(behaviour: Behaviour, node: str, most: int, key: Callable[[Event], Hashable]) -> Callable[..., Any]:
    states: dict[Hashable, State] = {}

    inner: Callable[..., Any] = behaviour.call

    def call(event: Event, **extras: Any) -> Any:
        of = key(event)
        state = states.get(of)
        if state is None:
            if len(states) >= most:
                raise RunError(
                    f"node {node!r} has a state for {most:,} keys, which is the most it may have",
                    code="AF611",
                    hint="raise keys=, or give events fewer different keys",
                )
            state = states[of] = {}
        return inner(event, state=state, **extras)

    return call


class _Transaction:
    """The state of a node, and how one call at a time uses it."""

    def __init__(self, node: str, policy: Policy, *, takes: bool) -> None:
        self.node = node
        self.most = policy.hold or MOST_TOGETHER
        self.transactional = policy.state == "transactional"
        self.takes = takes
        self.state: State = {}

    def extras(self) -> dict[str, State]:
        """What a call gets: the state, or a copy of it."""
        if not self.takes:
            return {}
        return {"state": copy.deepcopy(self.state) if self.transactional else self.state}

    def commit(self, extras: dict[str, State]) -> None:
        """The call has succeeded: what it changed is the state from now on."""
        if self.takes and self.transactional:
            self.state = extras["state"]

    def room(self, outputs: list[Event]) -> None:
        """See that one more output may be kept until the call is over."""
        if len(outputs) >= self.most:
            raise RunError(
                f"node {self.node!r}: one call gave more than {self.most} events, and a transaction keeps them all",
                code="AF612",
                hint="raise hold=, or let the call give fewer",
            )


def _shared(behaviour: Behaviour, node: str, policy: Policy, *, takes: bool) -> Callable[..., Any]:
    transaction = _Transaction(node, policy, takes=takes)
    call = behaviour.call
    if behaviour.mode == "inline":
        return partial(_inline, call, transaction)
    if behaviour.mode == "iterate":
        return partial(_iterate, call, transaction)
    return partial(_await if behaviour.mode == "await" else _stream, call, transaction)


def _inline(call: Callable[..., Any], transaction: _Transaction, event: Event, **extras: Any) -> Any:
    own = transaction.extras()
    out = call(event, **own, **extras)
    transaction.commit(own)
    return out


def _iterate(call: Callable[..., Any], transaction: _Transaction, event: Event, **extras: Any) -> Iterator[Event]:
    own = transaction.extras()
    if not transaction.transactional:
        yield from call(event, **own, **extras)
        return
    outputs: list[Event] = []
    for out in call(event, **own, **extras):
        transaction.room(outputs)
        outputs.append(out)
    transaction.commit(own)
    yield from outputs


async def _await(call: Callable[..., Any], transaction: _Transaction, event: Event, **extras: Any) -> Any:
    own = transaction.extras()
    out = await call(event, **own, **extras)
    transaction.commit(own)
    return out


async def _stream(
    call: Callable[..., Any], transaction: _Transaction, event: Event, **extras: Any
) -> AsyncGenerator[Event, None]:
    own = transaction.extras()
    outputs: list[Event] = []
    async with aclosing(call(event, **own, **extras)) as stream:
        async for out in stream:
            if not transaction.transactional:
                yield out
                continue
            transaction.room(outputs)
            outputs.append(out)
    transaction.commit(own)
    for out in outputs:
        yield out


def in_turn(behaviour: Behaviour, policy: Policy) -> Behaviour:
    """A behaviour that serves one event at a time, with all its tries, where the node has one state."""
    if policy.state not in ("serialized", "transactional") or behaviour.mode not in ("await", "stream"):
        return behaviour
    lock = asyncio.Lock()
    call = behaviour.call

    async def awaited(event: Event, **extras: Any) -> Any:
        async with lock:
            return await call(event, **extras)

    async def streamed(event: Event, **extras: Any) -> AsyncGenerator[Event, None]:
        async with lock, aclosing(call(event, **extras)) as stream:
            async for out in stream:
                yield out

    return replace(behaviour, call=awaited if behaviour.mode == "await" else streamed)
