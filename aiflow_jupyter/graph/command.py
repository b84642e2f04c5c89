"""`aiflow check` and `aiflow convert`: graphs in files, in any of their forms, and no code is run.

What a file's names stand for can't be known from it, so whatever is not an operator is taken to be a function of the
user's, and said to be; unless it is an operator's name but for a slip.
"""

# ruff: noqa: PLC0415 - imported when used, so that the command starts quickly
from __future__ import annotations

import builtins
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aiflow_jupyter.errors import AiflowError, CommandError, GraphError, GraphProblem, plain

if TYPE_CHECKING:
    from aiflow_jupyter.graph.bounds import GraphBound
    from aiflow_jupyter.graph.checks.checking import Findings
    from aiflow_jupyter.graph.parsed import Parsed
    from aiflow_jupyter.graph.signatures import Signatures
    from aiflow_jupyter.graph.spec import GraphSpec

MOST_BYTES = 10_000_000
_FORMS = ("json", "text", "python", "svg")
_ALIKE = 0.8
"""From here on a name is a slip (`genrate`), not a name of its own."""

_PLACE = re.compile(r"(?:line \d+, column \d+: [^\n]*\n *\^|at [^\n]*)\n?")
_NAME = click.option("--name", default=None, help="The graph's name.  [default: the document's, or the file's]")
_FILE = click.Path(path_type=Path, allow_dash=True)


def commands(signatures: Callable[[], Signatures]) -> tuple[click.Command, click.Command]:
    """The commands, with the operators that a graph may use (asked for when they are needed)."""

    @click.command()
    @click.argument("file", type=_FILE, required=False)
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.option("--schema", is_flag=True, help="Print the JSON Schema of a graph, and nothing else.")
    @click.option("--functions", default="", metavar="NAME,...", help="Names that are functions of yours for sure.")
    @_NAME
    def check(file: Path | None, functions: str, name: str | None, *, as_json: bool, schema: bool) -> None:
        """Check a graph (cell text, JSON or printed Python; - is standard input) and print how much memory it may take.

        No code is run: what is no operator is taken to be a function of yours. Exit code 1 if the graph has errors.
        """
        if schema:
            from aiflow_jupyter.graph.forms.document import schema as document_schema

            click.echo(json.dumps(document_schema(), indent=2))
            return
        if file is None:
            raise click.UsageError("name a FILE, or - for standard input")
        sure = {each.strip() for each in functions.split(",") if each.strip()}
        if not as_json:
            _tell(*_checked(file, name, sure, signatures()))
            return
        report = _report(file, name, sure, signatures())
        click.echo(json.dumps(report, ensure_ascii=True))
        if not report["ok"]:
            raise SystemExit(1)

    @click.command()
    @click.argument("file", type=_FILE)
    @click.option(
        "--to",
        "form",
        type=click.Choice(_FORMS),
        required=True,
        help="The form to print it in.",
    )
    @click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file.")
    @_NAME
    def convert(file: Path, form: str, out: Path | None, name: str | None) -> None:
        """Print a graph (cell text, JSON or printed Python; - is standard input) in another form. No code is run."""
        from aiflow_jupyter.graph.forms.conversion import printed

        table = signatures()
        _write(printed(_read(file, name, table), form, table), out)

    return check, convert


# -- files


def content(file: Path) -> str:
    """What a file holds, as text.

    Raises:
        CommandError: it can't be read, or it is no text.
    """
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1) if sys.stdin else b""
        else:
            with file.open("rb") as stream:
                data = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"{file} can't be read: {reason}", code="AF808", hint="name a file, or -") from None
    if len(data) > MOST_BYTES:
        raise CommandError(f"{file} has more than {MOST_BYTES:,} bytes", code="AF808", hint="nothing here is that long")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        message = f"{file} is no UTF-8 text (byte {error.start:,})"
        raise CommandError(message, code="AF808", hint="save it as UTF-8") from None


def loaded(file: Path, name: str | None, signatures: Signatures) -> Parsed:
    """The graph in a file (`-` is standard input), in any form that is read.

    Raises:
        CommandError: the file can't be read.
        GraphError: it holds no graph, or one with mistakes in its writing.
    """
    parsed = _read(file, name, signatures)
    if parsed.problems:
        raise GraphError(parsed.problems, title=parsed.spec.name)
    return parsed


def _read(file: Path, name: str | None, signatures: Signatures) -> Parsed:
    """The same, with its mistakes as problems as far as the graph is known."""
    from aiflow_jupyter.graph.forms.conversion import load

    return load(content(file), name, signatures, default=_stem(file))


def _stem(file: Path) -> str:
    """A name for the graph of a file."""
    name = re.sub(r"\W", "_", file.stem)[:64]
    return name if name.isidentifier() and name != "_" else "graph"


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.buffer.write(text.encode())
        return
    try:
        out.write_text(text, encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"{out} can't be written: {reason}", code="AF808", hint="name another file") from None


# -- what a file's names stand for


def assumed(spec: GraphSpec, signatures: Signatures, sure: Iterable[str] = ()) -> list[str]:
    """The names in a graph that are taken to be functions and objects of the user's, in their order.

    Args:
        spec: the graph.
        signatures: the known operators.
        sure: names that are such for sure, also where they look like a slip.
    """
    given = set(sure)
    found: dict[str, None] = {}

    def take(names: Iterable[Any], known: Iterable[str]) -> None:
        for name in names:
            if isinstance(name, str) and name.isidentifier() and name not in found:
                slip = len(found) < 1_000 and difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
                if name in given or not slip:
                    found[name] = None

    for node in spec.nodes.values():
        signature = signatures.get(node.operator)
        if signature is None:
            take([node.operator], signatures)
        for key, value in node.args.items():
            parameter = signature.parameter(key) if signature else None
            if parameter and parameter.type in ("function", "functions", "object", "choice_or_function"):
                take(value if isinstance(value, list) else [value], parameter.choices)
        policy = node.policy
        take([policy.key, policy.compensate], ())
        take([name for name in policy.retry_on if not hasattr(builtins, name)], _EXCEPTIONS)
    return list(found)


