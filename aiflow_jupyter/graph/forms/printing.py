"""A spec, printed: as cell text and as JSON (`graph.forms.python` prints Python). Each is read back as the same spec.

What is at its default is left out, and what can be said shorter is: edges that follow one another share a line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Any, Final

from aiflow_jupyter.graph.forms.literals import is_bare, quoted
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.signatures import OperatorSignature, Parameter, Signatures
from aiflow_jupyter.graph.spec import EdgeSpec, Feedback, GraphSpec, NodeSpec

WIDTH: Final = 88
"""Columns of a line of edges; one that would be longer goes on in a line of its own."""

_COLUMN: Final = 48
"""The last column at which the policies of all nodes begin."""


# -- what the forms share


@dataclass(slots=True)
class Line:
    """Edges that share a line: `a, b -> c -> d, e`."""

    sources: list[tuple[str, str | None]]
    steps: list[list[str]]
    feedback: Feedback | None = None


def lines(edges: Sequence[EdgeSpec], width: Callable[[str, str | None], int]) -> Iterator[Line]:
    """The edges in their order, those that follow one another together, as long as they fit into `WIDTH`.

    Args:
        edges: the edges.
        width: how wide a node, or a port of it, is written.
    """
    line: Line | None = None
    used = 0
    for edge, following in zip_longest(edges, edges[1:]):
        source, target = (edge.source, edge.port), edge.target
        more = width(target, None) + 4
        if line is not None and line.feedback == edge.feedback:
            *before, last = line.steps
            senders = [(name, None) for name in before[-1]] if before else line.sources
            splits = following is not None and (following.source, following.port) == source
            if not before and last == [target] and source not in senders and not splits:
                if used + width(*source) + 2 <= WIDTH:
                    line.sources.append(source)
                    used += width(*source) + 2
                    continue
            elif used + more <= WIDTH and senders == [source]:
                last.append(target)
                used += more
                continue
            elif used + more <= WIDTH and last == [edge.source] and edge.port is None and edge.feedback is None:
                line.steps.append([target])
                used += more
                continue
        if line is not None:
            yield line
        line = Line([source], [[target]], edge.feedback)
        used = width(*source) + more
    if line is not None:
        yield line


def policy_settings(policy: Policy) -> dict[str, Any]:
    """What a policy says that is not at its default; whole seconds as whole numbers."""
    said = policy.model_dump(exclude_defaults=True)
    return {key: int(v) if isinstance(v, float) and v == int(v) else v for key, v in said.items()}


def feedback_settings(feedback: Feedback) -> dict[str, int]:
    """What a feedback edge says that is not at its default."""
    return feedback.model_dump(exclude_defaults=True)


def names_something(parameter: Parameter | None, value: Any) -> bool:
    """Whether a text of an argument is the name of something of the user's."""
    if parameter is None or not isinstance(value, str):
        return False
    if parameter.type == "choice_or_function":
        return value not in parameter.choices
    return parameter.type in ("function", "functions", "object", "flow")


def positional(signature: OperatorSignature | None, args: Mapping[str, Any]) -> str:
    """The argument that is written without its name: the function of `map(tidy)`; or none."""
    first = signature.parameters[0] if signature and signature.parameters else None
    plain = first is not None and first.required and first.type == "function"
    return first.name if first is not None and plain and names_something(first, args.get(first.name)) else ""


# -- cell text


def as_text(spec: GraphSpec, signatures: Signatures) -> str:
    """The graph as cell text.

    Args:
        spec: the graph.
        signatures: the known operators; they tell the names of functions from texts.
    """
    name_width = max((len(name) for name in spec.nodes), default=0)
    heads = {
        name: f"{name:<{name_width}} = {node.operator}{_text_arguments(node, signatures.get(node.operator))}"
        for name, node in spec.nodes.items()
    }
    policies = {name: said for name, node in spec.nodes.items() if (said := policy_settings(node.policy))}
    column = max((len(heads[name]) for name in policies if len(heads[name]) <= _COLUMN), default=0)
    blocks = [
        [
            f"{head:<{column}} [{_text_settings(policies[name])}]" if name in policies else head
            for name, head in heads.items()
        ],
        _text_edges(spec),
        [f"inject {node}: {kind}" for node, kind in spec.inject.items()],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _text_arguments(node: NodeSpec, signature: OperatorSignature | None) -> str:
    if not node.args and signature is None:
        return ""
    first = positional(signature, node.args)
    parts = [_text_value(node.args[first], bare=True)] if first else []
    for name, value in node.args.items():
        if name != first:
            parameter = signature.parameter(name) if signature else None
            parts.append(f"{name}={_text_argument(parameter, value)}")
    return f"({', '.join(parts)})"


def _text_argument(parameter: Parameter | None, value: Any) -> str:
    if isinstance(value, list):
        return _text_list(_text_value(item, bare=names_something(parameter, item)) for item in value)
    return _text_value(value, bare=names_something(parameter, value))


def _text_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_text_value(value, bare=True)}" for key, value in settings.items())


def _text_value(value: Any, *, bare: bool = False) -> str:
    if isinstance(value, list):
        return _text_list(_text_value(item, bare=bare) for item in value)
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{key}={_text_value(item, bare=bare)}" for key, item in value.items())
        return f"({pairs})" if pairs else "{}"
    if isinstance(value, str):
        return value if bare and is_bare(value) else quoted(value)
    return json.dumps(value)


def _text_list(items: Iterable[str]) -> str:
    found = list(items)
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})"


def _text_feedback(feedback: Feedback | None) -> str:
    if feedback is None:
        return ""
    return f" [{', '.join(['feedback', *(f'{k}={v}' for k, v in feedback_settings(feedback).items())])}]"


def _text_edges(spec: GraphSpec) -> list[str]:
    def end(node: str, port: str | None) -> str:
        return f"{node}.{port}" if port else node

    rows: list[str] = []
    found = lines(spec.edges, lambda node, port: len(end(node, port)))
    # The arrows of lines that leave one node by its ports stand below each other.
    for _, same in groupby(found, key=lambda line: line.sources[0][0]):
        group = list(same)
        sides = [", ".join(end(*source) for source in line.sources) for line in group]
        ports = all(len(line.sources) == 1 and line.sources[0][1] for line in group)
        width = max(map(len, sides)) if ports else 0
        for line, side in zip(group, sides, strict=True):
            steps = " -> ".join(map(", ".join, line.steps))
            rows.append(f"{side:<{width}} -> {steps}{_text_feedback(line.feedback)}")
    return rows


# -- JSON


def as_json(spec: GraphSpec) -> str:
    """The graph as a JSON document, with a line for each node and each edge."""
    rows = []
    for key, value in spec.to_json().items():
        if isinstance(value, list) and value:
            inner = [_json(item) for item in value]
            rows.append(f"  {_json(key)}: [\n    {f',{chr(10)}    '.join(inner)}\n  ]")
        elif isinstance(value, dict) and value:
            inner = [f"{_json(name)}: {_json(item)}" for name, item in value.items()]
            rows.append(f"  {_json(key)}: {{\n    {f',{chr(10)}    '.join(inner)}\n  }}")
        else:
            rows.append(f"  {_json(key)}: {_json(value)}")
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _json(value: Any) -> str:
    said = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return said if said.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in said)
