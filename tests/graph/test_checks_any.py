"""Whatever a graph looks like, the checks find problems in it and never fail."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import GraphError, GraphProblem
from aiflow_jupyter.graph.bounds import bounds
from aiflow_jupyter.graph.checks.checking import examine, require
from aiflow_jupyter.graph.codes import CODES
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.problems import MOST_PROBLEMS
from aiflow_jupyter.graph.spec import MOST_INTEGER, EdgeSpec, Feedback, GraphSpec, NodeSpec
from aiflow_jupyter.operators import SIGNATURES
from tests.graph.signature_table import TABLE


def tidy(text: str) -> str: ...
def size(text: str) -> int: ...
def keeps(text, state): ...
def spread(text: str) -> list[int]:
    yield 1


OBJECTS = {"tidy": tidy, "size": size, "keeps": keeps, "spread": spread, "docs": ["a"], "Oops": ValueError}
WORDS = sorted({*OBJECTS, "a", "b", "c", "d", "e", "join", "phase", "kind", "source", "g", "token", "str", "error"})
PARAMETERS = sorted({p.name for s in (*TABLE.values(), *SIGNATURES.values()) for p in s.parameters})

names = st.sampled_from(WORDS)
integers = st.integers(-MOST_INTEGER, MOST_INTEGER)
scalars = st.one_of(names, integers, st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none())
values = st.one_of(
    scalars, st.lists(scalars, max_size=3), st.dictionaries(names, st.one_of(scalars, st.text()), max_size=2)
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.integers(1, 1_000_000),
        "queue_bytes": st.integers(1, 99),
        "workers": st.integers(1, 1_024),
        "reorder": st.integers(0, 9),
        "order": st.sampled_from(["source", "none"]),
        "state": st.sampled_from(["stateless", "partitioned", "serialized", "transactional"]),
        "key": names,
        "keys": st.integers(1, 9),
        "overflow": st.one_of(
            st.sampled_from(["block", "drop_oldest", "conflate"]),
            st.dictionaries(st.sampled_from(["token", "value", "else"]), st.sampled_from(["error", "conflate"])),
        ),
        "retry": st.integers(1, 3),
        "retry_on": st.lists(names, max_size=2),
        "restart": st.booleans(),
        "effect": st.sampled_from(["pure", "idempotent", "non_idempotent", "speculative"]),
        "compensate": names,
        "hold": st.integers(1, 9),
        "timeout": st.floats(0.1, 9),
    },
)
nodes = st.builds(
    lambda operator, args, policy: NodeSpec(operator=operator, args=args, policy=Policy(**policy)),
    st.one_of(st.sampled_from(sorted({*TABLE, *SIGNATURES})), names),
    st.one_of(
        st.sampled_from([{"function": "tidy"}, {"by": "kind"}, {"var": "x"}, {"index": "docs"}, {"count": 2}, {}]),
        st.dictionaries(st.sampled_from(PARAMETERS), values, max_size=3),
    ),
    policies,
)
edges = st.builds(
    EdgeSpec,
    source=st.sampled_from("abcdef"),
    port=st.one_of(st.none(), st.none(), st.sampled_from(["answer", "else", "error", "token"])),
    target=st.sampled_from("abcdef"),
    feedback=st.one_of(st.none(), st.none(), st.builds(Feedback, limit=st.integers(1, 99))),
)
specs = st.builds(
    lambda nodes, edges, inject: GraphSpec(name="g", nodes=nodes, edges=edges, inject=inject),
    st.dictionaries(st.sampled_from("abcde"), nodes, max_size=5),
    st.lists(edges, max_size=10),
    st.dictionaries(st.sampled_from("abcf"), names, max_size=2),
)


@settings(deadline=None, max_examples=500)
@given(spec=specs, table=st.sampled_from([TABLE, SIGNATURES]), functions=st.sampled_from([OBJECTS, list(OBJECTS), {}]))
def test_checks_never_fail(spec, table, functions):
    findings = examine(spec, table, functions)
    for severity, problems in (("error", findings.errors), ("warning", findings.warnings)):
        for problem in problems:
            assert isinstance(problem, GraphProblem)
            assert CODES[problem.code][0] == problem.severity == severity
            assert problem.path
    try:
        require(spec, table, functions)
    except GraphError as error:
        assert list(map(str, error.problems)) == list(map(str, findings.errors))
    else:
        assert not findings.errors
        assert bounds(spec, table).events >= 2 * len(spec.nodes)


def test_more_mistakes_than_anybody_reads_leave_the_others_unharmed():
    wrong = NodeSpec(operator="window")  # without its count
    spec = GraphSpec(name="g", nodes={f"n{i}": wrong for i in range(200)} | {"j": NodeSpec(operator="join")})
    assert len(examine(spec, TABLE, OBJECTS).errors) == MOST_PROBLEMS
