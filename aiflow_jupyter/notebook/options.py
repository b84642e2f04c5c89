"""The first line of a cell: options only; the program stands in the body.

%%aiflow [ask] [--tier T] [-o NAME] [-b] ...             a question
%%aiflow graph NAME                                      defines a graph
%%aiflow run NAME [--to NODE] [--open] [-o NAME] [-b]    sends the body through it
"""

from __future__ import annotations

import argparse
import builtins
import difflib
import keyword
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from aiflow_jupyter.errors import CommandError

CELL_COMMANDS = {
    "ask": "ask a model what stands in the lines below",
    "graph": "define a graph, a node or an edge in each of the lines below",
    "run": "send what stands in the lines below through a graph",
}
_BODY = "the question itself goes into the lines below the first"
_OFTEN_ASKED = {"%%aiflow": _BODY, "%%aiflow run": _BODY, "%aiflow why": "a question needs a cell: %%aiflow"}
"""What is said of a word too many where it may be that of a question."""
_AS_JSON = ("%aiflow tiers", "%aiflow cost", "%aiflow doctor")
MOST_TOKENS = 1_000_000
_TAKEN = re.compile(r"In|Out|get_ipython|exit|quit|_{1,3}|_\d+|_i{1,3}|_i\d+|_[dio]h")
"""Names that are IPython's own."""
_INSERT = re.compile(r"\{\{([^\W\d]\w*)\}\}")


class Parser(argparse.ArgumentParser):
    """Raises a `CommandError` where a line can't be read, with the usage and what was probably meant."""

    def format_usage(self) -> str:
        """The usage, also while `parse_intermixed_args` keeps it as a text, whose % would be taken for a format."""
        return super().format_usage() if self.usage is None else f"usage: {self.usage}"

    def error(self, message: str) -> NoReturn:
        """Refuse the line."""
        hint = self.format_usage().strip()
        unknown = re.search(r"unrecognized arguments: (\S+)", message)
        if unknown:
            word = unknown[1]
            known = [option for action in self._actions for option in action.option_strings]
            close = near(word.split("=")[0], known)
            message = f"unknown option {word!r}" if word.startswith("-") else f"unexpected word {word!r}"
            hint = (f"did you mean {close}?\n" if close else "") + hint
            if not word.startswith("-") and self.prog in _OFTEN_ASKED:
                hint += f"\n{_OFTEN_ASKED[self.prog]}"
            if word == "--json" and self.prog in _AS_JSON:
                hint = f"in a terminal: {self.prog[1:]} --json\n{hint}"
        raise CommandError(message, code="AF801", hint=hint)


def near(word: str, known: Iterable[str]) -> str:
    """The known word of which this one is a slip, or a beginning; empty where there is none that is really near."""
    bare = {each.lstrip("-"): each for each in known}
    meant = word[:_LONGEST].lstrip("-")
    close = difflib.get_close_matches(meant, bare, n=1, cutoff=_ALIKE)
    begun = [each for each in bare if len(meant) >= _BEGINNING and each.startswith(meant)]
    swapped = [each for each in bare if len(each) == len(meant) and sorted(each) == sorted(meant)]
    found = close or swapped or (begun if len(begun) == 1 else [])
    return bare[found[0]] if found else ""


_ALIKE = 0.7
"""As `difflib` counts: `teir` is 0.75 of `tier`, but `trust` 0.67 of `runs`."""
_BEGINNING = 3
_LONGEST = 100