_EXCEPTIONS = [name for name in dir(builtins) if name.endswith(("Error", "Exception"))]


# -- check


def _checked(
    file: Path, name: str | None, sure: set[str], signatures: Signatures
) -> tuple[Parsed, list[str], Findings, GraphBound | None]:
    """A file's graph, the names that were taken to be the user's, what the checks found, and the bounds if no error."""
    from aiflow_jupyter.graph.bounds import bounds
    from aiflow_jupyter.graph.checks.checking import examine

    parsed = _read(file, name, signatures)
    functions = assumed(parsed.spec, signatures, sure)
    findings = examine(parsed.spec, signatures, {*functions, *sure}, parsed)
    wrong = {error.path for error in findings.errors}
    findings.warnings.extend(each for each in _perhaps(parsed, signatures, sure) if each.path not in wrong)
    return parsed, functions, findings, None if findings.errors else bounds(parsed.spec, signatures)


def _perhaps(parsed: Parsed, signatures: Signatures, sure: set[str]) -> Iterator[GraphProblem]:
    """Warnings of texts in quotes that are taken to name a function, and are like a word that can stand there.

    What stands bare is not warned of: functions are written so, and words in quotes.
    """
    from aiflow_jupyter.graph.forms.printing import names_something
    from aiflow_jupyter.graph.problems import MOST_PROBLEMS, alike

    found = 0
    for node, spec in parsed.spec.nodes.items():
        signature = signatures.get(spec.operator)
        for parameter in signature.parameters if signature else ():
            value = spec.args.get(parameter.name)
            word = value if isinstance(value, str) and parameter.choices and names_something(parameter, value) else ""
            path = ("nodes", node, "args", parameter.name)
            meant = alike(word, parameter.choices) if word and word not in sure and found < MOST_PROBLEMS else ""
            if meant and parsed.quoted(path):
                found += 1
                message = f"node {node!r}: {parameter.name}={word!r} is taken to be a function of yours"
                hint = f"did you mean {meant!r}? if it is yours, --functions {word} says so"
                problem = GraphProblem(message, code="AF217", hint=f"{parsed.caret(path)}\n{hint}")
                problem.severity, problem.path = "warning", path
                yield problem


_PARTS = ("queue", "workers", "reorder", "hold", "feedback")


def _tell(parsed: Parsed, functions: list[str], findings: Findings, bound: GraphBound | None) -> None:
    """Print what was found for people."""
    from aiflow_jupyter.graph.problems import counted

    for warning in findings.warnings:
        click.echo("\n".join(["warning:", *warning.lines(), ""]), err=True)
    if functions:
        shown = ", ".join(functions[:20]) + (", ..." if len(functions) > 20 else "")
        click.echo(plain(f"taken to be functions of yours: {shown}; their types are not checked"), err=True)
    if bound is None:
        raise GraphError(findings.errors, title=parsed.spec.name)
    click.echo(f"{parsed.spec.name}: no errors; at most {bound.events:,} data events at any instant\n")
    rows = [["node", "at most", *_PARTS]]
    rows += [[node.node, f"{node.events:,}", *(f"{getattr(node, part):,}" for part in _PARTS)] for node in bound.nodes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        click.echo("  ".join([f"{first:<{widths[0]}}", *cells]))
    if bound.keys:
        click.echo(f"\nand the state of at most {counted(bound.keys, 'key')}")
    if bound.bytes is not None:
        click.echo(f"\nqueues and held text: at most {bound.bytes:,} bytes")


def _report(file: Path, name: str | None, sure: set[str], signatures: Signatures) -> dict[str, Any]:
    """The same as one object."""
    from dataclasses import asdict

    parsed: Parsed | None = None
    functions: list[str] = []
    errors: list[AiflowError] = []
    warnings: list[GraphProblem] = []
    bound: GraphBound | None = None
    try:
        parsed, functions, findings, bound = _checked(file, name, sure, signatures)
        errors, warnings = list(findings.errors), findings.warnings
    except GraphError as error:
        errors = list(error.problems)
    except AiflowError as error:
        errors = [error]
    nodes = bound.nodes if bound else ()
    return {
        "ok": bound is not None,
        "name": parsed.spec.name if parsed else None,
        "errors": [_as_dict(problem, parsed) for problem in errors],
        "warnings": [_as_dict(problem, parsed) for problem in warnings],
        "functions": functions,
        "bound": bound
        and {
            "events": bound.events,
            "keys": bound.keys,
            "bytes": bound.bytes,
            "nodes": {node.node: {"events": node.events, **_without(asdict(node), "node")} for node in nodes},
        },
    }


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}


def _as_dict(problem: AiflowError, parsed: Parsed | None) -> dict[str, Any]:
    from aiflow_jupyter.graph.parsed import pointer

    place: dict[str, Any] | None = None
    if isinstance(problem, GraphProblem):
        at = problem.place or (parsed.place(problem.path) if parsed and parsed.text else None)
        if at is not None:
            place = {"line": at[0], "column": at[1]}
        elif problem.path:
            place = {"pointer": pointer(problem.path)}
    found = _PLACE.match(problem.hint)
    hint = problem.hint[found.end() :] if found else problem.hint
    return {"code": problem.code, "message": problem.message, "place": place, "hint": hint}
