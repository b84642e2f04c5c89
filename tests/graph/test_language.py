"""The cell language: what it means, and that every mistake is found with its place and a hint."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from aiflow_jupyter.errors import CommandError, GraphError
from aiflow_jupyter.graph.builder import Flow
from aiflow_jupyter.graph.checks.checking import check
from aiflow_jupyter.graph.forms.conversion import load, printed
from aiflow_jupyter.graph.forms.language import MOST_TEXT, Parsed, parse
from aiflow_jupyter.graph.forms.language import read as parsed_as_far_as_it_can_be
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.problems import MOST_PROBLEMS
from aiflow_jupyter.graph.spec import Feedback, GraphSpec, NodeSpec
from aiflow_jupyter.operators import SIGNATURES, filter, generate, map, route, segment, sink  # noqa: A004


def read(text: str) -> Parsed:
    return parse(text, "g", SIGNATURES)


def problems(text: str):
    with pytest.raises(GraphError) as error:
        read(text)
    return error.value.problems


@pytest.mark.parametrize(
    ("text", "code", "says", "place", "hint"),
    [
        ("a = map(f", "AF100", "'(' is not closed", (1, 8), "write ) where it ends"),
        ("a = map(f))", "AF100", "unexpected ')'", (1, 11), "expected"),
        ("a = map(f) $", "AF100", "unexpected character '$'", (1, 12), "expected"),
        ('a = sink(var="x', "AF100", "unexpected character '\"'", (1, 14), "no quote closes it on its line"),
        ("a ->", "AF100", "ends too early", (1, 5), "expected a name"),
        ("a = generate(tier=local-fast)", "AF100", "unexpected character '-'", (1, 24), 'quotes: tier="local-fast"'),
        ("a = generate(model=qwen2.5:3b, seed=1)", "AF100", "unexpected '.5'", (1, 25), 'model="qwen2.5:3b"'),
        ("a = sink(jsonl=/notes/a.jsonl)", "AF100", "character '/'", (1, 16), 'jsonl="/notes/a.jsonl"'),
        ("a = generate(system=Be brief, please.)", "AF100", "'brief'", (1, 24), 'system="Be brief, please."'),
        ("a = generate(tier=\u201cauto\u201d)", "AF103", "is not a name", (1, 19), 'straight quotes: "auto"'),
        ('a = generate(tier="x" seed=1)', "AF100", "unexpected 'seed'", (1, 23), "a comma is missing"),
        ("a = map(f(x))", "AF100", "unexpected '('", (1, 10), "named, not called"),
        ("a = map(f]", "AF100", "unexpected ']'", (1, 10), "( is closed by )"),
        ("a = map(f [queue=3]", "AF100", "unexpected '['", (1, 11), "a ) is missing"),
        ("a = map(f) [timeout=10s]", "AF100", "unexpected character '1'", (1, 21), "without a unit: 10"),
        ("a = map(f), queue=3", "AF100", "unexpected ','", (1, 11), "stands in brackets behind its node"),
        ("a = map(f) -> b", "AF100", "unexpected '->'", (1, 12), "lead edges from its name: a -> ..."),
        ("a -> sink(display=true)", "AF100", "unexpected '('", (1, 10), "a line of its own, as in out = sink"),
        ("generate() -> a", "AF100", "unexpected '('", (1, 9), "a line of its own"),
        ("a: map(f)", "AF100", "unexpected ':'", (1, 2), "a node is written"),
        ("a -> b;", "AF100", "unexpected character ';'", (1, 7), "ends with its line"),
        ("a | b", "AF100", "unexpected character '|'", (1, 3), "an edge is written ->"),
        ("my node = map(f)", "AF100", "unexpected 'node'", (1, 4), "a name is one word"),
        ("a = map(f)\na = map(f)", "AF202", "'a' is defined twice (first on line 1)", (2, 1), "another name"),
        ("a = map(f, true, 3)", "AF204", "too many arguments", (1, 18), "function, inline"),
        ("a = map(f, function=f)", "AF204", "given twice", (1, 12), ""),
        ("a = map(f) [queue=0]", "AF401", "queue=0 is not a whole number of at least 1", (1, 13), "at least 1"),
        ("a = map(f) [queue=true]", "AF401", "queue=True is not", (1, 13), "queue is"),
        ("a = map(f) [qeue=3]", "AF401", "unknown policy 'qeue'", (1, 13), "did you mean 'queue'?"),
        ("a = map(f) [overflow=drop]", "AF401", "overflow='drop' is not", (1, 13), "drop_newest"),
        ("a = map(f) [queue=1, queue=2]", "AF401", "given twice", (1, 22), ""),
        ("a -> b.answer", "AF203", "has a port but nothing follows", (1, 8), "lane.answer -> next"),
        ("a = map(f, [1, [2]])", "AF103", "a list can't stand in a list", (1, 16), ""),
        (r'a = sink(var="\xZZ")', "AF103", r"the escape \x needs 2", (1, 14), "for a backslash"),
        (r'a = sink(var="\ud800")', "AF103", "no character", (1, 14), "for a backslash"),
        ("a = map(f, 1e999)", "AF103", "too large", (1, 12), ""),
        (f"a = map(f, {'9' * 50})", "AF103", "too large", (1, 12), ""),
        ("x² = map(f)", "AF103", "is not a name", (1, 1), ""),
        (f"{'x' * 65} = map(f)", "AF103", "at most 64 characters", (1, 1), ""),
        (f"a -> {'x' * 65}", "AF103", "at most 64 characters", (1, 6), ""),
        ("a = map(f, 9223372036854775808)", "AF103", "too large", (1, 12), "a text in quotes"),
        ("a = map(f, (x=(1,)))", "AF103", "a list can't stand in a mapping", (1, 15), "can"),
        ("a = map(f, ((x=1),))", "AF103", "a mapping can't stand in a list", (1, 13), "can"),
        ("a = map(f, (x=1, x=2))", "AF104", "'x' is given twice", (1, 18), "leave one"),
        ("a = map(f, (x=1, 2))", "AF100", "unexpected '2'", (1, 18), "a name"),
        ("a = map(f, {x: 1})", "AF100", "unexpected ':'", (1, 14), "a value follows ="),
        ("a = map(f) [restart]", "AF401", "policy 'restart' has no value", (1, 13), "restart=..."),
        ("a = map(f) [timeout=0]", "AF401", "timeout=0 is not a number of more than 0", (1, 13), ""),
        ('a = map(f) [timeout="5"]', "AF401", "timeout='5' is not a number", (1, 13), ""),
        ("a = map(f) [retry_on=5]", "AF401", "retry_on=5 is not a list", (1, 13), ""),
        ('a = map(f) [retry_on=("a b",)]', "AF401", "'a b' is not a name", (1, 13), ""),
        ("a = map(f) [overflow=(token=drop)]", "AF401", "overflow: token='drop' is not", (1, 13), "drop_newest"),
        ("a = map(f) [overflow=(tokn=block)]", "AF401", "'tokn' is no kind of event", (1, 13), "known: token"),
        ("a = map(f) [overflow=(tool_result=error)]", "AF401", "never dropped", (1, 13), "leave it out"),
        ("a -> b [feedback, hops=0]", "AF105", "hops=0 is not a whole number of at least 1", (1, 19), "hops is"),
        ("a -> b [feedback, limit=x]", "AF105", "limit='x' is not a whole number", (1, 19), "limit is"),
        ("a -> b [feedback, limt=1]", "AF105", "no attribute 'limt'", (1, 19), "did you mean 'limit'?"),
        ("a -> b [feedback, queue=1]", "AF105", "no attribute 'queue'", (1, 19), "behind its node"),
        ("a -> b [feedback, limit]", "AF105", "'limit' has no value", (1, 19), "limit=4"),
        ("a -> b [feedback=true]", "AF105", "'feedback' takes no value", (1, 9), "[feedback, "),
        ("a -> b [feedback, feedback]", "AF105", "given twice", (1, 19), "leave one"),
        ("a -> b [limit=4]", "AF105", "don't say feedback", (1, 8), "[feedback, "),
        ("a -> b []", "AF105", "don't say feedback", (1, 8), "[feedback, "),
        ("a -> b -> c [feedback]", "AF105", "which edge of the chain", (1, 13), "a line of its own"),
        ("inject a str", "AF100", "unexpected 'str'", (1, 10), ": and a type"),
        ("inject a:", "AF100", "ends too early", (1, 10), "a name"),
        ("inject a: str, a: int", "AF104", "declared twice", (1, 16), "leave one"),
        ("a → b", "AF100", "unexpected '→'", (1, 3), "an edge is written ->"),
    ],
)
def test_mistake_has_a_code_a_sentence_a_place_and_a_hint(text, code, says, place, hint):
    (problem,) = problems(text)
    assert problem.code == code
    assert says in problem.message
    first, *rest = problem.hint.split("\n")
    assert first.startswith(f"line {place[0]}, column {place[1]}: ")
    source = text.split("\n")[place[0] - 1]
    assert first.endswith(source)
    assert rest[0].index("^") == len(first) - len(source) + place[1] - 1
    assert hint in problem.hint


def test_mistakes_of_every_kind_are_told_in_one_go_in_source_order():
    found = problems("a = map(f) [qeue=1]\nb = map(\nf)) x\nc = map(f, 1e999)\na = map(f)\nd -> e.x\n? \n")
    assert [p.code for p in found] == ["AF401", "AF100", "AF103", "AF202", "AF203", "AF100"]
    assert [p.hint.split(",")[0] for p in found] == [f"line {n}" for n in (1, 3, 4, 5, 6, 7)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a = map(\nb = sink(var=x)\na -> b", [("AF100", 1, 8)]),
        ("a = map(f\nb = sink(var=x)\na -> b", [("AF100", 1, 8)]),
        ("a = map(f,\n  inline=true\nb = g\na -> b", [("AF100", 1, 8)]),
        ("a = map(f) [queue=3\na -> b\nb = mop(", [("AF100", 1, 12), ("AF100", 3, 8)]),
        ("a = map(\n  f\n  inline=true)\nb = g\na -> b", [("AF100", 3, 3)]),
        ('a = sink(var="x)\nb = g\ninject b: str\nb -> a [feedbck]', [("AF100", 1, 14), ("AF105", 4, 9)]),
        ("inject a: str, b\nb = g(x=((1, 2)\nb -> a", [("AF100", 1, 17), ("AF100", 2, 9), ("AF103", 2, 10)]),
    ],
)
def test_a_bracket_that_is_never_closed_is_told_where_it_is_opened_and_the_next_lines_are_read(text, found):
    assert [(p.code, *p.place) for p in problems(text)] == found


def checked(text):
    parsed = parsed_as_far_as_it_can_be(text, "g", SIGNATURES)
    return check(parsed.spec, SIGNATURES, ("speak", "tidy"), parsed)


def test_what_is_wrong_for_sure_is_told_beside_what_can_not_be_read():
    text = """
