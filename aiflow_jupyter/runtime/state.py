"""State: what the calls of one node share, and who sees it when.

A function with a parameter named `state` is given a dict there. Whose it is says the node's policy:

    stateless      the node's one dict, for a node of one worker (the checks want a mode where there are more)
    serialized     the node's one dict, one call at a time, in order of admission
    partitioned    the dict of the event's key, one event of a key at a time (`partitioned.py`), at most `keys` of them
    transactional  a copy of the node's one dict, one call at a time: what the call changed and what it gave become
                   visible together once it has succeeded, and not at all where it failed

A transaction's state is copied as its call commits it, in a thread of the node's, so that it holds nobody up; on the
loop only where it is small (`SMALL` items), or where the call runs there itself (`inline=true`): keep it small there.
What can't be copied, such as a lock or an open file, fails the call that put it there, with AF615.

State lives in memory as long as its run.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from aiflow_jupyter.errors import RunError, words
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.bounds import MOST_TOGETHER
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.problems import counted, indefinite
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.returned import decision
from aiflow_jupyter.runtime.threads import NodeThreads

State = dict[Any, Any]

SMALL: Final = 1_000
"""Items in all the containers of a state that is copied on the loop."""


def keep(
    behaviour: Behaviour,
    node: str,
    policy: Policy,
    key: Key | None,
    threads: Callable[[], NodeThreads],
    *,
    threaded: bool,
) -> Behaviour:
    """A behaviour whose calls have the state that the policy declares; itself where they take none.

    `in_turn` sees that they come one at a time.

    Args:
        behaviour: of a mode that runs on the loop (`thread` ones already changed).
        node: names errors.
        policy: the node's policy.
        key: gives an event's key, for `partitioned`.
        threads: gives the node's threads, which are made for it where there are none yet.
        threaded: the calls run in them.
    """
    takes = "state" in behaviour.extras
    if not takes and policy.state not in ("serialized", "transactional"):
        return behaviour
    behaviour = replace(behaviour, extras=behaviour.extras - {"state"})
    if policy.state == "partitioned" and key is not None:
        return replace(behaviour, call=_by_key(behaviour, node, policy.keys, key))
    transaction = _Transaction(node, policy, threads, takes=takes, threaded=threaded)
    return replace(behaviour, call=_shared(behaviour, transaction))


class Key:
    """Gives an event's key: what the function of the policy `key` returns for it.

    The function is called once for an event that its guardian has in service, for whoever asks.

    Args:
        node: names errors.
        name: the function's name.
        function: itself.
        whole: it is given the whole event.

    Attributes:
        serving: the keys of the events in service, by the identity of the event.
    """

    __slots__ = ("_function", "_name", "_node", "_whole", "serving")

    def __init__(self, node: str, name: str, function: Callable[[Any], Any], *, whole: bool) -> None:
        self._node = node
        self._name = name
        self._function = function
        self._whole = whole
        self.serving: dict[int, Hashable] = {}

    def __call__(self, event: Event) -> Hashable:
        """The key of an event.

        Raises:
            RunError: the function returned none; else whatever it raises.
        """
        if id(event) in self.serving:
            return self.serving[id(event)]
        key = decision(self._name, self._function(event if self._whole else event.payload))
        try:
            hash(key)
        except TypeError as error:
            raise RunError(
                f"node {self._node!r}: {self._name!r} returned {indefinite(type(key).__name__)} as a key, "
                "which has no hash",
                code="AF303",
                hint="return a text, a number, or a tuple of these",
            ) from error
        return cast("Hashable", key)


def _by_key(behaviour: Behaviour, node: str, most: int, key: Key) -> Callable[..., Any]:
    states: dict[Hashable, State] = {}

    inner: Callable[..., Any] = behaviour.call

    def call(event: Event, **extras: Any) -> Any:
        of = key(event)
        state = states.get(of)
        if state is None:
            if len(states) >= most:
                raise RunError(
                    f"node {node!r} has a state for {counted(most, 'key')}, which is the most it may have",
                    code="AF611",
                    hint="raise keys=, or give events fewer different keys",
                )
            state = states[of] = {}
        return inner(event, state=state, **extras)

    return call


class _Transaction:
    """The state of a node, and how one call at a time uses it; `_next` is the copy for the next call, once made."""

    def __init__(
        self, node: str, policy: Policy, threads: Callable[[], NodeThreads], *, takes: bool, threaded: bool
    ) -> None:
        self.node = node
        self.most = policy.hold or MOST_TOGETHER
        self.transactional = policy.state == "transactional"
        self.takes = takes
        self.state: State = {}
        self._next: State | None = None
        self._threads = threads
        self._threaded = threaded

    @property
    def copies(self) -> bool:
        """Whether calls work on copies."""
        return self.takes and self.transactional

    async def begin(self, event: Event) -> dict[str, State]:
        """What a call gets: the state, or a copy of it."""
        if self.copies and self._next is None:
            self._next = await self._copied(self.state, event)
        return self.begin_here(event)

    def begin_here(self, event: Event) -> dict[str, State]:
        """The same, copied on the loop."""
        if not self.copies:
            return {"state": self.state} if self.takes else {}
        own, self._next = self._next, None
        return {"state": self._copy(self.state, event) if own is None else own}

    async def commit(self, own: dict[str, State], event: Event) -> None:
        """The call has succeeded: what it changed is the state from now on.

        Raises:
            RunError: it can't be copied for the next call; the state stays as it was.
        """
        if self.copies:
            self._next = await self._copied(own["state"], event)
            self.state = own["state"]

    def commit_here(self, own: dict[str, State], event: Event) -> None:
        """The same, copied on the loop."""
        if self.copies:
            self._next = self._copy(own["state"], event)
            self.state = own["state"]

    async def _copied(self, state: State, event: Event) -> State:
        if not self._threaded and _small(state):
            return self._copy(state, event)
        copied: State = await self._threads().submit(self._copy, state, event)
        return copied

    def _copy(self, state: State, event: Event) -> State:
        try:
            return copy.deepcopy(state)
        except Exception as error:
            raise RunError(
                f"node {self.node!r}: `state`, as the call for event {event.sequence} left it, can't be copied: "
                f"{type(error).__name__}: {words(error)}",
                code="AF615",
                hint="keep data in it; no lock, open file, connection or generator",
            ) from error

    def room(self, outputs: list[Event]) -> None:
        """See that one more output may be kept until the call is over."""
        if len(outputs) >= self.most:
            raise RunError(
                f"node {self.node!r}: one call gave more than {counted(self.most, 'event')}, and a transaction "
                "keeps them all",
                code="AF612",
                hint="raise hold=, or let the call give fewer",
            )


def _small(state: State) -> bool:
    """Whether all that is in a state, as far as its containers tell, are at most `SMALL` items."""
    waiting: list[Any] = [state]
    seen = 0
    while waiting:
        each = waiting.pop()
        inner = each.values() if isinstance(each, dict) else each
        if isinstance(each, dict | list | tuple | set | frozenset | deque):
            seen += len(each)
            if seen > SMALL:
                return False
            waiting += inner
    return True


def _shared(behaviour: Behaviour, transaction: _Transaction) -> Callable[..., Any]:
    call = behaviour.call
    if behaviour.mode == "inline":
        return partial(_inline, call, transaction)
    if behaviour.mode == "iterate":
        return partial(_iterate, call, transaction)
    return partial(_await if behaviour.mode == "await" else _stream, call, transaction)


def _inline(call: Callable[..., Any], transaction: _Transaction, event: Event, **extras: Any) -> Any:
    own = transaction.begin_here(event)
    out = call(event, **own, **extras)
    transaction.commit_here(own, event)
    return out


def _iterate(call: Callable[..., Any], transaction: _Transaction, event: Event, **extras: Any) -> Iterator[Event]:
    own = transaction.begin_here(event)
    if not transaction.transactional:
        yield from call(event, **own, **extras)
        return
    outputs: list[Event] = []
    for out in call(event, **own, **extras):
        transaction.room(outputs)
        outputs.append(out)
    transaction.commit_here(own, event)
    yield from outputs


async def _await(call: Callable[..., Any], transaction: _Transaction, event: Event, **extras: Any) -> Any:
    own = await transaction.begin(event)
    out = await call(event, **own, **extras)
    await transaction.commit(own, event)
    return out


async def _stream(
    call: Callable[..., Any], transaction: _Transaction, event: Event, **extras: Any
) -> AsyncGenerator[Event, None]:
    own = await transaction.begin(event)
    outputs: list[Event] = []
    async with aclosing(call(event, **own, **extras)) as stream:
        async for out in stream:
            if not transaction.transactional:
                yield out
                continue
            transaction.room(outputs)
            outputs.append(out)
    await transaction.commit(own, event)
    for out in outputs:
        yield out


def in_turn(behaviour: Behaviour, policy: Policy) -> Behaviour:
    """A behaviour that serves one event at a time, with all its tries, where the node has one state."""
    if policy.state not in ("serialized", "transactional") or behaviour.mode not in ("await", "stream"):
        return behaviour
    lock = asyncio.Lock()
    call = behaviour.call
    waiting = 0

    @asynccontextmanager
    async def alone() -> AsyncGenerator[None, None]:
        nonlocal waiting
        waiting += 1
        try:
            await lock.acquire()
        finally:
            waiting -= 1
        try:
            yield
        finally:
            lock.release()

    async def awaited(event: Event, **extras: Any) -> Any:
        async with alone():
            return await call(event, **extras)

    async def streamed(event: Event, **extras: Any) -> AsyncGenerator[Event, None]:
        async with alone(), aclosing(call(event, **extras)) as stream:
            async for out in stream:
                yield out

    return replace(
        behaviour,
        call=awaited if behaviour.mode == "await" else streamed,
        waits=lambda: waiting if lock.locked() else 0,
    )
