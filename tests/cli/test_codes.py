"""Every code that is raised says something, in one list, and `aiflow codes` prints it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import aiflow_kernel
import pytest
from click.testing import CliRunner

import aiflow_jupyter
from aiflow_jupyter.cli import main
from aiflow_jupyter.notebook.codes import every

ROOT = Path(aiflow_jupyter.__file__).parent
LISTS = sorted(ROOT.rglob("codes.py"))


def raised(source: str) -> set[str]:
    """The codes in a source, but for those that it only compares with or looks up."""
    tree = ast.parse(source)
    asked: set[int] = set()
    for node in ast.walk(tree):
        parts = node.keys if isinstance(node, ast.Dict) else [node] if isinstance(node, ast.Compare | ast.Set) else []
        asked |= {id(each) for part in parts if part is not None for each in ast.walk(part)}
    texts = [each for each in ast.walk(tree) if isinstance(each, ast.Constant) and id(each) not in asked]
    return {each.value for each in texts if isinstance(each.value, str) and re.fullmatch(r"AF\d{3}", each.value)}


def test_what_is_raised_stands_in_one_list_and_what_is_listed_is_raised():
    listed = Counter(code for path in LISTS for code in import_module(f"aiflow_jupyter.{path.parent.name}.codes").CODES)
    sources = [*ROOT.rglob("*.py"), *Path(aiflow_kernel.__file__).parent.rglob("*.py")]
    found = {code for path in sources if path not in LISTS for code in raised(path.read_text("utf-8"))}
    assert listed == Counter(found)
    assert set(every()) == found
    assert list(every()) == sorted(found)


def test_a_code_that_is_only_asked_about_is_not_raised():
    source = """
code = "AF101"
HINTS = {"AF102": "do"}
raise E(code="AF103") if error.code == "AF104" else E("AF105")
assert error.code in {"AF106"}
"""
    assert raised(source) == {"AF101", "AF103", "AF105"}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("AF702", ["AF702  a stream ended before its finish: what came is a part of the answer"]),
        ("af217", ["AF217  warning: a text that is taken to name a function may be a slip"]),
    ],
)
def test_a_code_is_told(code, says):
    assert CliRunner().invoke(main, ["codes", code]).output.splitlines() == says


def test_codes_that_begin_alike_are_told_together_and_all_by_themselves():
    told = [line[:5] for line in CliRunner().invoke(main, ["codes", "AF71"]).output.splitlines()]
    assert told == [code for code in every() if code.startswith("AF71")]
    assert {"AF710", "AF715"} <= set(told)
    assert len(CliRunner().invoke(main, ["codes"]).output.splitlines()) == len(every())


def test_a_code_that_is_none_is_said_to_be_none():
    result = CliRunner().invoke(main, ["codes", "AF999"])
    assert result.exit_code == 1
    assert "no code is 'AF999'" in result.output
