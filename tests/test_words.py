"""What messages are made of: a number goes with its noun, and a type's name with its article, also where it is one."""

from __future__ import annotations

import re
from pathlib import Path

import aiflow_jupyter

PACKAGE = Path(aiflow_jupyter.__file__).parent
ROOMS = ("runtime", "operators", "notebook")
COUNTED = re.compile(
    r"\{(?!MOST_)[^{}]*\} (?:more )?(answer|attempt|call|character|event|item|key|lineage|message|turn)s\b"
)
ARTICLE = re.compile(r"\b[Aa] \{type\(")


def found(pattern, folders):
    return [
        f"{path.name}:{number}: {line.strip()}"
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_what_is_counted_is_written_by_the_one_function_that_knows_of_one():
    assert found(COUNTED, [PACKAGE / room for room in ROOMS]) == []


def test_the_name_of_a_type_has_the_article_that_it_needs():
    assert found(ARTICLE, [PACKAGE]) == []
