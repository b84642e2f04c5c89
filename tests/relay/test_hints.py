"""A command or an option that the relay room tells somebody to use exists."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import aiflow_jupyter.relay
from aiflow_jupyter.cli import main

ROOM = Path(aiflow_jupyter.relay.__file__).parent
FILES = sorted(file for file in ROOM.rglob("*") if file.suffix in {".py", ".md", ".service"})
COMMAND = re.compile(r"(?:[`(/]|See: )aiflow ((?:[a-z][a-z-]* ?)+)")


def told(text: str) -> list[str]:
    return [words.strip() for words in COMMAND.findall(text)]


def find(words: str) -> click.Command:
    """The command that these words name, which may be followed by an argument."""
    command: click.Command = main
    for word in words.split():
        if isinstance(command, click.Group):
            assert word in command.commands, f"aiflow {words}: there is no {word}"
            command = command.commands[word]
        else:
            arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
            assert arguments, f"aiflow {words}: {command.name} takes no {word}"
    return command


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_command_exists(file):
    for words in told(file.read_text()):
        find(words)


def test_what_was_told_once_is_found_out():
    assert told("made with `aiflow relay keys`, or (aiflow keys relay add NAME)") == ["relay keys", "keys relay add"]
    for words in ("keys rely add", "relay keys"):
        with pytest.raises(AssertionError, match=r"there is no rely|takes no keys"):
            find(words)


def test_every_option_exists():
    options = {
        name for words in ("relay", "keys relay add") for parameter in find(words).params for name in parameter.opts
    }
    for file in (ROOM / "server.py", ROOM / "command.py", ROOM / "service.py", ROOM / "keys.py"):
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", file.read_text())) <= options, file
