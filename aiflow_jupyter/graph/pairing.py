"""Checks of joins: what comes together there has to be made from the same events.

A join pairs by identity (lineage and sequence). Two branches share identities where both come from one split over
operators that give at most one result for an event. An operator that gives many makes identities of its own; one that
gathers gives the identity of what was answered back. So each output has a set of origins: what its identities are of.
"""

from __future__ import annotations

from typing import Final

from aiflow_jupyter.graph.review import Review

MOST_ORIGINS: Final = 16
"""More than so many at one node are taken as any."""

Origins = frozenset[int] | None
"""Numbers of identities; None for any."""


def check_pairing(review: Review) -> None:
    """Check the inputs of every join."""
    joins = [node for node in review.spec.nodes if (s := review.signature(node)) and s.pairs]
    if not joins:
        return
    origins = _Origins(review)
    shape = review.shape
    for node in joins:
        sources = list(dict.fromkeys(shape.edges[index].source for index in shape.into[node]))
        path = ("nodes", node)
        operator = review.spec.nodes[node].operator
        if len(sources) < 2:
            what = f"only {sources[0]!r} leads to it" if sources else "nothing leads to it"
            message = f"node {node!r}: {operator} pairs what two or more nodes give, and {what}"
            review.found(message, "AF214", path, f"left, right -> {node}")
            continue
        first = sources[0]
        for source in sources[1:]:
            mine, other = origins.out.get(first), origins.out.get(source)
            if mine is None or other is None or mine & other:
                continue
            roots = [{origins.root(each) for each in side} for side in (mine, other)]
            if roots[0] & roots[1]:
                many = origins.many(mine, other)
                review.found(
                    f"node {node!r}: nothing that comes from {first!r} pairs with what comes from {source!r}: "
                    f"between the split and the {operator}, {many!r} gives many for one",
                    "AF216",
                    path,
                    f"gather what {many} gives before the {operator} (reduce), or split after it",
                )
            else:
                review.found(
                    f"node {node!r}: what comes from {first!r} and from {source!r} never shares a lineage: "
                    "they begin at different inputs",
                    "AF215",
                    path,
                    f"lead both from one node, or use merge instead of {operator}",
                )
            break


class _Origins:
    """The origins of what each node gives.

    Attributes:
        out: by node.
    """

    def __init__(self, review: Review) -> None:
        self.review = review
        self._of: list[tuple[int, str]] = []  # each origin: the one it was made from (-1 for none), and by which node
        self._numbers: dict[tuple[int, str], int] = {}
        self.out: dict[str, Origins] = {}
        shape = review.shape
        inputs = set(review.spec.inputs())
        returns = {shape.edges[index].target for index in shape.feedback}
        for node in shape.order:
            arriving: Origins = frozenset({self._number(-1, node)} if node in inputs else ())
            for index in shape.into[node]:
                came = self.out.get(shape.edges[index].source)
                arriving = None if arriving is None or came is None else arriving | came
            if node in returns or (arriving is not None and len(arriving) > MOST_ORIGINS):
                arriving = None  # what comes back over a feedback edge may be of any
            self.out[node] = self._through(node, arriving)

    def _number(self, of: int, node: str) -> int:
        """The number of an origin."""
        key = of, node
        if key not in self._numbers:
            self._numbers[key] = len(self._of)
            self._of.append(key)
        return self._numbers[key]

    def _through(self, node: str, arriving: Origins) -> Origins:
        results = self.review.results(node)
        signature = self.review.signature(node)
        if signature is not None and signature.opaque:
            return None
        if arriving is None or (self.review.signature(node) is None and not self.review.bare(node)):
            return None
        if results == "many":
            return frozenset(self._number(each, node) for each in arriving)
        if results == "gathered":
            # A result has the identity of what was asked; which of the steps before started the answer is not known.
            found = set(arriving)
            for each in arriving:
                step = self._of[each][0]
                while step >= 0 and len(found) <= MOST_ORIGINS:
                    found.add(step)
                    step = self._of[step][0]
            return frozenset(found) if len(found) <= MOST_ORIGINS else None
        return arriving

    def root(self, origin: int) -> str:
        """The input that an origin goes back to."""
        while self._of[origin][0] >= 0:
            origin = self._of[origin][0]
        return self._of[origin][1]

    def many(self, one: frozenset[int], other: frozenset[int]) -> str:
        """A node that gave many for one on only one of two ways."""
        ways = [{node for each in side for node in self._way(each)} for side in (one, other)]
        return min(ways[0] ^ ways[1] or ways[0], key=self.review.shape.order.index)

    def _way(self, origin: int) -> list[str]:
        nodes = []
        while self._of[origin][0] >= 0:
            nodes.append(self._of[origin][1])
            origin = self._of[origin][0]
        return nodes