def cell_parser(command: str) -> Parser:
    """What reads the first line of a cell of that kind."""
    from aiflow_jupyter.runtime.source import FLOORS, TIERS

    prog = f"%%aiflow{'' if command == 'ask' else f' {command}'}"
    parser = Parser(prog=prog, description=CELL_COMMANDS[command], add_help=False, allow_abbrev=False)
    if command in ("graph", "run"):
        parser.add_argument("name", metavar="NAME", help="the graph's; to run, a variable with a Flow does, too")
    if command == "run":
        parser.add_argument("--to", metavar="NODE", help="the input node, where the graph has several")
        parser.add_argument(
            "--open",
            action="store_true",
            help="in the background, with inputs that stay open: job.offer(); the body may be left out",
        )
    if command == "ask":
        parser.add_argument("--tier", choices=TIERS, default="auto", help="who answers; a named tier is strict")
        parser.add_argument(
            "--stay", choices=FLOORS, help="how far the text may go: this machine, its cluster too, or anywhere"
        )
        parser.add_argument("--fallback", action="store_true", help="another tier may answer where the named one fails")
        parser.add_argument("--explain", action="store_true", help="say who would answer and why, and don't ask")
        parser.add_argument("--model", help="the model's name")
        parser.add_argument("--system", help="a system message before the question")
        parser.add_argument("--temperature", type=float, help="0 for the likeliest token each time")
        parser.add_argument("--max-tokens", type=int, help="the most tokens of the answer")
        parser.add_argument("--seed", type=int, help="makes sampling repeatable")
        parser.add_argument(
            "-c", "--conversation", metavar="NAME", help="a turn of this conversation; see %%aiflow conversation"
        )
        parser.add_argument(
            "--no-store", action="store_true", help="keep the turn in this kernel's memory only, not on the disk"
        )
    if command in ("ask", "run"):
        parser.add_argument("-o", "--out", metavar="NAME", help="bind the result to this variable")
        parser.add_argument("--why", action="store_true", help="say who answered and why, below the answer")
        parser.add_argument("-b", "--background", action="store_true", help="return at once; see %%aiflow runs")
        parser.add_argument("--raw", action="store_true", help="leave {{name}} in the body as it is")
    return parser


def parse_cell_line(line: str) -> argparse.Namespace:
    """Read the first line of a `%%aiflow` cell; `command` says which kind it is, or `help` what it is `about`.

    Raises:
        CommandError: an unknown option or command, a missing name.
    """
    words = split(line)
    if words[:1] in (["help"], ["-h"], ["--help"]):
        return argparse.Namespace(command="help", about=None)
    command = words.pop(0) if words and words[0] in CELL_COMMANDS else "ask"
    if asks_for_help(words):
        return argparse.Namespace(command="help", about=command)
    if command == "ask" and words and not words[0].startswith("-"):
        raise _no_cell(words)
    options = cell_parser(command).parse_args(words)
    options.command = command
    for name in ("out", "name"):
        value = getattr(options, name, None)
        if value is not None and (not value.isidentifier() or keyword.iskeyword(value)):
            raise CommandError(
                f"{value!r} is not a name", code="AF801", hint="a name is letters, digits and _, and no word of Python"
            )
    out = getattr(options, "out", None)
    if out is not None and (_TAKEN.fullmatch(out) or hasattr(builtins, out)):
        raise CommandError(
            f"{out!r} is a name of Python or IPython itself, which other cells need", code="AF801", hint="-o answer"
        )
    if getattr(options, "why", False) and (options.background or getattr(options, "open", False)):
        raise CommandError(
            "--why is said below the answer, which a run in the background is not waited for",
            code="AF801",
            hint="leave it out, and type %aiflow why when the answer is there",
        )
    if command == "ask":
        if options.explain and (options.background or options.out or options.why):
            raise CommandError(
                "--explain asks nothing, so that there is no answer for -o, -b or --why",
                code="AF801",
                hint="leave out the one or the others",
            )
        require_arguments(vars(options), "--")
    return options


def _no_cell(words: Sequence[str]) -> CommandError:
    """What is said of a first line whose first word begins no cell."""
    from aiflow_jupyter.notebook.lines import COMMANDS, TERMINAL, in_a_terminal

    first, *more = words
    if first in TERMINAL and not more:
        return in_a_terminal(first)
    if first in COMMANDS and (not more or more[0].startswith("-")):
        return CommandError(
            f"{first} is no cell but a line of its own", code="AF801", hint=f"%aiflow {' '.join(words)}"
        )
    close = near(first, CELL_COMMANDS)
    hint = f"did you mean {close}?" if close else f"known: {', '.join(CELL_COMMANDS)}; a question goes into the body"
    return CommandError(f"unknown command {first!r}", code="AF801", hint=hint)


