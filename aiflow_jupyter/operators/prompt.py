r"""`prompt`: makes a text of a value by a template, for the `generate` after it.

    ask = prompt(template="Summarise in one sentence: {text}")
    rag = prompt(template="Answer {query} by these passages only:\n{passages}")

A field is a name in braces. Of a dict it is the value of that key, of a dataclass the attribute of that name. A plain
value is `{}` or `{value}`; a text is `{text}` too. Of a retrieval's passages `{passages}` is their texts, numbered, and
`{query}` what was asked. Braces of the text itself are written twice: `{{`. A template is no code: a name is all that
may stand in braces, no attribute, index, conversion or format; and braces in a value stay as they are.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import Event, Retrieval
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator

SIGNATURE = OperatorSignature(
    "prompt",
    (Parameter("template", "text", required=True),),
    gives=frozenset({"value"}),
    single=lambda _args: True,
    whole=True,
    payload=lambda _args, _given: str,
)


def prompt(template: str) -> OperatorCall:
    """Make a prompt of each value.

    Args:
        template: the text, with names of fields in braces: `"Summarise: {text}"`.
    """
    return call("prompt", template=template)


def parts(template: str) -> list[tuple[str, str | None]]:
    """A template as pairs of a literal text and the name of the field behind it, None where there is none.

    Raises:
        ValueError: a brace is not closed, or something else than a name stands in braces.
    """
    found: list[tuple[str, str | None]] = []
    for text, field, spec, conversion in string.Formatter().parse(template):
        if field is None:
            found.append((text, None))
            continue
        if spec or conversion or (field and not field.isidentifier()):
            written = field + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise ValueError(f"only a name may stand in braces, not {written[:60]!r}")
        found.append((text, field or "value"))
    return found


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `prompt`.

    Raises:
        ConfigError: the template can't be read.
    """
    try:
        template = parts(args["template"])
    except ValueError as error:
        raise ConfigError(
            f"node {binding.node!r}: prompt(template=...): {error}", code="AF204", hint="write a brace itself twice: {{"
        ) from None

    def fill(event: Event) -> Event:
        known = _fields(event.payload)
        made = []
        for text, name in template:
            made.append(text)
            if name is None:
                continue
            if name not in known:
                raise _missing(name, known)
            made.append(_said(known[name]))
        return event.derive("".join(made), "value")

    return Behaviour("inline", fill)


def _fields(payload: Any) -> Mapping[str, Any]:
    """What the names in a template stand for."""
    if isinstance(payload, Mapping):
        return {"value": payload} | dict(payload)
    passages = _passages(payload)
    if passages:
        first = passages[0]
        return {"value": payload, "passages": passages, "query": first.query} | _attributes(payload)
    if attributes := _attributes(payload):
        return {"value": payload} | attributes
    return {"value": payload, "text": payload} if isinstance(payload, str) else {"value": payload}


def _attributes(value: Any) -> dict[str, Any]:
    """The fields of a dataclass; none of anything else."""
    if not is_dataclass(value) or isinstance(value, type):
        return {}
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _passages(payload: Any) -> list[Retrieval]:
    if isinstance(payload, Retrieval):
        return [payload]
    if isinstance(payload, Sequence) and not isinstance(payload, str) and payload:
        return list(payload) if all(isinstance(each, Retrieval) for each in payload) else []
    return []


def _said(value: Any) -> str:
    """A value as a model is told it."""
    if isinstance(value, str):
        return value
    passages = _passages(value)
    if len(passages) == 1:
        return passages[0].text
    if passages:
        return "\n\n".join(f"[{number}] {passage.text}" for number, passage in enumerate(passages, 1))
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return "\n".join(value)
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, ensure_ascii=False, default=lambda each: _attributes(each) or str(each))
    return str(value)


def _missing(name: str, known: Mapping[str, Any]) -> RunError:
    names = [str(each) for each in known][:20]
    return RunError(
        f"the template names {{{name}}}, which the value does not have",
        code="AF308",
        hint=f"it has: {', '.join(names) or 'nothing'}{', ...' if len(known) > len(names) else ''}",
    )


PROMPT = Operator(SIGNATURE, bind)
