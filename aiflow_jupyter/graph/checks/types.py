"""What flows on each edge: kinds of events and the types of their payloads, and whether its target can take them.

Types are inferred from the inputs on, through what operators take and give and through the hints of the user's
functions. They are gradual: what has no hint is `Any`, and an edge is only wrong where nothing that it carries fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from aiflow_jupyter.events import DATA, TEXT, Event, Failure, Retrieval, ToolCall, ToolFragment, ToolResult, Usage
from aiflow_jupyter.graph.checks.review import Path, Review
from aiflow_jupyter.graph.hints import ANYTHING, MOST_ALTERNATIVES, Alternatives, FunctionType, fits, has, words
from aiflow_jupyter.graph.signatures import OperatorSignature

PAYLOADS: Final[Mapping[str, type]] = MappingProxyType(
    {
        "token": str,
        "chunk": str,
        "tool_fragment": ToolFragment,
        "tool_call": ToolCall,
        "tool_result": ToolResult,
        "retrieval": Retrieval,
        "label": str,
        "usage": Usage,
    }
)
"""The payload types of the kinds that have one of their own; a `value` may be anything."""

INJECTED: Final[Mapping[str, Any]] = MappingProxyType(
    {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict, "any": Any}
)
"""The types, besides kinds, that `inject` may name."""

MOST_ROUNDS = 6
"""How often types go round loops before what still changes is taken as anything."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """What flows on an edge.

    Attributes:
        kinds: the kinds of its events; None for any.
        value: the types of the payloads of its `value` events.
    """

    kinds: frozenset[str] | None = None
    value: Alternatives = ANYTHING

    def only(self, kinds: frozenset[str] | None) -> Stream:
        """The part that is of some kinds."""
        if kinds is None or (self.kinds is not None and self.kinds <= kinds):
            return self
        return Stream(kinds if self.kinds is None else self.kinds & kinds, self.value)

    def payloads(self) -> Alternatives:
        """The types of what a function is called with."""
        if self.kinds is None:
            return ANYTHING
        found: list[Any] = [PAYLOADS[kind] for kind in sorted(self.kinds) if kind in PAYLOADS]
        if "value" in self.kinds:
            found += self.value
        return tuple({id(each): each for each in found}.values())

    def plus(self, other: Stream) -> Stream:
        """What flows where both come together."""
        if other is self or (self.kinds is None and self.value is ANYTHING):
            return self
        if other.kinds == self.kinds and other.value is self.value:
            return self
        kinds = None if self.kinds is None or other.kinds is None else self.kinds | other.kinds
        if kinds == self.kinds and all(any(a is b for a in self.value) for b in other.value):
            return self
        value = tuple({id(each): each for each in (*self.value, *other.value)}.values())
        return Stream(kinds, value if len(value) <= MOST_ALTERNATIVES and not has(value, Any) else ANYTHING)


_ANY = Stream()
_FAILURE = Stream(frozenset({"value"}), (Failure,))


class Flows:
    """The inferred types of a graph.

    Attributes:
        into: what arrives at each node.
        out: what each node gives by its plain output.
    """

    def __init__(self, review: Review) -> None:
        self.review = review
        self.into: dict[str, Stream] = {}
        self.out: dict[str, Stream] = {}
        inputs = set(review.spec.inputs())
        first: dict[str, Stream] = {}
        for node in review.spec.nodes:
            signature = review.signature(node)
            takes = signature.takes if signature is not None else None
            type_ = review.spec.inject.get(node)
            if node in inputs:
                first[node] = injected("any", takes)
            if type_ is not None:
                came = injected(type_, takes)
                first[node] = first[node].plus(came) if node in first else came
        back = [*review.shape.feedback, *review.shape.closing]
        returned: dict[str, Stream] = {}
        for turn in range(MOST_ROUNDS):
            self._pass(first, returned, set(back))
            again = False
            for index in back:
                node = review.shape.edges[index].target
                before = returned.get(node)
                after = self.edge(index) if before is None else before.plus(self.edge(index))
                if turn == MOST_ROUNDS - 2:
                    after = _ANY
                again = again or after is not before
                returned[node] = after
            if not again:
                return

    def _pass(self, first: Mapping[str, Stream], returned: Mapping[str, Stream], back: set[int]) -> None:
        for node in self.review.shape.order:
            arriving = first.get(node)
            for index in self.review.shape.into[node]:
                if index not in back:
                    stream = self.edge(index)
                    arriving = stream if arriving is None else arriving.plus(stream)
            if node in returned:
                arriving = returned[node] if arriving is None else arriving.plus(returned[node])
            before = self.into.get(node)
            self.into[node] = arriving or _ANY
            if before is not self.into[node] or node not in self.out:
                self.out[node] = self._through(node, self.into[node])

    def edge(self, index: int) -> Stream:
        """What flows on an edge."""
        edge = self.review.shape.edges[index]
        stream = self.out.get(edge.source, _ANY)
        if edge.port is None:
            return stream
        if edge.port == "error":
            return _FAILURE
        by_kind = edge.port in DATA and self.review.spec.nodes[edge.source].args.get("by") == "kind"
        return stream.only(frozenset({edge.port})) if by_kind else stream

    def _through(self, node: str, arriving: Stream) -> Stream:
        """What a node gives for what arrives."""
        review = self.review
        signature = review.sure(node)
        if signature is not None and (signature.sink or signature.opaque):
            return _ANY  # no edge may leave a sink: one that does is said to be wrong
        if signature is None:
            if not review.bare(node):
                return _ANY
            function = review.function(review.spec.nodes[node].operator)
            return returned_by(function, arriving)
        taken = arriving.only(signature.takes)
        if taken.kinds is not None and not taken.kinds:
            taken = Stream(signature.takes)  # the edge is wrong, and said to be; what follows is judged by itself
        named = review.spec.nodes[node].args.get(signature.returns) if signature.returns else None
        if named is not None and any(name == named for _, name, _ in review.called(node)):
            function = review.function(named)
            stream = returned_by(function, taken, items=signature.results == "many")
            return stream if signature.gives is None else Stream(signature.gives, stream.value)
        if signature.payload is not None:
            came = taken.payloads()
            found = signature.payload(review.spec.nodes[node].args, came[0] if len(came) == 1 else Any)
            return Stream(signature.gives or frozenset({"value"}), (found,))
        return taken if signature.gives is None else Stream(signature.gives)


def returned_by(function: FunctionType, taken: Stream, *, items: bool = False) -> Stream:
    """What leaves a node that gives what a function returns: text stays what it was, anything else is a `value`."""
    if taken.kinds is not None and not function.event and not has(function.takes, Any):
        fitting = (k for k in taken.kinds if any(fits(PAYLOADS.get(k, Any), each) for each in function.takes))
        taken = Stream(frozenset(fitting) or None, taken.value)  # where none fits, that is said to be wrong already
    gives = function.iterable or ANYTHING if items and not function.yields else function.gives
    if has(gives, Event):
        return _ANY
    if has(gives, Any):
        return Stream(None if taken.kinds is None else taken.kinds | {"value"})
    kinds = frozenset({"value"})
    if has(gives, str):
        if taken.kinds is None:
            return Stream(None, gives)
        kinds = taken.kinds & TEXT
        if not taken.kinds <= TEXT or len(gives) > 1:
            kinds |= {"value"}
    return Stream(kinds, gives)


def injected(type_: str, takes: frozenset[str] | None) -> Stream:
    """What flows where values of a type are put into a node that takes some kinds; nothing where it takes none such."""
    if type_ in DATA:
        return Stream(frozenset({type_}))
    payload = INJECTED.get(type_, Any)
    if takes is None or "value" in takes:
        return Stream(frozenset({"value"}), (payload,))
    return Stream(frozenset(kind for kind in takes if fits(payload, PAYLOADS.get(kind, Any))), (payload,))


def check_types(review: Review, flows: Flows) -> None:
    """Check each edge and each injection against what its node takes."""
    check = _Edges(review, flows)
    for index in review.shape.edges:
        check.edge(index)
    for node, type_ in review.spec.inject.items():
        if node in review.spec.nodes:
            check.injection(node, type_)


def kinds_in_words(signature: OperatorSignature) -> str:
    """The kinds that an operator takes."""
    return " or ".join(sorted(signature.takes or ["anything"]))


class _Edges:
    def __init__(self, review: Review, flows: Flows) -> None:
        self.review = review
        self.flows = flows
        self.known: dict[tuple[int, int], bool] = {}
        self.alive: list[Any] = []
        # What a node wants is looked up once, not for each of its edges.
        self.wants = {node: self.wanted(node) for node in review.spec.nodes}

    def edge(self, index: int) -> None:
        """Check one edge."""
        edge = self.review.shape.edges[index]
        if self.review.silent(edge):
            return
        self.stream(self.flows.edge(index), edge.target, ("edges", index), edge.source, edge.port)

    def injection(self, node: str, type_: str) -> None:
        """Check what is injected into a node."""
        review = self.review
        path = ("inject", node)
        if type_ not in DATA and type_ not in INJECTED:
            known = [*sorted(DATA), *INJECTED]
            message = f"inject {node}: there is no type {type_!r}"
            review.found(message, "AF306", path, review.nearest(type_, known))
        else:
            signature = review.sure(node)
            came = injected(type_, signature.takes if signature is not None else None)
            self.stream(came, node, path, None, None, type_)

    def wanted(self, node: str) -> list[tuple[str, Alternatives]]:
        """What the functions of a node want to be called with, by their names."""
        found = []
        for parameter, name, _ in self.review.called(node):
            function = self.review.function(name)
            if function.event or has(function.takes, Any) or (parameter and parameter.gets == "arguments"):
                continue
            if parameter is not None and parameter.gets == "list":
                continue
            found.append((name, function.takes))
        signature = self.review.sure(node)
        if signature is not None and not has(signature.accepts, Any):
            others = [PAYLOADS[kind] for kind in sorted(signature.takes or DATA) if kind in PAYLOADS]
            found.append((signature.name, (*signature.accepts, *others)))
        for key in ("key", "compensate"):
            called: str | None = getattr(self.review.spec.nodes[node].policy, key)
            function = self.review.function(called)
            if called and not function.event and not has(function.takes, Any):
                found.append((called, function.takes))
        return found

    def stream(
        self, stream: Stream, node: str, path: Path, source: str | None, port: str | None, type_: str = ""
    ) -> None:
        """Check what comes to a node, over an edge or by injection."""
        review = self.review
        code = "AF306" if source is None else "AF301"
        what = f"what {source!r} gives" if source is not None else f"an injected {type_}"
        if source is not None and stream.kinds is not None and not stream.kinds:
            message = f"nothing leaves by {source}.{port}: no {port} comes to {source!r}"
            review.found(message, "AF305", path, "leave the edge out, or lead there what gives one")
            return
        signature = review.sure(node)
        if signature is not None and stream.kinds is not None and stream.kinds.isdisjoint(signature.takes or DATA):
            kinds = " or ".join(sorted(stream.kinds)) or "nothing"
            gives = f"the port error gives {kinds}" if port == "error" else f"{self.giver(source)} gives {kinds}"
            review.found(
                f"{node!r} can't take {what}: {signature.name} takes {kinds_in_words(signature)}, "
                + (gives if source is not None else f"not {type_}"),
                code,
                path,
                self.adapters(stream, signature, source, node),
            )
            return
        arriving = stream.only(signature.takes) if signature is not None else stream
        if signature is not None and signature.whole and "token" in (arriving.kinds or ()):
            review.found(
                f"{node!r} works on whole values, and {what} comes in pieces",
                "AF304" if source is not None else code,
                path,
                f"put a node between them that gathers: {self.gatherers()}",
            )
            return
        given = arriving.payloads()
        for wanted in self.wants[node]:
            if not self.payloads(given, wanted, node, path, what, code):
                break

    def payloads(
        self, given: Alternatives, wanted: tuple[str, Alternatives], node: str, path: Path, what: str, code: str
    ) -> bool:
        """Check the payloads that come to a node against what one of its functions takes."""
        name, takes = wanted
        wrong = [each for each in given if not self.fits(each, takes)]
        if not wrong or (len(given) > 1 and all(each is ToolFragment for each in wrong)):  # an answer mostly has none
            return True
        if len(wrong) == len(given):
            message = f"{node!r} can't take {what}: {name} takes {words(takes)}, it is {words(given)}"
            self.review.found(message, code, path, self.map(given, takes))
        else:
            message = f"{node!r} may get {words(tuple(wrong))} from {what}: {name} takes {words(takes)}"
            self.review.found(message, "AF305", path, f"have {name} take it, or let only the others through")
        return False

    def fits(self, given: Any, takes: Alternatives) -> bool:
        """Whether a value of a type may be one of several; known for each pair from the first time on."""
        key = id(given), id(takes)
        if key not in self.known:
            self.alive += [given, takes]  # an id is only good while its object lives
            self.known[key] = any(fits(given, each) for each in takes)
        return self.known[key]

    def giver(self, source: str | None) -> str:
        """What makes an edge's events: the operator, or the function."""
        return self.review.spec.nodes[source].operator if source is not None else ""

    def map(self, given: Alternatives, takes: Alternatives) -> str:
        """A hint on what would turn one type into another."""
        to = words(takes)
        hint = f"put a map between them, with a function from {words(given)} to {to}"
        if any(fits(list, each) and not fits(str, each) for each in takes) and has(given, str):
            return f"put window(count=...) or reduce before it, which gather a list; or {hint[4:]}"
        return hint

    def adapters(self, stream: Stream, signature: OperatorSignature, source: str | None, node: str) -> str:
        """A hint on the operators that would turn what comes into what is taken."""
        kinds, takes = stream.kinds or frozenset(), signature.takes or frozenset()
        known: Iterable[OperatorSignature] = self.review.signatures.values()
        names = [each.name for each in known if each.takes and each.gives and each.takes & kinds and each.gives & takes]
        if names and source is not None:
            return f"put {' or '.join(sorted(names))} between them: {source} -> ... -> {node}"
        if "value" in takes:
            return f"put a map between them, with a function of {words(stream.payloads())}"
        return ""

    def gatherers(self) -> str:
        """The operators that make whole values out of pieces, as far as there are any."""
        gather = {"reduce": "reduce(join)", "segment": "segment()", "window": "window(count=...)"}
        known = [how for name, how in gather.items() if name in self.review.signatures]
        return ", ".join(known) or "one that gives results at the end"
