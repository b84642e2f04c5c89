"""The spec: one graph as data, the form that cell text, Python and JSON all mean.

A function is a name in a spec; nothing is imported or evaluated when one is loaded.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AliasChoices, AllowInfNan, BaseModel, BeforeValidator, ConfigDict, Field

from aiflow_jupyter.graph.names import Name
from aiflow_jupyter.graph.policy import Policy

MOST_NODES: Final = 1_000
MOST_EDGES: Final = 20 * MOST_NODES

MOST_INTEGER: Final = 2**63 - 1


def _checked(value: Any) -> Any:
    """An argument, if every form of the graph can hold it."""
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,):
        if isinstance(part, int) and abs(part) > MOST_INTEGER:
            raise ValueError(f"a whole number is too large; at most {MOST_INTEGER}")
        if isinstance(part, str) and not part.isascii():
            try:
                part.encode()
            except UnicodeEncodeError:
                raise ValueError("a text has half of a character (a surrogate), which no file can hold") from None
    return value


def _given(args: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if value is not None}


Scalar = (
    str
    | Annotated[int, Field(ge=-MOST_INTEGER, le=MOST_INTEGER)]
    | Annotated[float, AllowInfNan(allow_inf_nan=False)]
    | bool
    | None
)
Value = Annotated[Scalar | list[Scalar] | dict[Name, Scalar], BeforeValidator(_checked)]


class NodeSpec(BaseModel):
    """One node: the operator (or the name of a user's function), its arguments and its policy.

    An argument that is None is the same as one that is left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: Name
    args: Annotated[dict[Name, Value], AfterValidator(_given)] = Field(default_factory=dict)
    policy: Policy = Policy()


class Feedback(BaseModel):
    """What makes an edge close a cycle: `a -> b [feedback, limit=4, hops=8]`.

    Attributes:
        limit: data events that may wait on the edge; one more fails the run, as the edge never blocks.
        hops: how often one lineage may go round.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    limit: Annotated[int, Field(ge=1, le=1_000_000)] = 4
    hops: Annotated[int, Field(ge=1, le=1_000_000)] = 8


class EdgeSpec(BaseModel):
    """One edge, from a node (and one of its ports) to a node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Name = Field(validation_alias=AliasChoices("from", "source"), serialization_alias="from")
    port: Name | None = None
    target: Name = Field(validation_alias=AliasChoices("to", "target"), serialization_alias="to")
    feedback: Feedback | None = None


class GraphSpec(BaseModel):
    """A whole graph; `nodes` and `edges` keep the order in which they were written.

    Attributes:
        inject: nodes that take values from outside while the graph runs (`run.offer`), and of which type: a data kind,
            or `str`, `int`, `float`, `bool`, `list`, `dict`, `any`. In text: `inject NODE: str`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    name: Name
    nodes: Annotated[dict[Name, NodeSpec], Field(max_length=MOST_NODES)]
    edges: Annotated[list[EdgeSpec], Field(max_length=MOST_EDGES)] = Field(default_factory=list)
    inject: Annotated[dict[Name, Name], Field(max_length=MOST_NODES)] = Field(default_factory=dict)

    def inputs(self) -> list[str]:
        """The nodes without incoming edges other than feedback: where the run's body goes."""
        fed = {edge.target for edge in self.edges if edge.feedback is None}
        return [node for node in self.nodes if node not in fed]

    def to_json(self) -> dict[str, Any]:
        """The JSON form, without what is at its default."""
        return {"version": 1} | self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
