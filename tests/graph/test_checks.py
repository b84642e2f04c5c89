"""The checks: each kind of problem has its code, its place and what to do."""

from __future__ import annotations

import pytest

from aiflow_jupyter.errors import GraphError
from aiflow_jupyter.graph.checks.checking import check, require
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.operators import SIGNATURES

FUNCTIONS = {"tidy": str, "speak": str}
OUT = '\nout = sink(var="x")\n'


def found(text: str, functions=FUNCTIONS):
    parsed = parse(text, "g", SIGNATURES)
    return check(parsed.spec, SIGNATURES, functions, parsed)


def test_graph_without_mistakes_has_no_problems():
    text = """
    ask = generate(tier="auto")
    lane = route(by="phase")
    parts = segment(by="line")
    plain = tidy [workers=4]
    far = sink(jsonl="x") [workers=2]
    plain -> far
    ask -> lane
    lane.answer -> parts -> plain -> out
    lane.else, ask.error -> out
    """
    assert found(text + OUT) == []


@pytest.mark.parametrize(
    ("text", "code", "says", "at", "hint"),
    [
        ("a = segmnt()\na -> out", "AF201", "'segmnt'", "line 1, column 5", "did you mean 'segment'?"),
        ("a = tidy(1)\na -> out", "AF204", "takes no arguments", "line 1", ""),
        ("a = tidy(x=1)\na -> out", "AF204", "takes no arguments", "line 1", ""),
        ('a = generate(teir="auto")\na -> out', "AF204", "no argument 'teir'", "line 1, column 14", "'tier'"),
        ('a = generate(tier="cluod")\na -> out', "AF204", "'cluod', not", "line 1, column 14", "'cloud'"),
        ("a = generate(temperature=-1)\na -> out", "AF204", "at least 0", "line 1, column 14", ""),
        ('a = generate(max_tokens="9")\na -> out', "AF204", "not a whole number", "line 1, column 14", ""),
        ("a = generate(max_tokens=true)\na -> out", "AF204", "not a whole number", "line 1, column 14", ""),
        ("a = map(tidy, inline=1)\na -> out", "AF204", "not true or false", "line 1, column 15", ""),
        ("a = map(tidi)\na -> out", "AF205", "'tidi'", "line 1, column 9", "did you mean 'tidy'?"),
        ("a = map([tidy])\na -> out", "AF205", "['tidy']", "line 1, column 9", ""),
        ("a = map()\na -> out", "AF204", "needs 'function'", "line 1, column 5", "map(function=...)"),
        ("a = route(by=nothing)\na.x -> out", "AF204", "or the name of a function", "line 1, column 11", ""),
        ("a = tidy\nb = sink()\na -> b, out", "AF204", "needs one of function, var", "line 2, column 5", ""),
        ('a = tidy\nb = sink(var="x", jsonl="y")\na -> b, out', "AF204", "not var and jsonl", "line 2, column 19", ""),
        ("a = tidy\na -> otu", "AF206", "'otu'", "line 2, column 6", "did you mean 'out'?"),
        ("a = tidy\na -> out\na -> out", "AF207", "there twice", "line 3, column 1", ""),
        ("a = tidy\nb = map(tidy)\na -> b, out", "AF208", "'b' gives", "line 2, column 1", "b -> out"),
        ('a = tidy\nb = sink(var="y")\na -> out', "AF209", "'b' is a sink", "line 2, column 1", ""),
        ("a = map(tidy)\na.x -> out", "AF203", "no port 'x'", "line 2, column 3", "a.error"),
        ('a = route(by="phase")\na -> out', "AF203", "name the port", "line 2, column 1", "a.answer"),
        ('a = route(by="phase")\na.answr -> out', "AF203", "no port 'answr'", "line 2, column 3", "'answer'"),
        ("a = tidy\nout -> a\na -> out", "AF203", "nothing comes out of 'out'", "line 2, column 1", ""),
        ("a = generate()\nb = segment()\na.error -> b\na, b -> out", "AF301", "port error", "line 3, column 1", ""),
        ("a = tidy\nb = tidy\na -> b -> a\nb -> out", "AF210", "a -> b -> a", "line 3", "[feedback, limit=4, hops=8]"),
        ("a = segment() [queue=9, workers=4]\na -> out", "AF402", "workers=4 has no", "line 1, column 25", "leave out"),
        (
            "a = map(tidy, inline=true) [workers=2]\na -> out",
            "AF402",
            "inline=true works",
            "line 1, column 29",
            "inline",
        ),
        ('a = tidy\nb = sink(var="y") [workers=2]\na -> b, out', "AF402", "one event at", "line 2, column 20", ""),
        ('a = route(by="kind") [workers=2]\na.token -> out', "AF402", "one event at a time", "line 1, column 23", ""),
        ("a = tidy\na -> a\na -> out", "AF210", "a -> a", "line 2", "[feedback, limit=4, hops=8]"),
    ],
)
def test_problem_has_code_sentence_place_and_hint(text, code, says, at, hint):
    try:
        (problem,) = found(text + OUT)
    except GraphError as error:
        (problem,) = error.problems
    assert problem.code == code
    assert says in problem.message
    assert problem.hint.startswith(at)
    assert hint in problem.hint


def test_all_problems_are_told_in_one_go():
    codes = [p.code for p in found("a = mop(tidy)\nb = map(tidi)\na -> c\nb.x -> out" + OUT)]
    assert codes == ["AF201", "AF205", "AF206", "AF203"]


def test_problem_of_a_graph_without_text_names_its_path():
    spec = GraphSpec.model_validate({"name": "g", "nodes": {"a": {"operator": "mop"}}, "edges": []})
    with pytest.raises(GraphError) as error:
        require(spec, SIGNATURES, FUNCTIONS)
    assert "at /nodes/a/operator" in error.value.problems[0].hint


def test_long_chain_is_checked_without_recursion():
    names = [f"n{i}" for i in range(990)]
    text = "\n".join(f"{n} = tidy" for n in names) + "\n" + " -> ".join([*names, "out"])
    assert found(text + OUT) == []
