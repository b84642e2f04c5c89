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
import textwrap
from collections.abc import Mapping
from typing import Any, NoReturn

from aiflow_jupyter.errors import CommandError

TIERS = ("auto", "local", "hpc", "cloud")
FLOORS = ("local", "institution", "anywhere")
CELL_COMMANDS = ("ask", "graph", "run")
LINE_COMMANDS = (
    "runs",
    "cancel",
    "why",
    "tiers",
    "graphs",
    "graph",
    "trace",
    "cost",
    "conversation",
    "doctor",
    "login",
    "help",
)
FORMS = ("text", "json", "python", "svg")

MOST_TOKENS = 1_000_000
_TAKEN = re.compile(r"In|Out|get_ipython|exit|quit|_{1,3}|_\d+|_i{1,3}|_i\d+|_[dio]h")
"""Names that are IPython's own."""
_INSERT = re.compile(r"\{\{([^\W\d]\w*)\}\}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = self.format_usage().strip()
        unknown = re.search(r"unrecognized arguments: (\S+)", message)
        if unknown:
            word = unknown[1]
            known = [option for action in self._actions for option in action.option_strings]
            close = difflib.get_close_matches(word.split("=")[0], known, n=1)
            message = f"unknown option {word!r}" if word.startswith("-") else f"unexpected word {word!r}"
            hint = (f"did you mean {close[0]}?\n" if close else "") + hint
            if not word.startswith("-") and " graph" not in self.prog:
                hint += "\nthe question itself goes into the lines below the first"
        raise CommandError(message, code="AF801", hint=hint)


def _parser(command: str) -> _Parser:
    parser = _Parser(prog=f"%%aiflow{'' if command == 'ask' else f' {command}'}", add_help=False, allow_abbrev=False)
    if command in ("graph", "run"):
        parser.add_argument("name", metavar="NAME")
    if command == "run":
        parser.add_argument("--to", metavar="NODE", help="the input node, where the graph has several")
        parser.add_argument(
            "--open", action="store_true", help="in the background, with inputs that stay open: offer()"
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
        parser.add_argument("-b", "--background", action="store_true", help="return at once; see %%aiflow runs")
        parser.add_argument("--raw", action="store_true", help="leave {{name}} in the body as it is")
    return parser


def parse_cell_line(line: str) -> argparse.Namespace:
    """Read the first line of a `%%aiflow` cell; `command` says which kind it is.

    Raises:
        CommandError: an unknown option or command, a missing name.
    """
    words = _split(line)
    command = words.pop(0) if words and words[0] in CELL_COMMANDS else "ask"
    if words[:1] in (["help"], ["-h"], ["--help"]):
        raise CommandError("help is a line of its own", code="AF801", hint="%aiflow help")
    if command == "ask" and words and not words[0].startswith("-"):
        close = difflib.get_close_matches(words[0], CELL_COMMANDS, n=1)
        hint = (
            f"did you mean {close[0]}?"
            if close
            else f"known: {', '.join(CELL_COMMANDS)}; a question goes into the body"
        )
        raise CommandError(f"unknown command {words[0]!r}", code="AF801", hint=hint)
    options = _parser(command).parse_args(words)
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
    if command == "ask":
        require_arguments(vars(options), "--")
    return options


def require_arguments(given: Mapping[str, Any], mark: str = "") -> None:
    """Check the arguments of a question, each of which may be None or missing.

    Args:
        given: `tier`, `stay`, `model`, `system`, `temperature`, `max_tokens` and `seed`; others are left alone.
        mark: what stands before a name where the user writes it.

    Raises:
        CommandError: one has a type or value that it can't have.
    """

    def refuse(name: str, must: str) -> NoReturn:
        said = repr(given[name])
        shown = said if len(said) <= 60 else f"{said[:57]}..."
        raise CommandError(f"{mark}{name.replace('_', '-') if mark else name} is {shown}, {must}", code="AF801")

    for name in ("tier", "stay", "model", "system"):
        if not isinstance(given.get(name), str | None):
            refuse(name, "not text")
    for name in ("temperature", "max_tokens", "seed"):
        kind = int | float if name == "temperature" else int
        if isinstance(given.get(name), bool) or not isinstance(given.get(name), kind | None):
            refuse(name, "not a number" if name == "temperature" else "not a whole number")
    temperature, most = given.get("temperature"), given.get("max_tokens")
    if temperature is not None and not 0 <= temperature <= 10:
        refuse("temperature", "not between 0 and 10")
    if most is not None and not 1 <= most <= MOST_TOKENS:
        refuse("max_tokens", f"not at least 1 and at most {MOST_TOKENS:,}")


def parse_line(line: str) -> list[str]:
    """Read a `%aiflow` line: a command and its words.

    Raises:
        CommandError: an unknown command.
    """
    words = _split(line) or ["help"]
    if words[0] in ("-h", "--help"):
        words[0] = "help"
    if words[0] not in LINE_COMMANDS:
        close = difflib.get_close_matches(words[0], LINE_COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(LINE_COMMANDS)}"
        raise CommandError(
            f"unknown command {words[0]!r}", code="AF801", hint=f"{hint}\na question needs a cell: %%aiflow"
        )
    return words


def parse_graph(words: list[str]) -> argparse.Namespace:
    """Read what follows `%aiflow graph`: the graph's `name`, and the `form` to print it in.

    Raises:
        CommandError: an unknown option or form, a missing name.
    """
    parser = _Parser(prog="%aiflow graph", add_help=False, allow_abbrev=False)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--as", dest="form", choices=FORMS, default="text")
    return parser.parse_args(words)


def parse_trace(words: list[str]) -> argparse.Namespace:
    """Read what follows `%aiflow trace`: the `action`, its `file`, and `messages`, or `speed` and `partial`.

    Raises:
        CommandError: an unknown action or option, a missing file.
    """
    parser = _Parser(prog="%aiflow trace", add_help=False, allow_abbrev=False)
    parser.add_argument("action", choices=("record", "replay", "off"))
    parser.add_argument("file", metavar="FILE", nargs="?")
    parser.add_argument("--messages", action="store_true", help="record what is asked, not only its hash")
    parser.add_argument("--speed", type=float, default=1.0, help="how many times faster it is replayed")
    parser.add_argument("--partial", action="store_true", help="leave out a last line that was cut off")
    options = parser.parse_intermixed_args(words)
    if options.file is None and options.action != "off":
        parser.error(f"{options.action} needs a FILE")
    return options


def parse_cost(words: list[str]) -> argparse.Namespace:
    """Read what follows `%aiflow cost`: what to add up `by`, and `since` which day.

    Raises:
        CommandError: an unknown option or grouping.
    """
    parser = _Parser(prog="%aiflow cost", add_help=False, allow_abbrev=False)
    parser.add_argument("--by", choices=("tier", "model", "conversation", "notebook", "day"), default="tier")
    parser.add_argument("--since", metavar="DAY", default="")
    return parser.parse_args(words)


def parse_conversation(words: list[str]) -> argparse.Namespace:
    """Read what follows `%aiflow conversation`: its `words`, and which `view` of it, or its `diff`, is wanted.

    Raises:
        CommandError: an unknown option or tier.
    """
    parser = _Parser(prog="%aiflow conversation", add_help=False, allow_abbrev=False)
    parser.add_argument("words", metavar="NAME", nargs="*")
    parser.add_argument("--view", metavar="TIER", choices=TIERS[1:], help="as this tier is sent it")
    parser.add_argument("--diff", action="store_true", help="what folding takes away and puts in its place")
    options = parser.parse_intermixed_args(words)
    if options.diff and not options.view:
        parser.error("--diff needs --view TIER")
    return options


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise CommandError(f"the first line can't be read: {error}", code="AF801", hint="close the quotes") from None


def usage() -> str:
    """Every command with its options."""
    cells = "\n".join(_parser(command).format_help() for command in CELL_COMMANDS)
    lines = (
        "%aiflow runs             the runs of this kernel\n"
        "%aiflow cancel [ID]      stop a run; without ID, the newest that runs\n"
        "%aiflow tiers            each tier: who answers, window, price, and whether it answers now\n"
        "%aiflow why [RUN]        who answered a run's questions, and why; without RUN, the newest\n"
        "%aiflow graphs           the graphs that were defined\n"
        "%aiflow graph NAME       print one: --as text | json | python | svg\n"
        "%aiflow trace record FILE   record the next run; replay FILE answers it from one, off does neither\n"
        "%aiflow cost             what answers cost: --by tier | model | conversation | notebook | day, --since DAY\n"
        "%aiflow conversation     all that are kept; NAME shows one, --view TIER as that tier is sent it, --diff\n"
        "                         undo NAME, forget NAME, export NAME FILE, import NAME FILE\n"
        "%aiflow doctor           what is found, what is missing, and what mends it\n"
        "%aiflow login            log in to Globus, for the hpc tier\n"
        "%aiflow help             this text\n"
    )
    from aiflow_jupyter.graph.policy import Policy
    from aiflow_jupyter.operators import SIGNATURES

    operators = (f"{name}({', '.join(p.name for p in each.parameters)})" for name, each in SIGNATURES.items())
    graphs = "\n".join(
        textwrap.wrap(f"Operators of a graph: {', '.join(operators)}.", 100, subsequent_indent="  ")
        + textwrap.wrap(f"Policies, in brackets behind one: {', '.join(Policy.model_fields)}.", 100)
    )
    return (
        f"{cells}\n{lines}\n{graphs}\nIn a body, {{{{name}}}} inserts the value of a variable; other braces are text.\n"
    )


def insert(body: str, variables: Mapping[str, Any]) -> str:
    """Put variables into a body: `{{name}}` becomes the value of `name`, all other braces stay.

    Raises:
        CommandError: no variable has that name, or its value can't be made text.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in variables:
            close = difflib.get_close_matches(name, [n for n in variables if not n.startswith("_")], n=1)
            hint = f"did you mean {{{{{close[0]}}}}}?\n" if close else ""
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
