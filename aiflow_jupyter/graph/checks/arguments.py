"""Checks of what a node is: its operator, its arguments, the names and functions in them."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from typing import Any, Final

from aiflow_jupyter.graph.checks.review import Path, Review
from aiflow_jupyter.graph.hints import FunctionType
from aiflow_jupyter.graph.problems import alike, counted, indefinite, shown
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter
from aiflow_jupyter.graph.spec import NodeSpec

MOST_PATTERN: Final = 1_000
"""Characters of one regular expression."""

MOST_REPEATS: Final = 100_000
"""What the counts of a regular expression may come to, multiplied: `(a{1000}){1000}` takes a second to compile."""

MOST_ITEMS: Final = 1_000
"""Names of functions, or patterns, of one argument."""

MOST_NUMBER: Final = 1_000_000_000
"""The largest whole number of an argument that counts something."""

COMPILE_S: Final = 0.3
"""Processor time for all regular expressions of a graph: some short ones take very long to compile."""


def check_nodes(review: Review) -> None:
    """Check each node's operator and arguments."""
    check = _Arguments(review)
    for node, spec in review.spec.nodes.items():
        check.node(node, spec)


class _Arguments:
    def __init__(self, review: Review) -> None:
        self.review = review
        self.compiled = 0.0
        self.unhinted: set[str] = set()

    def node(self, node: str, spec: NodeSpec) -> None:
        review = self.review
        signature = review.signature(node)
        before = review.wrong
        if signature is not None and node not in review.lost:
            self.arguments(node, spec, signature)
        elif signature is not None:
            return
        elif spec.operator not in review.functions:
            hint = review.nearest(spec.operator, [*review.signatures, *review.functions])
            message = f"node {node!r}: no operator or function is called {spec.operator!r}"
            review.found(message, "AF201", ("nodes", node, "operator"), hint)
        elif spec.args and node not in review.lost:
            message = f"node {node!r}: the function {spec.operator!r} takes no arguments here"
            review.found(message, "AF204", ("nodes", node, "args"), f"{node} = {spec.operator}")
        else:
            self.callable(node, None, spec.operator, ("nodes", node, "operator"))
        if review.wrong == before:
            review.doubtful.discard(node)

    def arguments(self, node: str, spec: NodeSpec, signature: OperatorSignature) -> None:
        """Check the arguments of a standard operator."""
        review = self.review
        meant: set[str] = set()
        for name, value in spec.args.items():
            path = ("nodes", node, "args", name)
            parameter = signature.parameter(name)
            if parameter is None:
                known = [p.name for p in signature.parameters]
                hint = review.nearest(name, known)
                meant.add(alike(name, known))
                review.found(f"node {node!r}: {spec.operator!r} has no argument {name!r}", "AF204", path, hint)
            else:
                self.argument(node, spec.operator, parameter, value, path)
        for parameter in signature.parameters:
            if parameter.required and parameter.name not in spec.args and parameter.name not in meant:
                review.found(
                    f"node {node!r}: {spec.operator!r} needs {parameter.name!r}",
                    "AF204",
                    ("nodes", node, "operator"),
                    f"{spec.operator}({parameter.name}=...)",
                )
        given = [name for name in signature.alternatives if name in spec.args]
        if signature.alternatives and len(given) != 1 and meant.isdisjoint(signature.alternatives):
            review.found(
                f"node {node!r}: {spec.operator!r} needs one of {', '.join(signature.alternatives)}"
                + (f", not {' and '.join(given)}" if given else ""),
                "AF204",
                ("nodes", node, "args", given[1]) if given else ("nodes", node, "operator"),
            )

    def argument(self, node: str, operator: str, parameter: Parameter, value: Any, path: Path) -> None:
        """Check the value of one argument."""
        place = _Place(node, f"node {node!r}: {operator}({parameter.name}=...)", parameter, path)
        special = {
            "function": self.one,
            "functions": self.several,
            "object": self.object,
            "flow": self.flow,
            "patterns": self.patterns,
        }
        if parameter.type in special:
            special[parameter.type](place, value)
        elif parameter.type in _WORDS:
            self.plain(place, value, _WORDS[parameter.type])
        else:
            self.choice(place, value)

    def wrong(self, place: _Place, message: str, hint: str = "", code: str = "AF204") -> None:
        """Note a problem of an argument."""
        self.review.found(f"{place.where}{message}", code, place.path, hint)

    def plain(self, place: _Place, value: Any, words: str) -> None:
        """Check a text, a number or a truth value."""
        least = place.parameter.least
        if not _fits(place.parameter.type, value):
            self.wrong(place, f" is {shown(value)}, not {words}")
        elif least is not None and value < least:
            self.wrong(place, f" is {shown(value)}; at least {least:g}")
        elif least is not None and value > MOST_NUMBER:
            self.wrong(place, f" is {shown(value)}; at most {MOST_NUMBER:,}")

    def choice(self, place: _Place, value: Any) -> None:
        """Check one of some words, or else the name of a function, or a whole number."""
        parameter, functions = place.parameter, self.review.functions
        known, also = parameter.choices, ""
        if isinstance(value, str) and value in known:
            return
        if parameter.type == "choice_or_function":
            if isinstance(value, str) and value in functions:
                self.callable(place.node, parameter, value, place.path)
                return
            known, also = (*known, *functions), " or the name of a function"
        elif parameter.type == "choice_or_integer":
            also = " or a whole number"
            if _fits("integer", value):
                self.plain(place, value, also)
                return
        what = " or ".join(map(repr, parameter.choices))
        self.wrong(place, f" is {shown(value)}, not {what}{also}", self.review.nearest(value, known))

    def known(self, place: _Place, value: Any, what: str) -> bool:
        """Whether a value names a function (or object) that there is."""
        functions = self.review.functions
        if isinstance(value, str) and value in functions:
            return True
        hint = self.review.nearest(value, functions) if functions else "define it in a cell before"
        self.wrong(place, f": no {what} is called {shown(value)}", hint, "AF205")
        return False

    def one(self, place: _Place, value: Any) -> None:
        """Check the name of a function."""
        if self.known(place, value, "function"):
            self.callable(place.node, place.parameter, value, place.path)

    def object(self, place: _Place, value: Any) -> None:
        """Check the name of anything."""
        self.known(place, value, "function or object")

    def several(self, place: _Place, value: Any) -> None:
        """Check a list of names of functions; a single name stands for a list of one."""
        names = value if isinstance(value, list) else [value]
        if not 0 < len(names) <= MOST_ITEMS:
            number = f"a list of {len(names):,}" if names else "an empty list"
            self.wrong(place, f" is {number}; it names 1 to {MOST_ITEMS:,} functions")
            return
        seen: list[Any] = []  # a mapping can't be in a set
        for name in names:
            if name in seen:
                self.wrong(place, f" names {shown(name)} twice", code="AF207")
            else:
                self.one(place, name)
            seen.append(name)

    def flow(self, place: _Place, value: Any) -> None:
        """Check the name of another graph."""
        flows = self.review.flows
        if not isinstance(value, str):
            self.wrong(place, f" is {shown(value)}, not the name of a graph")
        elif value == self.review.spec.name:
            self.wrong(place, ": the graph would run itself", "name another graph")
        elif flows is not None and value not in flows:
            hint = self.review.nearest(value, flows) or "define it in a cell before: %%aiflow graph NAME"
            self.wrong(place, f": no graph is called {value!r}", hint, "AF205")

    def patterns(self, place: _Place, value: Any) -> None:
        """Check a mapping of labels to regular expressions."""
        if not isinstance(value, dict) or not 0 < len(value) <= MOST_ITEMS:
            what = counted(len(value), "pattern") if isinstance(value, dict) else shown(value)
            hint = '{secret: "(?i)password", code: "`[^`]+`"}'
            self.wrong(place, f" is {what}, not labels with regular expressions", hint)
            return
        for label, pattern in value.items():
            of = f": the pattern of {label!r}"
            if not isinstance(pattern, str):
                self.wrong(place, f"{of} is {shown(pattern)}, not a text")
            elif len(pattern) > MOST_PATTERN:
                message = f"{of} has {len(pattern):,} characters; at most {MOST_PATTERN:,}"
                self.wrong(place, message, "use a function instead")
            elif problem := self.pattern(pattern):
                self.wrong(place, f"{of} {problem}")

    def pattern(self, pattern: str) -> str:
        """What is wrong with a regular expression; empty if nothing is."""
        import regex  # noqa: PLC0415 - most graphs have no patterns

        counts = re.findall(r"\{(\d{0,9}),?(\d{0,9})", pattern)
        if math.prod(max(1, *(int(each or 1) for each in pair)) for pair in counts) > MOST_REPEATS:
            return f"repeats too often: its counts multiply to more than {MOST_REPEATS:,}"
        if self.compiled > COMPILE_S:
            return "is not read any more: all together take too long to compile"
        began = time.thread_time()
        try:
            regex.compile(pattern)
        except (regex.error, OverflowError, RecursionError, ValueError) as error:
            return f"is no regular expression: {error}"
        finally:
            self.compiled += time.thread_time() - began
        return ""

    def callable(self, node: str, parameter: Parameter | None, name: str, path: Path) -> None:
        """Check that a function is of a sort that its place can call, and say where nothing is known of its types."""
        review = self.review
        if review.objects is None:
            return
        if not callable(review.objects[name]):
            kind = type(review.objects[name]).__name__
            review.found(f"node {node!r}: {name!r} is no function but {indefinite(kind)}", "AF303", path)
            return
        function = review.function(name)
        wrong, hint = self.sort(node, parameter, name, function)
        if wrong:
            review.found(f"node {node!r}: {wrong}", "AF303", path, hint)
        own = parameter is not None and parameter.gets == "arguments"
        if not own and not (function.takes_hinted and function.gives_hinted) and name not in self.unhinted:
            self.unhinted.add(name)
            both = not function.takes_hinted and not function.gives_hinted
            what = "what it takes and gives" if both else "what it gives" if function.takes_hinted else "what it takes"
            message = f"the function {name!r} has no type hint for {what}: taken as Any"
            review.found(message, "AF307", path, f"def {name}(text: str) -> str: ...")

    def sort(self, node: str, parameter: Parameter | None, name: str, function: FunctionType) -> tuple[str, str]:
        """What is wrong with the sort of function, and what to do; empty if nothing is."""
        signature = self.review.signature(node)
        found = "", ""
        if parameter is not None and parameter.gets == "arguments":
            if function.yields:
                found = f"{name!r} yields; here a function has to return", "return a list"
        elif function.problem:
            found = f"{name!r} can't be called with one value: {function.problem}", f"def {name}(text: str): ..."
        elif parameter is None or signature is None:
            pass
        elif parameter.plain and (function.awaits or function.yields):
            does = "awaits" if function.awaits else "yields"
            found = (
                f"{name!r} {does}; {parameter.name}= is called on the loop, so it has to be a plain function",
                "have a map before it look up what it needs",
            )
        elif signature.returns == parameter.name and signature.results == "many":
            if not function.yields and function.gives_hinted and function.iterable is None:
                message = f"{name!r} gives no iterable; {signature.name} gives each item of one"
                found = message, "return a list, or yield"
        elif function.yields:
            spreads = [s.name for s in self.review.signatures.values() if s.returns and s.results == "many"]
            hint = f"write {node} = {name}" + "".join(f", or {node} = {each}({name})" for each in spreads)
            found = f"{name!r} yields; {signature.name} takes a function that returns", hint
        return found


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an argument stands, and how a message about it begins."""

    node: str
    where: str
    parameter: Parameter
    path: Path


_WORDS = {"text": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


def _fits(kind: str, value: Any) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "text":
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) if kind == "integer" else isinstance(value, (int, float))
