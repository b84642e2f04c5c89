"""Graphs for property tests: every operator with arguments of every type, every policy, names of every script."""

from __future__ import annotations

import builtins
import unicodedata
from typing import Any, get_args

from hypothesis import strategies as st

from aiflow_jupyter.events import DataKind
from aiflow_jupyter.graph.names import checked_name
from aiflow_jupyter.graph.policy import KEPT_KINDS, Cancel, Effect, Policy, Rule, State
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter
from aiflow_jupyter.graph.spec import MOST_INTEGER, EdgeSpec, Feedback, GraphSpec, NodeSpec
from aiflow_jupyter.operators import SIGNATURES

AWKWARD = [
    "a", "b", "ask", "tidy", "größe", "名前", "हिन्दी", "x·y", "_", "__name__", "none", "null", "true", "None", "True",
    "else", "inject", "feedback", "flow", "Flow", "call", "map", "filter", "list", "str", "IOError", "exit", "x" * 64,
]  # fmt: skip


def is_name(text: str) -> bool:
    try:
        return checked_name(text) == text
    except ValueError:
        return False


names = st.sampled_from(AWKWARD) | st.text(
    st.characters(categories=["L", "Nl", "Nd", "Mn", "Mc", "Pc"]), min_size=1, max_size=12
).map(lambda text: unicodedata.normalize("NFKC", text)).filter(is_name)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    [
        'say "hi"',
        "it's",
        "a\nb\r\n",
        "\\",
        "\\n",
        "[(,)] -> # {",
        "\0001",
        "\u2028",
        "none",
        "3.14",
        '"""',
        "{{x}}",
        "🙂",
    ]
)
integers = st.integers(-MOST_INTEGER, MOST_INTEGER)
numbers = integers | st.floats(allow_nan=False, allow_infinity=False)
scalars = texts | numbers | st.booleans() | st.none()
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(names, scalars, max_size=3)


def argument(parameter: Parameter) -> st.SearchStrategy[Any]:
    """Values that a parameter takes."""
    choices = st.sampled_from(parameter.choices) if parameter.choices else st.nothing()
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "text": texts,
        "integer": integers,
        "number": numbers,
        "boolean": st.booleans(),
        "function": names | texts,
        "functions": st.lists(names, max_size=3),
        "object": names,
        "flow": names,
        "patterns": st.dictionaries(names, texts, max_size=3),
        "choice": choices,
        "choice_or_function": choices | names,
        "choice_or_integer": choices | integers,
    }
    return kinds[parameter.type]


@st.composite
def arguments(draw: st.DrawFn, signature: OperatorSignature) -> dict[str, Any]:
    """Arguments that an operator takes: of its alternatives one, of the others any."""
    chosen = draw(st.sampled_from(signature.alternatives)) if signature.alternatives else ""
    given = {}
    for parameter in signature.parameters:
        other = parameter.name in signature.alternatives and parameter.name != chosen
        if parameter.required or parameter.name == chosen or (not other and draw(st.booleans())):
            given[parameter.name] = draw(argument(parameter))
    return given


kinds = st.sampled_from([kind for kind in (*get_args(DataKind), "else") if kind not in KEPT_KINDS])
rules = st.sampled_from(get_args(Rule))
seconds = st.floats(1e-9, 2_000_000) | st.integers(1, 1000).map(float)
policies = st.builds(
    lambda said: Policy(**said),
    st.fixed_dictionaries(
        {},
        optional={
            "queue": st.integers(1, 1_000_000),
            "queue_bytes": st.none() | st.integers(1, 1 << 40),
            "workers": st.integers(1, 1024),
            "reorder": st.none() | st.integers(0, 1_000_000),
            "order": st.sampled_from(["source", "none"]),
            "state": st.sampled_from(get_args(State)),
            "key": st.none() | names,
            "keys": st.integers(1, 1_000_000),
            "overflow": rules | st.dictionaries(kinds, rules, max_size=3),
            "cancel": st.sampled_from(get_args(Cancel)),
            "retry": st.integers(1, 100),
            "backoff": seconds,
            "retry_on": st.lists(names | st.just("TimeoutError"), max_size=3),
            "restart": st.booleans(),
            "effect": st.sampled_from(get_args(Effect)),
            "compensate": st.none() | names,
            "hold": st.none() | st.integers(1, 1_000_000),
            "hold_bytes": st.integers(1, 1 << 40),
            "timeout": st.none() | seconds,
        },
    ),
)


def nodes() -> st.SearchStrategy[NodeSpec]:
    """Nodes of every operator, of functions of the user's, and of operators that nobody knows."""
    known = st.sampled_from(sorted(SIGNATURES)).flatmap(
        lambda name: st.builds(NodeSpec, operator=st.just(name), args=arguments(SIGNATURES[name]), policy=policies)
    )
    functions = st.builds(NodeSpec, operator=names.filter(lambda name: name not in SIGNATURES), policy=policies)
    unknown = st.builds(NodeSpec, operator=names, args=st.dictionaries(names, values, max_size=3))
    return known | functions | unknown.filter(lambda node: node.operator not in SIGNATURES)


feedback = st.builds(Feedback, limit=st.integers(1, 9) | st.just(4), hops=st.integers(1, 9) | st.just(8))


@st.composite
def specs(draw: st.DrawFn) -> GraphSpec:
    """Whole graphs, not all of which could run."""
    found = draw(st.dictionaries(names, nodes(), min_size=1, max_size=6))
    node = st.sampled_from(list(found))
    edge = st.builds(EdgeSpec, source=node, port=st.none() | names, target=node, feedback=st.none() | feedback)
    plain = st.builds(EdgeSpec, source=node, target=node)
    types = st.sampled_from(["str", "int", "float", "bool", "list", "dict", "any", "token", "größe"])
    return GraphSpec(
        name=draw(names),
        nodes=found,
        edges=draw(st.lists(plain | edge, max_size=10)),
        inject=draw(st.dictionaries(node, types, max_size=3)),
    )


class Namespace(dict[str, Any]):
    """Variables in which every name that Python does not know is a function."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)

        def function(value: Any) -> Any:
            return value

        function.__name__ = name
        self[name] = function
        return function
