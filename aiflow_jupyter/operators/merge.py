"""`merge`: puts several streams into one, as they come or one behind the other.

    all = merge()                   # as several edges into any node do: by arrival
    all = merge(order="source")     # first all that the first input gives, then the second, ...
    brief, detailed -> all -> out

`order="source"` goes by question: of the answers to one event the one of the first input leaves as it comes, and the
others wait until it is complete; they follow in the order of the edges. What did not come from an answer goes by the
run's input that it came from, and is complete when something of a later one comes by its way, or at the end. So each
way has to keep its order. Answers to different events do not wait for each other.

At most `hold` events wait (1,024), and `hold_bytes` of text; one more fails its lineage with AF622. It never blocks, so
no branch waits for another. A `finish` passes when all inputs that its answer can come by have given it, and never
where one of them lost a part of the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event, descends, origin, text_bytes
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.numbering import MOST_LINEAGES
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.edges import THROUGH

MOST_HELD: Final = 1_024


def _by_source(args: Args) -> bool:
    return args.get("order") == "source"


SIGNATURE = OperatorSignature(
    "merge",
    (Parameter("order", "choice", choices=("arrival", "source")),),
    single=lambda _args: True,
    holds=lambda args: MOST_HELD if _by_source(args) else 0,
    tells_inputs=_by_source,
)


def merge(order: str | None = None) -> OperatorCall:
    """Put several streams into one.

    Args:
        order: `"arrival"` (the default), or `"source"`: all of the first input, then the second, and so on.
    """
    return call("merge", order=order)


class _Group:
    """What several inputs made of one event.

    Attributes:
        turn: the place of the input whose events leave as they come.
        held: what the others gave, by their places.
        through: the places of those that are complete.
    """

    __slots__ = ("held", "through", "turn")

    def __init__(self) -> None:
        self.turn = 0
        self.held: dict[int, deque[Event]] = {}
        self.through: set[int] = set()


Key = tuple[str, int]


def _group(lineage: str) -> Key:
    """What an event is grouped by: the event that was answered, or the input of the run that it came from."""
    return origin(lineage) or (lineage, -1)


class _Merge:
    """See the module."""

    def __init__(self, binding: Binding) -> None:
        self._node = binding.node
        self._places = {name: place for place, name in enumerate(dict.fromkeys(binding.inputs))}
        self._most = binding.policy.hold or MOST_HELD
        self._most_bytes = binding.policy.hold_bytes
        self._groups: dict[Key, _Group] = {}
        self._ended: set[int] = set()
        self._kept = self._bytes = 0

    def take(self, event: Event) -> Iterator[Event]:
        """Let an event pass whose turn it is, or keep it."""
        place, key = self._places.get(event.source), _group(event.lineage)
        if place is None:  # it was offered from outside
            yield event
            return
        if key[1] < 0:
            yield from self._through_before(place, key)
        yield from self._begin(key)
        group = self._groups.get(key)
        if group is None or place == group.turn or place in group.through:
            yield event
        else:
            self._hold(group, place, event)

    def _hold(self, group: _Group, place: int, event: Event) -> None:
        size = _size(event)
        if self._kept >= self._most or self._bytes + size > self._most_bytes:
            what = counted(self._most, "event") if self._kept >= self._most else f"{self._most_bytes:,} bytes of text"
            raise RunError(
                f"merge holds {what} for what comes from the inputs before, which is the most that it may",
                code="AF622",
                hint="raise hold (or hold_bytes), gather before the merge (reduce), or order=arrival",
            )
        group.held.setdefault(place, deque()).append(event)
        self._kept += 1
        self._bytes += size

    def _through_before(self, place: int, key: Key) -> Iterator[Event]:
        """An input goes on with a later event: it is through with those before, which have no finish."""
        for each in [each for each in self._groups if each[1] < 0 and each != key]:
            if _later(key[0], each[0]):
                yield from self._through(each, place)

    def _through(self, key: Key, place: int) -> Iterator[Event]:
        """An input gives nothing more of a group."""
        yield from self._begin(key)
        if key in self._groups:
            self._groups[key].through.add(place)
            yield from self._advance(key)

    def _begin(self, key: Key) -> Iterator[Event]:
        """See that there is a group, unless all inputs are through; one that is long forgotten goes for it."""
        if key in self._groups:
            return
        if len(self._groups) >= MOST_LINEAGES:
            oldest = next(iter(self._groups))
            yield from self._all(oldest)
            del self._groups[oldest]
        group = self._groups[key] = _Group()
        group.through |= self._ended
        yield from self._advance(key)

    def _advance(self, key: Key) -> Iterator[Event]:
        """Let go what has its turn now."""
        group = self._groups[key]
        while group.turn in group.through:
            group.turn += 1
            yield from self._released(group, group.turn)
        if group.turn >= len(self._places):
            self._groups.pop(key, None)

    def _released(self, group: _Group, place: int) -> Iterator[Event]:
        held = group.held.pop(place, ())
        while held:
            yield self._book(held.popleft())

    def _book(self, event: Event) -> Event:
        self._kept -= 1
        self._bytes -= _size(event)
        return event

    def control(self, event: Event) -> Iterator[Event]:
        """Go on with the next input where one is through; discard what is void."""
        kind, lineage = event.kind, event.lineage
        if kind == "flush" and event.payload == THROUGH:
            yield from self._input_through(event)
            return
        if kind == "flush":
            for key in [_group(lineage)] if lineage else list(self._groups):
                yield from self._all(key)
        elif kind in ("restart", "retract"):
            self._discard(lineage)
        elif kind == "end":
            for key in list(self._groups):
                yield from self._all(key)
            return
        yield event
        if kind in ("error", "retract") and event.source in self._places:
            for key in dict.fromkeys((_group(lineage), event.identity)):
                yield from self._through(key, self._places[event.source])

    def _input_through(self, event: Event) -> Iterator[Event]:
        place = self._places[event.source]
        if event.lineage:
            yield from self._through(_group(event.lineage), place)
            return
        self._ended.add(place)
        for key in list(self._groups):
            yield from self._through(key, place)

    def _all(self, key: Key) -> Iterator[Event]:
        group = self._groups.get(key)
        if group is not None:
            for place in sorted(group.held):
                yield from self._released(group, place)

    def _discard(self, lineage: str) -> None:
        for group in self._groups.values():
            for place, held in group.held.items():
                void = [event for event in held if descends(event.lineage, lineage)]
                for event in void:
                    self._book(event)
                if void:
                    group.held[place] = deque(event for event in held if not descends(event.lineage, lineage))

    def holds(self) -> int:
        """Events that wait for those of the inputs before."""
        return self._kept


def _size(event: Event) -> int:
    return text_bytes(event.payload) if isinstance(event.payload, str) else 0


def _later(one: str, other: str) -> bool:
    """Whether one input of the run was put in after another."""
    return one.isdecimal() and other.isdecimal() and int(one) > int(other)


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `merge`."""
    if not _by_source(args):
        return Behaviour("inline", lambda event: event)
    made = _Merge(binding)
    return Behaviour("iterate", made.take, control=made.control, holds=made.holds)


MERGE = Operator(SIGNATURE, bind)
