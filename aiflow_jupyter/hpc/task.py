"""What travels by the control plane: a task's one argument and its one result, both JSON, both sealed.

    argument = {"v": 1, "kid": key id, "sealed": HPKE for the worker's key}
    result   = {"v": 1, "status": ..., "error"?: {"code", "message"}, "sealed"?: under the stream's secret}

In clear are only the status and an error in fixed words; what the model server said travels sealed. A sealed result
holds the items of the answer from number `first` on and how the answer ended, bound to the worker that counted them, so
that a stream that lost its relay is completed without a gap or a repetition. Both sides import this module: nothing
here but the standard library, msgpack and the relay's client half.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, get_args

import msgpack  # type: ignore[import-untyped]

from aiflow_jupyter.errors import encodable
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.timeouts import Timeouts
from aiflow_jupyter.relay.crypto import SECRET_BYTES, WorkerKey, open_result, seal_request, seal_result
from aiflow_jupyter.relay.errors import RelayError, RequestUnreadable
from aiflow_jupyter.relay.frames import CHANNEL_BYTES, Status, unpack_value
from aiflow_jupyter.relay.protocol import StreamLimits

VERSION: Final = 1
LIMIT: Final = 8 * 1024 * 1024  # bytes of argument and result: Globus Compute takes 10 MB with its own wrapping
ANSWER: Final = LIMIT // 4 * 3 - 4096  # what fits into a result once it is base64
_PURPOSE: Final = f"aiflow hpc task {VERSION}"
_BLOCK: Final = 256  # a sealed request's length tells the prompt's only to this many bytes

Outcome = Literal["streamed", "batch", "expired", "no_consumer", "cancelled", "failed", "version"]


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked of a worker.

    Attributes:
        body: the chat's OpenAI fields.
        secret: the stream's 32 bytes.
        channel: the channel's id, 32 hexadecimal characters; a random one where there is no relay.
        not_after: seconds since 1970 after which nobody waits for the answer.
        relay: the relay's address, None to answer by the control plane in one piece.
        capability: the producer's capability at the relay.
        allow_plain: the relay may be another machine without TLS.
        model: the model's name, None for the server's first.
        pad: frames are padded to a multiple of this many bytes.
        timeouts: of every wait, at both ends.
        fallback: where the relay can't be reached the answer goes by the control plane, in one piece.
    """

    body: dict[str, Any] = field(repr=False)
    secret: bytes = field(repr=False)
    channel: str
    not_after: float
    relay: str | None = None
    capability: str = field(default="", repr=False)
    allow_plain: bool = False
    model: str | None = None
    pad: int = 64
    timeouts: Timeouts = field(default_factory=Timeouts)
    fallback: bool = True

    def limits(self) -> StreamLimits:
        """The stream's bounds, the same at both ends."""
        times = self.timeouts
        return StreamLimits(pad=self.pad, beat=times.beat, linger=times.absence, lost=times.lost)


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker returns.

    Attributes:
        status: how the task went.
        error: code and fixed words, where it did not go well.
        worker: 16 hexadecimal characters that name the process.
        first: the number of the first of `items`, counted from the stream's start.
        items: what the consumer did not acknowledge, None if nothing is left to say.
        end: how the answer ended: the stream's status and its message.
        note: why it did not go by the relay; sealed like the items.
    """

    status: Outcome
    error: tuple[str, str] | None = None
    worker: str = ""
    first: int = 0
    items: tuple[Any, ...] | None = field(default=None, repr=False)
    end: tuple[Status, str] = (Status.OK, "")
    note: str = ""


def key_id(public: str) -> str:
    """A short name for a public key."""
    return hashlib.sha256(public.strip().encode()).hexdigest()[:16]


def seal_task(task: Task, public: str) -> str:
    """The argument that carries `task` to the holder of the worker key `public`.

    Raises:
        HpcError: it is larger than the control plane takes.
        KeyUnusable: that is no public key.
    """
    content = {**asdict(task), "secret": _b64(task.secret)}
    # Half a character, as a cut emoji leaves one, is in no encoding: the model server gets the sign for such a one.
    payload = encodable(json.dumps(content, separators=(",", ":"), ensure_ascii=False)).encode()
    payload += b" " * (-len(payload) % _BLOCK)
    kid = key_id(public)
    sealed = seal_request(public, payload, purpose=_PURPOSE, context=kid.encode())
    argument = json.dumps({"v": VERSION, "kid": kid, "sealed": _b64(sealed)})
    if len(argument) > LIMIT:
        raise HpcError(
            f"the request takes {len(argument):,} bytes once sealed, and the control plane takes {LIMIT:,}",
            code="AF981",
            hint="Shorten the conversation, or make its images smaller.",
        )
    return argument


def open_task(argument: str, key: WorkerKey) -> Task:
    """The task in an argument.

    Raises:
        HpcError: it is of another version, or no task.
        RequestUnreadable: it was sealed for another key, or changed on the way.
    """
    outer = _object(argument, "the job's argument")
    if outer.get("v") != VERSION:
        raise HpcError(
            f"a task of version {str(outer.get('v'))[:8]}, and this worker speaks {VERSION}",
            code="AF982",
            hint="Install the same release of aiflow-jupyter in the notebook and on the cluster.",
        )
    kid = key_id(key.public)
    if outer.get("kid") != kid:
        raise RequestUnreadable(
            f"the request was sealed for another key than this worker's ({kid})",
            hint="Compare the notebook's worker key with what `python aiflow-worker.pyz keys` prints on the cluster.",
        )
    opened = key.open_request(_unb64(outer.get("sealed")), purpose=_PURPOSE, context=kid.encode())
    content = _object(opened.decode("utf-8", "replace"), "the sealed task")
    try:
        values = _known(Task, content)
        times = Timeouts(**_known(Timeouts, values.get("timeouts", {})))
        task = Task(**{**values, "secret": _unb64(values["secret"]), "timeouts": times})
        whole = len(task.secret) == SECRET_BYTES and len(bytes.fromhex(task.channel)) == CHANNEL_BYTES
    except (TypeError, ValueError, KeyError):
        whole = False
    if not whole or not isinstance(task.body, dict):
        raise HpcError("the sealed task is not whole", code="AF989")
    return task


def pack_result(result: Result, task: Task | None = None) -> str:
    """A result as JSON, its items sealed under the task's secret."""
    outer: dict[str, Any] = {"v": VERSION, "status": result.status}
    if result.error is not None:
        outer["error"] = {"code": result.error[0], "message": result.error[1]}
    if result.items is not None and task is not None:
        content = {
            "status": result.status,
            "worker": result.worker,
            "first": result.first,
            "items": list(result.items),
            "end": [int(result.end[0]), result.end[1]],
            "note": result.note,
        }
        packed: bytes = msgpack.packb(content)
        outer["sealed"] = _b64(seal_result(task.secret, bytes.fromhex(task.channel), packed))
    return json.dumps(outer)


