"""How long each wait between question and answer may take: one vocabulary for configuration, notebook and worker.

The worker has it too, in its sealed task: nothing here but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each wait may take, in seconds.

    Attributes:
        submit: until the control plane has taken the task.
        start: from then until a worker has joined; the queue of a cluster is in it.
        first_token: from then until the first piece of the answer: loading a model is in it, and a model server that
            does not answer.
        reach: of that, for a model server that nothing answers for; None for all of it.
        token: of silence within the answer.
        linger: that the worker waits for this end, or goes on without hearing of it.
        relay: that the worker may be without a connection to the relay before it leaves the rest to the control plane.
        rest: for the job's result, once the relay has turned this end away.
        lost: of a worker's silence before it counts as lost.
        beat: between two signs of life.
    """

    submit: float = 60.0
    start: float = 1800.0
    first_token: float = 1200.0
    token: float = 300.0
    linger: float = 120.0
    relay: float = 20.0
    rest: float = 120.0
    lost: float = 15.0
    beat: float = 5.0
    reach: float | None = None

    @property
    def absence(self) -> float:
        """How long the worker does without this end: `linger`, but never less than three signs of life."""
        return max(self.linger, 3 * self.beat)

    @property
    def consumer(self) -> float:
        """How long a worker waits for this end to join: its absence, or until it knows that the relay is away."""
        return max(self.absence, self.relay + self.beat)

    @property
    def model(self) -> float:
        """How long this end waits for the first token: a little longer than the worker, which knows why it is late."""
        return self.first_token + 2 * self.beat

    @property
    def whole(self) -> float:
        """How long an answer in one piece may take from its model server."""
        return self.first_token + 10 * self.token
