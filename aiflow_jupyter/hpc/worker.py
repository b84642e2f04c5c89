"""What runs on the cluster: opens a task, asks the model server, and sends its answer back through the relay.

`run` is a plain function from the task's argument to its result, for any executor. `python -m
aiflow_jupyter.hpc.worker` is what a local executor starts, and else the program of `program`. The private key is in
`AIFLOW_WORKER_KEY`, or in the 0600 file that `AIFLOW_WORKER_KEY_FILE` names (`~/.aiflow/worker.key`).

        argument ──▶ opened, current? ──no──▶ version | failed | expired
                          │ yes
                     relay there? ──no──▶ the whole answer as the result: batch
                          │ yes
                     consumer there? ──no──▶ no_consumer; the model server was never asked
                          │ yes
                     answering ──cancel──▶ connection to the model server closed: cancelled
                          │    ──consumer lost for `linger`──▶ the same; what it has not got is the result
                          │    ──relay lost──▶ goes on; what the consumer has not got is the result
                     end acknowledged: streamed

Everything this module imports runs on the cluster too: the standard library, httpx, websockets, cryptography, msgpack.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.hpc import modelserver
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.keyfile import PLACE
from aiflow_jupyter.hpc.modelserver import BY_SETTING, Server
from aiflow_jupyter.hpc.record import Record
from aiflow_jupyter.hpc.task import Outcome, Result, Task, open_task, pack_result
from aiflow_jupyter.relay import loops
from aiflow_jupyter.relay.client import Status, StreamProducer
from aiflow_jupyter.relay.crypto import WorkerKey
from aiflow_jupyter.relay.errors import (
    CapabilityRefused,
    ChannelFinished,
    NoPeer,
    PeerLost,
    PlainRefused,
    RelayError,
    RelayLimit,
    RelayRefused,
    RelayUnreachable,
    StreamCancelled,
    ValueRefused,
)

_NO_RELAY: Final = (RelayUnreachable, RelayRefused, RelayLimit, PlainRefused, CapabilityRefused)
_PATIENCE: Final = 0.5
# What the libraries import when first used, for a worker that has nothing to do yet.
_PUT_OFF: Final = ("httpcore", "anyio._backends._asyncio", "h11", "cryptography.hazmat.primitives.hpke")

_log = logging.getLogger(__name__)


def run(argument: str) -> str:
    """Do the task in `argument`; whatever happens, the result says it. Blocks until it is done."""
    return loops.run(work(argument, worker_key))


def worker_key() -> WorkerKey:
    """This worker's private key.

    Raises:
        KeyUnusable: there is none that can be used.
    """
    return WorkerKey.load(Path(os.environ.get("AIFLOW_WORKER_KEY_FILE") or PLACE).expanduser())


async def work(
    argument: str,
    key: Callable[[], WorkerKey],
    find: Callable[[], Server] = Server.find,
    clock: Callable[[], float] = time.time,
) -> str:
    """`run` for a loop of one's own, with key, model server and the time of day passed in."""
    try:
        task = open_task(argument, key())
        _log.info("task on channel %s", task.channel)
        result = await _Job(task, find, clock).result()
        packed = pack_result(result, task)
    except AiflowError as error:
        # Up to here nothing of prompt or answer is in any message.
        status: Outcome = "version" if error.code == "AF982" else "failed"
        result = Result(status, (error.code, error.message))
        packed = pack_result(result)
    except Exception as error:  # noqa: BLE001  # whatever it is, the result says it
        # Where, and not what: an error's words may quote prompt or answer.
        place = traceback.extract_tb(error.__traceback__)[-1]
        _log.error("%s at %s:%s", type(error).__name__, place.filename, place.lineno)
        result = Result("failed", ("AF985", f"the worker failed ({type(error).__name__})"))
        packed = pack_result(result)
    _log.info("%s%s", result.status, f" ({result.error[0]})" if result.error else "")
    return packed


