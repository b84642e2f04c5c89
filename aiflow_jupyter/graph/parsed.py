"""A spec with the places that it came from, so that whatever is found wrong with it later can be shown there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from aiflow_jupyter.errors import GraphProblem
from aiflow_jupyter.graph.problems import Place, caret
from aiflow_jupyter.graph.spec import GraphSpec

Step = str | int


def pointer(path: Iterable[Step]) -> str:
    """A path into a spec as a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


@dataclass(slots=True)
class Parsed:
    """A spec with the places it came from: cell text, or else the spec's own JSON form.

    Attributes:
        spec: the graph.
        text: its source, if that was cell text.
        places: line and column (from 1) by path: `("nodes", id)`, `("nodes", id, "operator")`,
            `("nodes", id, "args", name)`, `("nodes", id, "policy", key)`, `("edges", index)`, `("edges", index, "to")`,
            `("edges", index, "feedback")`, `("inject", id)`.
        problems: mistakes that were found on reading; a graph with any may not run.
        partial: whether there is more in the text than in the spec, as some of it could not be read.
        lost: the nodes of which not all could be read, in the spec or not.
    """

    spec: GraphSpec
    text: str = ""
    places: dict[tuple[Step, ...], Place] = field(default_factory=dict)
    problems: list[GraphProblem] = field(default_factory=list)
    partial: bool = False
    lost: frozenset[str] = frozenset()

    def place(self, path: Iterable[Step]) -> Place | None:
        """Line and column of a path, or of what it is a part of; None where the graph was no cell text."""
        steps = tuple(path)
        while steps and steps not in self.places:
            steps = steps[:-1]
        return self.places.get(steps)

    def caret(self, path: Iterable[Step]) -> str:
        """The source line of a path with a caret below it, or its JSON pointer; empty where the place is unknown."""
        steps = tuple(path)
        if not self.text:
            return f"at {pointer(steps)}" if steps else ""
        place = self.place(steps)
        return caret(self.text, place) if place else ""

    def quoted(self, path: Iterable[Step]) -> bool:
        """Whether the value of an argument was written in quotes; in JSON every text is."""
        place = self.place(path)
        if not self.text or place is None:
            return True
        line, column = place
        return _QUOTED.match(self.text.split("\n")[line - 1], column - 1) is not None


_QUOTED = re.compile(r"(?:\w+\s*=\s*)?[\"']")


class Built(Parsed):
    """A graph that was built in Python, where a problem's place is a node or an edge, and no line."""

    def caret(self, path: Iterable[Step]) -> str:
        """The place in the words of whoever wrote it, such as `at edge lane["answer"] >> kept`."""
        match tuple(path):
            case ("edges", int(index), *_) if index < len(self.spec.edges):
                edge = self.spec.edges[index]
                port = f'["{edge.port}"]' if edge.port else ""
                return f"at edge {edge.source}{port} >> {edge.target}"
            case ("nodes", node, ("args" | "policy"), key, *_):
                return f"at node {node!r}, {key}="
            case ("nodes", node, *_):
                return f"at node {node!r}"
        return super().caret(path)