def require_arguments(given: Mapping[str, Any], mark: str = "") -> None:
    """Check the arguments of a question, each of which may be None or missing.

    Args:
        given: `tier`, `stay`, `model`, `system`, `temperature`, `max_tokens` and `seed`; others are left alone.
        mark: what stands before a name where the user writes it.

    Raises:
        CommandError: one has a type or value that it can't have.
    """
    from aiflow_jupyter.runtime.source import FLOORS, TIERS

    def refuse(name: str, must: str) -> NoReturn:
        said = repr(given[name])
        shown = said if len(said) <= 60 else f"{said[:57]}..."
        raise CommandError(f"{mark}{name.replace('_', '-') if mark else name} is {shown}, {must}", code="AF801")

    for name in ("tier", "stay", "model", "system"):
        if not isinstance(given.get(name), str | None):
            refuse(name, "not text")
    for name, known in (("tier", TIERS), ("stay", FLOORS)):
        if given.get(name) is not None and given[name] not in known:
            refuse(name, f"not {', '.join(known[:-1])} or {known[-1]}")
    for name in ("temperature", "max_tokens", "seed"):
        kind = int | float if name == "temperature" else int
        if isinstance(given.get(name), bool) or not isinstance(given.get(name), kind | None):
            refuse(name, "not a number" if name == "temperature" else "not a whole number")
    for name, least, most, must in (
        ("temperature", 0, 10, "not between 0 and 10"),
        ("max_tokens", 1, MOST_TOKENS, f"not at least 1 and at most {MOST_TOKENS:,}"),
        ("seed", 1 - 2**63, 2**63 - 1, "not a number of 64 bits"),
    ):
        if given.get(name) is not None and not least <= given[name] <= most:
            refuse(name, must)


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether one of the words is `--help`."""
    return any(word in ("-h", "--help") for word in words)


def split(line: str) -> list[str]:
    """The words of a line, as a shell splits them.

    Raises:
        CommandError: quotes are left open.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise CommandError(f"the line can't be read: {error}", code="AF801", hint="close the quotes") from None


def insert(body: str, variables: Mapping[str, Any]) -> str:
    """Put variables into a body: `{{name}}` becomes the value of `name`, all other braces stay.

    Raises:
        CommandError: no variable has that name, or its value can't be made text.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in variables:
            close = near(name, (n for n in variables if not n.startswith("_")))
            hint = f"did you mean {{{{{close}}}}}?\n" if close else ""
            raise CommandError(
                f"the cell has {{{{{name}}}}}, but no variable is called {name!r}",
                code="AF803",
                hint=f"{hint}--raw leaves braces as they are",
            )
        try:
            return as_text(variables[name])
        except Exception as error:
            raise CommandError(
                f"the value of {name!r} can't be made text: {type(error).__name__}", code="AF803"
            ) from error

    return _INSERT.sub(value, body)


def as_text(value: Any) -> str:
    """A variable as a prompt shows it: text as it is, a table as its rows, anything else as Python prints it."""
    if isinstance(value, str):
        return value
    to_string = getattr(value, "to_string", None)  # a pandas DataFrame or Series, whose str() leaves rows out
    if callable(to_string) and not isinstance(value, type):
        return str(to_string())
    if isinstance(value, (list, tuple)) and value and all(isinstance(row, Mapping) for row in value):
        columns = list(dict.fromkeys(key for row in value for key in row))
        rows = [[str(row.get(column, "")) for column in columns] for row in value]
        return "\n".join(" | ".join(row) for row in [list(map(str, columns)), *rows])
    return str(value)
