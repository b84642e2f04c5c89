"""The codes of runs and of their traces: stable, one meaning each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AF600": "a run failed",
        "AF601": "a run was cancelled before it was complete",
        "AF602": "a queue is full, and its node's policy is overflow=error",
        "AF603": "a node's function raised an exception",
        "AF604": "a run can't begin here, or its end can't be waited for here",
        "AF605": "a run, or one of its nodes, takes nothing in any more",
        "AF606": "an event came round a loop more often than its feedback edge lets it",
        "AF607": "more events wait on a feedback edge than its limit",
        "AF608": "an event is larger than its node's queue_bytes",
        "AF610": "a call gave no result within its node's timeout",
        "AF611": "a node with partitioned state has as many keys as it may have",
        "AF612": "a node would keep more than its hold or hold_bytes allows",
        "AF613": "more outputs of a speculative node wait for a verdict than it may hold",
        "AF614": "nothing can happen on a virtual clock any more, and its run has not ended",
        "AF615": "what a function left in its state can't be copied",
        "AF691": "a node owns more than it declared: a defect of aiflow-jupyter",
        "AF740": "a trace can't be read, written or recorded to its end",
        "AF741": "a line of a trace is none",
        "AF742": "the last line of a trace is cut off",
        "AF743": "a trace is of another version of the format",
        "AF745": "a script of faults, or a service time, is wrong",
    }
)
"""What each code says."""