ask   = genrate(
parts = segment(by="sentense")
lane  = = route(by="phase")
out   = sink(vra="x"
keep  = map(tidy) [queue=0]
ask -> lan
lane.answer -> parts -> sink(display=true)
parts -> outt, keep
"""
    assert [(p.code, p.hint.split(":")[0]) for p in checked(text)] == [
        ("AF201", "line 2, column 9"),
        ("AF100", "line 2, column 16"),
        ("AF204", "line 3, column 17"),
        ("AF100", "line 4, column 9"),
        ("AF100", "line 5, column 13"),
        ("AF204", "line 5, column 14"),
        ("AF401", "line 6, column 20"),
        ("AF206", "line 7, column 8"),
        ("AF100", "line 8, column 29"),
        ("AF206", "line 9, column 10"),
    ]


@pytest.mark.parametrize(
    "broken",
    ["ask = generate(tier=a-b)", "ask: generate()", "my ask = generate()", "ask = generate() -> out", "ask = = x"],
)
def test_the_node_of_a_line_that_can_not_be_read_is_not_missed(broken):
    assert [p.code for p in checked(f'{broken}\nout = sink(var="x")\nask -> out')] == ["AF100"]


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ("ask = generate(seed=1e999)", "AF103"),
        ("ask = prompt(template=[[1]])", "AF103"),
        ("x² = generate()\nx² -> out", "AF103"),
        ("ask -> out [limit=4]", "AF105"),
        ("inject out: str, out: str", "AF104"),
        ("out -> ask.x.y", "AF100"),
    ],
)
def test_nothing_is_concluded_from_what_can_not_be_read(broken, code):
    assert {p.code for p in checked(f'{broken}\nout = sink(var="x")')} <= {code, "AF206"}


def test_an_operator_at_the_end_of_an_arrow_needs_a_line_of_its_own():
    (problem,) = checked("ask = generate()\nask -> sink")
    assert (problem.code, "which has a line of its own: s = sink(...)" in problem.hint) == ("AF206", True)


def test_a_slip_is_told_once():
    (problem,) = checked('ask = generate()\nout = sink(vra="x")\nask -> out')
    assert (problem.code, "did you mean 'var'?" in problem.hint) == ("AF204", True)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_brackets_span_lines_with_comments_and_places_stay_right(newline):
    text = newline.join(
        [
            'a = map(  # a comment with ] and " in it',
            "\tf,",
            "",
            "    inline=true,)  [",
            "  queue=3 # )",
            "]",
            "b = map(f) [qeue=1]",
        ]
    )
    (problem,) = problems(text)
    assert problem.hint.startswith("line 7, column 13: b = map(f) [qeue=1]")
    parsed = read(text.replace("qeue", "queue"))
    assert parsed.spec.nodes["a"].args == {"function": "f", "inline": True}
    assert parsed.spec.nodes["a"].policy.queue == 3
    assert parsed.places["nodes", "a", "args", "function"] == (2, 2)
    assert parsed.places["nodes", "a", "policy", "queue"] == (5, 3)


def test_strings_hold_quotes_arrows_comments_and_escapes():
    text = r"""a = generate(system="say \"hi\" -> # [no] 'comment'", model='it\'s \n\t\\ \x41\u00e9 \d')  # real"""
    args = read(text).spec.nodes["a"].args
    assert args["system"] == "say \"hi\" -> # [no] 'comment'"
    assert args["model"] == "it's \n\t\\ Aé \\d"


def test_names_of_any_script_and_several_ends_of_an_arrow():
    spec = read("größe = map(f)\n名前 = map(f)\ngröße.error, 名前 -> a, b -> c").spec
    assert [(e.source, e.port, e.target) for e in spec.edges] == [
        ("größe", "error", "a"),
        ("größe", "error", "b"),
        ("名前", None, "a"),
        ("名前", None, "b"),
        ("a", None, "c"),
        ("b", None, "c"),
    ]


def test_every_policy_can_be_said():
    text = """
    a = map(f) [queue=2, queue_bytes=9, workers=3, reorder=0, order=none, state=partitioned, key=by_user, keys=5,
                overflow=(token=drop_oldest, else=block), cancel=none, retry=2, backoff=0.1, restart=true,
                retry_on=(TimeoutError, OSError), effect=idempotent, compensate=undo, hold=4, hold_bytes=7, timeout=5]
    """
    policy = read(text).spec.nodes["a"].policy
    assert policy == Policy(
        queue=2, queue_bytes=9, workers=3, reorder=0, order="none", state="partitioned", key="by_user", keys=5,
        overflow={"token": "drop_oldest", "else": "block"}, cancel="none", retry=2, backoff=0.1, restart=True,
        retry_on=["TimeoutError", "OSError"], effect="idempotent", compensate="undo", hold=4, hold_bytes=7, timeout=5.0,
    )  # fmt: skip
    assert policy.model_fields_set == set(Policy.model_fields)


def test_each_policy_key_has_one_problem():
    found = problems("a = map(f) [overflow=3, queue_bytes=x, retry_on=3, timeout=true, key=5, qeue=1]")
    assert [p.message.split(": ", 1)[1].split("=")[0] for p in found] == [
        "overflow", "queue_bytes", "retry_on", "timeout", "key", "unknown policy 'qeue'",
    ]  # fmt: skip


def test_values_are_texts_numbers_words_lists_and_mappings():
    text = """a = f(x=(1, 2.5, "s", true, null), y=[b,], z=(hi="^h", n=-3), e=(), m={}, o={p=1}, w=none, v=null)"""
    assert read(text).spec.nodes["a"].args == {
        "x": [1, 2.5, "s", True, None],
        "y": ["b"],
        "z": {"hi": "^h", "n": -3},
        "e": [],
        "m": {},
        "o": {"p": 1},
        "w": "none",
    }


def test_feedback_edges_have_a_limit_and_hops():
    parsed = read("a -> b\nb.x, c -> a [feedback, hops=9]\nb -> b [feedback]\na = map(f)")
    assert [(e.source, e.port, e.target, e.feedback) for e in parsed.spec.edges] == [
        ("a", None, "b", None),
        ("b", "x", "a", Feedback(hops=9)),
        ("c", None, "a", Feedback(hops=9)),
        ("b", None, "b", Feedback()),
    ]
    assert parsed.places["edges", 2, "feedback"] == (2, 13)


def test_inject_declares_types_and_is_a_name_all_the_same():
    parsed = read("inject = map(f)\ninject -> b\ninject inject: str, b: token\ninject c: any")
    assert parsed.spec.inject == {"inject": "str", "b": "token", "c": "any"}
    assert list(parsed.spec.nodes) == ["inject"]
    assert parsed.places["inject", "b"] == (3, 21)


def test_comments_stand_behind_and_between_statements():
    parsed = read(
        "# the graph\na = map(f) # a node: it's \"quoted\n  # between\na -> b # an edge\ninject a: str # taken"
    )
    assert (list(parsed.spec.nodes), len(parsed.spec.edges), parsed.spec.inject) == (["a"], 1, {"a": "str"})


@pytest.mark.parametrize("name", ["größe", "हिन्दी", "x·y", "名前"])
def test_names_are_those_of_python(name):
    assert list(read(f"{name} = map(f)").spec.nodes) == [name]


def test_names_are_read_in_the_form_in_which_python_reads_them():
    spec = read("gro\u0308ße = ﬁlter(f)\ngröße -> gröβe").spec
    assert list(spec.nodes) == ["größe"]
    assert spec.nodes["größe"].operator == "filter"
    with pytest.raises(ValidationError, match="NFKC"):
        NodeSpec(operator="ﬁlter")


@pytest.mark.parametrize("separator", ["\u2028", "\x0b", "\x85", "\x1c"])
def test_separators_of_unicode_do_not_move_a_place(separator):
    (problem,) = problems(f'a = generate(system="x{separator}y")\nb = map(f) [qeue=1]')
    assert problem.hint.startswith("line 2, column 13: b = map(f) [qeue=1]")


def test_caret_stands_below_its_column_after_tabs():
    (problem,) = problems("\ta = map(f)\t[qeue=1]")
    line, below, *_ = problem.hint.split("\n")
    assert line[below.index("^") :].startswith("qeue")


def test_empty_text_says_what_a_node_looks_like():
    for text in ("", "\n\n", "# only a comment\n"):
        (problem,) = problems(text)
        assert (problem.code, "generate()" in problem.hint) == ("AF102", True)


def test_graph_name_that_is_none_is_a_problem_too():
    with pytest.raises(GraphError, match="is not a name"):
        parse("a = map(f)", "no name", SIGNATURES)


HOSTILE = {
    "a megabyte": "a" * 1_000_000,
    "nul": "\0",
    "open brackets": "a = map(" + "[",
    "open parentheses": "(",
    "quotes": '"',
    "backslashes": '"\\',
    "newlines": "\n",
    "comments": "#",
    "ports": "a.b->",
    "minus": "-",
    "digits": "1",
    "commas": "a,",
    "spaces": " ",
    "returns": "\r",
    "letters": "é",
    "words": "é é ",
    "curled quotes": "\u201c",
    "open texts": "a = map(x='\n",
    "open lines": "x = (\n",
    "open lines and others": "x = (\nb = tidy\n",
    "arrows": "a -> (",
}


@pytest.mark.parametrize(
    "text", ["a = f(%s, x y)", "a = f(%s x", "a = f(x=%s", "%s y z", "a = f(%s(", "a -> b (%s", "%s: b"]
)
@pytest.mark.parametrize("letter", ["é", "a", "a ", "-", "1"])
def test_one_long_word_anywhere_is_a_graph_error(text, letter):
    with pytest.raises(GraphError):
        read(text % (letter * (15_000 // len(letter) * (6 if letter != "-" else 1))))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_a_graph_error(name):
    text = HOSTILE[name]
    with pytest.raises(GraphError):
        read((text * (MOST_TEXT // len(text) + 1))[: MOST_TEXT if len(text) < 1000 else None])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a = map(" + "[" * 9_000 + "]" * 9_000 + ")", "AF103"),
        ("\n".join(f"n{i}=m()" for i in range(6_000)), "AF101"),
        (",".join("a" * 9_000) + "->" + ",".join("b" * 9_000), "AF101"),
        ("a = map(" + "[a]," * 20_000 + ")", "AF101"),
        ("a = map(" + "1," * 19_000 + ")", "AF204"),
        ("a = map(" + "1" * 90_000 + ")", "AF103"),
        ("a = map(f)[" + ",".join(f"x{i}=1" for i in range(9_000)) + "]", "AF401"),
        ("\n".join(f"? {i}" for i in range(9_000)), "AF100"),
    ],
    ids=["deep lists", "nodes", "edges", "lists", "arguments", "digits", "policies", "mistakes"],
)
def test_too_much_of_anything_is_a_graph_error_with_few_problems(text, code):
    found = problems(text)
    assert found[-1].code == code
    assert len(found) <= MOST_PROBLEMS
    assert all(len(line) < 300 for p in found for line in p.lines())


PIECES = [*"a=()[].,{}:\"'#\\\n\t 1-", "map", "->", "\r\n", "feedback", "inject ", "queue"]
PIECES += ["é", "²", "\u2028", "\0", "x" * 70, "\\u12", "1e999"]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES)) | st.lists(st.characters()))
@example(["a=b('", "\\", "'"])
def test_any_text_is_a_spec_or_a_graph_error(pieces):
    text = "".join(pieces)
    try:
        parsed = read(text)
    except GraphError as error:
        assert error.problems
        assert all(p.code.startswith("AF1") or p.code.startswith(("AF2", "AF4")) for p in error.problems)
        assert str(error)
    else:
        assert GraphSpec.model_validate(parsed.spec.to_json()) == parsed.spec


@given(st.binary(max_size=300))
def test_any_bytes_are_a_spec_or_a_graph_error(data):
    try:
        read(data.decode("latin-1"))
    except GraphError as error:
        assert error.problems


TEXT = """
ask    = generate(tier="auto", temperature=0.5)
lane   = route(by="phase")
parts  = segment(by="sentence")
safe   = filter(no_secrets)            [queue=8, workers=2]
tidy   = map(tidy, inline=true)
speech = sink(function=speak)          [queue=9, effect=non_idempotent]
notes  = sink(jsonl="reasoning.jsonl") [queue=64, overflow=drop_oldest]

ask -> lane
lane.answer -> parts -> safe -> tidy -> speech
lane.reasoning -> notes
"""


def tidy(text: str) -> str:
    return text


def no_secrets(text: str) -> bool:
    return bool(text)


def speak(text: str) -> None:
    del text


def test_builder_and_text_give_the_same_spec():
    flow = Flow("g")
    ask = flow.add("ask", generate(tier="auto", temperature=0.5))
    lane = flow.add("lane", route(by="phase"))
    parts = flow.add("parts", segment(by="sentence"))
    safe = flow.add("safe", filter(no_secrets), queue=8, workers=2)
    tidied = flow.add("tidy", map(tidy, inline=True))
    speech = flow.add("speech", sink(function=speak), queue=9, effect="non_idempotent")
    notes = flow.add("notes", sink(jsonl="reasoning.jsonl"), queue=64, overflow="drop_oldest")
    ask >> lane
    lane["answer"] >> parts >> safe >> tidied >> speech
    lane["reasoning"] >> notes
    assert flow.spec == read(TEXT).spec
    assert flow.functions == {"tidy": tidy, "no_secrets": no_secrets, "speak": speak}


def test_spec_survives_its_json_form():
    spec = read(TEXT).spec
    assert GraphSpec.model_validate(spec.to_json()) == spec
    assert GraphSpec.model_validate_json(__import__("json").dumps(spec.to_json())) == spec
    assert spec.to_json()["edges"][0] == {"from": "ask", "to": "lane"}


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (lambda f: (f.add("a", tidy), f.add("a", tidy)), "AF202"),
        (lambda f: f.add("a", tidy, qeue=1), "AF401"),
        (lambda f: f["nobody"], "AF206"),
        (lambda f: f.add("a", tidy) >> Flow("h").add("b", tidy), "AF206"),
        (lambda f: (f.add("a", tidy), f.add("b", map(type("tidy", (), {"__call__": print})()))), "AF205"),
        (lambda f: (f.add("no name", tidy), f.spec), "AF200"),
        (lambda f: f.add("a", generate(temperature=float("inf"))), "AF204"),
    ],
)
def test_mistake_in_python_is_a_graph_error_with_its_code(build, code):
    with pytest.raises(GraphError) as error:
        build(Flow("g"))
    assert error.value.problems[0].code == code


@pytest.mark.parametrize("text", ["a -> b", "\ufeffa -> b"])
def test_edges_without_nodes_say_which_are_not_defined(text):
    parsed = read(text)
    assert parsed.text == "a -> b"
    found = check(parsed.spec, SIGNATURES, (), parsed)
    assert [problem.code for problem in found] == ["AF206", "AF206"]
    assert ("no node is called 'a'" in str(found[0]), "line 1, column 1: a -> b" in str(found[0])) == (True, True)
    assert ("no node is called 'b'" in str(found[1]), "line 1, column 6: a -> b" in str(found[1])) == (True, True)
    assert "a node looks like: ask = generate()" in str(found[0])


@pytest.mark.parametrize("text", ["", "\ufeff", "# nothing\n"])
def test_a_text_without_anything_is_empty(text):
    with pytest.raises(GraphError) as raised:
        read(text)
    assert raised.value.code == "AF102"


def test_a_byte_order_mark_is_no_part_of_a_graph():
    text = '\ufeffa = generate()\nout = sink(var="x")\na -> out'
    parsed = load(text, None, SIGNATURES)
    assert list(parsed.spec.nodes) == ["a", "out"]
    document = "\ufeff" + printed(parsed, "json", SIGNATURES)
    assert load(document, None, SIGNATURES).spec == parsed.spec


@pytest.mark.parametrize("text", ["a->b\n" * 20_000, "a -> " * 19_000 + "a", "x = f(" + "1," * 30_000 + ")"])
def test_a_text_of_very_many_parts_is_not_read(text):
    with pytest.raises(GraphError, match=r"marks .* at most") as raised:
        read(text)
    assert raised.value.code == "AF101"


def test_what_is_printed_is_never_more_than_is_read():
    nodes = {f"n{number}": NodeSpec(operator="m", args={"x": [1] * 90}) for number in range(300)}
    with pytest.raises(CommandError, match=r"marks .* are read"):
        printed(Parsed(GraphSpec(name="g", nodes=nodes)), "text", SIGNATURES)


@pytest.mark.parametrize("key", ["\ud800", "\ud800queue"])
def test_half_a_character_in_a_policy_is_an_unknown_policy(key):
    (problem,) = problems(f"a = map(f) [queue=0, {key}=1]")
    assert (problem.code, "unknown policy" in problem.message) == ("AF401", True)
