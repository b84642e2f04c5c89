"""The shape of a graph: which nodes lead to which, in which order, and round which loops.

Everything here is iterative and linear; sets of nodes are integers used as bit sets, so that a thousand nodes with
twenty thousand edges take milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property, reduce
from operator import and_, or_

from aiflow_jupyter.graph.spec import EdgeSpec, GraphSpec


class Shape:
    """What the edges of a spec make of its nodes; edges with an unknown end are left out.

    Attributes:
        edges: the known edges by their index in the spec.
        into: for each node the indices of the edges that lead to it, feedback edges apart.
        out: for each node the indices of the edges that leave it, feedback edges apart.
        feedback: the indices of the feedback edges.
        closing: the index of each ordinary edge that closes a cycle, with the nodes of that cycle.
        order: all nodes, each after those that lead to it; closing and feedback edges don't count.
    """

    def __init__(self, spec: GraphSpec) -> None:
        self.nodes = list(spec.nodes)
        self.bit = {node: 1 << number for number, node in enumerate(self.nodes)}
        self.edges: dict[int, EdgeSpec] = {
            index: edge
            for index, edge in enumerate(spec.edges)
            if edge.source in spec.nodes and edge.target in spec.nodes
        }
        self.feedback = [index for index, edge in self.edges.items() if edge.feedback is not None]
        self.into: dict[str, list[int]] = {node: [] for node in self.nodes}
        self.out: dict[str, list[int]] = {node: [] for node in self.nodes}
        for index, edge in self.edges.items():
            if edge.feedback is None:
                self.into[edge.target].append(index)
                self.out[edge.source].append(index)
        self.closing: dict[int, list[str]] = {}
        self.order: list[str] = []
        self._walk()

    def _walk(self) -> None:
        """Go through the graph depth first, from its inputs on."""
        state: dict[str, int] = {}
        finished: list[str] = []
        for root in sorted(self.nodes, key=lambda node: bool(self.into[node])):
            stack: list[tuple[str, Iterator[int]]] = [(root, iter(self.out[root]))] if root not in state else []
            state.setdefault(root, 1)
            while stack:
                node, rest = stack[-1]
                index = next(rest, None)
                if index is None:
                    state[node] = 2
                    finished.append(node)
                    stack.pop()
                    continue
                target = self.edges[index].target
                if target not in state:
                    state[target] = 1
                    stack.append((target, iter(self.out[target])))
                elif state[target] == 1:
                    self.closing[index] = self._loop([each for each, _ in stack], target)
        self.order = finished[::-1]

    def _loop(self, way: list[str], start: str) -> list[str]:
        """The nodes of a cycle; nobody reads very many cycles, so only the first get theirs."""
        return [*way[way.index(start) :], start] if len(self.closing) < MOST_CYCLES else []

    @cached_property
    def ancestors(self) -> dict[str, int]:
        """For each node the set of the nodes that lead to it, itself included."""
        found: dict[str, int] = {}
        for node in self.order:
            reached = self.bit[node]
            for index in self.into[node]:
                if index not in self.closing:
                    reached |= found[self.edges[index].source]
            found[node] = reached
        return found

    @cached_property
    def _steps(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """The nodes after each node, and those before it, over any edges."""
        after: dict[str, list[str]] = {node: [] for node in self.nodes}
        before: dict[str, list[str]] = {node: [] for node in self.nodes}
        for edge in self.edges.values():
            after[edge.source].append(edge.target)
            before[edge.target].append(edge.source)
        return after, before

    @cached_property
    def loops(self) -> list[int]:
        """The sets of nodes that can all reach one another, over any edges, where a set has a feedback edge in it."""
        after, _ = self._steps
        finished: list[str] = []
        seen: set[str] = set()
        for root in self.nodes:
            stack = [(root, iter(after[root]))] if root not in seen else []
            seen.add(root)
            while stack:
                node, rest = stack[-1]
                step = next((each for each in rest if each not in seen), None)
                if step is None:
                    finished.append(node)
                    stack.pop()
                else:
                    seen.add(step)
                    stack.append((step, iter(after[step])))
        taken = 0
        parts: dict[str, int] = {}
        for node in reversed(finished):
            if not taken & self.bit[node]:
                part = self.reached([node], backward=True, past=~taken) & ~taken
                taken |= part
                parts.update(dict.fromkeys(self.members(part) if part != self.bit[node] else [node], part))
        closed = (self.edges[index] for index in self.feedback)
        return list(dict.fromkeys(parts[e.source] for e in closed if parts[e.source] == parts[e.target]))

    def branches(self, join: str) -> list[int]:
        """For each edge into a node, the nodes that lead to it by that edge and not by every other one."""
        sides = [self.ancestors[self.edges[index].source] for index in self.into[join] if index not in self.closing]
        common = reduce(and_, sides, -1)
        return [side & ~common for side in sides]

    def between(self, joins: Iterable[str]) -> int:
        """The set of the nodes that stand between a split and one of some joins."""
        return reduce(or_, (branch for join in joins for branch in self.branches(join)), 0)

    def members(self, nodes: int) -> list[str]:
        """The nodes of a set, in the order of the graph."""
        return [node for node in self.nodes if nodes & self.bit[node]]

    def reached(self, start: Iterable[str], *, backward: bool = False, past: int = -1) -> int:
        """The set of the nodes that can be reached over any edges.

        Args:
            start: where to begin; a part of the result.
            backward: against the direction of the edges.
            past: the nodes that the way may lead on from (a set).
        """
        steps = self._steps[backward]
        waiting = list(start)
        found = 0
        for node in waiting:
            found |= self.bit[node]
        while waiting:
            node = waiting.pop()
            for step in steps[node]:
                if not found & self.bit[step]:
                    found |= self.bit[step]
                    if past & self.bit[step]:
                        waiting.append(step)
        return found


MOST_CYCLES = 20


class Weights:
    """Numbers of nodes that can be added up over a set of them at once: one set for each binary digit."""

    def __init__(self, shape: Shape, weights: dict[str, int]) -> None:
        self._digits = [0] * max((weight.bit_length() for weight in weights.values()), default=0)
        for node, weight in weights.items():
            for digit in range(weight.bit_length()):
                if weight >> digit & 1:
                    self._digits[digit] |= shape.bit[node]

    def sum(self, nodes: int) -> int:
        """The sum over a set of nodes."""
        return sum((nodes & digit).bit_count() << place for place, digit in enumerate(self._digits))
