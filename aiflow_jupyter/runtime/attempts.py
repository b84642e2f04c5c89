"""Attempts: how often and how long one event is tried, and what a repeated call is told.

A call that fails is tried again before its first output, up to `retry` calls in all, after a pause that doubles from
`backoff` seconds on, with jitter. After the first output it is tried again only under `restart`: a `restart` event
tells everybody downstream to forget what came of that lineage. That is for what has a lineage to itself, an answer or
what came of one of the run's inputs, where no other way leads from there to what the node leads to: of any other it
would void what other events gave, so that fails. What a repeated
call would do is its `effect`:

    pure, speculative  it is simply repeated
    idempotent         it is repeated with the same `idempotency_key` (`keys.py`)
    non_idempotent     it is repeated only after `compensate(payload, error)` has undone the failed one

A call that takes longer than `timeout` seconds of service is a failure like any other: one that waits is ended, one
that never lets go of the loop is told when it returns. A thread that it left behind keeps its place among the node's
`workers` until it returns.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.keys import Keys
from aiflow_jupyter.runtime.returned import value
from aiflow_jupyter.runtime.threads import NodeThreads

if TYPE_CHECKING:
    from tenacity import RetryCallState

LONGEST_PAUSE_S: Final = 60.0
JITTER: Final = Random()  # noqa: S311 - for pauses
"""Where the jitter of every run comes from that is not to come again."""


def govern(
    behaviour: Behaviour,
    node: str,
    policy: Policy,
    *,
    run: str,
    functions: Mapping[str, Any],
    threads: NodeThreads | None,
    retried: Callable[[], None],
    random: Random,
    alone: bool = True,
) -> Behaviour:
    """A behaviour whose calls are tried as the policy says; itself where it asks for nothing.

    Args:
        behaviour: of a mode that runs on the loop (`thread` ones already changed).
        node: names errors and keys.
        policy: the node's policy.
        run: the run's identifier, for keys.
        functions: where `compensate` stands by its name.
        threads: the node's threads, where its calls, or a plain `compensate`, run in some.
        retried: told of each further call.
        random: gives the jitter of the pauses.
        alone: what the node leads to gets all that is made of the run's inputs from it.
    """
    tries = policy.retry
    if policy.effect == "non_idempotent" and policy.compensate is None:
        tries = 1
    keys = Keys(run, node) if "idempotency_key" in behaviour.extras else None
    if keys is not None:
        behaviour = replace(behaviour, call=keys.given(behaviour.call), extras=behaviour.extras - {"idempotency_key"})
    timeout = None if policy.effect == "speculative" else policy.timeout
    if tries == 1 and timeout is None:
        return behaviour
    undo = functions.get(policy.compensate or "")
    governor = _Governor(node, policy, tries, timeout, undo, threads, retried, random, alone=alone)
    if behaviour.mode in ("inline", "await"):
        once = _waiting(behaviour) if behaviour.mode == "inline" else behaviour.call
        tried = replace(behaviour, mode="await", call=governor.awaited(once))
    else:
        stream = _flowing(behaviour) if behaviour.mode == "iterate" else behaviour.call
        tried = replace(behaviour, mode="stream", call=governor.streamed(stream))
    return tried if keys is None else keys.kept(tried)


def _waiting(behaviour: Behaviour) -> Callable[[Event], Awaitable[Any]]:
    async def waiting(event: Event) -> Any:
        return behaviour.call(event)

    return waiting


def _flowing(behaviour: Behaviour) -> Callable[[Event], AsyncGenerator[Event, None]]:
    async def flowing(event: Event) -> AsyncGenerator[Event, None]:
        for out in behaviour.call(event):
            yield out

    return flowing


class _Governor:
    """Tries the calls of one node."""

    def __init__(
        self,
        node: str,
        policy: Policy,
        tries: int,
        timeout: float | None,
        compensate: Callable[..., Any] | None,
        threads: NodeThreads | None,
        retried: Callable[[], None],
        random: Random,
        *,
        alone: bool,
    ) -> None:
        self.node = node
        self.policy = policy
        self.tries = tries
        self.timeout = timeout
        self.compensate = compensate
        self.threads = threads
        self.retried = retried
        self.random = random
        self.alone = alone

    def awaited(self, call: Callable[[Event], Awaitable[Any]]) -> Callable[[Event], Awaitable[Any]]:
        """A coroutine function, tried."""

        async def tried(event: Event) -> Any:
            out = None
            async for attempt in self._attempts():
                failure: Exception | None = None
                await self._slot()
                clock = asyncio.get_running_loop().time
                limit = asyncio.timeout(self.timeout)
                started = clock()
                try:
                    async with limit:
                        out = await call(event)
                except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                    failure = await self._known(error, limit)
                else:
                    if self.timeout is not None and clock() - started > self.timeout:
                        failure = await self._known(TimeoutError(), None)
                await self._between(event, failure, attempt.retry_state.attempt_number)
                with attempt:
                    if failure is not None:
                        raise failure
            return out

        return tried

    def streamed(  # noqa: C901 - the way of one stream, in one piece
        self, call: Callable[[Event], AsyncGenerator[Event, None]]
    ) -> Callable[[Event], AsyncGenerator[Event, None]]:
        """An async generator function, tried until its first output, or restarted."""

        async def tried(event: Event) -> AsyncGenerator[Event, None]:
            last: Event | None = None
            async for attempt in self._attempts():
                failure: Exception | None = None
                if last is not None:
                    yield Event(
                        "restart", None, last.conversation, self.node, last.sequence, last.time, last.lineage, last.meta
                    )
                    last = None
                left = self.timeout
                async with aclosing(call(event)) as stream:
                    while True:
                        await self._slot()
                        started = asyncio.get_running_loop().time()
                        limit = asyncio.timeout(left)
                        try:
                            async with limit:
                                out = await anext(stream, None)
                        except Exception as error:  # noqa: BLE001 - as above
                            failure = await self._known(error, limit)
                            break
                        if left is not None:
                            left -= asyncio.get_running_loop().time() - started
                            if left <= 0:  # one that never lets go of the loop can't be interrupted, but told
                                failure = await self._known(TimeoutError(), None)
                                break
                        if out is None:
                            break
                        last = out
                        yield out
                if failure is not None and last is not None and not self._restarts(event, last):
                    raise failure
                await self._between(event, failure, attempt.retry_state.attempt_number)
                with attempt:
                    if failure is not None:
                        raise failure

        return tried

    def _restarts(self, event: Event, last: Event) -> bool:
        """Whether a call that has given something may begin anew: nobody else gives to that lineage."""
        return self.policy.restart and (last.lineage != event.lineage or (self.alone and event.source == "run"))

    def _attempts(self) -> Any:
        import tenacity  # noqa: PLC0415 - only graphs that retry need it

        return tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.tries),
            wait=self._pause,
            retry=tenacity.retry_if_exception(self._worth_it),
            sleep=asyncio.sleep,
            reraise=True,
        )

    def _pause(self, state: RetryCallState) -> float:
        """Seconds until the next call."""
        backoff = self.policy.backoff
        doubled = min(backoff * 2.0 ** (state.attempt_number - 1), LONGEST_PAUSE_S)
        return doubled + self.random.uniform(0, backoff / 2)

    def _worth_it(self, error: BaseException) -> bool:
        """Whether an error is of those that are tried again."""
        if not self.policy.retry_on:
            return True
        names = {each.__name__ for each in type(error).__mro__}
        return not names.isdisjoint(self.policy.retry_on)

    async def _between(self, event: Event, failure: Exception | None, attempt: int) -> None:
        """Undo a failed call that will be tried again; what goes wrong with that ends the tries."""
        if failure is None or attempt >= self.tries or not self._worth_it(failure):
            return
        undone: Any = None
        if inspect.iscoroutinefunction(self.compensate):
            undone = await self.compensate(event.payload, failure)
        elif self.compensate is not None and self.threads is not None:
            undone = await self.threads.submit(self.compensate, event.payload, failure)
        value(self.policy.compensate or "", undone)  # what is still to run has undone nothing
        self.retried()

    async def _slot(self) -> None:
        """Wait for a thread that is free: one that was left behind keeps its place until it returns."""
        if self.threads is not None:
            await self.threads.free()

    async def _known(self, error: Exception, limit: asyncio.Timeout | None) -> Exception:
        """The failure of a call, as it is told.

        Where only one call may touch something at a time, a thread that timed out has returned by then.
        """
        if isinstance(error, StopAsyncIteration):  # would end the tries, and the event with them, without a word
            return RuntimeError("the function raised StopAsyncIteration")
        if not isinstance(error, TimeoutError) or not (limit is None or limit.expired()):
            return error
        if self.threads is not None and (self.policy.state != "stateless" or self.compensate is not None):
            await self.threads.returned()
        late = RunError(
            f"node {self.node!r}: no result within {self.timeout:g} s",
            code="AF610",
            hint="raise timeout=, or look at what the call waits for",
        )
        late.__cause__ = error
        return late
