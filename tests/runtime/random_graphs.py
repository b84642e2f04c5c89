"""Random graphs, what happens to them while they run, and what every node of them has to give.

A `Plan` is a graph of nodes that are told apart by what they do (`Node`); `Trial` runs one on the virtual clock. On
every edge sits a `Tap`, which notes what passes and looks at the bounds of the whole graph whenever one does. What
a node has to give for what came in is `Node.gives`, and `Trial.expected` for all that came in by one edge: they know
nothing of queues, workers and time.

Payloads are texts of units, `NUMBER.NODE#COPY.NODE#COPY;`: where each unit has been; a conflated payload has several.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from graphs import Boom, make_run
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.events import DATA, Event, Finish
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.run import Run

MODES = ("inline", "iterate", "await", "stream")
MANY = ("iterate", "stream")
KINDS = ("value", "token", "chunk", "tool_result")
COUNT = 12
ANSWERS = 3
SOAK = float(os.environ.get("AIFLOW_SOAK", "1"))
"""How many times the usual number of examples: `AIFLOW_SOAK=50 pytest tests/runtime/test_random_graphs.py`."""


def examples(count: int) -> Any:
    """The settings of a property that is tried on so many examples, or as often as a soak asks."""
    return settings(
        max_examples=max(1, int(count * SOAK)),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def number_of(payload: str) -> int:
    """The number of the first unit of a payload."""
    return int(payload.partition(";")[0].partition(".")[0])


def key_of(payload: str) -> int:
    return number_of(payload) % 3


def units(payload: str) -> list[str]:
    return payload.split(";")[:-1]


async def undo(_payload: str, _error: BaseException) -> None:
    await asyncio.sleep(0.001)


FUNCTIONS = {"key_of": key_of, "undo": undo}


@dataclass
class Node:
    """What a node does.

    Attributes:
        before: the nodes that lead to it, 0 for the source; and by which port.
        pace: milliseconds of service are up to 12, by number; 0 for none.
        copies: outputs for one event, where the mode allows several.
        drops: every so manyth number gives nothing.
        fails: every so manyth number fails, as often as `tries`.
        late: it does so after its outputs.
        hangs: instead of raising it hangs, where there is a timeout.
        routes: it sends even numbers by `a` and odd ones by `b`.
    """

    name: str
    mode: str
    before: dict[int, str]
    policy: dict[str, Any]
    pace: int = 0
    copies: int = 1
    drops: int = 0
    fails: int = 0
    tries: int = 1
    late: bool = False
    hangs: bool = False
    routes: bool = False

    @property
    def allowed(self) -> int:
        """How many calls one event may get."""
        if self.policy.get("effect") == "non_idempotent" and "compensate" not in self.policy:
            return 1
        return self.policy.get("retry", 1)

    @property
    def loose(self) -> bool:
        """Whether results may overtake one another."""
        governed = self.allowed > 1 or "timeout" in self.policy
        many_workers = self.policy.get("order") == "none" and self.policy.get("workers", 1) > 1
        return many_workers and (governed or self.mode in ("await", "stream"))

    def outputs(self, payload: str) -> list[str]:
        number = number_of(payload)
        if self.drops and number % self.drops == 0:
            return []
        copies = self.copies if self.mode in MANY else 1
        return ["".join(f"{unit}.{self.name}#{copy};" for unit in units(payload)) for copy in range(copies)]

    def bad(self, payload: str, attempt: int) -> bool:
        return bool(self.fails) and number_of(payload) % self.fails == 0 and attempt <= self.tries

    def gives(self, payload: str) -> tuple[list[str], int]:
        """What leaves for one event, at last perhaps an `error`, and the number of calls."""
        attempt = 1
        while self.bad(payload, attempt):
            if not self.again(payload, attempt):
                return [*self.seen(payload), "error"], attempt
            attempt += 1
        return self.outputs(payload), attempt

    def seen(self, payload: str) -> list[str]:
        """What left before a call failed."""
        together = self.policy.get("state") == "transactional"
        return self.outputs(payload) if self.late and self.mode in MANY and not together else []

    def again(self, payload: str, attempt: int) -> bool:
        """Whether a failed call is tried again."""
        of = self.policy.get("retry_on") or ["Boom"]
        worth = not self.policy.get("retry_on") if self.hangs else "Boom" in of
        return attempt < self.allowed and worth and not self.seen(payload)  # others give to its lineage: no restart

    def delay(self, payload: str) -> float:
        return (number_of(payload) * 7919 + self.pace) % 13 * 0.001 if self.pace else 0.0


@dataclass
class Plan:
    """A graph, and what happens while it runs.

    Attributes:
        mixed: the events are of several kinds.
        tick_ns: how long a reading of the clock takes.
        gaps: milliseconds between two events of the source, over and over; none where it gives them all at once.
        happens: what is done to the run: milliseconds after what was done before, what, and to which node.
    """

    nodes: list[Node]
    mixed: bool = False
    tick_ns: int = 0
    gaps: list[int] = field(default_factory=list)
    happens: list[tuple[int, str, int]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return ["src", *(node.name for node in self.nodes)]

    @property
    def ends(self) -> list[Node]:
        used = {before for node in self.nodes for before in node.before}
        return [node for index, node in enumerate(self.nodes, 1) if index not in used]

    def below(self, names: set[str]) -> set[str]:
        """Nodes, and all that they lead to."""
        found = set(names)
        for node in self.nodes:
            if found & {self.names[before] for before in node.before}:
                found.add(node.name)
        return found

    def arriving(self) -> dict[str, list[tuple[int, str]]]:
        """What has to arrive at every node where nothing fails or is dropped, as numbers and payloads."""
        given: dict[str, list[str]] = {"src": [f"{number};" for number in range(COUNT)]}
        arrives: dict[str, list[tuple[int, str]]] = {}
        for node in self.nodes:
            came = [
                payload
                for before, port in node.before.items()
                for payload in given[self.names[before]]
                if not port or port == side(payload)
            ]
            arrives[node.name] = [(number_of(payload), payload) for payload in came]
            given[node.name] = [out for payload in came for out in node.gives(payload)[0] if out != "error"]
        return arrives


def side(payload: str) -> str:
    return "ab"[number_of(payload) % 2]


def lineage_of(number: int) -> str:
    return f"a{number * ANSWERS // COUNT}"


class Tap:
    """An edge that notes what passes."""

    def __init__(self, trial: Trial, receiver: Any, edge: tuple[str, str, str]) -> None:
        self.trial, self.receiver, self.edge = trial, receiver, edge
        self.inline = receiver.inline
        self.log: list[Event] = []
        self.words: list[str] = []  # the lineages on which a last word came by this edge

    @property
    def cycle(self) -> Any:
        return getattr(self.receiver, "cycle", None)

    def push(self, event: Event, now: int) -> bool:
        assert event.kind in DATA
        self.trial.look()
        self.log.append(event)
        taken = self.receiver.push(event, now)
        self.trial.look()
        return taken

    def park(self, event: Event, sender: Any) -> None:
        self.receiver.park(event, sender)

    def signal(self, event: Event) -> None:
        assert event.kind not in DATA
        if event.kind == "finish":
            self.words.append(event.lineage)
        if event.kind != "finish" or event.complete:  # what is not is for guardians alone
            self.log.append(event)
        self.receiver.signal(event)

    def tell(self, event: Event, sender: Any) -> None:
        assert event.kind not in DATA
        self.log.append(event)
        self.receiver.tell(event, sender)

    def forget(self, sender: Any) -> None:
        self.receiver.forget(sender)


class Sink:
    """Takes what arrives."""

    def __init__(self, *, slow: bool) -> None:
        self.events: list[Event] = []
        self.behaviour = Behaviour("await" if slow else "inline", self._slowly if slow else self._at_once)
        self.behaviour.control = self._control

    def _at_once(self, event: Event) -> None:
        self.events.append(event)

    async def _slowly(self, event: Event) -> None:
        await asyncio.sleep(0.001)
        self.events.append(event)

    def _control(self, event: Event) -> Iterator[Event]:
        self.events.append(event)
        if event.kind != "end":
            yield event


class Trial:
    """One run of a plan.

    Attributes:
        taps: by source, port and target.
        calls: what every node was called with, once for each event.
        attempts: how often, by node and payload; anew for one that is given again.
        started: how many calls in all.
        open: coroutines and streams that have started and not ended.
        most: the most events that each node was seen to own.
    """

    def __init__(self, plan: Plan, loop: Any, *, slow_sinks: bool = False) -> None:
        self.plan = plan
        self.loop = loop
        self.taps: dict[tuple[str, str, str], Tap] = {}
        self.calls: dict[str, list[str]] = {name: [] for name in plan.names}
        self.attempts: Counter[tuple[str, str]] = Counter()
        self.busy: Counter[str] = Counter()
        self.keys: set[tuple[str, int]] = set()
        self.open = self.started = 0
        self.most: Counter[str] = Counter()
        self.sinks = {node.name: Sink(slow=slow_sinks) for node in plan.ends}
        self.failures = {node.name: Sink(slow=False) for node in plan.nodes}
        behaviours = {"src": self._source()}
        edges: list[Any] = []
        for node in plan.nodes:
            behaviours[node.name] = self._behaviour(node)
            edges += [(plan.names[before], node.name, port) for before, port in node.before.items()]
        for node in plan.nodes:
            behaviours[f"fail_{node.name}"] = self.failures[node.name].behaviour
            edges.append((node.name, f"fail_{node.name}", "error"))
        for name, sink in self.sinks.items():
            behaviours[f"sink_{name}"] = sink.behaviour
            ports = ("a", "b") if self.node(name).routes else ("",)
            edges += [(name, f"sink_{name}", port) for port in ports]
        policies = {node.name: node.policy for node in plan.nodes}
        self.run: Run = make_run(loop, behaviours, edges, policies, functions=FUNCTIONS)
        for name, guardian in self.run.guardians.items():
            targets = iter([edge for edge in self.run.spec.edges if edge.source == name])
            by_target = {(edge.port or "", edge.target): edge for edge in targets}
            ports: dict[str, list[Any]] = {}
            for port, target in by_target:
                tap = Tap(self, self.run.guardians[target], (name, port, target))
                self.taps[tap.edge] = tap
                ports.setdefault(port, []).append(tap)
            guardian.connect(ports)

    def node(self, name: str) -> Node:
        return next(node for node in self.plan.nodes if node.name == name)

    # -- what is looked at whenever something passes

    def look(self) -> None:
        """Every bound holds now."""
        for name, guardian in self.run.guardians.items():
            owned = guardian.owned()
            assert owned <= guardian.bound, (name, owned, guardian.bound)
            assert 0 <= guardian.depth <= guardian.policy.queue, (name, guardian.depth)
            assert 0 <= guardian.active() <= guardian.workers, (name, guardian.active())
            assert 0 <= guardian.held() <= guardian.policy.held_results, (name, guardian.held())
            assert self.busy[name] <= guardian.workers, name
            self.most[name] = max(self.most[name], owned)

    # -- the nodes

    def _source(self) -> Behaviour:
        gaps = self.plan.gaps

        def event(number: int) -> Event:
            kind = KINDS[number % len(KINDS)] if self.plan.mixed else "value"
            return Event(kind, f"{number};", source="src", sequence=number, lineage=lineage_of(number))

        def events() -> Iterator[Event]:
            for number in range(COUNT):
                yield event(number)
                if number == COUNT - 1 or lineage_of(number + 1) != lineage_of(number):
                    yield Event("finish", Finish(), source="src", lineage=lineage_of(number))

        async def paced(_event: Event) -> AsyncIterator[Event]:
            for each in events():
                yield each
                if each.kind in DATA:
                    await asyncio.sleep(gaps[each.sequence % len(gaps)] * 0.001)

        return Behaviour("stream", paced) if gaps else Behaviour("iterate", lambda _event: events())

    def _enter(self, node: Node, payload: str) -> int:
        assert self.run.state == "running"
        assert not self.run.guardians[node.name].closed
        self.attempts[node.name, payload] += 1
        self.busy[node.name] += 1
        self.look()
        self.started += 1
        attempt = self.attempts[node.name, payload]
        if not node.bad(payload, attempt) or not node.again(payload, attempt):
            self.attempts[node.name, payload] = 0
        if node.policy.get("state") == "partitioned" and node.mode in ("await", "stream"):
            assert (node.name, key_of(payload)) not in self.keys, "one event of a key at a time"
            self.keys.add((node.name, key_of(payload)))
        if node.policy.get("state") in ("serialized", "transactional"):
            assert self.busy[node.name] == 1, "one event at a time"
        if attempt == 1:
            self.calls[node.name].append(payload)
        return attempt

    def _leave(self, node: Node, payload: str) -> None:
        self.busy[node.name] -= 1
        self.keys.discard((node.name, key_of(payload)))

    def _behaviour(self, node: Node) -> Behaviour:
        def out(event: Event, payload: str) -> Any:
            made = event.derive(payload)
            return (side(payload), made) if node.routes else made

        def inline(event: Event) -> Any:
            attempt = self._enter(node, event.payload)
            self._leave(node, event.payload)
            if node.bad(event.payload, attempt):
                raise Boom(node.name)
            return next((out(event, each) for each in node.outputs(event.payload)), None)

        def iterate(event: Event) -> Iterator[Event]:
            attempt = self._enter(node, event.payload)
            try:
                bad = node.bad(event.payload, attempt)
                if bad and not node.late:
                    raise Boom(node.name)
                for each in node.outputs(event.payload):
                    yield out(event, each)
                if bad:
                    raise Boom(node.name)
            finally:
                self._leave(node, event.payload)

        async def goes_wrong() -> None:
            if node.hangs:
                await asyncio.sleep(1e5)
            raise Boom(node.name)

        async def await_(event: Event) -> Event | None:
            self.open += 1
            attempt = self._enter(node, event.payload)
            try:
                await asyncio.sleep(node.delay(event.payload))
                if node.bad(event.payload, attempt):
                    await goes_wrong()
                return next((out(event, each) for each in node.outputs(event.payload)), None)
            finally:
                self._leave(node, event.payload)
                self.open -= 1

        async def stream(event: Event) -> AsyncIterator[Event]:
            self.open += 1
            attempt = self._enter(node, event.payload)
            try:
                bad = node.bad(event.payload, attempt)
                if bad and not node.late:
                    await goes_wrong()
                for each in node.outputs(event.payload):
                    await asyncio.sleep(node.delay(event.payload))
                    yield out(event, each)
                if bad:
                    await goes_wrong()
            finally:
                self._leave(node, event.payload)
                self.open -= 1

        calls: dict[str, Any] = {"inline": inline, "iterate": iterate, "await": await_, "stream": stream}
        return Behaviour(node.mode, calls[node.mode], routes=node.routes)  # type: ignore[arg-type]

    # -- what happens to it

    async def story(self) -> None:
        """Run it, with what the plan has happen; afterwards it is over."""
        ending = asyncio.ensure_future(self.run.run("0;"))
        for after, what, index in self.plan.happens:
            await asyncio.sleep(after * 0.001)
            name = self.plan.names[index % len(self.plan.names)]
            if what == "pause":
                self.run.pause()
            elif what == "resume":
                self.run.resume()
            elif what == "stop":
                await self.run.stop(name)
            elif what == "cancel":
                await self.run.cancel()
            elif what == "drain":
                await self.run.cancel(drain=True)
        self.run.resume()
        await asyncio.wait([ending])
        self.error = ending.exception() if not ending.cancelled() else None
        if self.error is not None and not isinstance(self.error, AiflowError):
            raise self.error

    # -- what has to come of it

    def came(self, name: str) -> list[Event]:
        """What came into a node that has one edge into it, in order."""
        (tap,) = (tap for (_, _, target), tap in self.taps.items() if target == name)
        return tap.log

    def into(self, name: str) -> list[Tap]:
        return [tap for (_, _, target), tap in self.taps.items() if target == name]

    def out_of(self, name: str) -> list[Tap]:
        return [tap for (source, port, _), tap in self.taps.items() if source == name and port != "error"]

    def expected(self, node: Node, gone: Counter[str], refused: Counter[str]) -> list[tuple[str, str]]:
        """What a node with one edge into it has to give, in order, as kinds and payloads or lineages.

        Args:
            node: the node.
            gone: payloads that its overflow dropped.
            refused: payloads that it refused.
        """
        gone, refused = gone.copy(), refused.copy()
        broken: set[str] = set()
        given: list[tuple[str, str]] = []
        for event in self.came(node.name):
            if event.kind not in DATA:
                if event.kind != "finish" or event.lineage not in broken:
                    given.append((event.kind, "" if event.kind == "end" else event.lineage))
                if event.kind == "error":
                    broken.add(event.lineage)
            elif gone[event.payload]:
                gone[event.payload] -= 1
            else:
                outputs = ["error"] if refused[event.payload] else node.gives(event.payload)[0]
                refused[event.payload] -= refused[event.payload] > 0
                for each in outputs:
                    if each == "error":
                        given.append((each, event.lineage))
                        broken.add(event.lineage)
                    else:
                        given.append((event.kind, each))
        return given


def told(log: list[Event]) -> list[tuple[str, str]]:
    """A tap's log in the form of `Trial.expected`."""
    return [
        (event.kind, event.payload if event.kind in DATA else "" if event.kind == "end" else event.lineage)
        for event in log
    ]


