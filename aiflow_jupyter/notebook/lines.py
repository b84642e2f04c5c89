"""The line `%aiflow`: a command, its words and options, and what help says of each.

%aiflow runs
%aiflow trace record run.jsonl
%aiflow COMMAND --help
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from typing import Final

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.notebook.options import (
    CELL_COMMANDS,
    Parser,
    asks_for_help,
    cell_parser,
    near,
    parse_cell_line,
    split,
)

FORMS: Final = ("text", "json", "python", "svg")
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "runs": ("", "the runs of this kernel, the newest first"),
    "cancel": ("[ID]", "stop a run; without ID, the newest that runs"),
    "tiers": ("", "each tier: who answers, window, price, and whether it answers now"),
    "why": ("[RUN]", "who answered a run's questions, and why; without RUN, the newest"),
    "graphs": ("", "the graphs that were defined"),
    "graph": ("NAME", "print a graph: --as text | json | python | svg"),
    "trace": ("record FILE", "record the next run; replay FILE answers it from one, off does neither"),
    "cost": ("", "what answers cost: --by tier | model | conversation | notebook | day, --since DAY"),
    "conversation": (
        "",
        "the conversations that are kept; NAME shows one, --view TIER as that tier is sent it, --diff\n"
        "what that changes; undo NAME, forget NAME, export NAME FILE, import NAME FILE. All notebooks and\n"
        "the terminal share the names; a cell that is run again replaces its turn; a question that failed\n"
        "or was cancelled is none",
    ),
    "doctor": ("", "what is found, what is missing, and what mends it"),
    "login": ("", "log in to Globus, for the hpc tier"),
    "help": ("[COMMAND]", "all of this, or what one command takes; so does COMMAND --help"),
}
"""Each command with the words that follow it, and what it does."""


TERMINAL: Final = ("bench", "check", "codes", "convert", "demo", "keys", "lab", "models", "relay", "trust", "worker")
"""Commands that there are in a terminal only."""


def in_a_terminal(command: str, words: str = "") -> CommandError:
    """What is said of a command of the terminal that was typed in a notebook."""
    hint = f"in a terminal: aiflow {command}{words}"
    return CommandError(f"{command} is a command of the terminal", code="AF801", hint=hint)


def _parser(command: str) -> Parser:
    from aiflow_jupyter.runtime.source import TIERS

    parser = Parser(prog=f"%aiflow {command}", description=COMMANDS[command][1], add_help=False, allow_abbrev=False)
    if command in ("cancel", "why"):
        parser.add_argument(
            "run", metavar="ID", nargs="?", help="of %%aiflow runs, or its beginning; or the graph's name"
        )
    elif command == "graph":
        parser.add_argument("name", metavar="NAME", help="the graph's, or that of a variable with a Flow")
        parser.add_argument("--as", dest="form", choices=FORMS, default="text", help="the form to print it in")
    elif command == "trace":
        parser.add_argument("action", choices=("record", "replay", "off"), help="what becomes of the next run")
        parser.add_argument("file", metavar="FILE", nargs="?", help="a new file to record to, or one to answer from")
        parser.add_argument("--messages", action="store_true", help="record what is asked, not only its hash")
        parser.add_argument("--speed", type=float, default=1.0, help="how many times faster it is replayed")
        parser.add_argument("--partial", action="store_true", help="leave out a last line that was cut off")
    elif command == "cost":
        by = ("tier", "model", "conversation", "notebook", "day")
        parser.add_argument("--by", choices=by, default="tier", help="what is added up")
        parser.add_argument("--since", metavar="DAY", default="", help="the first day, as in 2026-11-30")
    elif command == "conversation":
        parser.add_argument("words", metavar="NAME", nargs="*", help="or what to do, and with which")
        parser.add_argument("--view", metavar="TIER", choices=TIERS[1:], help="as this tier is sent it")
        parser.add_argument("--diff", action="store_true", help="what folding takes away and puts in its place")
    elif command == "help":
        parser.add_argument(
            "about", metavar="COMMAND", nargs="?", choices=list(dict.fromkeys((*CELL_COMMANDS, *COMMANDS)))
        )
    return parser


def parse_line(line: str) -> argparse.Namespace:
    """Read a `%aiflow` line: its `command`, with what that takes; for `help`, what it is `about`.

    `run NAME --open` is one, too: it needs no body.

    Raises:
        CommandError: an unknown command or option, a missing word.
    """
    command, *words = split(line) or ["help"]
    if command in ("-h", "--help"):
        command = "help"
    if asks_for_help(words) and (command in COMMANDS or command in CELL_COMMANDS):
        return argparse.Namespace(command="help", about=None if command == "help" else command)
    if command == "run" and "--open" in words:
        return parse_cell_line(line)
    if command in CELL_COMMANDS and command not in COMMANDS:
        raise CommandError(
            f"{command} needs a cell: what goes to it stands in the lines below the first",
            code="AF801",
            hint=f"%%aiflow {command}\n%aiflow help {command} tells the rest",
        )
    if command in TERMINAL:
        raise in_a_terminal(command)
    if command not in COMMANDS:
        close = near(command, COMMANDS)
        hint = f"did you mean {close}?" if close else f"known: {', '.join(COMMANDS)}"
        raise CommandError(
            f"unknown command {command!r}", code="AF801", hint=f"{hint}\na question needs a cell: %%aiflow"
        )
    if command == "help" and words[:1] and words[0] in TERMINAL:
        raise in_a_terminal(words[0], " --help")
    parser = _parser(command)
    options = parser.parse_intermixed_args(words)
    if command == "trace" and options.file is None and options.action != "off":
        parser.error(f"{options.action} needs a FILE")
    options.command = command
    return options


def explained(command: str | None) -> str:
    """What a command takes; None for every command with its options."""
    if command is None:
        return _usage()
    cell = [cell_parser(command).format_help()] if command in CELL_COMMANDS else []
    line = [_parser(command).format_help()] if command in COMMANDS else []
    return "\n".join([*cell, *line, *([_language()] if command == "graph" else [])])


def _usage() -> str:
    cells = "\n".join(cell_parser(command).format_help() for command in CELL_COMMANDS)
    lines = (
        f"{'%aiflow run NAME --open':<28} a run that waits for what is offered to it: -o job, job.offer(NODE, VALUE)\n"
    )
    for command, (words, does) in COMMANDS.items():
        first, *more = does.split("\n")
        lines += f"{f'%aiflow {command} {words}':<28} {first}\n" + "".join(f"{'':<28} {row}\n" for row in more)
    braces = "In a body, {{name}} inserts the value of a variable; other braces are text."
    return f"{cells}\n{lines}\n{_language()}\n{braces}\n"


def _language() -> str:
    """The operators and policies of a graph, in a few lines."""
    from aiflow_jupyter.graph.policy import Policy
    from aiflow_jupyter.operators import SIGNATURES

    operators = (f"{name}({', '.join(p.name for p in each.parameters)})" for name, each in SIGNATURES.items())
    return "\n".join(
        textwrap.wrap(f"Operators of a graph: {', '.join(operators)}.", 100, subsequent_indent="  ")
        + textwrap.wrap(f"Policies, in brackets behind one: {', '.join(Policy.model_fields)}.", 100)
    )
