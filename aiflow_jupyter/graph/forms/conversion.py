"""The forms of a graph by name: cell text, JSON and Python source are read and printed, a picture is printed."""

from __future__ import annotations

import re

from aiflow_jupyter.errors import CommandError, GraphError
from aiflow_jupyter.graph.forms import picture
from aiflow_jupyter.graph.forms.document import read_json
from aiflow_jupyter.graph.forms.language import excess, read
from aiflow_jupyter.graph.forms.printing import as_json, as_text
from aiflow_jupyter.graph.forms.python import as_python, dangling
from aiflow_jupyter.graph.forms.source import read_python
from aiflow_jupyter.graph.forms.strict import MOST_JSON
from aiflow_jupyter.graph.parsed import Parsed
from aiflow_jupyter.graph.problems import BYTE_ORDER_MARK
from aiflow_jupyter.graph.signatures import Signatures

_PYTHON = re.compile(r"\ufeff?(?:\s|#[^\n]*\n)*(?:from\s+[\w.]+\s+import\b|import\s+\w|\"\"\")")
"""How a source of Python begins, and no text of a cell does."""


def load(text: str, name: str | None, signatures: Signatures, *, default: str = "graph") -> Parsed:
    """Read a graph: JSON if the text begins with a brace, Python if with an import, else cell text. No code is run.

    Args:
        text: the graph.
        name: its name; None for the one that a document has.
        signatures: the known operators.
        default: the name where there is none: cell text has none of its own.

    Raises:
        GraphError: it can't be understood; with every mistake found.
    """
    if text.removeprefix(BYTE_ORDER_MARK).lstrip().startswith("{"):
        return read_json(text, name)
    if _PYTHON.match(text):
        return read_python(text, name, signatures)
    return read(text, default if name is None else name, signatures)


def printed(parsed: Parsed, form: str, signatures: Signatures) -> str:
    """A graph in one of its forms.

    Args:
        parsed: the graph.
        form: `json`, `text`, `python` or `svg`.
        signatures: the known operators.

    Raises:
        GraphError: it was read with problems, or an edge names no node.
        CommandError: the form would be longer than what is read of it.
    """
    spec = parsed.spec
    loose = dangling(spec)
    for problem in loose:
        problem.hint = "\n".join(filter(None, (parsed.caret(problem.path), problem.hint)))
    if parsed.problems or loose:
        raise GraphError([*parsed.problems, *loose], title=spec.name)
    if form == "svg":
        return picture.svg(spec) + "\n"
    if form == "python":
        return as_python(spec, signatures)
    text = as_json(spec) if form == "json" else as_text(spec, signatures)
    said = excess(text) if form == "text" else ""
    if form == "json" and len(text) > MOST_JSON:
        said = f"the graph's JSON has {len(text):,} characters; at most {MOST_JSON:,}"
    if said:
        raise CommandError(f"{said} are read", code="AF809", hint="make several graphs of it")
    return text
