"""Checks of how nodes are joined: edges, ports, cycles, and whether everything leads somewhere."""

from __future__ import annotations

from aiflow_jupyter.events import DATA
from aiflow_jupyter.graph.checks.review import Path, Review
from aiflow_jupyter.graph.checks.types import Flows
from aiflow_jupyter.graph.problems import NO_NODE
from aiflow_jupyter.graph.signatures import VERDICT, OperatorSignature
from aiflow_jupyter.graph.spec import EdgeSpec


def check_structure(review: Review) -> None:
    """Check edges, ports, cycles and reach."""
    _edges(review)
    _verdicts(review)
    _cycles(review)
    _reach(review)
    _places(review)


def _edges(review: Review) -> None:
    spec = review.spec
    seen = set()
    for index, edge in enumerate(spec.edges):
        path = ("edges", index)
        for name, end in ((edge.source, "from"), (edge.target, "to")):
            if name not in spec.nodes and name not in review.lost:
                review.found(f"no node is called {name!r}", "AF206", (*path, end), _missing(review, name))
        if index not in review.shape.edges:
            continue
        key = (edge.source, edge.port, edge.target, edge.feedback is None)
        if key in seen:
            review.found(f"the edge {edge.source} -> {edge.target} is there twice", "AF207", path)
        seen.add(key)
        source = review.signature(edge.source)
        if source is not None or review.bare(edge.source):
            _port(review, edge, source, path)
    for node in spec.inject:
        if node not in spec.nodes and node not in review.lost:
            message = f"inject: no node is called {node!r}"
            review.found(message, "AF206", ("inject", node), review.nearest(node, spec.nodes) or NO_NODE)


def _missing(review: Review, name: str) -> str:
    """What to do about the name of a node that there is not."""
    hint = review.nearest(name, review.spec.nodes)
    operator = name in review.signatures or (name in review.functions and review.objects is not None)
    if operator and not hint.startswith("did you mean"):
        call = f"{name}(...)" if name in review.signatures else name
        return f"an edge leads to a node, which has a line of its own: {name[0]} = {call}"
    return hint or NO_NODE


def _port(review: Review, edge: EdgeSpec, signature: OperatorSignature | None, path: Path) -> None:
    """Check that a node has the port that an edge leaves by."""
    node, port = edge.source, edge.port
    if port == "error":
        return
    if signature is not None and signature.sink:
        review.found(f"nothing comes out of {node!r}: {signature.name!r} is a sink", "AF203", path)
    elif signature is None or signature.ports is None:
        if port is not None:
            what = signature.name if signature else review.spec.nodes[node].operator
            message = f"node {node!r} has no port {port!r}: {what!r} has one plain output"
            near = review.nearest(port, ["error"])
            hint = near if near.startswith("did") else f"write {node} -> ..., or {node}.error for its failures"
            review.found(message, "AF203", (*path, "port"), hint)
    else:
        names = () if node in review.doubtful else signature.ports(review.spec.nodes[node].args)
        if port is None and "" in (names or ()):
            return
        if port is None:
            hint = f"write {node}.{names[0] if names else 'else'} -> ..."
            review.found(f"node {node!r} routes: name the port that this edge leaves by", "AF203", path, hint)
        elif names and port not in names:
            hint = review.nearest(port, (*names, "error"))
            review.found(f"node {node!r} has no port {port!r}", "AF203", (*path, "port"), hint)


def _verdicts(review: Review) -> None:
    """Only a speculative node makes something of a verdict: no event comes of one."""
    for index, edge in review.shape.edges.items():
        giver = review.signature(edge.source)
        waits = review.spec.nodes[edge.target].policy.effect == "speculative"
        if giver is not None and giver.verdicts and edge.port == VERDICT and not waits:
            review.found(
                f"{edge.source}.{VERDICT} carries verdicts alone, and {edge.target!r} holds nothing that waits for one",
                "AF411",
                ("edges", index),
                f"write {edge.target} ... [effect=speculative], or take the text: {edge.source} -> {edge.target}",
            )


