"""What became of a job that gave no whole answer, as an error: by its status, its own words, or its failure."""

from __future__ import annotations

import json
import re
from typing import Final

from aiflow_jupyter.errors import plain
from aiflow_jupyter.hpc.errors import HpcError
from aiflow_jupyter.hpc.task import Result

_CODE: Final = re.compile(r"AF[0-9]{3}")
_FATE: Final = {
    "expired": ("AF983", "the job came too late: its request had expired", "The cluster's queue is long, or its clock "
                "is wrong. Run it again, or give it a longer start_timeout."),
    "no_consumer": ("AF984", "the job found nobody who waits for its answer", "Did this machine sleep, or lose its way "
                    "to the relay? Run it again."),
    "version": ("AF982", "the worker on the cluster speaks another version", "Install the same release of "
                "aiflow-jupyter in the notebook and on the cluster."),
    "cancelled": ("AF934", "the answer was cancelled before it was complete", "Run it again."),
    "streamed": ("AF930", "the job says it sent everything, but not all of it arrived", "Run it again."),
    "batch": ("AF989", "the job's result lacks its answer", "Run it again."),
    "failed": ("AF985", "the job failed", "Look at the worker's log on the cluster."),
}  # fmt: skip
_UNREAD: Final = frozenset({"expired", "no_consumer", "version"})
"""What a worker says that has asked no model server."""
_HINT: Final = {
    "AF910": "Can the cluster's nodes reach the relay? `python aiflow-worker.pyz check --relay URL` there says it.",
    "AF940": "`python aiflow-worker.pyz keys` makes it there; worker_key in aiflow.toml is its public half.",
    "AF941": "Compare worker_key in aiflow.toml with what `python aiflow-worker.pyz keys` prints on the cluster.",
}
"""What mends a failure that the worker names, where its status alone does not say it."""


def without_answer(result: Result) -> HpcError:
    """The error for a result that holds no answer. Its words in clear are the control plane's."""
    code, message, hint = _FATE[result.status]
    unread = result.status in _UNREAD
    if result.error:
        said, words = result.error
        code, message = said if _CODE.fullmatch(said) else code, f"{message}: {words}"
        hint = _HINT.get(code, hint)
    return HpcError(message, code=code, hint=hint, unread=unread)


def said_by_worker(message: str) -> HpcError:
    """The error that a worker ended its stream with."""
    try:
        said = json.loads(message)
        code = said["code"] if _CODE.fullmatch(str(said["code"])) else HpcError.code
        return HpcError(
            plain(str(said["message"])),
            code=code,
            hint=plain(str(said["hint"])),
            unread=said.get("unread") is True,
            of_request=said.get("of_request") is True,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return HpcError(plain(message) or "the worker ended the answer with an error")


def job_failed(error: BaseException) -> HpcError:
    """The error for a job, or its submission, that ended with an exception."""
    words = " ".join(str(error).split())
    return HpcError(
        f"the job failed: {type(error).__name__}" + (f": {words[:300]}" if words else ""),
        code="AF985",
        hint="Look at the endpoint's and the worker's log, and run it again.",
    )
