"""The spec: one graph as data, the form that cell text, Python and JSON all mean.

A function is a name in a spec; nothing is imported or evaluated when one is loaded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from aiflow_jupyter.graph.policy import Policy

Name = Annotated[str, StringConstraints(pattern=r"^[^\W\d]\w*$", max_length=64)]
Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]

MOST_NODES = 1_000


class NodeSpec(BaseModel):
    """One node: the operator (or the name of a user's function), its arguments and its policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: Name
    args: dict[Name, Value] = Field(default_factory=dict)
    policy: Policy = Policy()


class EdgeSpec(BaseModel):
    """One edge, from a node (and one of its ports) to a node."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    source: Name = Field(alias="from")
    port: Name | None = None
    target: Name = Field(alias="to")


class GraphSpec(BaseModel):
    """A whole graph; `nodes` and `edges` keep the order in which they were written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    name: Name
    nodes: Annotated[dict[Name, NodeSpec], Field(max_length=MOST_NODES)]
    edges: Annotated[list[EdgeSpec], Field(max_length=20 * MOST_NODES)] = Field(default_factory=list)

    def inputs(self) -> list[str]:
        """The nodes without incoming edges: where the run's body goes."""
        fed = {edge.target for edge in self.edges}
        return [node for node in self.nodes if node not in fed]

    def to_json(self) -> dict[str, Any]:
        """The JSON form, without what is at its default."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {"version": 1}
