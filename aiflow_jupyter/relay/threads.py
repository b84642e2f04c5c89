"""The producing end for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from aiflow_jupyter.relay import loops
from aiflow_jupyter.relay.errors import RelayError, StreamCancelled, StreamIncomplete
from aiflow_jupyter.relay.frames import Status
from aiflow_jupyter.relay.protocol import DEFAULT_LIMITS, pack
from aiflow_jupyter.relay.streams import GOODBYE, StreamProducer


class SyncProducer:
    """The producing end for a plain generator: `send` may be called from any one thread.

    Args: as of `StreamProducer`. The connection lives in a thread of its own.
    """

    def __init__(self, relay: str, channel: str, capability: str, secret: bytes, **options: Any) -> None:
        self._producer = StreamProducer(relay, channel, capability, secret, **options)
        self._loop = loops.new_event_loop()
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._limit = options.get("limits", DEFAULT_LIMITS).pending_bytes
        self._room = threading.Condition()
        self._error: BaseException | None = None
        self._there = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiflow relay", daemon=True)
        self._thread.start()
        self._carrier = asyncio.run_coroutine_threadsafe(self._carry(), self._loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.end()
            else:
                with self._room:
                    self._room.wait_for(lambda: not self._queue or self._error is not None, timeout=GOODBYE)
                self._call(self._producer.end_by(error))
        finally:
            self.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def wait_for_consumer(self, timeout: float | None = None) -> None:
        """As `StreamProducer.wait_for_consumer`."""
        self._call(self._producer.wait_for_consumer(timeout))

    def send(self, value: Any) -> None:
        """As `StreamProducer.send`; a failure shows at a later call at the latest at `end`."""
        item = pack(value)
        with self._room:
            while self._bytes >= self._limit and self._error is None:
                self._room.wait()
            if self._error is not None:
                raise self._error
            self._queue.append(item)
            self._bytes += len(item)
            first = len(self._queue) == 1
        if first:
            self._loop.call_soon_threadsafe(self._there.set)

    async def _carry(self) -> None:
        self._producer.start()
        try:
            while True:
                await self._there.wait()
                self._there.clear()
                while self._queue:
                    await self._producer.send_packed(self._queue[0])
                    with self._room:
                        self._bytes -= len(self._queue.popleft())
                        self._room.notify_all()
        except BaseException as error:
            with self._room:
                self._error = error if isinstance(error, RelayError) else StreamIncomplete("this end was closed")
                self._room.notify_all()
            raise

    def end(self, status: Status = Status.OK, message: str = "") -> None:
        """As `StreamProducer.end`, after everything that was sent before."""
        with self._room:
            self._room.wait_for(lambda: not self._queue or self._error is not None)
        if self._error is not None and not isinstance(self._error, StreamCancelled):
            raise self._error
        self._call(self._producer.end(status, message))

    @property
    def cancelled(self) -> bool:
        """The consumer does not want more."""
        return self._producer.cancelled

    def close(self) -> None:
        """Let the connection go; the thread ends."""
        if self._loop.is_closed():
            return
        self._carrier.cancel()
        self._call(self._producer.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