def by_port(given: list[tuple[str, str]], port: str) -> list[tuple[str, str]]:
    """What of it leaves by a port."""
    return [each for each in given if each[0] not in DATA or not port or side(each[1]) == port]


def assert_same(given: list[tuple[str, str]], expected: list[tuple[str, str]], *, loose: bool) -> None:
    """The same in the same order; for a loose node, between two control events that came in any order will do."""
    if not loose:
        assert given == expected
        return
    assert Counter(given) == Counter(expected)
    assert [each for each in given if each[0] in ("finish", "end")] == [
        each for each in expected if each[0] in ("finish", "end")
    ]
    for kind, lineage in expected:
        if kind == "finish":
            mine = [i for i, each in enumerate(given) if each[0] in DATA and lineage_of(number_of(each[1])) == lineage]
            assert all(at < given.index((kind, lineage)) for at in mine)


# -- strategies


def policies(
    overflow: st.SearchStrategy[Any] | None = None, *, tries: bool = True
) -> st.SearchStrategy[dict[str, Any]]:
    """Policies that fit one another, as the checks would have it."""

    @st.composite
    def policy(draw: st.DrawFn) -> dict[str, Any]:
        made: dict[str, Any] = {
            "queue": draw(st.integers(1, 6)),
            "workers": draw(st.integers(1, 4)),
            "order": draw(st.sampled_from(["source", "source", "none"])),
            "cancel": draw(st.sampled_from(["both", "upstream", "downstream", "none"])),
        }
        if (reorder := draw(st.none() | st.integers(0, 6))) is not None:
            made["reorder"] = reorder
        if overflow is not None:
            made["overflow"] = draw(overflow)
        if draw(st.integers(0, 5)) == 0:
            made["queue_bytes"] = draw(st.sampled_from([400, 1_000, 5_000]))
        made["state"] = draw(st.sampled_from(["stateless"] * 2 + ["serialized", "partitioned", "transactional"]))
        if made["state"] == "partitioned":
            made["key"] = "key_of"
        if tries and draw(st.booleans()):
            made["retry"] = draw(st.integers(2, 3))
            made["backoff"] = draw(st.sampled_from([0.001, 0.02]))
            made["restart"] = draw(st.booleans())
            made["effect"] = draw(st.sampled_from(["pure", "idempotent", "non_idempotent"]))
            if made["effect"] == "non_idempotent":
                made["compensate"] = "undo"
            if draw(st.booleans()):
                made["retry_on"] = [draw(st.sampled_from(["Boom", "KeyError"]))]
        if tries and draw(st.booleans()):
            made["timeout"] = draw(st.sampled_from([0.5, 2.0]))
        return made

    return policy()


