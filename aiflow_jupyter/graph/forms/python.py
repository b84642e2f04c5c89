"""A spec as Python source that builds it again with `Flow`; functions stand there by their names.

from aiflow_jupyter import Flow, generate, sink

# defined elsewhere: speak
flow = Flow("support")
ask = flow.add("ask", generate())
speech = flow.add("speech", sink(function=speak), queue=16)

ask >> speech
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable, Mapping
from typing import Any

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.forms.literals import is_bare, quoted
from aiflow_jupyter.graph.forms.printing import feedback_settings, lines, names_something, policy_settings, positional
from aiflow_jupyter.graph.problems import NO_NODE, nearest
from aiflow_jupyter.graph.signatures import Parameter, Signatures
from aiflow_jupyter.graph.spec import GraphSpec, NodeSpec

_FLOW = "flow"
_OURS = ("Flow", "call", _FLOW)
_CALLED = ("key", "compensate", "retry_on")
"""Policies that name functions or exceptions."""

_TYPES = frozenset({"str", "int", "float", "bool", "list", "dict"})


def dangling(spec: GraphSpec) -> list[GraphProblem]:
    """A problem for every end of an edge, and every injection, that is no node: Python has nothing to write there."""
    ends: list[tuple[str, tuple[str | int, ...]]] = []
    for index, edge in enumerate(spec.edges):
        ends += [(edge.source, ("edges", index, "from")), (edge.target, ("edges", index, "to"))]
    ends += [(node, ("inject", node)) for node in spec.inject]
    found = []
    for name, path in ends:
        if name not in spec.nodes:
            problem = GraphProblem(
                f"no node is called {name!r}", code="AF206", hint=nearest(name, spec.nodes) or NO_NODE
            )
            problem.path = path
            found.append(problem)
    return found


def as_python(spec: GraphSpec, signatures: Signatures) -> str:
    """The graph as Python source.

    Args:
        spec: the graph.
        signatures: the known operators, each of which `aiflow_jupyter` has under its name.

    Raises:
        GraphError: an edge or an injection names no node.
    """
    problems = dangling(spec)
    if problems:
        raise GraphError(problems, title=spec.name)
    return _Source(spec, signatures).text()


class _Source:
    """One source text, with the names that are in use in it."""

    def __init__(self, spec: GraphSpec, signatures: Signatures) -> None:
        self.spec = spec
        self.signatures = signatures
        self.imported = {node.operator for node in spec.nodes.values() if self.direct(node)}
        self.calls = any(not self.direct(node) for node in spec.nodes.values() if not self.function(node))
        self.taken = {*self.imported, "Flow", _FLOW, *(["call"] if self.calls else [])}
        self.functions: dict[str, None] = {}
        """Names that stand bare in the source, in their order."""
        self.added = {name: self.node(node) for name, node in spec.nodes.items()}
        self.variables = self.named()

    def text(self) -> str:
        imports = [f"from aiflow_jupyter import {', '.join(sorted({'Flow', *self.imported}, key=str.lower))}"]
        if self.calls:
            imports.append("from aiflow_jupyter.graph.builder import call")
        elsewhere = [name for name in self.functions if not hasattr(builtins, name)]
        begin = [f"# defined elsewhere: {', '.join(elsewhere)}"] if elsewhere else []
        begin.append(f"{_FLOW} = Flow({quoted(self.spec.name)})")
        for name, added in self.added.items():
            begin.append(f"{self.variables[name]} = {_FLOW}.add({', '.join([quoted(name), *added])})")
        inject = [
            f"{self.variables[node]}.inject({kind if kind in _TYPES else quoted(kind)})"
            for node, kind in self.spec.inject.items()
        ]
        return "\n\n".join("\n".join(block) for block in (imports, begin, self.edges(), inject) if block) + "\n"

    # -- names

    def usable(self, name: Any) -> bool:
        """Whether a name can stand in the source for what the user called so."""
        return is_bare(name) and name not in self.taken and _own(name)

    def named(self) -> dict[str, str]:
        """A variable for each node: its own name, or with `_` behind it where that would hide something."""
        used = {*self.taken, *self.functions, *keyword.kwlist, *dir(builtins)}
        variables = {name: name for name in self.spec.nodes if name not in used and _own(name)}
        used |= variables.keys()
        for name in self.spec.nodes:
            if name not in variables:
                variable = f"{name}_"
                while variable in used:
                    variable += "_"
                variables[name] = variable
                used.add(variable)
        return variables

    # -- nodes

    def direct(self, node: NodeSpec) -> bool:
        """Whether the operator's own function in Python takes these arguments."""
        signature = self.signatures.get(node.operator)
        return signature is not None and all(signature.parameter(name) for name in node.args)

    def function(self, node: NodeSpec) -> bool:
        """Whether the node's operator is a function of the user's."""
        name = node.operator
        return not node.args and name not in self.signatures and is_bare(name) and _own(name) and name not in _OURS

    def node(self, node: NodeSpec) -> list[str]:
        """What stands behind a node's name in `flow.add(...)`."""
        signature = self.signatures.get(node.operator)
        settings = policy_settings(node.policy)
        policy = [f"{key}={self.value(value, named=key in _CALLED)}" for key, value in settings.items()]
        if self.function(node):
            return [self.value(node.operator, named=True), *policy]
        first = positional(signature, node.args)
        given = [self.value(node.args[first], named=True)] if first else []
        rest = {
            name: self.argument(signature.parameter(name) if signature else None, value)
            for name, value in node.args.items()
            if name != first
        }
        if self.direct(node):
            return [f"{node.operator}({', '.join([*given, *_keywords(rest)])})", *policy]
        if first:
            rest = {first: given[0], **rest}
        return [f"call({', '.join([quoted(node.operator), *_keywords(rest)])})", *policy]

    def argument(self, parameter: Parameter | None, value: Any) -> str:
        if isinstance(value, list):
            return f"[{', '.join(self.value(item, named=names_something(parameter, item)) for item in value)}]"
        return self.value(value, named=names_something(parameter, value))

    def value(self, value: Any, *, named: bool = False) -> str:
        if isinstance(value, list):
            return f"[{', '.join(self.value(item, named=named) for item in value)}]"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{quoted(key)}: {self.value(item)}' for key, item in value.items())}}}"
        if not isinstance(value, str):
            return repr(value)
        if named and self.usable(value):
            self.functions[value] = None
            return value
        return quoted(value)

    # -- edges

    def edges(self) -> list[str]:
        def end(node: str, port: str | None) -> str:
            return f"{self.variables[node]}[{quoted(port)}]" if port else self.variables[node]

        rows = []
        for line in lines(self.spec.edges, lambda node, port: len(end(node, port))):
            sources = [end(*source) for source in line.sources]
            steps = [_several(self.variables[node] for node in step) for step in line.steps]
            if line.feedback is None:
                rows.append(" >> ".join([_several(sources), *steps]))
            else:
                settings = [f"{key}={value}" for key, value in feedback_settings(line.feedback).items()]
                rows += [f"{source}.feedback({', '.join([steps[0], *settings])})" for source in sources]
        return rows


def _several(items: Iterable[str]) -> str:
    found = list(items)
    return found[0] if len(found) == 1 else f"[{', '.join(found)}]"


def _keywords(arguments: Mapping[str, str]) -> list[str]:
    """Arguments by name; those that Python takes for words of its own come in a mapping."""
    own = {name: value for name, value in arguments.items() if keyword.iskeyword(name)}
    given = [f"{name}={value}" for name, value in arguments.items() if name not in own]
    return [*given, *([f"**{{{', '.join(f'{quoted(k)}: {v}' for k, v in own.items())}}}"] if own else [])]


def _own(name: str) -> bool:
    """Whether a name means to Python what it says: no word of the language, no alias (`IOError` is `OSError`)."""
    if keyword.iskeyword(name) or (name.startswith("__") and name.endswith("__")):
        return False
    return not hasattr(builtins, name) or getattr(getattr(builtins, name), "__name__", "") == name