def unpack_result(text: object, secret: bytes, channel: str) -> Result:
    """A result, its items opened. What stood in clear is the control plane's word and proves nothing.

    Raises:
        HpcError: it can't be read, or what is sealed in it is not this stream's.
    """
    outer = _object(text, "the job's result")
    status: Any = outer.get("status")
    if outer.get("v") != VERSION or status not in get_args(Outcome):
        raise HpcError(
            "the job's result is of another version",
            code="AF982",
            hint="Install the same release of aiflow-jupyter in the notebook and on the cluster.",
        )
    said = outer.get("error")
    error = (plain_line(said.get("code"), 8), plain_line(said.get("message"), 400)) if isinstance(said, dict) else None
    if outer.get("sealed") is None:
        return Result(status, error)
    try:
        content = unpack_value(open_result(secret, bytes.fromhex(channel), _unb64(outer["sealed"])))
        end = Status(content["end"][0]), str(content["end"][1])
        items = tuple(content["items"])
        note = plain_line(content.get("note"), 200)
        return Result(content["status"], error, str(content["worker"]), int(content["first"]), items, end, note)
    except (RelayError, LookupError, TypeError, ValueError) as problem:
        raise HpcError(
            "the sealed part of the job's result is not what the worker sent",
            code="AF989",
            hint="It was changed on the way, or belongs to another request.",
        ) from problem


def _known(kind: type, content: dict[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass in what came; those of a later release are passed over."""
    return {name.name: content[name.name] for name in fields(kind) if name.name in content}


def _object(text: object, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) and len(text) <= LIMIT else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise HpcError(f"{what} is not JSON of this protocol", code="AF989")
    return value


def plain_line(value: object, length: int) -> str:
    """Words that another machine wrote, as one short printable line."""
    return "".join(letter if letter.isprintable() else " " for letter in str(value or ""))[:length]


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: object) -> bytes:
    try:
        return base64.b64decode(str(text) + "=" * (-len(str(text)) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise HpcError("base64 that is none", code="AF989") from None
