"""One answer from the cluster, as the notebook reads it: submitted by the control plane, streamed by the relay.

    submitted ──▶ worker joined ──▶ items ... ──▶ end
        │              │               │
        │              │               ├─ the relay is lost: the job's result completes the stream
        │              │               └─ the worker is lost: an error after `lost` seconds
        │              └─ no token within `first_token`: an error
        └─ the job failed: an error at once; no worker within `start`: an error; its result is the answer: batch

Every wait has a deadline, and the job's future is watched throughout. What arrives is checked by `relay`; what the
control plane brings is sealed and counted, so that whatever the way, the items are whole, in order and without
repetition, or an error says that they are not.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any, Final

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.hpc import worker
from aiflow_jupyter.hpc.errors import HpcError, ResultLost
from aiflow_jupyter.hpc.fates import job_failed, said_by_worker, without_answer
from aiflow_jupyter.hpc.modelserver import LOADING
from aiflow_jupyter.hpc.task import Result, Task, plain_line, seal_task, unpack_result
from aiflow_jupyter.hpc.terms import RelayAt
from aiflow_jupyter.hpc.timeouts import Timeouts
from aiflow_jupyter.relay.client import Channel, Status, StreamConsumer, create_channel
from aiflow_jupyter.relay.crypto import new_secret
from aiflow_jupyter.relay.errors import (
    CapabilityRefused,
    ChannelFinished,
    PeerLost,
    RelayError,
    RelayRefused,
    RelayUnreachable,
    RemoteFailure,
    StreamIncomplete,
)
from aiflow_jupyter.relay.frames import CHANNEL_BYTES

__all__ = ["RelayAt", "RemoteStream", "Timeouts"]

_INBOX: Final = 64
_TICK: Final = 1.0
_GRACE: Final = 0.5  # seconds in which the end may still arrive by the relay once the job's result is known
_REST: Final = (RelayUnreachable, RelayRefused, CapabilityRefused, ChannelFinished)  # then the result may complete it
_SILENCE: Final = 10.0  # seconds without a token of which the reader is told
_LONG: Final = 60.0  # seconds of waiting that want to be explained
_NEWS: Final = 5.0  # the same, of a worker's words before the first token
_TWICE: Final = {"AF913", "AF923"}  # a job that was started twice: the first one streams on
_closing: set[asyncio.Task[None]] = set()  # the event loop alone would not keep them


class RemoteStream:
    """One answer: `async for data in RemoteStream(...).items()`.

    Args:
        executor: starts the worker.
        body: the chat's OpenAI fields.
        relay: where the stream passes; None to have it by the control plane in one piece.
        worker_key: the worker's public key.
        model: the model's name, None for the server's first.
        timeouts: of every wait.
        pad: frames are padded to a multiple of this many bytes.
        report: told what is being waited for, and nothing (an empty text) once it has come.
        fallback: an answer may come in one piece where the relay can't be reached; else that is an error.

    Attributes:
        batch: items come, or came at the end, by the control plane in one piece.
        note: why they do, for whoever reads the answer.
        sent: the job may have been taken, and its answer be under way.
    """

    def __init__(
        self,
        executor: Executor,
        body: dict[str, Any],
        *,
        relay: RelayAt | None,
        worker_key: str,
        model: str | None = None,
        timeouts: Timeouts | None = None,
        pad: int = 64,
        report: Callable[[str], None] | None = None,
        fallback: bool = True,
    ) -> None:
        self.batch = False
        self.note = ""
        self.sent = False
        self._fallback = fallback
        self._executor = executor
        self._body = body
        self._relay = relay
        self._public = worker_key
        self._model = model
        self._timeouts = timeouts or Timeouts()
        self._pad = pad
        self._report = report
        self._reported = ""
        self._task: Task | None = None
        self._consumer: StreamConsumer | None = None
        self._reader: asyncio.Task[None] | None = None
        self._future: Future[Any] | None = None
        self._inbox: deque[Any] = deque()
        self._count = 0  # items that have arrived
        self._worker = ""
        self._state = ""  # the worker's last word on what it waits for
        self._end: tuple[Status, str] | None = None
        self._lost: RelayError | None = None
        self._expires = inf  # when the relay turns away whoever has not joined
        self._submitted = self._joined = self._last = self._known = self._lost_at = 0.0
        self._attached, self._away = False, 0.0  # the line to the relay has stood; since when it is gone
        self._answering = False

    async def items(self) -> AsyncGenerator[str, None]:
        """Yield the data of each event of the model server's stream, as it sent it.

        Closing the generator stops the worker, and that the model server.

        Raises:
            AiflowError: why there is no answer, or why what came is only a part of it.
        """
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        try:
            await self._open()
            while True:
                while self._inbox:
                    item = self._inbox.popleft()
                    self._room.set()
                    if (data := self._note(item)) is not None:
                        yield data
                        self._last = self._now()  # the reader's own time is nobody's silence
                if self._over():
                    return
                if not self._inbox:
                    await self._wait()
        finally:
            closing = self._loop.create_task(self._close())
            _closing.add(closing)
            closing.add_done_callback(_closing.discard)
            await asyncio.shield(closing)  # to its end, also for whoever is cancelled once more

    # The beginning

    async def _open(self) -> None:
        times = self._timeouts
        task = Task(
            body=self._body,
            secret=new_secret(),
            channel=secrets.token_hex(CHANNEL_BYTES),
            not_after=time.time() + times.submit + times.start,
            model=self._model,
            pad=self._pad,
            timeouts=times,
            fallback=self._fallback,
        )
        argument = seal_task(task, self._public)  # what is too large is refused before a channel is opened for it
        channel = await self._channel()
        if channel is None:
            self.batch = True
        else:
            assert self._relay is not None
            task = replace(
                task,
                channel=channel.id,
                not_after=min(task.not_after, channel.not_after),
                relay=channel.relay,
                capability=channel.producer,
                allow_plain=self._relay.allow_plain,
            )
            self._expires = self._now() + channel.not_after - time.time()
            self._consumer = StreamConsumer(
                channel.relay,
                channel.id,
                channel.consumer,
                task.secret,
                limits=task.limits(),
                allow_plain=task.allow_plain,
                # The job's future is watched anyway, and a line that is away while the job is queued may come back.
                give_up=times.start + times.first_token,
            )
            self._reader = self._loop.create_task(self._read(self._consumer))
            argument = seal_task(task, self._public)
        self._task = task
        await self._submit(argument)

    async def _channel(self) -> Channel | None:
        """A channel for this answer; None where there is no relay, or none can be reached."""
        relay, times = self._relay, self._timeouts
        if relay is None:
            return None
        # Until the last token of a long answer, however long the queue was; the relay may allow less.
        wanted = time.time() + times.start + times.first_token + 24 * 3600
        try:
            return await create_channel(
                relay.url,
                relay.key.reveal(),
                int(wanted),
                tls=None if relay.url.startswith("https") else _no_certificates(),
                allow_plain=relay.allow_plain,
            )
        except CapabilityRefused as error:
            hint = f"The key comes from {relay.named}. {error.hint}" if relay.named else error.hint
            raise CapabilityRefused(error.message, code=error.code, hint=hint) from error
        except RelayUnreachable as error:
            if not self._fallback:
                raise HpcError(
                    error.message,
                    code=error.code,
                    hint="`aiflow doctor` looks at it. Without fallback = false, in aiflow.toml under [tiers.hpc], the "
                    "answer would come in one piece.",
                ) from error
            self.note = f"{error.message}: the answer came in one piece"
            self._say(f"{error.message}; the answer will come in one piece")
            return None

    async def _submit(self, argument: str) -> None:
        submitting = self._loop.run_in_executor(None, self._executor.submit, worker.run, argument)
        try:
            async with asyncio.timeout(self._timeouts.submit):
                future = await asyncio.shield(submitting)
        except BaseException as error:
            submitting.add_done_callback(_withdraw)
            if isinstance(error, TimeoutError):
                self.sent = self._consumer is None  # else it finds nobody, should it be taken yet
                raise HpcError(
                    f"the control plane did not take the job within {self._timeouts.submit:g} s", code="AF986"
                ) from None
            if isinstance(error, Exception) and not isinstance(error, AiflowError):
                raise job_failed(error) from error
            raise
        self._future, self.sent = future, True
        self._submitted = self._now()
        future.add_done_callback(self._ring)

    def _ring(self, _: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it the interest
            self._loop.call_soon_threadsafe(self._wake.set)

    # What arrives

    async def _read(self, consumer: StreamConsumer) -> None:
        try:
            async for item in consumer:
                self._count += 1
                self._inbox.append(item)
                self._wake.set()
                if len(self._inbox) >= _INBOX:
                    self._room.clear()
                    await self._room.wait()
            self._end = (Status.OK, "")
        except RemoteFailure as failure:
            self._end = (Status.ERROR, failure.message)
        except RelayError as error:
            self._lost, self._lost_at = error, self._now()
        finally:
            self._wake.set()

    def _note(self, item: Any) -> str | None:
        """The data of an item; None for one that is about the worker."""
        self._last = self._now()
        if isinstance(item, str):
            if self._answering:
                self._say("")
            self._answering, self._reported = True, ""  # a first token needs no word that it has come
            return item
        if isinstance(item, dict):
            self._joined = self._joined or self._last
            self._worker = str(item.get("worker") or self._worker)
            self._state = self._waits_for(plain_line(item.get("status"), 100), item.get("seconds"), item.get("limit"))
            self._tell()
        return None

    def _waits_for(self, status: str, seconds: object, limit: object) -> str:
        """What the worker waits for, for how long, and for how long at most; how that is made less where it is long."""
        if not isinstance(seconds, int | float):
            return status
        words = f"{status}{'' if status == LOADING else ','} {seconds:.0f} s"
        if not isinstance(limit, int | float):
            return words
        mend = " at most (first_token_timeout); an interrupt ends it" if limit > _LONG else ""
        return f"{words} of {limit:g} s{mend}"

    def _over(self) -> bool:
        """Whether all has been handed out.

        Raises:
            AiflowError: it never will be.
        """
        if self._end is None and self._future is not None and self._future.done():
            self._settle(self._future)
        if self._end is not None and not self._inbox:
            status, message = self._end
            if status is Status.ERROR:
                raise said_by_worker(message)
            if status is Status.CANCELLED:
                raise StreamIncomplete(message or "the answer was stopped before it was complete")
            return True
        lost = self._lost
        if lost is not None and self._end is None and not self._may_be_completed(lost):
            raise self._silent() if isinstance(lost, PeerLost) else lost
        return False

    def _silent(self) -> PeerLost:
        """The error for a worker that is heard no more."""
        said = f"the worker has been silent for {self._timeouts.lost:g} s"
        if self._answering:
            return PeerLost(f"{said} in the middle of the answer", hint="What came is a part. Run it again.")
        return PeerLost(
            f"{said}, and nothing of the answer had come" + (f" ({self._state})" if self._state else ""),
            hint="Its job, or its process, has ended or is stopped: look at its log on the cluster, and run it again.",
        )

    def _settle(self, future: Future[Any]) -> None:
        """Draw the conclusions from a job that is done."""
        now = self._now()
        self._known = self._known or now
        # Whoever reads slowly still has items that came before: the end is late only once nothing comes any more.
        late = now - max(self._known, self._last) >= _GRACE or self._consumer is None or self._lost is not None
        try:
            problem = future.exception(timeout=0)
        except CancelledError as cancelled:
            problem = cancelled
        if isinstance(problem, ResultLost) and self._consumer is not None and self._lost is None:
            self._future, self._state = None, self._state or problem.message  # the stream tells its own end
            return
        if problem is not None:
            if late:
                raise problem if isinstance(problem, AiflowError) else job_failed(problem)
            return
        assert self._task is not None
        result = unpack_result(future.result(), self._task.secret, self._task.channel)
        if result.items is not None:
            self._complete(result)
        elif late and not (self._joined and result.error and result.error[0] in _TWICE):
            raise without_answer(result)

    def _complete(self, result: Result) -> None:
        """Append what the job returned to what had arrived."""
        if self._reader is not None:
            self._reader.cancel()
        assert result.items is not None
        if self._worker and result.worker != self._worker:
            raise StreamIncomplete(
                "the job was started twice, and its result is another answer's", hint="Run it again."
            )
        if self._count < result.first:
            raise StreamIncomplete("what the job returned does not join what had arrived", hint="Run it again.")
        self.batch = True
        rest = result.items[self._count - result.first :]
        if result.status == "batch" and self._consumer is not None:
            self.note = f"for the worker, {result.note or 'the relay is away'}: the answer came in one piece"
        elif rest and self._answering:
            self.note = f"{self._lost.message if self._lost else 'the relay was lost'}: the rest came in one piece"
        self._inbox.extend(rest)
        self._count = result.first + len(result.items)
        self._end = result.end
        self._lost = None

    def _may_be_completed(self, lost: RelayError) -> bool:
        """Whether the job's result can still bring what the relay did not."""
        if self._future is None:
            return False
        patience = self._timeouts.rest if isinstance(lost, _REST) else _GRACE if isinstance(lost, PeerLost) else 0.0
        return self._now() - self._lost_at < patience

    # Waiting

    async def _wait(self) -> None:
        """Wait for whatever comes next, at most until it is time to look again.

        Raises:
            HpcError: it has not come in time.
        """
        now = self._now()
        if self._consumer is not None and self._consumer.joined:
            self._joined = self._joined or now
        self._tell()
        left = self._left(now)
        if self._end is not None or (self._future is not None and self._future.done()) or self._lost is not None:
            left = min(left, 0.05)
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left, _TICK)):
                await self._wake.wait()

    def _left(self, now: float) -> float:
        """Seconds until what is waited for is too late."""
        times = self._timeouts
        if self._consumer is None:
            limit = times.start + times.whole
            since, code, what = self._submitted, "AF988", "the whole answer did not come"
        elif not self._joined and (self._lost is None or now >= self._expires):
            limit, since, code, what = times.start, self._submitted, "AF986", "no worker joined"
            limit = min(limit, self._expires - since)  # nobody can join a channel that has expired
        elif self._lost is not None:
            return _TICK
        elif not self._answering:
            # The worker knows better why: this is for one that says nothing.
            limit, since, code, what = times.model, self._joined, "AF988", "the first token did not come"
        else:
            # The worker times the model server; this is for a worker that does not.
            limit, since, code, what = times.token + 30, self._last, "AF988", "the next token did not come"
        if now - since >= limit:
            hint = (
                "The model may be loading or the server busy: look at its log, or wait longer: first_token_timeout in "
            )
            hint += "aiflow.toml, under [tiers.hpc]."
            if code == "AF986":
                hint = "Is the endpoint running, and can it reach the relay?"
            if code == "AF986" and limit < times.start:
                hint = "The relay keeps a channel no longer than that, whatever start_timeout says: ask its operator."
            raise HpcError(
                f"{what} within {round(limit, 1):g} s"
                + (f" ({self._state})" if self._state and not self._answering else ""),
                code=code,
                hint=hint,
                unread=code == "AF986" and not (self._future is not None and self._future.running()),
            )
        return limit - (now - since)

    def _tell(self) -> None:
        now = self._now()
        if self._lost is not None:
            self._say(f"relay lost, waiting {now - self._lost_at:.0f} s for the rest by the control plane")
            return
        quiet = now - self._last
        if self._answering:
            words = f"no token for {quiet:.0f} s" if quiet >= _SILENCE else ""
        elif self._state:
            words = f"{self._state}; nothing new for {quiet:.0f} s" if quiet >= _NEWS else self._state
        elif self._joined:
            words = "worker joined"
        else:
            words = f"submitted {now - self._submitted:.0f} s ago" if self._submitted else ""
        if self._consumer is not None and (gone := self._gone_for(self._consumer, now)) >= 1:
            words = f"{words}; " if words and not self._answering else ""
            words += f"the relay {self._consumer.place} is gone, trying again, {gone:.0f} s"
        self._say(words)

    def _gone_for(self, consumer: StreamConsumer, now: float) -> float:
        """Seconds since the line to the relay was lost; 0 while it stands, and before it first did."""
        if consumer.attached:
            self._attached, self._away = True, 0.0
        elif self._attached and not self._away:
            self._away = now
        return now - self._away if self._away else 0.0

    def _say(self, words: str) -> None:
        if self._report is not None and words != self._reported:
            self._reported = words
            self._report(words)

    # The end

    async def _close(self) -> None:
        """Stop whatever still runs for this answer."""
        try:
            if self._consumer is not None:
                await self._consumer.aclose()
        finally:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.gather(self._reader, return_exceptions=True)
            if self._future is not None and not self._future.done() and self._end is None:
                self._future.cancel()


def _no_certificates() -> ssl.SSLContext:
    """For an address without TLS: to read the system's certificates would take tens of milliseconds."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _withdraw(submitting: asyncio.Future[Future[Any]]) -> None:
    """Cancel a job that was submitted after all, when nobody waits for it any more."""
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()
