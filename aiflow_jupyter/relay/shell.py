"""What keeps one end of a stream connected: the socket, the clock and the waiting around a machine of `protocol`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import traceback
from collections.abc import Callable, Coroutine
from math import inf
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from aiflow_jupyter.relay.errors import (
    ChannelFinished,
    FrameError,
    NoPeer,
    RelayError,
    RelayLimit,
    RelayUnreachable,
    StreamIncomplete,
)
from aiflow_jupyter.relay.joining import Close
from aiflow_jupyter.relay.link import Link, delays
from aiflow_jupyter.relay.session import Session
from aiflow_jupyter.relay.wire import Message, Wire

_log = logging.getLogger(__name__)
Machine = TypeVar("Machine", bound=Session)
STEADY = 10.0  # seconds: a connection that stood so long was a good one


class Shell(Generic[Machine]):
    """Keeps one end connected, moves its messages and fires its timer."""

    def __init__(self, machine: Machine, link: Link, give_up: float, rng: random.Random | None) -> None:
        self._machine = machine
        self._link = link
        self._give_up = give_up
        self._rng = rng or random.SystemRandom()
        self._waiters: list[asyncio.Future[None]] = []
        self._socket: Wire | None = None
        self._pumping = False  # the line is full
        self._deadline: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._chores: set[asyncio.Task[None]] = set()
        self._error: RelayError | None = None
        self._warned = False
        self._gone = False  # the channel, as the relay says

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._link.host} {self._machine!r}>"

    async def __aenter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Begin to connect; `async with` does it too."""
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._now = loop.time
            self._machine.detach(self._now())  # tells it the time
            self._task = loop.create_task(self._run())

    @property
    def joined(self) -> bool:
        """The other end has proved that it is there."""
        return self._machine.joined

    @property
    def attached(self) -> bool:
        """A connection to the relay stands."""
        return self._machine.attached

    @property
    def place(self) -> str:
        """The relay's host and port."""
        return self._link.place

    @property
    def error(self) -> RelayError | None:
        """Why the stream failed, once it has."""
        return self._error

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._news()

    async def _news(self) -> None:
        """Return at the next change, whatever it is."""
        if self._error is not None:
            raise self._error
        if self._task is not None:
            self._arm()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _join(self, timeout: float | None, who: str) -> None:  # noqa: ASYNC109  # the caller's own
        self.start()
        try:
            async with asyncio.timeout(timeout):
                await self._until(lambda: self._machine.joined)
        except TimeoutError:
            raise NoPeer(f"no {who} joined within {timeout:g} s") from None

    async def _leave(self, patience: float) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task, *self._chores], timeout=patience)

    # The connection

    async def _run(self) -> None:
        try:
            await self._stay_connected()
        except RelayError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  # whatever it is, the application hears of it, with the cause
            place = traceback.extract_tb(error.__traceback__)[-1]  # and not its words: they might quote what was sent
            cause = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            _log.error("the stream broke off: %s", cause)
            failure = RelayError(f"the stream broke off ({cause})")
            failure.__cause__ = error
            self._fail(failure)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await self._close(1000)
            self._fail(StreamIncomplete("this end was closed before the stream's"))

    async def _stay_connected(self) -> None:
        waits, since = delays(self._rng), self._now()
        self._arm()
        while not self._finished():
            wait, proofs, start = next(waits), self._machine.proofs, inf
            try:
                self._socket = await self._link.connect()
                start = self._now()
                await self._serve(self._socket)
                trouble: RelayUnreachable | RelayLimit = RelayUnreachable("the relay closes every connection")
            except (RelayUnreachable, RelayLimit) as error:
                trouble = error
            if self._error is not None or self._finished():
                return
            if self._machine.proofs > proofs or self._now() - start > STEADY:
                waits, since = delays(self._rng), self._now()  # only after a connection that was of use
            elif self._now() - since > self._give_up:
                message = f"{trouble.message}; tried for {self._give_up:g} s"
                raise type(trouble)(message, hint=trouble.hint)
            await asyncio.sleep(max(wait, min(trouble.retry_after, self._give_up)))

    async def _serve(self, socket: Wire) -> None:
        """Stay until the connection or the stream ends."""
        machine, now = self._machine, self._now
        try:
            machine.attach(now())
            async with asyncio.timeout(None) as self._deadline:
                socket.listen(self._take)
                self._kick()
                await socket.left()
        except TimeoutError:
            pass
        except ConnectionClosed as closed:
            if closed.rcvd is not None:
                self._closed(closed.rcvd.code)
        except RelayError as error:
            self._fail(error)
        else:
            await self._drained()
        await self._close(Close.FINISHED)
        machine.detach(now())

    def _take(self, message: Message) -> None:
        """Deal with one message, within the read that brought it."""
        machine, socket = self._machine, self._socket
        assert socket is not None
        try:
            if isinstance(message, str):
                raise FrameError("a text message; frames are binary")  # noqa: TRY301  # as of any other
            machine.receive(message, self._now())
        except Exception as error:  # noqa: BLE001  # for the task that serves the connection
            socket.stop(error)
            return
        waited = bool(self._waiters)
        if waited:
            self._wake()
        if machine.output or not waited:
            self._kick()  # else whoever waited comes first, and sees to the timer before waiting again
        if machine.crowded and not self._warned:
            self._warned = True
            _log.warning("a third party tried to join a channel; the relay says it refused it")
        if machine.over:
            if self._finished():
                socket.stop()
            elif self._deadline is not None:
                self._deadline.reschedule(self._leave_at())

    def _closed(self, code: int) -> None:
        """The relay closed the connection; any other code says that a new one is welcome."""
        if code == Close.GONE:
            self._gone = True
            self._fail(ChannelFinished("the other end finished the channel before the stream's end", hint="ask again"))
        elif code == Close.EXPIRED:
            self._gone = True
            self._fail(ChannelFinished("the channel expired before the stream's end", hint="ask for a later not_after"))
        elif code == CloseCode.MESSAGE_TOO_BIG:
            self._fail(RelayLimit("the relay takes no message of this size", hint="its operator can raise the limit"))

    def _finished(self) -> bool:
        return self._machine.over and (self._gone or self._now() >= self._leave_at())

    def _leave_at(self) -> float:
        """Until when to stay after the end."""
        return 0.0

    async def _drained(self) -> None:
        if self._chores:
            await asyncio.wait(self._chores, timeout=1)

    async def _close(self, code: int) -> None:
        socket, self._socket = self._socket, None
        if socket is None:
            return
        socket.stop()
        with contextlib.suppress(ConnectionClosed, OSError, TimeoutError):
            socket.write(self._machine.data_to_send())  # what the other end should know
            await socket.leave(code)

    def _kick(self) -> None:
        """Write what there is. While the line is full, values gather, and then share frames."""
        if self._machine.output and not self._pumping and (socket := self._socket) is not None:
            socket.write(self._machine.data_to_send())
            self._machine.settle()
            if socket.paused:
                self._pumping = True
                self._spawn(self._pump(socket))
        self._arm()

    async def _pump(self, socket: Wire) -> None:
        """Wait until the line takes more, and give it that."""
        try:
            while socket.paused:
                await socket.drain()
                self._refill()
                if socket is self._socket:
                    socket.write(self._machine.data_to_send())
        except OSError:
            pass  # whoever waits for the connection's end hears of it, and connects again
        except RelayError as error:
            self._fail(error)
        finally:
            self._pumping = False
        self._kick()

    def _refill(self) -> None:
        """Seal what waits, for an end that has something."""

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        chore = asyncio.get_running_loop().create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    # Time and failure

    def _arm(self) -> None:
        due = self._machine.next_timer()
        if due is None:
            return
        if self._timer is not None:
            if self._timer.when() <= due + 0.05:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(max(due, self._now() + 0.01), self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self._machine.tick(self._now())
        except RelayError as error:
            self._fail(error)
            self._spawn(self._close(Close.FINISHED))
            return
        self._kick()
        self._arm()

    def _fail(self, error: RelayError) -> None:
        if self._error is None and not self._machine.over:
            self._error = error
        self._wake()
