"""Liveness: whether a graph can come to a stop with events in it, as far as that can be known before it runs.

Three things can stop a graph that has no cycle but those of feedback edges:

- A join waits for a partner that is behind an event which it can't take in. It can't be where the join may keep as
  many events as one branch can be ahead of another (`bounds.skews_of`). Where it keeps less, that is an error.
- A merge that gives its inputs in the order of the source waits for one branch while the others fill up: likewise.
- More comes back over a feedback edge than it holds, which fails the run. It can't where an event that enters the
  loop comes back at most once and `limit` is at least what the loop's nodes can own; elsewhere it is a warning. Where a
  model that is asked from outside gets the results of its calls, it is enough for those of one answer: questions that
  are put in at the same time need as many times that. Where a run puts one value in, and no more comes of it before the
  loop, what comes back finds its head idle, and is taken in at once whatever the limit: so nothing is said of a loop
  unless the graph declares values from outside (`inject`) or makes many events of one on the way to it.

At run time, an exact detector names the cycle of a deadlock.
"""

from __future__ import annotations

from itertools import pairwise

from aiflow_jupyter.graph.bounds import held, owned, skews_of
from aiflow_jupyter.graph.checks.review import Review
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.graph.shape import Weights


def check_liveness(review: Review) -> None:
    """Check joins, ordered merges and loops of a graph whose structure is sound."""
    _joins(review)
    _merges(review)
    _loops(review)


def _joins(review: Review) -> None:
    for node, needed in skews_of(review.spec, review.shape, review.sure).items():
        spec = review.spec.nodes[node]
        limit, policy = spec.args.get("limit"), spec.policy
        for kept, path, words in (
            (limit, ("nodes", node, "args", "limit"), f"limit={limit}"),
            (policy.hold, ("nodes", node, "policy", "hold"), f"hold={policy.hold}"),
        ):
            if isinstance(kept, int) and kept < needed:
                review.found(
                    f"node {node!r}: one branch can be {counted(needed, 'event')} ahead of another, and {words} keeps "
                    "fewer: the one that has to come can then no more",
                    "AF502",
                    path,
                    f"{words.partition('=')[0]}={needed}, or smaller queues and fewer workers on the branches",
                )


def _merges(review: Review) -> None:
    shape = review.shape
    weights: Weights | None = None
    for node, spec in review.spec.nodes.items():
        signature = review.sure(node)
        if signature is None or spec.args.get("order") != "source" or len(shape.into[node]) < 2:
            continue
        if weights is None:
            weights = owned(review.spec, shape, review.sure)
        sides = [shape.ancestors[shape.edges[index].source] for index in shape.into[node]]
        meeting = any(one & other for one, other in pairwise(sides))
        needed = 1 + max(weights.sum(branch) for branch in shape.branches(node))
        if meeting and held(spec, signature) < needed:
            review.found(
                f"node {node!r} gives its inputs in the order of the source, and they come from one split: while it "
                f"waits for one branch, another can be {counted(needed, 'event')} ahead, of which it keeps "
                f"{held(spec, signature):,}",
                "AF501",
                ("nodes", node),
                f"[hold={needed}], or order=arrival, or smaller queues on the branches",
            )


def _loops(review: Review) -> None:
    """Check that a loop can't send back more than its feedback edges hold.

    Where everything enters at the one head, and comes back at most once, the loop never has more events than its nodes
    can own: a head takes new ones only while none waits to come back. So a `limit` of that many is enough.
    """
    shape = review.shape
    weights: Weights | None = None
    for loop in shape.loops:
        nodes = shape.members(loop)
        back = [i for i in shape.feedback if _inside(review, i, loop)]
        heads = list(dict.fromkeys(shape.edges[index].target for index in back))
        head = heads[0]
        if weights is None:
            weights = owned(review.spec, shape, review.sure)
        policy = review.spec.nodes[head].policy
        inside = weights.sum(loop) - policy.queue
        least = min(back, key=lambda index: _limit(review, index))
        edge, limit = shape.edges[least], _limit(review, least)
        why, hint = (
            _grows(review, nodes, head, back),
            "gather it before it goes back, or give limit= what may come",
        )
        if len(heads) > 1:
            why, hint = f"it has several heads, {' and '.join(map(repr, heads[:5]))}", "lead all feedback to one node"
        elif (calls := _calls(review, head, back)) is not None and not why:
            if limit < calls:
                many = counted(calls, "call")
                why = f"one answer may make {many}, whose results may all come back while {head!r} is busy"
                hint = f"{edge.source} = tools(...) [hold={limit}] lets an answer make no more calls; or limit={calls}"
        elif not why and limit < inside:
            why = f"its nodes can own {counted(inside, 'event')}, which may all come back while {head!r} is busy"
            hint = f"limit={inside}, or smaller queues and fewer workers in the loop"
        if why and (len(heads) > 1 or _several(review, loop, head) or _grows(review, nodes, head, back)):
            review.found(
                f"it is not proved that the loop {edge.source} -> {edge.target} keeps within limit={limit}: {why}; "
                "an overflow of a feedback edge fails the run",
                "AF503",
                ("edges", least),
                hint,
            )


