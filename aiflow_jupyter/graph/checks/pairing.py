"""Checks of joins: what comes together there has to be made from the same events.

A join pairs by identity (lineage and sequence). Two branches share identities where both come from one split over
operators that give at most one result for an event. An operator that gives many makes identities of its own; one that
gathers gives the identity of what was answered back. So each output has a set of origins: what its identities are of.

A verdict pairs by lineage with what a speculative node gives: it covers what is of the judged answer, or below it.
"""

from __future__ import annotations

from typing import Final

from aiflow_jupyter.graph.checks.review import Review

MOST_ORIGINS: Final = 16
"""More than so many at one node are taken as any."""

Chain = tuple[str, ...]
"""A lineage as far as the graph tells: the nodes whose answers it goes through, from the run's input on. What a window
gathered from several inputs begins with the window's name behind a `*`."""

Chains = frozenset[Chain] | None
"""The lineages of what a node takes or gives; None for any."""

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


class Lineages:
    """The lineages of what each node takes and gives.

    Attributes:
        into, out: by node.
    """

    def __init__(self, review: Review) -> None:
        self.review = review
        self.into: dict[str, Chains] = {}
        self.out: dict[str, Chains] = {}
        shape = review.shape
        inputs = set(review.spec.inputs()) | set(review.spec.inject)
        returns = {shape.edges[index].target for index in shape.feedback}
        for node in shape.order:
            arriving: Chains = None if node in returns else frozenset({()} if node in inputs else ())
            for index in shape.into[node]:
                if not review.silent(shape.edges[index]):
                    came = self.out.get(shape.edges[index].source)
                    arriving = None if arriving is None or came is None else arriving | came
            if arriving is not None and len(arriving) > MOST_ORIGINS:
                arriving = None
            self.into[node] = arriving
            self.out[node] = self._through(node, arriving)

    def _through(self, node: str, arriving: Chains) -> Chains:
        signature = self.review.signature(node)
        if signature is None:
            return arriving if self.review.bare(node) else None
        if arriving is None or signature.opaque:
            return None
        if signature.restarts:
            return frozenset((*chain, node) for chain in arriving)
        if signature.lineage == "asked":
            return frozenset(chain if _mixed(chain[-1:]) else chain[:-1] for chain in arriving)
        if signature.lineage == "first":
            return frozenset(chain or (f"*{node}",) for chain in arriving)
        return arriving

    def uncovered(self, node: str, judges: list[str]) -> tuple[str, str]:
        """Why the verdicts of some nodes are on nothing that a node gives, and what to do; empty where they are."""
        given, judged = self.out.get(node), [self.into.get(judge) for judge in judges]
        if not given or not all(judged):
            return "", ""
        on = {chain: judge for judge, chains in zip(judges, judged, strict=True) for chain in chains or ()}
        mixed = next((chain[0][1:] for chain in given if _mixed(chain)), None)
        if mixed is not None and () in on:
            return (
                f"{mixed!r} gathers what may be of several inputs, and a verdict of {on[()]!r} is on one of them",
                f"make the node before {mixed} speculative",
            )
        if any(chain[: len(each)] == each for chain in given for each in on):
            return "", ""
        chain, judge = next(iter(on.items()))
        answered = chain[-1].removeprefix("*")
        whole = self.review.shape.ancestors[node] | self.review.shape.bit[node]
        gathers = (each for each in self.review.shape.members(whole) if self._gathers(each))
        gathered = next(gathers, None)
        if gathered is None:
            what = f"the verdicts of {judge!r} are on the answers of {answered!r}, and it gives none of these"
            return what, f"lead {answered} to it, or a guard on what it works on"
        return (
            f"the verdicts of {judge!r} are on the answers of {answered!r}, and what {gathered!r} gathers from one is "
            "no part of it any more: it would be held for ever",
            f"make the node before {gathered} speculative",
        )

    def _gathers(self, node: str) -> bool:
        signature = self.review.signature(node)
        return signature is not None and signature.lineage == "asked"


def _mixed(chain: Chain) -> bool:
    return bool(chain) and chain[0].startswith("*")