def _cycles(review: Review) -> None:
    shape = review.shape
    for index, nodes in shape.closing.items():
        if nodes and not any((s := review.signature(node)) and s.sink for node in nodes):  # which has no output at all
            edge = shape.edges[index]
            port = f".{edge.port}" if edge.port else ""
            review.found(
                f"the graph has a cycle without a feedback edge: {_way(nodes)}",
                "AF210",
                ("edges", index),
                f"write {edge.source}{port} -> {edge.target} [feedback, limit=4, hops=8]",
            )
    for index in shape.feedback:
        edge = shape.edges[index]
        if not shape.ancestors[edge.source] & shape.bit[edge.target]:
            review.found(
                f"the feedback edge {edge.source} -> {edge.target} closes no cycle: "
                f"no way of ordinary edges leads from {edge.target} to {edge.source}",
                "AF211",
                ("edges", index),
                "leave out [feedback]",
            )


def _way(nodes: list[str]) -> str:
    shown = nodes if len(nodes) <= 12 else [*nodes[:6], "...", *nodes[-5:]]
    return " -> ".join(shown)


def _reach(review: Review) -> None:
    """Every node leads to a sink, and something leads to every sink."""
    spec, shape = review.spec, review.shape
    dangling = {edge.source for index, edge in enumerate(spec.edges) if index not in shape.edges}
    sinks = [node for node in spec.nodes if (signature := review.signature(node)) and signature.sink]
    unknown = [n for n in spec.nodes if not shape.out[n] and not review.signature(n) and not review.bare(n)]
    leading = shape.reached([*sinks, *unknown, *(dangling & spec.nodes.keys())], backward=True)
    sending = {edge.source for edge in spec.edges}
    ends = [node for node in spec.nodes if node not in sending and not leading & shape.bit[node]]
    told = shape.reached(ends, backward=True)  # where the way ends at a node that says so, one message is enough
    receiving = {edge.target for edge in spec.edges}
    for node in spec.nodes:
        if not leading & shape.bit[node] and (node not in sending or not told & shape.bit[node]):
            ending = node not in sending
            message = f"nothing takes what node {node!r} gives" if ending else f"no way leads from {node!r} to a sink"
            hint = f'end it with a sink: {node} -> out, out = sink(var="result")'
            review.found(message, "AF208", ("nodes", node), hint)
            if not ending:
                told |= shape.reached([node]) | shape.reached([node], backward=True)
    lost = any(edge.target not in spec.nodes for edge in spec.edges)  # what has the wrong name there may mean the sink
    for node in sinks:
        if node not in receiving and node not in spec.inject and len(spec.nodes) > 1 and not lost:
            review.found(f"node {node!r} is a sink that nothing leads to", "AF209", ("nodes", node))


def check_ports(review: Review, flows: Flows) -> None:
    """Say which outputs nobody takes, where the node has any that somebody takes, and something may leave by them."""
    connected: dict[str, set[str | None]] = {}
    for edge in review.shape.edges.values():
        connected.setdefault(edge.source, set()).add(edge.port)
    for node, ports in connected.items():
        signature = review.sure(node)
        if signature.sink if signature else not review.bare(node):
            continue
        if signature is None or signature.ports is None:
            missing = [] if None in ports else [""]
        elif "else" in ports:
            missing = []
        else:
            names = signature.ports(review.spec.nodes[node].args)
            optional = ("else", VERDICT) if signature.verdicts else ("else",)
            left = [name for name in names or ("else",) if (name or None) not in ports]
            missing = left if names is None else [name for name in left if name not in optional]
        kinds = flows.into[node].kinds
        if kinds is not None:
            missing = [name for name in missing if name not in DATA or name in kinds]
        if missing:
            which = ", ".join(f"{node}.{name}" if name else f"{node}'s plain output" for name in missing)
            message = f"nothing takes what leaves by {which}: its events are counted unrouted"
            review.found(message, "AF212", ("nodes", node), "connect it, or let it be")


def _places(review: Review) -> None:
    """Two sinks that write to one file, or collect under one name, mix their events."""
    seen: dict[tuple[str, str], str] = {}
    for node, spec in review.spec.nodes.items():
        signature = review.signature(node)
        for name in ("var", "jsonl"):
            value = spec.args.get(name)
            if signature and signature.sink and isinstance(value, str):
                first = seen.setdefault((name, value), node)
                if first != node:
                    review.found(
                        f"the sinks {first!r} and {node!r} both write to {name}={value!r}: their events are mixed",
                        "AF213",
                        ("nodes", node, "args", name),
                        f"lead both to one sink, or give {node!r} another place",
                    )
