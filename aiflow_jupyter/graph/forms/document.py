"""The JSON form: a document in, spec out, every mistake with its place; and the JSON Schema of that document.

    {"version": 1, "name": "support",
     "nodes": {"ask": {"operator": "generate", "args": {"tier": "auto"}, "policy": {"queue": 16}}, ...},
     "edges": [{"from": "ask", "to": "lane"}, {"from": "lane", "port": "answer", "to": "parts"}, ...],
     "inject": {"ask": "str"}}

A document comes from anywhere, so it is read strictly: no key twice, no `NaN`, no number that is too large for others,
no nesting that a graph has no use for. Nothing in it is imported or evaluated. What is wrong with the text itself has a
line and a column, all else a JSON pointer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sized
from itertools import islice
from typing import Any, Final, get_args

from pydantic import ValidationError

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.events import DataKind
from aiflow_jupyter.graph.forms.strict import Fault, Object, load
from aiflow_jupyter.graph.names import checked_name
from aiflow_jupyter.graph.parsed import Parsed, Step, pointer
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.problems import (
    BYTE_ORDER_MARK,
    MOST_PROBLEMS,
    expected,
    nearest,
    parted,
    policy_problems,
    shown,
)
from aiflow_jupyter.graph.spec import MOST_EDGES, MOST_NODES, Feedback, GraphSpec

MOST_ITEMS: Final = 10_000
"""Arguments of one node, or items of one of them."""

Path = tuple[Step, ...]


def read_json(text: str, name: str | None = None) -> Parsed:
    """Read a graph from its JSON form.

    Args:
        text: the document.
        name: takes the place of the document's own name.

    Returns:
        the graph, with the policies that can't be as problems, so that `checks` can tell of all there are in one go.

    Raises:
        GraphError: it is no graph; with every mistake found, each with a place and a hint.
    """
    data = load(text.removeprefix(BYTE_ORDER_MARK))
    if isinstance(data, dict) and name is not None:
        data["name"] = name
    problems = list(islice(graph_problems(data), MOST_PROBLEMS))
    if any(problem.code != "AF401" for problem in problems):
        raise GraphError(problems, title=name or "")
    for problem in problems:
        data["nodes"][problem.path[1]].pop("policy", None)
    return Parsed(GraphSpec.model_validate(data), problems=problems)


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the document."""
    found = GraphSpec.model_json_schema()
    _close(found)
    _, by_kind = found["$defs"]["Policy"]["properties"]["overflow"]["anyOf"]
    by_kind["propertyNames"] = {"enum": [*get_args(DataKind), "else"]}  # which pydantic leaves out
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "aiflow graph"}


def _close(part: Any) -> None:
    """Make the schema as strict as the reader: a key that fits no pattern is a mistake."""
    if isinstance(part, dict):
        if "patternProperties" in part:
            part.setdefault("additionalProperties", False)
        for inner in part.values():
            _close(inner)
    elif isinstance(part, list):
        for inner in part:
            _close(inner)


# -- the graph: what is wrong with it, found piece by piece, so that what nobody reads is not looked for


def _problem(message: str, code: str, path: Path, hint: str) -> GraphProblem:
    where = pointer(path)
    place = f"at {where if len(where) <= 200 else where[:200] + '...'}" if path else "at the top of the document"
    problem = GraphProblem(message, code=code, hint="\n".join(filter(None, (place, hint))))
    problem.path = path
    return problem


def graph_problems(data: Any) -> Iterator[GraphProblem]:
    """What is wrong with a graph in the values of its JSON form, piece by piece."""
    yield from _object(data, (), "a graph", ("version", "name", "nodes", "edges", "inject"), ("name", "nodes"))
    if not isinstance(data, dict):
        return
    version = data.get("version", 1)
    if type(version) is not int or version != 1:
        yield _wrong(version, ("version",), "1", "this is the only version there is")
    if "name" in data:
        yield from _name(data["name"], ("name",))
    nodes = data.get("nodes", {})
    if nodes == {} and "nodes" in data:
        yield _problem("the graph is empty", "AF102", ("nodes",), 'a node looks like: "ask": {"operator": "generate"}')
    yield from _named(nodes, ("nodes",), '{"ask": {"operator": "generate"}, ...}', _node, MOST_NODES)
    edges = data.get("edges", [])
    if not isinstance(edges, list):
        yield _wrong(edges, ("edges",), "a list", 'an edge looks like: {"from": "ask", "to": "out"}')
    elif len(edges) > MOST_EDGES:
        yield _many(edges, ("edges",), MOST_EDGES)
    else:
        for index, edge in enumerate(edges):
            yield from _edge(edge, ("edges", index))
    yield from _named(data.get("inject", {}), ("inject",), 'a node and a type: {"ask": "str"}', _name, MOST_NODES)


def _node(node: Any, path: Path) -> Iterator[GraphProblem]:
    yield from _object(node, path, "a node", ("operator", "args", "policy"), ("operator",))
    if not isinstance(node, dict):
        return
    if "operator" in node:
        yield from _name(node["operator"], (*path, "operator"))
    yield from _named(node.get("args", {}), (*path, "args"), '{"tier": "auto", ...}', _argument, MOST_ITEMS)
    yield from _policy(node.get("policy", {}), (*path, "policy"))


def _edge(edge: Any, path: Path) -> Iterator[GraphProblem]:
    yield from _object(edge, path, "an edge", ("from", "port", "to", "feedback"), ("from", "to"))
    if not isinstance(edge, dict):
        return
    for key in ("from", "to", "port"):
        if key in edge and not (key == "port" and edge[key] is None):
            yield from _name(edge[key], (*path, key))
    feedback = edge.get("feedback")
    if feedback is None:
        return
    path = (*path, "feedback")
    yield from _object(feedback, path, "feedback", tuple(Feedback.model_fields))
    if isinstance(feedback, dict):
        try:
            Feedback.model_validate({key: feedback[key] for key in Feedback.model_fields if key in feedback})
        except ValidationError as error:
            for item in error.errors(include_url=False):
                key = str(item["loc"][0])
                yield _wrong(feedback[key], (*path, key), expected(item))


