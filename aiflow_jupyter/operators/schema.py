"""Functions as a model is told them: a JSON Schema of their parameters, and the check of what it calls them with.

The schema comes from the function's type hints (those that pydantic knows; `Annotated[str, Field(...)]` says more) and
its docstring. Parameters called `state` and `idempotency_key` are for the node, and no model is told of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from aiflow_jupyter.errors import ConfigError, words
from aiflow_jupyter.graph import hints
from aiflow_jupyter.operators.functions import named
from aiflow_jupyter.runtime.behaviour import Binding

MOST_DESCRIPTION: Final = 4_096
MOST_MISTAKES: Final = 10


class WrongArgumentsError(ValueError):
    """What a model called a function with does not fit; the message is for the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: as the model calls it.
        function: itself.
        awaits: it is a coroutine function.
        extras: which of `state` and `idempotency_key` it takes.
        schema: what the model is told, in the wire form of a chat request's `tools`.
    """

    name: str
    function: Callable[..., Any]
    awaits: bool
    extras: frozenset[str]
    schema: Mapping[str, Any]
    _arguments: type[BaseModel]

    def arguments(self, text: str) -> dict[str, Any]:
        """The arguments that a JSON text stands for, as the function's hints want them; an empty text is `{}`.

        Raises:
            WrongArgumentsError: it is no JSON, or does not fit.
        """
        try:
            found = self._arguments.model_validate_json(text if text.strip() else "{}")
        except ValidationError as error:
            raise WrongArgumentsError(_mistakes(error)) from None
        fields = type(found).model_fields
        given = {str(fields[field].alias): getattr(found, field) for field in fields if field in found.model_fields_set}
        return given | (found.model_extra or {})


def tools_of(names: str | Iterable[str], binding: Binding) -> dict[str, Tool]:
    """The functions of those names, by name.

    Raises:
        ConfigError: there is no such function, or no model could call it.
    """
    names = [names] if isinstance(names, str) else list(names)
    return {name: _tool(name, named(name, binding), binding.node) for name in names}


def _tool(name: str, function: Callable[..., Any], node: str) -> Tool:
    known = hints.read(function)
    if known.yields:
        raise _unusable(node, name, "it yields, and a tool returns its result", "return a list")
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except BaseException as error:  # a hint may be any expression, and fail in any way
        said = words(error) or type(error).__name__
        raise _unusable(node, name, f"its parameters can't be read: {said}", "define what its hints name") from error
    fields: dict[str, Any] = {}
    more = False
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY and each.default is each.empty:
            raise _unusable(node, name, f"{each.name!r} has no name for its caller", f"def {name}({each.name}): ...")
        more = more or each.kind is each.VAR_KEYWORD
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and each.name not in hints.EXTRAS:
            fields[f"p{len(fields)}"] = _field(each)  # a parameter may be called as a model of pydantic may not
    try:
        arguments = create_model(name, __config__=ConfigDict(extra="allow" if more else "forbid"), **fields)
        schema = arguments.model_json_schema()
    except BaseException as error:  # classes say by code of their own what they are in JSON
        why = words(error).partition("\n")[0] or type(error).__name__
        raise _unusable(
            node, name, f"its hints have no form in JSON: {why}", "use types such as str and list"
        ) from error
    told = {"name": name, "description": _description(function), "parameters": _untitled(schema)}
    told = {key: value for key, value in told.items() if value != ""}
    wire = {"type": "function", "function": told}
    return Tool(name, function, known.awaits, known.parameters & hints.EXTRAS, wire, arguments)


def _field(parameter: inspect.Parameter) -> tuple[Any, Any]:
    """The type of an argument, and what pydantic is told besides."""
    hint = Any if parameter.annotation is parameter.empty else parameter.annotation
    default = parameter.default
    if default is parameter.empty:
        return hint, Field(alias=parameter.name)
    if default is None:
        return hint | None, Field(default=None, alias=parameter.name)
    if isinstance(default, str | int | float | bool):
        return hint, Field(default=default, alias=parameter.name)
    return hint, Field(default_factory=lambda: default, alias=parameter.name)  # the function's own, of no form in JSON


def _description(function: Callable[..., Any]) -> str:
    try:
        return (inspect.getdoc(function) or "")[:MOST_DESCRIPTION]
    except BaseException:  # noqa: BLE001 - as above
        return ""


def _untitled(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without the titles that only repeat names."""
    properties = {
        name: {key: value for key, value in each.items() if key != "title"}
        for name, each in schema.get("properties", {}).items()
    }
    return {key: value for key, value in schema.items() if key != "title"} | {"properties": properties}


def _mistakes(error: ValidationError) -> str:
    """What is wrong with the arguments, for the model to mend."""
    mistakes = error.errors(include_url=False, include_context=False, include_input=False)
    said = []
    for each in mistakes[:MOST_MISTAKES]:
        where = ".".join(map(str, each["loc"]))
        said.append(f"{where}: {each['msg']}" if where else each["msg"])
    further = f"; and {len(mistakes) - MOST_MISTAKES} more" if len(mistakes) > MOST_MISTAKES else ""
    return "; ".join(said) + further


def _unusable(node: str, name: str, why: str, hint: str) -> ConfigError:
    return ConfigError(f"node {node!r}: no model can call {name!r}: {why}", code="AF303", hint=hint)
