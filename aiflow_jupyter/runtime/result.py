"""What a run leaves behind: what its sinks collected, the models' answers, and the final figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.answered import Answered
from aiflow_jupyter.runtime.behaviour import Collected
from aiflow_jupyter.runtime.bottleneck import Bottleneck, bottleneck
from aiflow_jupyter.runtime.metrics import RunStatus, Snapshot


@dataclass(slots=True)
class Result:
    """What a run leaves behind.

    Attributes:
        variables: what each `sink(var=...)` collected, by variable.
        answers: the models' answers, in the order in which they were asked for: the last 1,024, and `answers.let_go`
            says how many there were before.
        complete: False if a part of it was made from a stream that broke off, or overflow dropped something; what was
            dropped, and why else, `status.warnings` says.
        displayed: what its `sink(display=true)` showed, in a notebook's cell.
    """

    variables: dict[str, Collected]
    answers: Answered
    _figures: RunStatus | Snapshot
    complete: bool = True
    displayed: str = ""
    _shape: tuple[GraphSpec, Mapping[str, bool]] | None = None

    @property
    def status(self) -> RunStatus:
        """The final figures, worked out when they are first read."""
        if isinstance(self._figures, Snapshot):
            self._figures = self._figures.status()
        return self._figures

    @property
    def text(self) -> str:
        """What came out of it, to be read: what each `sink(var=...)` collected, in the order of the graph.

        Tokens are one text, anything else stands one below the other, and two variables are an empty line apart.
        Without any, it is what was displayed.
        """
        return "\n\n".join(filter(None, map(_readable, self.variables.values()))) or self.displayed

    def bottleneck(self) -> Bottleneck | None:
        """The node that held the others up, and what would help; None where none did."""
        return bottleneck(self.status, *self._shape) if self._shape is not None else None

    def __getitem__(self, variable: str) -> Any:
        """What one `sink(var=...)` collected: tokens as one text, anything else as a list.

        Raises:
            CommandError: no sink collects under that name.
        """
        values = self.variables.get(variable)
        if values is None:
            raise CommandError(
                f"the run has no variable {variable!r}",
                code="AF805",
                hint=f"it has: {', '.join(self.variables) or 'none'}",
            )
        return "".join(values) if values.tokens else list(values)

    def __repr__(self) -> str:
        nodes = ", ".join(f"{n.node} {n.processed}" for n in self.status.nodes)
        return f"<{self.status.name}: {self.status.state} in {self.status.elapsed_s:.1f} s; events: {nodes}>"


def _readable(values: Collected) -> str:
    return "".join(values) if values.tokens else "\n".join(map(str, values))
