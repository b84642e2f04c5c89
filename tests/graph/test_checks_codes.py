"""Every code of the checks: a graph that has it, what is said, where, and what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import aiflow_jupyter
from aiflow_jupyter.graph.bounds import bounds
from aiflow_jupyter.graph.checks.checking import examine
from aiflow_jupyter.graph.codes import CODES
from aiflow_jupyter.graph.spec import GraphSpec
from tests.graph.signature_table import TABLE, parsed

OUT = '\nout = sink(var="x")\n'


def tidy(text: str) -> str: ...
def size(text: str) -> int: ...
def double(number: int) -> int: ...
def either(text: str) -> str | int: ...
def words(text: str): ...
def pair(one: str, other: str) -> str: ...
def total(texts: list[str]) -> str: ...
def counter(text: str, state: dict[str, int]) -> str: ...
def items(text: str) -> list[str]: ...
async def fetch(text: str) -> str: ...
def spread(text: str) -> list[str]:
    yield text


FUNCTIONS = {f.__name__: f for f in (tidy, size, double, either, words, pair, total, counter, items, fetch, spread)} | {
    "docs": ["a", "b"],
    "three": 3,
    "Oops": type("Oops", (Exception,), {}),
}

LOOP = "a = map(tidy)\nb = map(tidy)\na -> b\nb -> a [feedback, limit={limit}]\nb -> out"

CASES = [
    # structure
    ("a = mapp(tidy)\na -> out", "AF201", "called 'mapp'", "line 1, column 5", "did you mean 'map'?"),
    ("a = tidy\na.x -> out", "AF203", "no port 'x'", "line 2, column 3", "a.error"),
    ("a = retrieve(docs, k=0)\na -> out", "AF204", "at least 1", "line 1, column 20", ""),
    ("a = retrieve(docs, k=9999999999)\na -> out", "AF204", "at most 1,000,000,000", "line 1, column 20", ""),
    ("a = guard(tidy, hold=word)\na -> out", "AF204", "or a whole number", "line 1, column 17", "known: sentence"),
    ("a = guard(tidy, hold=0)\na -> out", "AF204", "at least 1", "line 1, column 17", ""),
    ("a = tools(functions=[])\na -> out", "AF204", "an empty list", "line 1, column 11", ""),
    ("a = delegate(g)\na -> out", "AF204", "would run itself", "line 1, column 14", "another graph"),
    ("a = delegate(4)\na -> out", "AF204", "not the name of a graph", "line 1, column 14", ""),
    ("a = classify(patterns=tidy)\na -> out", "AF204", "not labels with", "line 1, column 14", "secret:"),
    ('a = classify(patterns=(x="("))\na -> out', "AF204", "no regular expression", "line 1, column 14", ""),
    ('a = classify(patterns=(x="(a{999}){999}"))\na -> out', "AF204", "repeats too often", "line 1, column 14", ""),
    (f'a = classify(patterns=(x="{"a" * 1001}"))\na -> out', "AF204", "1,001 characters", "line 1, column 14", ""),
    ("a = classify(patterns=(x=3))\na -> out", "AF204", "not a text", "line 1, column 14", ""),
    ("a = tools(functions=[tidy, tdy])\na -> out", "AF205", "called 'tdy'", "line 1, column 11", "'tidy'"),
    ("a = retrieve(doccs)\na -> out", "AF205", "function or object", "line 1, column 14", "'docs'"),
    ("a = map(tidy) [retry=3, retry_on=[ValueErorr]]\na -> out", "AF205", "exception", "line 1, column 25", "'ValueE"),
    ("a = map(tidy) [state=partitioned, key=siez]\na -> out", "AF205", "called 'siez'", "line 1, column 35", "'size'"),
    ("a = delegate(other)\na -> out", "AF205", "no graph is called 'other'", "line 1, column 14", "did you mean"),
    ("a = tidy\na -> b", "AF206", "called 'b'", "line 2, column 6", ""),
    ("a = tidy\na -> out\ninject b: str", "AF206", "inject: no node is called 'b'", "line 3", "known: a, out"),
    ("a = tools(functions=[tidy, tidy])\na -> out", "AF207", "'tidy' twice", "line 1, column 11", ""),
    ("a = tidy\nb = tidy\na -> out, b", "AF208", "'b' gives", "line 2, column 1", "b -> out"),
    ("a = tidy\nb = tidy\nc = tidy\na -> b, out\nb -> c\nc -> b [feedback]", "AF208", "from 'b' to a", "line 2", ""),
    ('a = tidy\nb = sink(var="b")\na -> out', "AF209", "'b' is a sink", "line 2, column 1", ""),
    ("a = tidy\nb = tidy\na -> b -> a\nb -> out", "AF210", "a -> b -> a", "line 3", "b -> a [feedback"),
    ("a = tidy\nb = tidy\na -> b -> out\na -> b [feedback]", "AF211", "closes no cycle", "line 4", "leave out"),
    ("a = tidy\na.error -> out", "AF212", "a's plain output", "line 1, column 1", ""),
    ('a = route("phase")\na.answer -> out', "AF212", "a.reasoning", "line 1, column 1", ""),
    ("a = route(tidy)\na.x -> out", "AF212", "a.else", "line 1, column 1", ""),
    ('a = tidy\nb = sink(var="x")\na -> out, b', "AF213", "both write to var='x'", "line 4", "one sink"),
    ("a = tidy\nj = join()\na -> j -> out", "AF214", "only 'a' leads", "line 2, column 1", "left, right -> j"),
    ("a = tidy\nb = tidy\nj = join()\na, b -> j -> out", "AF215", "never shares", "line 3, column 1", "merge instead"),
    ("a = tidy\nb = spread\nj = join()\na -> b\na, b -> j -> out", "AF216", "'b' gives many", "line 3", "reduce"),
    # types
    ("a = size\nb = tidy\na -> b -> out", "AF301", "tidy takes str, it is int", "line 3", "from int to str"),
    ("a = size\nb = segment()\na -> b -> out", "AF301", "segment takes chunk or token, size gives value", "line 3", ""),
    ("a = size\nb = generate()\na -> b -> out", "AF301", "generate takes str or list", "line 3", "a map between"),
    ("a = generate()\nb = map(total)\na -> b -> out", "AF301", "total takes list[str]", "line 3", "window(count=...)"),
    ("a = tidy [state=partitioned, key=double]\nb = tidy\nb -> a -> out", "AF301", "double takes int", "line 3", ""),
    (
        "a = generate()\nb = tools(functions=tidy)\na -> b\nc = tidy\na.error -> c\nb, c -> out",
        "AF301",
        "Failure",
        "line 5",
        "",
    ),
    ("a = map(pair)\na -> out", "AF303", "also needs 'other'", "line 1, column 9", "def pair"),
    ("a = tidy\na.eror -> out", "AF203", "no port 'eror'", "line 2, column 3", "did you mean 'error'?"),
    ('a = route("phase")\na.answr, a.reasoning -> out', "AF203", "no port 'answr'", "line 2", "mean 'answer'?"),
    ('a = route("fase")\na.answer -> out', "AF204", "'fase', not 'phase'", "line 1, column 11", "mean 'phase'?"),
    ("a = tidy [retry=2, effect=non_idempotent, compensate=piar]\na -> out", "AF205", "'piar'", "line 1", "'pair'?"),
    ("a = map(three)\na -> out", "AF303", "no function but an int", "line 1, column 9", ""),
    ("a = map(docs)\na -> out", "AF303", "no function but a list", "line 1, column 9", ""),
    ("a = map(spread)\na -> out", "AF303", "yields; map takes", "line 1, column 9", "flat_map(spread)"),
    ("a = flat_map(size)\na -> out", "AF303", "no iterable", "line 1, column 14", "return a list"),
    ("a = route(fetch)\na.else -> out", "AF303", "'fetch' awaits", "line 1, column 11", "have a map"),
    (
        "a = tidy [retry=2, effect=non_idempotent, compensate=size]\na -> out",
        "AF303",
        "compensate=size",
        "line 1",
        "payload, error",
    ),
    (
        "a = generate()\nb = retrieve(docs)\na -> b -> out",
        "AF301",
        "retrieve takes chunk or value",
        "line 3",
        "segment",
    ),
    ("a = generate()\nb = generate()\nc = tidy\na -> c -> b -> out", "AF301", "generate takes", "line 4", "segment"),
    ("a = either\nb = tidy\na -> b -> out", "AF305", "may get int", "line 3", ""),
    ('a = tidy\nb = route("kind")\na -> b\nb.token, b.else -> out', "AF305", "no token comes", "line 4", ""),
    ("a = tidy\na -> out\ninject a: strr", "AF306", "no type 'strr'", "line 3", "'str'"),
    ("a = tidy\na -> out\ninject a: int", "AF306", "it is int", "line 3", "from int to str"),
    ("a = segment()\na -> out\ninject a: int", "AF306", "not int", "line 3", ""),
    ("a = segment()\na -> out\ninject a: usage", "AF306", "an injected usage", "line 3", ""),
    ("a = words\na -> out", "AF307", "what it gives", "line 1, column 5", "def words"),
    # policy
    ("a = segment() [workers=2]\na -> out", "AF402", "workers=2 has no", "line 1, column 16", "leave out"),
    ("a = counter [workers=2]\na -> out", "AF403", "'counter' keeps state", "line 1, column 14", "state=serialized"),
    ("a = tidy [state=partitioned]\na -> out", "AF404", "needs the function", "line 1, column 11", "key=FUNCTION"),
    ("a = tidy [key=size]\na -> out", "AF404", "says nothing", "line 1, column 11", "state=partitioned"),
    ("a = tidy [keys=5]\na -> out", "AF405", "keys=5 has no effect", "line 1, column 11", ""),
    ("a = tidy [reorder=5]\na -> out", "AF405", "with one worker", "line 1, column 11", "workers=2"),
    ("a = tidy [workers=2, order=none, reorder=5]\na -> out", "AF405", "with order=none", "line 1, column 34", ""),
    ("a = tidy [order=none]\na -> out", "AF405", "with one worker", "line 1, column 11", ""),
    ("a = tidy [workers=2, order=none, state=serialized]\na -> out", "AF405", "one event at a time", "line 1", ""),
    ("a = tidy [backoff=2]\na -> out", "AF405", "without retry", "line 1, column 11", "retry=3"),
    ("a = tidy [restart=true]\na -> out", "AF405", "restart has no effect", "line 1, column 11", ""),
    ("a = tidy [retry=2, compensate=pair]\na -> out", "AF405", "effect=pure", "line 1, column 20", "non_idempotent"),
    ("a = tidy [hold=5]\na -> out", "AF405", "holds nothing", "line 1, column 11", "queue bounds"),
    ("a = size\nb = double [overflow=conflate]\na -> b -> out", "AF405", "merges text", "line 2", "gets value"),
    ("a = size\nb = double [overflow=(token=error)]\na -> b -> out", "AF405", "the rule for token", "line 2", ""),
    (
        "a = tidy [retry=2, effect=non_idempotent]\na -> out",
        "AF406",
        "repeat the effect",
        "line 1, column 11",
        "compens",
    ),
    (
        "a = generate() [retry=2, restart=true]\nb = sink(function=tidy) [effect=non_idempotent]\na -> b, out",
        "AF407",
        "have 'b', which is non_idempotent, do again",
        "line 1, column 26",
        "effect=speculative",
    ),
    (
        "a = generate() [restart=true]\nb = sink(function=tidy) [effect=non_idempotent]\na -> b, out",
        "AF407",
        "have 'b', which is non_idempotent, do again",
        "line 1, column 17",
        "effect=speculative",
    ),
    (
        "a = tidy [compensate=pair, effect=non_idempotent]\na -> out",
        "AF408",
        "retry is 1",
        "line 1, column 11",
        "retry=3",
    ),
    (
        "a = tidy [effect=speculative]\na -> out",
        "AF409",
        "no node that gives verdicts",
        "line 1, column 11",
        "guard(...).verdict",
    ),
    (
        'a = guard(tidy)\na -> out\nb = sink(var="b") [effect=speculative]\na -> b',
        "AF409",
        "a sink gives",
        "line 3",
        "",
    ),
    (
        "a = tidy\nb = tidy [overflow=drop_oldest]\nj = join()\na -> b\na, b -> j -> out",
        "AF410",
        "drop_oldest between split and join",
        "line 2, column 11",
        "overflow=block",
    ),
    ("a = map(tidy, inline=true) [timeout=1]\na -> out", "AF412", "holds the loop", "line 1, column 29", "leave out"),
    # liveness
    (
        'a = tidy\nb = tidy\nc = tidy\nm = merge("source")\na -> b, c -> m -> out',
        "AF501",
        "another can be 10 events ahead, of which it keeps 4",
        "line 4, column 1",
        "hold=10",
    ),
    (
        "a = tidy\nb = tidy\nj = join(limit=9)\na -> b\na, b -> j -> out",
        "AF502",
        "10 events ahead",
        "line 3",
        "limit=10",
    ),
    ("a = tidy\nb = tidy\nj = join() [hold=9]\na -> b\na, b -> j -> out", "AF502", "hold=9 keeps", "line 3", "hold=10"),
    (LOOP.format(limit=9) + "\ninject a: str", "AF503", "can own 10 events", "line 4", "limit=10"),
    (LOOP.format(limit=99).replace("b = map(tidy)", "b = spread"), "AF503", "'b' gives many", "line 4", "gather"),
    (LOOP.format(limit=99) + "\nc = tidy\nc -> b", "AF503", "also enter it at 'b'", "line 4", ""),
    (LOOP.format(limit=99) + "\ninject b: str", "AF503", "also enter it at 'b'", "line 4", ""),
    (LOOP.format(limit=99) + "\nc = tidy\na -> c -> b", "AF503", "several ways", "line 4", ""),
    (LOOP.format(limit=99) + "\na -> a [feedback, limit=99]", "AF503", "several ways", "line 4", ""),
    (LOOP.format(limit=99) + "\nb -> b [feedback, limit=99]", "AF503", "several heads, 'a' and 'b'", "line 4", ""),
]


def found(text, functions=FUNCTIONS):
    source = parsed(text + OUT)
    return examine(source.spec, TABLE, functions, source, flows=["others"])


@pytest.mark.parametrize(("text", "code", "says", "at", "hint"), CASES)
def test_problem_has_code_sentence_place_and_hint(text, code, says, at, hint):
    findings = found(text)
    severity = CODES[code][0]
    (problem,) = findings.errors if severity == "error" else findings.warnings
    assert (problem.code, problem.severity) == (code, severity)
    assert says in problem.message
    assert problem.hint.startswith(at)
    assert hint in problem.hint
    assert severity == "error" or not findings.errors


def test_pieces_of_a_stream_need_a_node_that_gathers():
    table = TABLE | {"retrieve": TABLE["retrieve"].__class__("retrieve", whole=True)}
    source = parsed("a = generate()\nb = retrieve()\na -> b -> out" + OUT)
    (problem,) = examine(source.spec, table, FUNCTIONS, source).errors
    assert problem.code == "AF304"
    assert "segment(), window(count=...)" in problem.hint
    source = parsed("a = generate()\ns = segment()\nb = retrieve()\na -> s -> b -> out" + OUT)
    assert examine(source.spec, table, FUNCTIONS, source).errors == []


def test_empty_graph_is_a_problem():
    spec = GraphSpec(name="g", nodes={})
    assert [p.code for p in examine(spec, TABLE, ()).errors] == ["AF102"]


def used(folder: Path) -> set[str]:
    """The codes from AF1xx to AF5xx that the sources of a folder name, but for the table itself."""
    sources = [path.read_text("utf-8") for path in folder.rglob("*.py") if path.name != "codes.py"]
    return {code for source in sources for code in re.findall(r"\bAF[1-5]\d\d\b", source)}


def test_table_of_codes_is_that_of_the_sources():
    assert used(Path(aiflow_jupyter.__file__).parent) == set(CODES)


def test_every_code_of_the_checks_has_a_case_here():
    texts = [file.read_text() for file in Path(aiflow_jupyter.__file__).with_name("graph").glob("checks/*.py")]
    assert set(re.findall(r"AF\d{3}", "".join(texts))) == {code for _, code, *_ in CASES} | {"AF102", "AF304", "AF411"}


def test_restart_goes_no_further_than_what_is_held_until_a_verdict():
    text = """
    a = generate() [retry=2, restart=true]
    b = guard(tidy)
    c = {operator} [effect={effect}]
    d = sink(function=tidy) [effect=non_idempotent]
    a -> b -> c -> d
    """
    assert [p.code for p in found(text.format(operator="tidy", effect="pure")).errors] == ["AF407", "AF209"]
    assert [p.code for p in found(text.format(operator="tidy", effect="speculative")).errors] == ["AF209"]


def test_verdicts_leave_by_a_port_of_their_own_where_there_is_one():
    guard = replace(TABLE["guard"], ports=lambda _args: ("", "verdict"))
    table = TABLE | {"guard": guard}
    for edge, codes in (("a.verdict -> b", []), ("a -> b", ["AF409"])):
        source = parsed(f"a = guard(tidy)\nb = tidy [effect=speculative]\n{edge}\nb -> out" + OUT)
        assert [p.code for p in examine(source.spec, table, FUNCTIONS, source).errors] == codes


def test_signature_that_depends_on_arguments_is_only_asked_for_right_ones():
    def variant(args):
        return replace(TABLE["window"], gives=frozenset({"chunk"}) if args["count"] > 1 else None)

    table = TABLE | {"window": replace(TABLE["window"], variant=variant)}
    for args, codes in (("count=2", []), ("count=1", []), ("", ["AF204"]), ("count=x", ["AF204"])):
        source = parsed(f"a = window({args})\na -> out" + OUT)
        assert [p.code for p in examine(source.spec, table, FUNCTIONS, source).errors] == codes
        if not codes:
            assert bounds(source.spec, table).nodes[0].hold == int(args[-1])


def test_all_problems_come_in_one_go_and_in_source_order():
    findings = found("a = mapp(tidy)\nb = tidy [key=size]\nc = size\nb -> c -> b\nc.x -> out\na -> out")
    assert [p.code for p in findings.errors] == ["AF201", "AF404", "AF210", "AF301", "AF203"]


def test_names_alone_tell_nothing_of_types():
    findings = found("a = size\nb = tidy\nc = docs\na -> b -> c -> out", functions=sorted(FUNCTIONS))
    assert findings.errors == findings.warnings == []


def test_problem_of_a_graph_without_text_names_its_pointer():
    source = parsed("a = tidy [key=size]\na -> out" + OUT)
    (problem,) = examine(source.spec, TABLE, FUNCTIONS).errors
    assert problem.hint.startswith("at /nodes/a/policy/key")
    assert problem.path == ("nodes", "a", "policy", "key")


def test_verdicts_lead_to_a_node_that_waits_for_one():
    table = TABLE | {"guard": replace(TABLE["guard"], ports=lambda _args: ("", "verdict"))}
    for policy, data, codes in (("", "", ["AF411"]), (" [effect=speculative]", "a -> c\n", [])):
        text = f"a = generate()\nb = guard(tidy)\nc = tidy{policy}\na -> b -> out\n{data}b.verdict -> c -> out"
        source = parsed(text + OUT)
        assert [p.code for p in examine(source.spec, table, FUNCTIONS, source).errors] == codes
