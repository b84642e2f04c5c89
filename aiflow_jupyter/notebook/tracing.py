"""`%aiflow trace`: the next run of a kernel is recorded to a file, or answered from one.

%aiflow trace record run.jsonl
%aiflow trace replay run.jsonl --speed 4
%aiflow trace off
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aiflow_jupyter.errors import CommandError, plain

if TYPE_CHECKING:
    import argparse

    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.runtime.replay.recorder import Recorder
    from aiflow_jupyter.runtime.replay.trace import Recorded, Trace
    from aiflow_jupyter.runtime.source import Provider

Wrap = Callable[["Provider"], "Provider"]


class NextRun:
    """What `%aiflow trace` says of the run that is started next."""

    def __init__(self) -> None:
        self._make: Callable[[Provider, GraphSpec], Provider] | None = None
        self._recorded = False

    def require_asked(self) -> None:
        """See that a model answers the next run, as a turn of a conversation has to be.

        Raises:
            CommandError: it is answered from a recording.
        """
        if self._recorded:
            raise CommandError(
                "the next run is answered from a recording, which is no turn of a conversation",
                code="AF801",
                hint="ask without -c, or first: %aiflow trace off",
            )

    def line(self, options: argparse.Namespace) -> str:
        """Take in what `%aiflow trace` says, and say what that means.

        Raises:
            TraceError: there is no such trace, or none can be recorded to that file.
        """
        from aiflow_jupyter.runtime.replay.reading import load
        from aiflow_jupyter.runtime.replay.recorder import Recorder, require_new

        path = Path(options.file or "").expanduser()
        self._make, self._recorded = None, False
        if options.action == "off":
            return "the next run is neither recorded nor replayed"
        if options.action == "record":
            require_new(path)
            self._make = lambda source, spec: Recorder(source, path, spec=spec, messages=options.messages)
            return f"the next run is recorded to {path}"
        from aiflow_jupyter.graph.problems import counted
        from aiflow_jupyter.providers.replay import Replay

        trace = _marked(load(path, partial=options.partial))
        self._make = lambda _source, _spec: Replay(trace, options.speed)
        self._recorded = True
        answers = counted(len(trace.exchanges), "answer")
        return f"the next run is answered from {path}, {answers}, whatever tier, model or length it asks for"

    def take(self, spec: GraphSpec) -> tuple[Wrap | None, Callable[[], None]]:
        """For the run that is started now: what makes its source, and what tells at its end what became of it."""
        make, self._make, self._recorded = self._make, None, False
        if make is None:
            return None, lambda: None
        made: list[Provider | Recorder] = []

        def wrap(source: Provider) -> Provider:
            made.append(make(source, spec))
            return made[-1]

        def tell() -> None:
            problem = getattr(made[0], "problem", None) if made else None
            if problem is not None:
                print(plain(str(problem)))  # noqa: T201

        return wrap, tell


def _marked(trace: Trace) -> Trace:
    """A trace whose answers say, beside their model's name, that they are recorded."""

    def mark(event: Recorded) -> Recorded:
        return replace(event, meta={**event.meta, "badge": "recorded"})

    return replace(trace, exchanges=tuple(replace(one, events=tuple(map(mark, one.events))) for one in trace.exchanges))