@st.composite
def plans(
    draw: st.DrawFn,
    policy: st.SearchStrategy[dict[str, Any]],
    *,
    happens: st.SearchStrategy[list[tuple[int, str, int]]] | None = None,
    fails: bool = True,
    size: int = 4,
    mixed: bool = False,
    single: bool = False,
) -> Plan:
    """Graphs that grow from a source: chains, splits, merges and lanes.

    Args:
        draw: of hypothesis.
        policy: of each node.
        happens: what is done while they run.
        fails: nodes may fail, hang and drop.
        size: the most nodes.
        mixed: events of several kinds.
        single: no merges.
    """
    nodes: list[Node] = []
    for index in range(draw(st.integers(1, size))):
        mode = draw(st.sampled_from(MODES))
        most = 1 if single else 2
        before = draw(st.lists(st.integers(0, index), min_size=1, max_size=most, unique=True)) if index else [0]
        ports = {each: draw(st.sampled_from(["a", "b"])) if each and nodes[each - 1].routes else "" for each in before}
        made = draw(policy)
        node = Node(f"n{index + 1}", mode, ports, made)
        node.pace = draw(st.integers(0, 50))
        node.copies = draw(st.sampled_from([1, 1, 2, 3]))
        node.drops = draw(st.sampled_from([0, 0, 0, 3]))
        if fails:
            node.fails = draw(st.sampled_from([0, 0, 2, 5]))
            node.tries = draw(st.integers(1, 3))
            node.late = draw(st.booleans())
            node.hangs = "timeout" in made and mode in ("await", "stream") and draw(st.booleans())
        plain = node.allowed == 1 and "timeout" not in made and made.get("effect") != "speculative"
        node.routes = (
            mode == "inline" and plain and made.get("state", "stateless") == "stateless" and draw(st.booleans())
        )
        nodes.append(node)
    gaps = draw(st.just([]) | st.lists(st.integers(0, 9), min_size=1, max_size=4))
    return Plan(
        nodes, mixed, draw(st.sampled_from([0, 0, 10_000, 300_000])), gaps, [] if happens is None else draw(happens)
    )


def deeds(*what: str, most: int = 4) -> st.SearchStrategy[list[tuple[int, str, int]]]:
    """What is done to a run while it runs."""
    return st.lists(st.tuples(st.integers(0, 40), st.sampled_from(what), st.integers(0, 5)), max_size=most)