class _Job:
    """One task on its way."""

    def __init__(self, task: Task, find: Callable[[], Server], clock: Callable[[], float]) -> None:
        self._task = task
        self._find = find
        self._clock = clock
        self._record = Record()
        self._producer: StreamProducer | None = None  # None while the line is lost

    async def result(self) -> Result:
        task = self._task
        if self._clock() > task.not_after:
            return Result("expired", ("AF983", "the job started after its request had expired"))
        if task.relay is None:
            return await self._batch()
        producer = StreamProducer(
            task.relay,
            task.channel,
            task.capability,
            task.secret,
            limits=task.limits(),
            allow_plain=task.allow_plain,
            give_up=task.timeouts.relay,
        )
        try:
            await producer.wait_for_consumer(task.timeouts.consumer)
        except NoPeer:
            return Result("no_consumer", ("AF984", "no consumer joined the stream"))
        except ChannelFinished:
            return Result("no_consumer", ("AF984", "the consumer had finished the channel"))
        except _NO_RELAY as error:
            _log.warning("no relay: %s %s", error.code, error.message)
            return await self._without_relay(error)
        else:
            self._producer = producer
            return await self._streamed(producer)
        finally:
            await producer.aclose()

    async def _without_relay(self, error: RelayError) -> Result:
        if not self._task.fallback:
            return Result("failed", (error.code, f"no relay for the worker, {error.message}"))
        return replace(await self._batch(), note=error.message)

    async def _batch(self) -> Result:
        """The whole answer in one piece."""
        try:
            async with asyncio.timeout(self._task.timeouts.whole):
                await self._answer()
        except TimeoutError:
            self._record.fail(HpcError("the answer took too long", code="AF988"))
        return self._rest("batch")

    async def _streamed(self, producer: StreamProducer) -> Result:
        answering = asyncio.create_task(self._answer())
        watching = asyncio.create_task(producer.wait_cancelled())
        try:
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done() and not answering.done():
                problem = watching.exception()
                if isinstance(problem, _NO_RELAY):
                    _log.warning("the relay was lost: %s", problem.message)
                    self._producer = None
                    await answering
                    return self._rest("streamed")
                answering.cancel()
                await asyncio.wait({answering})  # the connection to the model server is closed now
                return await self._stopped(producer, problem)
            await answering
            return await self._ended(producer)
        finally:
            for each in (answering, watching):
                each.cancel()
            await asyncio.gather(answering, watching, return_exceptions=True)

    async def _stopped(self, producer: StreamProducer, problem: BaseException | None) -> Result:
        """The result of an answer that nobody wants, or can get, to its end."""
        if problem is None:
            with suppress(RelayError):
                async with asyncio.timeout(self._task.timeouts.relay):
                    await producer.end(Status.CANCELLED)
            return Result("cancelled")
        if isinstance(problem, PeerLost):
            self._record.end = (Status.CANCELLED, "the consumer was lost, and the answer stopped")
            return self._rest("no_consumer", ("AF984", "the consumer was lost in the middle of the answer"))
        error = problem if isinstance(problem, RelayError) else RelayError("the stream broke off")
        return Result("failed", (error.code, error.message))

    async def _ended(self, producer: StreamProducer) -> Result:
        """The result once the answer is complete, or the server's error is known."""
        status, message = self._record.end
        if self._producer is None and not producer.cancelled:
            return self._rest("streamed")  # what came after the line was lost is in the record alone
        try:
            await producer.end(status, message)
        except StreamCancelled:
            return Result("cancelled")
        except RelayError as error:
            _log.warning("the end was not acknowledged: %s", error.code)
            return self._rest("streamed")
        if producer.cancelled:
            return Result("cancelled")
        return Result("streamed" if status is Status.OK else "failed", self._record.error)

    async def _answer(self) -> None:
        """Ask the model server and emit its answer; every failure becomes the stream's end."""
        task = self._task
        await self._emit({"status": "worker up", "worker": self._record.worker})
        pieces = modelserver.answer(
            task.body,
            task.model,
            self._waiting,
            find=self._find,
            load_timeout=task.timeouts.first_token,
            token_timeout=task.timeouts.token,
            reach_timeout=task.timeouts.reach,
        )
        try:
            async with aclosing(pieces):
                async for data in pieces:
                    await self._emit(data)
        except HpcError as error:
            self._record.fail(error)

    async def _waiting(self, what: str, seconds: float, limit: float | None = None) -> None:
        await self._emit({"status": what, "seconds": round(seconds, 1), "limit": limit})

    async def _emit(self, item: Any) -> None:
        self._record.add(item)
        if self._producer is None:
            return
        try:
            await self._producer.send(item)
        except ValueRefused as error:
            raise HpcError("an event of the model server is too large for the relay", code="AF990") from error
        except RelayError:
            self._producer = None  # the watch decides what this means; until then the answer goes on

    def _rest(self, status: Outcome, error: tuple[str, str] | None = None) -> Result:
        record = self._record
        if record.truncated and status == "batch":
            record.fail(
                HpcError("the answer is larger than the control plane takes", code="AF990", hint="Ask for less.")
            )
            return Result("failed", record.error)
        return Result(status, error or record.error, record.worker, record.first, tuple(record.items), record.end)


def log_to_stderr() -> None:
    """Log what this worker does: neither prompt nor answer, nor any key."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("aiflow_jupyter").setLevel(logging.INFO)


def main() -> int:
    """With `--tied`: do the task of standard input, and write its result to standard output.

    The first line is JSON, `{"argument": ..., "server"?: {"url", "key"}}`, and the process ends with its standard input
    or its parent, whichever goes first: a local worker dies with the notebook that started it.
    """
    if sys.argv[1:] != ["--tied"]:
        from aiflow_jupyter.hpc import program  # noqa: PLC0415

        piped = not sys.argv[1:] and not sys.stdin.isatty()  # a task by hand, as `run` does it
        return program.main(["run"] if piped else None)
    log_to_stderr()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    for name in _PUT_OFF:
        with suppress(ImportError):
            import_module(name)
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    order = json.loads(line)
    said = order.get("server")
    find = (lambda: Server(said["url"], said.get("key", ""), BY_SETTING)) if said else Server.find
    sys.stdout.write(loops.run(work(order["argument"], worker_key, find)) + "\n")
    sys.stdout.flush()
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def _end_with_parent(parent: int) -> None:
    # A fork of the parent may still hold the other end of standard input; the parent's number tells the truth.
    while os.name == "nt" or os.getppid() == parent:
        time.sleep(_PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