def _several(review: Review, loop: int, head: str) -> bool:
    """Whether more than one event can enter a loop at its head for one value that is put into the graph."""
    shape, spec = review.shape, review.spec
    inputs = set(spec.inputs())
    before = shape.ancestors[head] & ~loop
    if any(node in spec.inject for node in (head, *shape.members(before))):
        return True
    comes: dict[str, int] = {}
    for node in (each for each in shape.order if each == head or before & shape.bit[each]):
        sources = [shape.edges[i].source for i in shape.into[node] if i not in shape.feedback]
        signature = review.signature(node)
        numbers = [comes.get(source, 0) for source in sources] + [node in inputs]
        results = review.results(node)
        if node != head and (results == "many" or (signature is not None and signature.opaque)):
            comes[node] = 2
        elif results == "gathered" and node != head:
            comes[node] = len(inputs & {node, *shape.members(shape.ancestors[node])})
        else:
            comes[node] = max(numbers) if signature is not None and signature.pairs else sum(numbers)
        if node != head and any(each & shape.bit[node] for each in shape.loops):
            comes[node] = 2
    return comes[head] > 1


def _inside(review: Review, index: int, loop: int) -> bool:
    edge, bit = review.shape.edges[index], review.shape.bit
    return bool(loop & bit[edge.source]) and bool(loop & bit[edge.target])


def _calls(review: Review, head: str, back: list[int]) -> int | None:
    """The calls that an answer may make, in a loop of a model and its tools that is asked from outside the graph."""
    shape = review.shape
    edges = [shape.edges[index] for index in back]
    signature = review.signature(edges[0].source)
    tools = len(edges) == 1 and signature is not None and signature.gives == frozenset({"tool_result"})
    if signature is None or not tools or set(shape.into[head]) - set(back):
        return None
    return held(review.spec.nodes[edges[0].source], signature)


def _limit(review: Review, index: int) -> int:
    feedback = review.shape.edges[index].feedback
    return feedback.limit if feedback is not None else 0


def _grows(review: Review, nodes: list[str], head: str, back: list[int]) -> str:
    """Why more may go round a loop than enters at its head; empty where it can't.

    Copies of one event are counted on all ways; `many` results make a stream of one event, which a `gathered` one turns
    back into one.
    """
    shape, spec = review.shape, review.spec
    inputs = set(spec.inputs())
    members = set(nodes)
    copies = {head: 1}
    streams: dict[str, str] = {}  # the nodes that give a stream for one event, with what made it
    for node in (each for each in shape.order if each in members):
        edges = [shape.edges[index] for index in shape.into[node] if index not in shape.closing]
        if node != head and (node in spec.inject or node in inputs or any(e.source not in members for e in edges)):
            return f"events also enter it at {node!r}"
        sources = [edge.source for edge in edges if edge.source in copies]
        signature = review.signature(node)
        if node != head:
            numbers = [copies[source] for source in sources] or [0]
            copies[node] = max(numbers) if signature is not None and signature.pairs else min(sum(numbers), 2)
        made = next((streams[source] for source in sources if source in streams), "")
        results = review.results(node)
        if results == "many":
            made = made or node
        elif results == "gathered":
            made = ""
        if made:
            streams[node] = made
    for index in back:
        if (source := shape.edges[index].source) in streams:
            return f"{streams[source]!r} gives many for one"
    if sum(copies[shape.edges[index].source] for index in back) > 1:
        return "one event comes back by several ways"
    return ""
