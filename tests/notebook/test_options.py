"""The first line of a cell holds options only, and the body is text except for `{{name}}`."""

from __future__ import annotations

import pytest

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.notebook.options import as_text, insert, parse_cell_line


def test_a_bare_line_asks_whoever_is_best():
    options = parse_cell_line("")
    assert (options.command, options.tier, options.out, options.background, options.raw) == (
        "ask",
        "auto",
        None,
        False,
        False,
    )


def test_every_option_of_a_question_is_read():
    line = '--tier local --stay institution --fallback --model m1 --system "Be brief, it\'s late"'
    line += " --temperature 0.5 --max-tokens 9 --seed 3 -c talk --no-store -o x -b --raw"
    options = vars(parse_cell_line(line))
    assert options == {
        "command": "ask",
        "tier": "local",
        "stay": "institution",
        "fallback": True,
        "explain": False,
        "model": "m1",
        "system": "Be brief, it's late",
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 3,
        "conversation": "talk",
        "no_store": True,
        "out": "x",
        "why": False,
        "background": True,
        "raw": True,
    }


def test_every_option_of_a_run_is_read():
    options = vars(parse_cell_line("run flow --to ask --open --out result --background --raw"))
    assert options == {
        "command": "run",
        "name": "flow",
        "to": "ask",
        "open": True,
        "out": "result",
        "why": False,
        "background": True,
        "raw": True,
    }


def test_ask_may_be_said_in_words():
    assert parse_cell_line("ask --tier=local").tier == "local"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--teir local", "did you mean --tier?"),
        ("--max-token 5", "did you mean --max-tokens?"),
        ("run flow --tto x", "did you mean --to?"),
        ("grahp flow", "did you mean graph?"),
        ("--wyh", "did you mean --why?"),
        ("--temp 1", "did you mean --temperature?"),
        ("--why -b", "%aiflow why"),
        ("run flow --why --open", "%aiflow why"),
        ("tiers", "%aiflow tiers"),
        ("cost --by day", "%aiflow cost --by day"),
        ("trust", "in a terminal: aiflow trust"),
        ("Why is the sky blue?", "a question goes into the body"),
        ("--tier local why", "the question itself goes into the lines below"),
        ("graph", "NAME"),
        ("run", "NAME"),
        ("graph a-b", "is not a name"),
        ("graph a b", "unexpected word 'b'"),
        ("-o 1x", "is not a name"),
        ("-o a.b", "is not a name"),
        ("-o", "expected one argument"),
        ("--tier moon", "invalid choice"),
        ("--temperature warm", "invalid float"),
        ("--temperature -1", "between 0 and 10"),
        ("--temperature nan", "between 0 and 10"),
        ("--max-tokens 0", "at least 1"),
        ("--max-tokens 1000001", "at most 1,000,000"),
        ("--temperature inf", "between 0 and 10"),
        ("-o In", "a name of Python or IPython"),
        ("-o Out", "a name of Python or IPython"),
        ("-o _", "a name of Python or IPython"),
        ("-o _i3", "a name of Python or IPython"),
        ("-o get_ipython", "a name of Python or IPython"),
        ("-o print", "a name of Python or IPython"),
        ("run flow -o list", "a name of Python or IPython"),
        ("--max-tokens many", "invalid int"),
        ('--system "open', "close the quotes"),
        ("--to x", "unknown option '--to'"),
        ("graph x -b", "unknown option '-b'"),
    ],
)
def test_a_line_that_can_not_be_read_is_one_error_that_says_what_to_do(line, says):
    with pytest.raises(CommandError) as caught:
        parse_cell_line(line)
    assert says in str(caught.value)
    assert caught.value.code == "AF801"


@pytest.mark.parametrize("line", ["--foo", "--json", "--no", "-x", "tuesday", "run flow --te x"])
def test_nothing_is_said_to_be_meant_that_is_not_near(line):
    with pytest.raises(CommandError) as caught:
        parse_cell_line(line)
    assert "did you mean" not in caught.value.hint


def test_a_line_of_its_own_is_told_from_a_question_that_begins_with_its_word():
    with pytest.raises(CommandError, match="unknown command 'why'") as caught:
        parse_cell_line("why is the sky blue")
    assert "a question goes into the body" in caught.value.hint


def test_a_name_in_double_braces_becomes_its_value():
    assert insert("Dear {{name}}, you owe {{sum_1}}.", {"name": "Ada", "sum_1": 3}) == "Dear Ada, you owe 3."


def test_inserted_text_is_not_read_again():
    assert insert("{{a}}", {"a": "{{b}}", "b": "secret"}) == "{{b}}"


@pytest.mark.parametrize(
    "body",
    [
        "{a} { b } {} }{ {{}} {{ a }} {{a.b}} {{a|upper}} {{1}} {{a b}} ${a} $a %(a)s %s %d {a!r:>10}",
        'f"{x}" and \'{y}\' "unclosed',
        "a -> b --o x -b --tier moon",
        "</script><script>alert(1)</script>",
        '{"json": {"a": [1, {"b": 2}]}}',
        "back\\slash \\n \\{\\{a\\}\\}",
    ],
)
def test_all_other_braces_and_signs_are_text(body):
    assert insert(body, {"a": "WRONG", "b": "WRONG", "x": "WRONG"}) == body


def test_a_large_body_full_of_signs_is_left_as_it_is():
    body = ("{ } {{ }} \"quote' 100% a -> b </script> {% if %} \\ " * 5000)[:200_000]
    assert insert(body, {}) == body


def test_a_large_body_takes_a_large_value():
    assert insert("{{a}}" * 1000, {"a": "x" * 1000}) == "x" * 1_000_000


def test_an_unknown_name_is_an_error_with_a_suggestion():
    with pytest.raises(CommandError) as caught:
        insert("{{anwser}}", {"answer": 1})
    assert caught.value.code == "AF803"
    assert "{{answer}}" in str(caught.value)
    assert "--raw" in str(caught.value)


def test_names_in_any_alphabet_are_names():
    assert insert("{{größe}} {{名}}", {"größe": 1, "名": 2}) == "1 2"


def test_a_table_is_inserted_as_its_rows():
    rows = [{"a": 1, "b": 2}, {"a": 3, "c": 4}]
    assert as_text(rows) == "a | b | c\n1 | 2 | \n3 |  | 4"


def test_a_list_that_is_no_table_is_inserted_as_python_prints_it():
    assert as_text([1, {"a": 2}]) == "[1, {'a': 2}]"
    assert as_text([]) == "[]"


def test_a_data_frame_is_inserted_whole():
    class Frame:
        def to_string(self):
            return "every row"

        def __str__(self):
            return "first rows ..."

    assert as_text(Frame()) == "every row"


def test_a_class_is_not_taken_for_a_data_frame():
    class Frame:
        def to_string(self):
            raise AssertionError

    assert "Frame" in as_text(Frame)


def test_a_value_that_can_not_be_made_text_is_an_error_that_names_it():
    class Broken:
        def __str__(self):
            raise RuntimeError("no")

    with pytest.raises(CommandError, match="'thing' can't be made text: RuntimeError") as caught:
        insert("a {{thing}}", {"thing": Broken()})
    assert caught.value.code == "AF803"
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("more", ["-o x", "-b", "--why"])
def test_what_is_only_explained_has_no_answer_to_do_something_with(more):
    assert parse_cell_line("--explain").explain
    with pytest.raises(CommandError, match="asks nothing"):
        parse_cell_line(f"--explain {more}")
