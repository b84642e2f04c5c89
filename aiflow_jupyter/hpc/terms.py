"""What a stream from the cluster is given: the relay that it passes, and how long each wait may take."""

from __future__ import annotations

from dataclasses import dataclass

from aiflow_jupyter.providers.secret import Secret


@dataclass(frozen=True, slots=True)
class RelayAt:
    """A relay and what opens channels on it.

    Attributes:
        url: its address.
        key: the personal key.
        allow_plain: it may be another machine without TLS.
    """

    url: str
    key: Secret
    allow_plain: bool = False


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each wait may take, in seconds.

    Attributes:
        submit: until the control plane has taken the task.
        start: from then until a worker has joined; the queue of a cluster is in it.
        first_token: from then until the first piece of the answer; loading a model is in it.
        token: of silence within the answer.
        linger: that the worker goes on without hearing of this end.
        relay: that the worker may be without a connection to the relay before it leaves the rest to the control plane.
        rest: for the job's result, once the relay has turned this end away.
        lost: of a worker's silence before it counts as lost.
        beat: between two signs of life.
    """

    submit: float = 60.0
    start: float = 1800.0
    first_token: float = 900.0
    token: float = 300.0
    linger: float = 120.0
    relay: float = 20.0
    rest: float = 120.0
    lost: float = 15.0
    beat: float = 5.0
