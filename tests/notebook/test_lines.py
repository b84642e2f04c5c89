"""`%aiflow` and `--help`: what is read of a line, and what help says of every command."""

from __future__ import annotations

import pytest

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.notebook.lines import COMMANDS, explained, parse_line
from aiflow_jupyter.notebook.options import CELL_COMMANDS, parse_cell_line


def test_a_line_is_read_with_its_words():
    assert vars(parse_line("cancel abc")) == {"command": "cancel", "run": "abc"}
    assert vars(parse_line("")) == {"command": "help", "about": None}
    assert vars(parse_line("help trace")) == {"command": "help", "about": "trace"}
    assert parse_line("conversation --diff talk --view local").words == ["talk"]
    assert parse_line("trace replay --speed 4 run.jsonl").file == "run.jsonl"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cancle", "did you mean cancel?"),
        ("trust", "in a terminal: aiflow trust"),
        ("help trust", "in a terminal: aiflow trust --help"),
        ("tiers --json", "in a terminal: aiflow tiers --json"),
        ("tiers x", "unexpected word 'x'"),
        ("how does it work", "%%aiflow"),
        ("why is it so", "%%aiflow"),
        ("runs all", "unexpected word 'all'"),
        ("runs --all", "unknown option '--all'"),
        ("help nothing", "invalid choice"),
        ("ask", "%%aiflow ask"),
        ("run flow", "%%aiflow run"),
        ("graph", "NAME"),
    ],
)
def test_a_line_that_can_not_be_read_is_one_error_that_says_what_to_do(line, says):
    with pytest.raises(CommandError) as caught:
        parse_line(line)
    assert says in str(caught.value)
    assert caught.value.code == "AF801"


@pytest.mark.parametrize("word", ["stur", "bus", "rum", "thrust"])
def test_nothing_is_said_to_be_meant_that_is_not_near(word):
    with pytest.raises(CommandError) as caught:
        parse_line(word)
    assert "did you mean" not in caught.value.hint


@pytest.mark.parametrize("line", ["trace", "trace record", "trace --nope", "conversation --nope", "cost --by moon"])
def test_the_usage_in_an_error_is_one_that_can_be_typed(line):
    with pytest.raises(CommandError) as caught:
        parse_line(line)
    assert f"usage: %aiflow {line.partition(' ')[0]} [--" in str(caught.value)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("words", ["--help", "-h", "x --help", "--nope -h"])
def test_every_command_explains_itself(command, words):
    options = parse_line(f"{command} {words}")
    assert options.command == "help"
    assert options.about == (None if command == "help" else command)
    text = explained(command)
    assert f"usage: %aiflow {command}" in text
    assert COMMANDS[command][1].split()[0] in text


@pytest.mark.parametrize("command", CELL_COMMANDS)
@pytest.mark.parametrize("words", ["--help", "-h", "x --to --help"])
def test_every_kind_of_cell_explains_itself_in_a_cell_and_in_a_line(command, words):
    for options in (parse_cell_line(f"{command} {words}"), parse_line(f"{command} {words}")):
        assert vars(options) == {"command": "help", "about": command}
    assert "usage: %%aiflow" in explained(command)


@pytest.mark.parametrize("line", ["help", "--help", "-h"])
def test_help_of_everything_in_a_cell_is_that_of_a_line(line):
    assert vars(parse_cell_line(line)) == vars(parse_line(line)) == {"command": "help", "about": None}


def test_help_of_a_graph_names_operators_and_policies():
    text = explained("graph")
    assert "usage: %%aiflow graph NAME" in text
    assert "usage: %aiflow graph" in text
    assert "generate(" in text
    assert "overflow" in text


def test_help_names_every_command_and_option():
    text = explained(None)
    for option in ("--tier", "--model", "--system", "--temperature", "--max-tokens", "--seed", "--to", "--out", "-b"):
        assert option in text
    for command in COMMANDS:
        assert f"%aiflow {command}" in text
    assert "{{name}}" in text
