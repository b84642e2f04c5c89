"""The wire between kernel and live view, Python half; `js/widget/protocol.ts` is the other.

A view is given the graph once, a snapshot when it says hello, and then frames with the nodes that changed. A node's
details and the bottleneck are looked at twice a second, so that a frame stays small. Frames are numbered; a view that
misses one says hello again. `tests/data/frames.json` holds both halves to the same text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from aiflow_jupyter.errors import plain

if TYPE_CHECKING:
    from aiflow_jupyter.graph.forms.picture import Gauge
    from aiflow_jupyter.graph.spec import GraphSpec
    from aiflow_jupyter.runtime.bottleneck import Bottleneck
    from aiflow_jupyter.runtime.metrics import NodeStatus, RunStatus

MIME = "application/vnd.aiflow.flow+json"
VERSION = 2
"""Of the saved form; the first one had no details and no bottleneck."""
RATE_WINDOW_S = 1.0
DETAILS_EVERY_S = 0.5
SHORTEST_S = 0.1
"""Seconds before which a rate says nothing."""

NodeFrame = list[Any]
"""`[state, depth, peak, processed, rate]`; rate in events per second, None where it can't be told."""

Details = list[Any]
"""`[dropped, retries, errors, busy, blocked, wait, p95, first, lag, held, words]`.

The first three count events; `busy` and `blocked` are shares of the time; `wait` (the mean in the queue), `p95` (of the
service), `first` (the first event, since the run began), `lag` (the mean since an event's arrival at its source) and
`held` (the event loop, at once) are seconds, None where there is none; `words` say what a bottleneck does.
"""


class GraphNode(TypedDict):
    """One node of the drawn graph; `queue` is its declared bound in events."""

    id: str
    operator: str
    queue: int
    workers: int


GraphEdge = TypedDict("GraphEdge", {"from": str, "port": str | None, "to": str})


class Graph(TypedDict):
    """What is laid out once."""

    name: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]


class Status(TypedDict):
    """A run at one instant; `elapsed` in seconds.

    `message` says what went wrong and what mends it; before that what is waited for, or how an answer came.
    `bottleneck` is the node that holds others up, or empty.
    """

    seq: int
    elapsed: float
    run_id: str
    run: str
    message: str
    nodes: dict[str, NodeFrame]
    details: dict[str, Details]
    bottleneck: str


class Frame(Status):
    """A status as a message; a frame names only the nodes, and the details, that changed."""

    kind: Literal["frame", "snapshot"]


def graph_of(spec: GraphSpec) -> Graph:
    """The graph as the view draws it."""
    return {
        "name": spec.name,
        "nodes": [
            {
                "id": node,
                "operator": declared.operator,
                "queue": declared.policy.queue,
                "workers": declared.policy.workers,
            }
            for node, declared in spec.nodes.items()
        ],
        "edges": [{"from": edge.source, "port": edge.port, "to": edge.target} for edge in spec.edges],
    }


def ready(spec: GraphSpec, run_id: str = "") -> Status:
    """The status of a graph that has not run, or of the run that is about to."""
    nodes: dict[str, NodeFrame] = {node: ["idle", 0, 0, 0, None] for node in spec.nodes}
    return {"seq": 0, "elapsed": 0.0, "run_id": run_id, "run": "ready", "message": "", "nodes": nodes,
            "details": {}, "bottleneck": ""}  # fmt: skip


class Frames:
    """Turns a run's figures into snapshots and frames, and remembers what was sent last.

    Args:
        first: what a view is shown before the first frame.
    """

    def __init__(self, first: Status) -> None:
        self.latest = first
        self._seq = 0
        self._sent: dict[str, NodeFrame] = {}
        self._sent_run: tuple[str, int, str] = ("", 0, "")
        self._history: dict[str, deque[tuple[float, int]]] = {}
        self._details: dict[str, Details] = {}
        self._detailed: tuple[str, int] = ("ready", 0)
        self._bottleneck = ""

    def frame(
        self,
        status: RunStatus,
        message: str | None = None,
        bottleneck: Callable[[], Bottleneck | None] = lambda: None,
    ) -> Frame | None:
        """What changed since the last frame, None if nothing did (the clock alone counts twice a second).

        Args:
            status: the figures.
            message: what is said below the picture's name, None for the status's own.
            bottleneck: finds it; called at most twice a second.
        """
        said = plain(status.message if message is None else message)
        nodes = {node.node: self._node(node, status) for node in status.nodes}
        changed = {name: values for name, values in nodes.items() if self._sent.get(name) != values}
        run = (status.state, int(status.elapsed_s * 2), said)
        if not changed and run == self._sent_run:
            return None
        self._seq += 1
        self._sent, self._sent_run = nodes, run
        details = self._newly(status, bottleneck)
        self.latest = self._status(status, nodes, said, self._details)
        return {"kind": "frame", **self._status(status, changed, said, details)}

    def snapshot(self) -> Frame:
        """Everything as last sent."""
        return {"kind": "snapshot", **self.latest}

    def _newly(self, status: RunStatus, find: Callable[[], Bottleneck | None]) -> dict[str, Details]:
        """The details that changed, where it is time to look at them."""
        turn = (status.state, int(status.elapsed_s / DETAILS_EVERY_S))
        if turn == self._detailed:
            return {}
        self._detailed = turn
        found = find()
        self._bottleneck = found.node if found is not None else ""
        words = {} if found is None else {found.node: str(found)}
        before, self._details = self._details, {n.node: _details(n, words.get(n.node, "")) for n in status.nodes}
        return {node: figures for node, figures in self._details.items() if before.get(node) != figures}

    def _status(
        self, status: RunStatus, nodes: dict[str, NodeFrame], message: str, details: dict[str, Details]
    ) -> Status:
        return {
            "seq": self._seq,
            "elapsed": round(status.elapsed_s, 3),
            "run_id": status.run_id,
            "run": status.state,
            "message": message,
            "nodes": nodes,
            "details": details,
            "bottleneck": self._bottleneck,
        }

    def _node(self, node: NodeStatus, status: RunStatus) -> NodeFrame:
        return [node.state, node.depth, node.peak, node.processed, self._rate(node, status)]

    def _rate(self, node: NodeStatus, status: RunStatus) -> float | None:
        """Events per second over the last second; once the run is over, over the whole run."""
        count, now = max(node.processed, node.emitted), status.elapsed_s
        if not count or now < SHORTEST_S:
            return None
        if status.state != "running":
            return round(count / now, 1)
        history = self._history.setdefault(node.node, deque([(0.0, 0)]))
        while len(history) > 1 and history[0][0] < now - RATE_WINDOW_S:
            history.popleft()
        history.append((now, count))
        since, before = history[0]
        return round((count - before) / (now - since), 1) if now > since else None


def _details(node: NodeStatus, words: str) -> Details:
    wait = round(node.wait_s / node.processed, 3) if node.processed else None
    seconds = [wait, node.p95_s, node.first_s, node.lag_s, node.held_loop_s or None]
    rounded = [None if each is None else round(each, 4) for each in seconds]
    return [node.dropped, node.retries, node.errors, round(node.busy, 2), round(node.blocked, 2), *rounded, words]


def gauges_of(status: Status, graph: Graph) -> dict[str, Gauge]:
    """A status as gauges, for the static picture and the text."""
    from aiflow_jupyter.graph.forms.picture import Gauge

    queues = {node["id"]: node["queue"] for node in graph["nodes"]}
    return {
        node: Gauge(state, depth, queues[node], peak, processed, rate)
        for node, (state, depth, peak, processed, rate) in status["nodes"].items()
    }
