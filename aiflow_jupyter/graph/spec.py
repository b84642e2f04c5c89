"""The spec: one graph as data, the form that cell text, Python and JSON all mean.

A function is a name in a spec; nothing is imported or evaluated when one is loaded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, AllowInfNan, BaseModel, ConfigDict, Field, WithJsonSchema

from aiflow_jupyter.graph.policy import Policy

MOST_NODES = 1_000
MOST_EDGES = 20 * MOST_NODES
MOST_NAME = 64


def checked_name(name: str) -> str:
    """The name itself, if it may name a node, a port, an argument or a function.

    Raises:
        ValueError: it is no identifier of Python (letters of any script, digits, `_`), or too long.
    """
    if len(name) > MOST_NAME:
        raise ValueError(f"a name has at most {MOST_NAME} characters")
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a name: letters, digits and _, no digit first")
    return name


Name = Annotated[
    str,
    AfterValidator(checked_name),
    WithJsonSchema({"type": "string", "pattern": r"^[^\W\d]\w*$", "maxLength": MOST_NAME}),
]
Scalar = str | int | Annotated[float, AllowInfNan(allow_inf_nan=False)] | bool | None
Value = Scalar | list[Scalar]


class NodeSpec(BaseModel):
    """One node: the operator (or the name of a user's function), its arguments and its policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: Name
    args: dict[Name, Value] = Field(default_factory=dict)
    policy: Policy = Policy()


class EdgeSpec(BaseModel):
    """One edge, from a node (and one of its ports) to a node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Name = Field(validation_alias=AliasChoices("from", "source"), serialization_alias="from")
    port: Name | None = None
    target: Name = Field(validation_alias=AliasChoices("to", "target"), serialization_alias="to")


class GraphSpec(BaseModel):
    """A whole graph; `nodes` and `edges` keep the order in which they were written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    name: Name
    nodes: Annotated[dict[Name, NodeSpec], Field(max_length=MOST_NODES)]
    edges: Annotated[list[EdgeSpec], Field(max_length=MOST_EDGES)] = Field(default_factory=list)

    def inputs(self) -> list[str]:
        """The nodes without incoming edges: where the run's body goes."""
        fed = {edge.target for edge in self.edges}
        return [node for node in self.nodes if node not in fed]

    def to_json(self) -> dict[str, Any]:
        """The JSON form, without what is at its default."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {"version": 1}
