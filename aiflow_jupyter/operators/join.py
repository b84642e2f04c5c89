"""`join`: puts together what several nodes made of the same event.

    first  = generate(model="a")
    second = generate(model="b")
    one    = reduce("join")
    two    = reduce("join")
    both   = join(timeout=30)             # {"one": "...", "two": "..."}
    out    = sink(var="answers")
    question -> first, second
    first  -> one
    second -> two
    one, two -> both -> out

A result is a mapping from the names of the nodes that lead here to what each gave, in their order, with the identity
of the event: results pair by identity, so however the branches run, none is paired with what another event became, nor
with what came before an answer began anew. What was made of a part makes a part. `by=FUNCTION` pairs by what the
function returns for a payload (cheap and plain, for it runs on the loop); two events of one input with the same key,
before the others gave theirs, are an error; but a further part of what broke off is dropped.

Where a branch has no result (a `skip`, or a failure of that event), where a lineage is retracted, or where the partner
does not come within `timeout` seconds of the first, the pair is dropped, one `skip` goes on in its place, and what
comes of it later is dropped too; so is what waits for an input that has ended, and what comes after that. What is
dropped is counted.

At most `limit` events wait for their partners: by default `hold`, or else as many as the branches can be apart. One
more fails with AF623, and its pair is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, cast

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import Event, above, descends
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.functions import user_function
from aiflow_jupyter.operators.numbering import Recent
from aiflow_jupyter.runtime.admission import skip
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.edges import THROUGH
from aiflow_jupyter.runtime.returned import decision

MOST_WAITING: Final = 64
_FAILED: Final = ""
"""Stands among the inputs that have said their word on an event for that one failed."""


def _holds(args: Args) -> int:
    limit = args.get("limit")
    return limit if isinstance(limit, int) else MOST_WAITING


SIGNATURE = OperatorSignature(
    "join",
    (
        Parameter("by", "choice_or_function", choices=("lineage",), plain=True),
        Parameter("timeout", "number", least=0),
        Parameter("limit", "integer", least=1),
    ),
    gives=frozenset({"value"}),
    single=lambda _args: True,
    results="some",
    holds=_holds,
    pairs=True,
    payload=lambda _args, _given: dict,
)


def join(
    by: str | Callable[..., Any] | None = None, *, timeout: float | None = None, limit: int | None = None
) -> OperatorCall:
    """Put together what several nodes made of the same event.

    Args:
        by: `"lineage"` (the default), or a cheap plain function that gives a payload's key.
        timeout: seconds that the first event of a pair waits for the last.
        limit: how many events may wait for their partners.
    """
    return call("join", by=by, timeout=timeout, limit=limit)


class _Pair:
    """What has come of one event, by input."""

    __slots__ = ("cancel", "key", "number", "parts")

    def __init__(self, key: Hashable, number: int) -> None:
        self.key = key
        self.number = number
        self.parts: dict[str, Event] = {}
        self.cancel: Callable[[], None] | None = None


class _Join:
    """See the module.

    An identity that has no result is dead: what comes of it is dropped. `_dead` says whether a `skip` told so already.
    It is dead until each input has said its word on it, so that what comes round a loop pairs anew; for ever, where one
    failed. Of a `restart` it hears once, and of nothing void behind it, though each input tells of it in its time.
    """

    def __init__(self, args: Args, binding: Binding) -> None:
        self._node = binding.node
        self._inputs = tuple(dict.fromkeys(binding.inputs))
        self._edges = Counter(binding.inputs)  # by input, those that have not ended
        self._over: set[str] = set()
        self._limit = min(args.get("limit") or binding.policy.hold or MOST_WAITING, binding.policy.hold or 1 << 30)
        self._timeout: float | None = args.get("timeout")
        self._withheld = binding.withheld
        self._later = binding.later
        self._dropped = binding.dropped
        self._key = _by(args.get("by", "lineage"), binding)
        self._open: dict[Hashable, _Pair] = {}
        self._numbers: dict[int, _Pair] = {}
        self._next = self._kept = 0
        self._dead: Recent[bool] = Recent()
        self._spoken: Recent[set[str]] = Recent()  # which inputs have said their word on what is dead
        self._void: Recent[bool] = Recent()

    def take(self, event: Event) -> Iterator[Event]:  # noqa: C901 - a list of cases
        """Take in what one input gave; gives the pair that is whole now."""
        if event.source not in self._inputs:
            raise RunError(f"join pairs what its inputs give, and {event.source!r} is none of them", code="AF623")
        if self._is_dead(event):
            name = self._name(event)
            if event.complete and event.source in self._spoken.get(name, ()):
                raise self._twice(event, event.identity)
            self._dropped(event.kind)
            if not self._dead[name]:
                yield self._skip(event)
            self._speak(name, event.source)
            return
        key = self._key(event)
        try:
            pair = self._open.get(key)
        except TypeError:
            raise RunError(f"join can't pair by {key!r}, which has no hash", code="AF303") from None
        if pair is not None and event.source in pair.parts:
            if not event.complete:
                self._dropped(event.kind)
                return
            raise self._twice(event, key)
        if pair is None and not self._over <= {event.source}:
            self._dropped(event.kind)
            yield self._skip(event)
            return
        if pair is not None and len(pair.parts) + 1 == len(self._inputs):
            pair.parts[event.source] = event
            self._kept += 1
            self._close(pair)
            yield self._made(pair)
            return
        if self._kept >= self._limit:
            raise RunError(
                f"join holds {counted(self._kept, 'event')} that wait for partners, which is the most that may",
                code="AF623",
                hint="raise limit, give timeout=, or see that every branch gives a result for every event",
            )
        if pair is None:
            pair = self._begin(key, event)
        pair.parts[event.source] = event
        self._kept += 1

    def _twice(self, event: Event, key: Hashable) -> RunError:
        return RunError(
            f"{event.source!r} gave a second event for {key!r}, and not all others gave their first",
            code="AF623",
            hint="gather what is many before the join (reduce), or pair by what tells events apart",
        )

    def _begin(self, key: Hashable, event: Event) -> _Pair:
        pair = self._open[key] = self._numbers[self._next] = _Pair(key, self._next)
        self._next += 1
        if self._timeout is not None:
            due = Event("flush", None, event.conversation, self._node, pair.number, event.time)
            pair.cancel = self._later(self._timeout, due)
        return pair

    def _close(self, pair: _Pair) -> None:
        del self._open[pair.key], self._numbers[pair.number]
        self._kept -= len(pair.parts)
        if pair.cancel is not None:
            pair.cancel()

    def _made(self, pair: _Pair) -> Event:
        parts = {name: pair.parts[name] for name in self._inputs}
        first = next(iter(parts.values()))
        meta: dict[str, Any] = {}
        if hops := max(part.meta.get("hops", 0) for part in parts.values()):
            meta["hops"] = hops
        if not all(part.complete for part in parts.values()):
            meta["complete"] = False
        time = max(part.time for part in parts.values())
        payload = {name: part.payload for name, part in parts.items()}
        return Event("value", payload, first.conversation, self._node, first.sequence, time, first.lineage, meta)

    # -- what has no result

    def control(self, event: Event) -> Iterator[Event]:
        """Drop the pairs that a control event is about."""
        kind = event.kind
        if kind == "flush" and event.payload is THROUGH:
            yield from self._input_over(event.source)
            return
        if kind == "flush" and event.source == self._node:
            pair = self._numbers.get(event.sequence)
            if pair is not None:
                missing = " and ".join(name for name in self._inputs if name not in pair.parts)
                self._withheld(
                    f"node {self._node!r}: {missing} gave nothing within {self._timeout:g} s of the others, whose "
                    "events were dropped"
                )
                yield from self._drop(pair)
            return
        if kind == "skip":
            yield from self._skipped(event)
            return
        if kind == "error":
            yield from self._drop_where(lambda part: part.identity == event.identity)
            if self._name(event) not in self._dead:
                self._dead.note(self._name(event), False)  # noqa: FBT003 - see the class
            self._speak(self._name(event), _FAILED)
        elif kind in ("retract", "restart"):
            self._annul(event)
        elif kind in ("finish", "end"):
            yield from self._drop_where(lambda part: kind == "end" or part.lineage == event.lineage)
        if kind != "end":
            yield event

    def _input_over(self, name: str) -> Iterator[Event]:
        """Drop the pairs that wait for an input that gives nothing more."""
        self._edges[name] -= 1
        if self._edges[name]:
            return
        self._over.add(name)
        for pair in [pair for pair in self._open.values() if name not in pair.parts]:
            yield from self._drop(pair)

    def _annul(self, event: Event) -> None:
        """Discard the pairs with parts of a lineage that is void, for ever or (`restart`) to begin anew."""
        lineage = event.lineage
        for pair in self._having(lambda part: descends(part.lineage, lineage)):
            self._discard(pair)
        if event.kind == "retract":
            self._void.add(lineage)
            return
        for name in [name for name in self._dead if descends(name.rpartition(" ")[0], lineage)]:
            del self._dead[name]
            self._spoken.pop(name, None)

    def _skipped(self, event: Event) -> Iterator[Event]:
        """One input has no result: one `skip` goes on for all of them."""
        name = self._name(event)
        if not self._dead.get(name):
            dropped = list(self._drop_where(lambda part: self._name(part) == name))
            self._dead.add(name)
            yield from dropped or (self._skip(event),)
        self._speak(name, event.source)

    def _speak(self, name: str, source: str) -> None:
        """An input has said its word on what is dead."""
        spoken = self._spoken.get(name, set()) | {source}
        self._spoken.note(name, spoken)
        if spoken.issuperset(self._inputs) and _FAILED not in spoken:
            del self._dead[name], self._spoken[name]

    def _having(self, about: Callable[[Event], bool]) -> list[_Pair]:
        return [pair for pair in self._open.values() if any(map(about, pair.parts.values()))]

    def _drop_where(self, about: Callable[[Event], bool]) -> Iterator[Event]:
        for pair in self._having(about):
            yield from self._drop(pair)

    def _drop(self, pair: _Pair) -> Iterator[Event]:
        """Discard a pair, and say so once; what is still to come of it is dead."""
        self._discard(pair)
        first = next(iter(pair.parts.values()))
        for part in pair.parts.values():
            self._dead.add(self._name(part))
            self._speak(self._name(part), part.source)
        yield self._skip(first)

    def _discard(self, pair: _Pair) -> None:
        self._close(pair)
        for part in pair.parts.values():
            self._dropped(part.kind)

    def _is_dead(self, event: Event) -> bool:
        if self._name(event) in self._dead:
            return True
        if self._void and any(each in self._void for each in above(event.lineage)):
            self._dead.add(self._name(event))
            return True
        return False

    def _name(self, event: Event) -> str:
        """An identity as one text."""
        return f"{event.lineage} {event.sequence}"

    def _skip(self, event: Event) -> Event:
        self._dead.add(self._name(event))
        return skip(event, self._node)

    def holds(self) -> int:
        """Events that wait for their partners."""
        return self._kept


def _by(by: str, binding: Binding) -> Callable[[Event], Hashable]:
    """What gives an event's key."""
    if by == "lineage":
        return lambda event: event.identity
    user = user_function(by, binding)
    if user.awaits or user.yields:
        raise ConfigError(
            f"node {binding.node!r}: join calls {by!r} on the loop, so it has to be a plain function",
            code="AF303",
            hint="have a map before it look up what it needs",
        )
    return lambda event: cast("Hashable", decision(by, user(event, {})))


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `join`.

    Raises:
        ConfigError: no such function, or it is no plain one.
    """
    made = _Join(args, binding)
    return Behaviour("iterate", made.take, control=made.control, holds=made.holds)


JOIN = Operator(SIGNATURE, bind)
