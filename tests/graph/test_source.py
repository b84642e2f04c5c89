"""The Python form, read: what is printed is read, what would have to be run is told, and nothing is run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import GraphError
from aiflow_jupyter.graph.checks.checking import check
from aiflow_jupyter.graph.forms.conversion import load
from aiflow_jupyter.graph.spec import Feedback
from aiflow_jupyter.operators import SIGNATURES

HEAD = 'from aiflow_jupyter import Flow, generate, map, sink\n\nflow = Flow("g")\n'
SOURCE = f"""\
{HEAD}ask = flow.add("ask", generate(tier="auto"), queue=16)
tidy_ = flow.add("tidy", map(tidy, inline=True))
out = flow.add("out", sink(var="größe"), overflow={{"token": "drop_oldest", "else": "block"}})
bare = flow.add("bare", scrub, retry=2, retry_on=[TimeoutError])

ask >> tidy_ >> [out, bare]
ask["error"] >> out
bare.feedback(ask, limit=3)

ask.inject(str)
"""


def read(text, name=None):
    return load(text, name, SIGNATURES)


def test_statements_that_build_a_graph_are_read():
    spec = read(SOURCE).spec
    assert spec.name == "g"
    assert read(SOURCE, "other").spec.name == "other"
    assert {name: (node.operator, node.args) for name, node in spec.nodes.items()} == {
        "ask": ("generate", {"tier": "auto"}),
        "tidy": ("map", {"function": "tidy", "inline": True}),
        "out": ("sink", {"var": "größe"}),
        "bare": ("scrub", {}),
    }
    assert spec.nodes["out"].policy.overflow == {"token": "drop_oldest", "else": "block"}
    assert spec.nodes["bare"].policy.retry_on == ["TimeoutError"]
    assert [(e.source, e.port, e.target, e.feedback) for e in spec.edges] == [
        ("ask", None, "tidy", None),
        ("tidy", None, "out", None),
        ("tidy", None, "bare", None),
        ("ask", "error", "out", None),
        ("bare", None, "ask", Feedback(limit=3)),
    ]
    assert spec.inject == {"ask": "str"}


def test_functions_classes_imports_and_texts_that_stand_alone_are_passed_over():
    more = (
        '"""A graph."""\nimport os\nfrom mine import *\ndef tidy(text):\n    os.abort()\nclass Mine(Exception): ...\n'
    )
    assert read(more + SOURCE).spec == read(SOURCE).spec


NODE = HEAD + 'ask = flow.add("ask", generate())\n'


@pytest.mark.parametrize(
    ("more", "code", "says", "place"),
    [
        ("print(1)", "AF107", "this call", (5, 1)),
        ("é = os.system('x')", "AF107", "this call", (5, 5)),
        ("for x in y: pass", "AF107", "this statement", (5, 1)),
        ("ask.feedback", "AF107", "this statement", (5, 1)),
        ("ask | ask", "AF107", "an edge is written >>", (5, 1)),
        ("'é'; ask >> aks", "AF206", "'aks'", (5, 13)),
        ("ask[0] >> ask", "AF107", "only a text", (5, 5)),
        ('flow.add("b", generate(tier=TIER))', "AF107", "not known, as nothing is run", (5, 29)),
        ('flow.add("b", generate(seed=1 + 1))', "AF107", "not known", (5, 29)),
        ('flow.add("b", generate(seed=1e999))', "AF103", "too large", (5, 29)),
        (f'flow.add("b", generate(seed=-{"9" * 99}))', "AF103", "too large", (5, 30)),
        ('flow.add("b", generate(**more))', "AF107", "behind **", (5, 26)),
        ('flow.add("b", generate("auto", "m", "s", 1, 1, 1, True, 1, 1, f, 1))', "AF204", "too many", (5, 66)),
        ('flow.add("b", lambda x: x)', "AF107", "no operator", (5, 15)),
        ('flow.add("ask", generate())', "AF202", "defined twice", (5, 10)),
        ('flow.add("b")', "AF107", "a name and an operator", (5, 1)),
        ('flow.add("b", f, queue=0)', "AF401", "queue=0 is not", (5, 24)),
        ('flow.add("b c", f)', "AF103", "not a name", (5, 10)),
        ("ask.feedback(ask, limit=0)", "AF106", "'limit' is 0", (5, 1)),
        ("ask >> ", "AF100", "not Python", (5, 8)),
        ("\0", "AF100", "null bytes", None),
        ("x = " + "(" * 99, "AF101", "more than 16 others", None),
        ("x = " + "not " * 9_000 + "y", "AF100", "not read as Python", None),
        ("x = " + "-" * 9_000 + "y", "AF100", "not read as Python", None),
        (" " * 100_000, "AF101", "characters", None),
        ("; ".join(["ask >> ask"] * 9_000), "AF101", "", None),
        ("[" + "ask, " * 4_000 + "] >> [" + "ask, " * 4_000 + "]", "AF101", "20,000 edges", None),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_what_would_have_to_be_run_is_told_with_its_place(more, code, says, place):
    try:
        problems = read(NODE + more).problems
    except GraphError as error:
        problems = error.problems
    (problem,) = problems
    assert (problem.code, says in problem.message) == (code, True)
    assert place is None or problem.place == place
    assert str(problem)


def test_mistakes_of_every_kind_are_told_in_one_go():
    text = SOURCE.replace("queue=16", "queue=0").replace("scrub", "scrob").replace("generate(", "genrate(") + "print()"
    parsed = read(text)
    found = check(parsed.spec, SIGNATURES, ("tidy", "scrub"), parsed)
    assert [(p.code, p.hint.split(",")[0]) for p in found] == [
        ("AF201", "line 4"),
        ("AF401", "line 4"),
        ("AF201", "line 7"),
        ("AF107", "line 14"),
    ]


def test_python_without_a_flow_says_how_a_graph_begins():
    with pytest.raises(GraphError, match="no Flow is made") as raised:
        read("import os\n")
    assert raised.value.code == "AF107"


PIECES = [
    *"()[]{},.=:>;'\"\\\n #-é\0",
    ">>",
    "flow",
    "ask",
    ".add(",
    ".feedback(",
    "Flow(",
    "**",
    "lambda ",
    "9" * 30,
    "for ",
]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(SOURCE)), st.lists(st.sampled_from(PIECES), max_size=5), st.integers(0, 9))
def test_any_source_is_a_spec_or_a_graph_error(at, pieces, cut):
    try:
        parsed = read(SOURCE[:at] + "".join(pieces) + SOURCE[at + cut :])
    except GraphError as error:
        assert error.problems
        assert str(error)
    else:
        check(parsed.spec, SIGNATURES, (), parsed)
