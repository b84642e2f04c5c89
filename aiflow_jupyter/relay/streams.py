"""The two ends of a stream over WebSocket, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from aiflow_jupyter.relay.errors import ChannelFinished, DeliveryUnknown, RelayError, RemoteFailure, StreamCancelled
from aiflow_jupyter.relay.frames import End, Status
from aiflow_jupyter.relay.joining import Close
from aiflow_jupyter.relay.link import Link
from aiflow_jupyter.relay.protocol import DEFAULT_LIMITS, Consumer, Producer, StreamLimits, pack
from aiflow_jupyter.relay.shell import Shell

GOODBYE = 3.0  # seconds a consumer stays for a repetition of its last acknowledgement, and a stopped producer for it
_farewells: set[asyncio.Task[None]] = set()  # the event loop alone would not keep them


class StreamProducer(Shell[Producer]):
    """The producing end. As a context manager it ends the stream when the block ends, with an error if that failed.

    Args:
        relay: the relay's address.
        channel: the channel's id, hexadecimal.
        capability: the producer's capability.
        secret: the stream's 32 bytes.
        limits: bounds and intervals.
        tls: certificates to trust in place of the system's.
        allow_plain: go without TLS to another machine.
        give_up: seconds without a connection after which the stream fails.
        rng: randomness of the waits between attempts.
    """

    def __init__(
        self,
        relay: str,
        channel: str,
        capability: str,
        secret: bytes,
        *,
        limits: StreamLimits = DEFAULT_LIMITS,
        tls: ssl.SSLContext | None = None,
        allow_plain: bool = False,
        give_up: float = 60.0,
        rng: random.Random | None = None,
    ) -> None:
        link = Link(relay, channel, "producer", capability, tls=tls, allow_plain=allow_plain)
        super().__init__(Producer(secret, bytes.fromhex(channel), limits), link, give_up, rng)
        self._flushing = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.end()
            else:
                await self.end_by(error)
        finally:
            await self.aclose()

    async def wait_for_consumer(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the caller's own
        """Return once the consumer has proved that it is there.

        Raises:
            NoPeer: it has not within `timeout` seconds.
            RelayError: the stream has failed.
        """
        await self._join(timeout, "consumer")

    async def send(self, value: Any) -> None:
        """Send a value. Waits while the consumer or the line does not keep up.

        Raises:
            ValueRefused: the value does not travel; the stream goes on.
            StreamCancelled: the consumer does not want more.
            RelayError: the stream has failed.
        """
        if self._put(pack(value)):
            await self._until(lambda: not self._machine.full)

    async def send_packed(self, item: bytes) -> None:
        """Send a value that `pack` has packed."""
        if self._put(item):
            await self._until(lambda: not self._machine.full)

    def _put(self, item: bytes) -> bool:
        """Send a value; returns whether the source should wait."""
        if self._task is None:
            self.start()
        if self._error is not None:
            raise self._error
        machine = self._machine
        machine.send(item, self._now(), busy=self._pumping)
        if machine.output and not self._pumping:
            self._kick()
        elif not self._flushing and not self._pumping:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)
        return machine.full

    def _flush(self) -> None:
        self._flushing = False
        self._refill()
        self._kick()

    def _refill(self) -> None:
        full = self._machine.full
        self._machine.flush(self._now())
        if full and not self._machine.full:
            self._wake()

    async def end(self, status: Status = Status.OK, message: str = "") -> None:
        """End the stream and return once the consumer has all of it. After a cancel, once it knows.

        Args:
            status: how it ends; the first end counts.
            message: the reason of an end that is not OK, for the consumer.

        Raises:
            DeliveryUnknown: all was sent, but the consumer's acknowledgement did not come.
            RelayError: the stream has failed.
        """
        self.start()
        self._machine.end(status, message, self._now())
        self._kick()
        await self._until(lambda: self._machine.over)

    async def end_by(self, error: BaseException) -> None:
        """Tell the consumer why the source stopped, as far as there is one to be told; raises nothing."""
        if isinstance(error, RelayError):
            return
        stopped = not isinstance(error, Exception)  # a cancelled task, an interrupt: no time for a slow consumer
        with contextlib.suppress(RelayError, TimeoutError):
            async with asyncio.timeout(GOODBYE if stopped or not self.joined else None):
                if stopped:
                    await self.end(Status.CANCELLED, "the source was stopped")
                else:
                    await self.end(Status.ERROR, f"{type(error).__name__}: {error}")

    @property
    def cancelled(self) -> bool:
        """The consumer does not want more."""
        return self._machine.cancelled

    async def wait_cancelled(self) -> None:
        """Return once the consumer does not want more.

        Raises:
            RelayError: the stream has failed.
        """
        await self._until(lambda: self._machine.cancelled)

    async def aclose(self) -> None:
        """Let the connection go. A stream that has not been ended is given up."""
        if self._machine.over and self._task is not None:
            await asyncio.wait([self._task], timeout=1)  # tells the relay that the channel is finished
        await self._leave(1.0)

    def _fail(self, error: RelayError) -> None:
        if isinstance(error, ChannelFinished) and self._machine.cancelled:
            error = StreamCancelled("the consumer cancelled the stream and left")
        elif isinstance(error, ChannelFinished) and self._machine.ended:
            error = DeliveryUnknown("everything was sent and the channel is finished, but no acknowledgement came")
        super()._fail(error)


class StreamConsumer(Shell[Consumer]):
    """The consuming end: `async for` yields each value once and in order, and stops normally only at the true end.

    Args: as of `StreamProducer`.
    """

    def __init__(
        self,
        relay: str,
        channel: str,
        capability: str,
        secret: bytes,
        *,
        limits: StreamLimits = DEFAULT_LIMITS,
        tls: ssl.SSLContext | None = None,
        allow_plain: bool = False,
        give_up: float = 60.0,
        rng: random.Random | None = None,
    ) -> None:
        link = Link(relay, channel, "consumer", capability, tls=tls, allow_plain=allow_plain)
        super().__init__(Consumer(secret, bytes.fromhex(channel), limits), link, give_up, rng)
        self._ended_at: float | None = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def wait_for_producer(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the caller's own
        """Return once the producer has proved that it is there.

        Raises:
            NoPeer: it has not within `timeout` seconds.
            RelayError: the stream has failed.
        """
        await self._join(timeout, "producer")

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the values.

        Raises:
            RemoteFailure: the producer ended with an error, after what was yielded.
            StreamCancelled: the producer ended the stream early, unasked.
            RelayError: the stream has failed; what was yielded is a part.
        """
        self.start()
        machine = self._machine
        while True:
            values = machine.take(self._now())
            if machine.output:
                self._kick()
            for value in values:
                yield value
            if values:
                continue
            if machine.end is not None:
                break
            await self._news()
        if machine.end.status is Status.ERROR:
            raise RemoteFailure(machine.end.message or "the producer ended with an error")
        if machine.end.status is Status.CANCELLED and not machine.cancelled:
            raise StreamCancelled(machine.end.message or "the producer ended the stream early")

    @property
    def result(self) -> End | None:
        """How the stream ended and what it was in all; `None` before that, and after a failure."""
        return self._machine.end

    async def cancel(self) -> None:
        """Ask the producer to stop; the flag is repeated until it has. Iteration then ends."""
        self.start()
        self._machine.cancel(self._now())
        self._wake()
        self._kick()

    async def aclose(self) -> None:
        """Let the connection go; a stream that is not at its end is cancelled first.

        A stream that is at its end stays connected in the background until its producer has finished the channel, at
        most for some seconds, in case its last acknowledgement was lost. One whose producer has not been told to stop
        yet (its line may be cut) stays until it has been, at most `linger` seconds. One that no producer has joined is
        finished, for one that comes late.
        """
        if self._task is not None and self._error is None and not self._machine.joined and self._socket is None:
            with contextlib.suppress(RelayError, TimeoutError):  # the channel can only be finished on a connection
                async with asyncio.timeout(1):
                    await self._until(lambda: self._machine.attached)
        if self._task is not None and self._error is None and not self._machine.over:
            await self.cancel()
            if self._machine.joined:
                with contextlib.suppress(RelayError, TimeoutError):
                    async with asyncio.timeout(1):
                        await self._until(lambda: self._machine.over)
        task, untold = self._task, self._machine.joined and not self._machine.over and self._error is None
        if task is not None and not task.done() and (self._machine.over or untold):
            await self._drained()  # the acknowledgement is on its way, whatever the caller does with this loop next
            _farewells.add(task)
            task.add_done_callback(_farewells.discard)
            if untold:
                asyncio.get_running_loop().call_later(self._machine.limits.linger, self._give_up_telling, task)
        else:
            await self._close(Close.FINISHED)
            await self._leave(1.0)

    def _give_up_telling(self, task: asyncio.Task[None]) -> None:
        if not task.done():
            self._spawn(self._close(Close.FINISHED))
            task.cancel()

    def _leave_at(self) -> float:
        if self._ended_at is None:
            self._ended_at = self._now()
        return self._ended_at + GOODBYE