def _policy(policy: Any, path: Path) -> Iterator[GraphProblem]:
    if not isinstance(policy, dict):
        yield _wrong(policy, path, "an object", 'a policy looks like: {"queue": 16, "workers": 2}')
        return
    yield from _twice(policy, path)
    settings = dict(islice(policy.items(), len(Policy.model_fields) + MOST_PROBLEMS))
    for key, value in list(settings.items()):
        faults = list(islice(_faults(value, (*path, key)), MOST_PROBLEMS))
        if faults:
            del settings[key]
            yield from faults
    try:
        Policy.model_validate(settings)
    except ValidationError as error:
        for problem in policy_problems(error, settings):
            message = f"node {shown(path[1])}: {problem.message}"
            yield _problem(message, "AF401", (*path, problem.key), problem.hint)


def _argument(value: Any, path: Path) -> Iterator[GraphProblem]:
    """The problems of an argument: a scalar, or a list or an object of these."""
    if isinstance(value, list):
        if len(value) > MOST_ITEMS:
            yield _many(value, path, MOST_ITEMS)
        else:
            for index, inner in enumerate(value):
                yield from _scalar(inner, (*path, index))
    elif isinstance(value, dict):
        yield from _named(value, path, "", _scalar, MOST_ITEMS)
    else:
        yield from _scalar(value, path)


def _scalar(value: Any, path: Path) -> Iterator[GraphProblem]:
    if isinstance(value, dict | list):
        hint = "lists and objects of these have no others in them"
        yield _wrong(value, path, "a text, a number, true, false or null", hint)
    else:
        yield from _faults(value, path)


# -- what every part of it may have


def _object(
    value: Any, path: Path, what: str, known: tuple[str, ...], required: tuple[str, ...] = ()
) -> Iterator[GraphProblem]:
    """The problems of something that has to be an object with some keys and no others."""
    if not isinstance(value, dict):
        yield _wrong(value, path, "an object", f"{what} has {', '.join(known)}")
        return
    yield from _twice(value, path)
    for key in value:
        if key not in known:
            hint = _PYTHON.get(key) if path[:1] == ("edges",) else None
            yield _problem(f"{what} has no key {shown(key)}", "AF106", (*path, key), hint or nearest(key, known))
    for key in required:
        if key not in value:
            yield _problem(f"{what} needs {key!r}", "AF106", path, f"add {_EXAMPLES[key]}")


_PYTHON = {"source": "write 'from'", "target": "write 'to'"}
"""What the ends of an edge are called in Python, where `from` is taken."""

_EXAMPLES = {
    "name": '"name": "mine"',
    "nodes": '"nodes": {"ask": {"operator": "generate"}}',
    "operator": '"operator": "generate"',
    "from": '"from": "ask"',
    "to": '"to": "out"',
}


def _named(
    value: Any, path: Path, hint: str, inner: Callable[[Any, Path], Iterator[GraphProblem]], most: int
) -> Iterator[GraphProblem]:
    """The problems of something that has to be an object whose keys are names of the user's."""
    if not isinstance(value, dict):
        yield _wrong(value, path, "an object", hint)
    elif len(value) > most:
        yield _many(value, path, most)
    else:
        yield from _twice(value, path)
        for key, part in value.items():
            yield from _name(key, (*path, key))
            yield from inner(part, (*path, key))


def _twice(value: dict[str, Any], path: Path) -> Iterator[GraphProblem]:
    for key in value.twice if isinstance(value, Object) else ():
        yield _problem(f"{shown(key)} is given twice", "AF104", (*path, key), "leave one of them out")


def _name(value: Any, path: Path) -> Iterator[GraphProblem]:
    if not isinstance(value, str):
        yield _wrong(value, path, "a name")
        return
    try:
        checked_name(value)
    except ValueError as error:
        message, hint = parted(str(error))
        yield _problem(message, "AF103", path, hint)


def _faults(value: Any, path: Path) -> Iterator[GraphProblem]:
    """What no value may be, wherever it stands."""
    if isinstance(value, Fault):
        yield _problem(value.message, "AF103", path, value.hint)
    elif isinstance(value, str):
        if not value.isascii() and _HALF.search(value):
            yield _problem("the text has half of a character", "AF103", path, r"\ud800 to \udfff come in pairs")
    elif isinstance(value, dict | list):
        if len(value) > MOST_ITEMS:
            yield _many(value, path, MOST_ITEMS)
            return
        if isinstance(value, dict):
            yield from _twice(value, path)
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _faults(inner, (*path, key))


_HALF = re.compile("[\ud800-\udfff]")


def _wrong(value: Any, path: Path, allowed: str, hint: str = "") -> GraphProblem:
    """A value of a type or size that it can't have."""
    if isinstance(value, Fault):
        return _problem(value.message, "AF103", path, value.hint)
    what = (repr(path[-1]) if isinstance(path[-1], str) else f"item {path[-1]}") if path else "the document"
    said = shown(value) if not isinstance(value, dict | list) else "an object" if isinstance(value, dict) else "a list"
    said = {"None": "null", "True": "true", "False": "false"}.get(said, said)
    return _problem(f"{what} is {said}, not {allowed}", "AF106", path, hint or f"write {allowed}")


def _many(value: Sized, path: Path, most: int) -> GraphProblem:
    return _problem(f"{path[-1]!r} has {len(value):,} items; at most {most:,}", "AF101", path, "make several graphs")
