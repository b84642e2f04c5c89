"""The guide's graphs are graphs, and its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aiflow_jupyter.graph
from aiflow_jupyter.graph.checks import examine, require
from aiflow_jupyter.graph.language import parse
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.operators import SIGNATURES

GUIDE = (Path(aiflow_jupyter.graph.__file__).parent / "GRAPHS.md").read_text(encoding="utf-8")
GRAPHS = re.findall(r"```aiflow\n(.*?)```", GUIDE, re.DOTALL)
FUNCTIONS = ("no_secrets", "speak", "weather", "search", "papers")


@pytest.mark.parametrize("text", GRAPHS)
def test_every_graph_of_the_guide_passes_the_checks(text):
    parsed = parse(text, "guide", SIGNATURES)
    require(parsed.spec, SIGNATURES, FUNCTIONS, parsed)


@pytest.mark.parametrize("text", GRAPHS)
def test_nothing_is_warned_of_that_the_guide_could_avoid(text):
    parsed = parse(text, "guide", SIGNATURES)
    assert [each.code for each in examine(parsed.spec, SIGNATURES, FUNCTIONS, parsed).warnings] == []


def test_the_guide_has_graphs():
    assert len(GRAPHS) == 4


def test_every_operator_and_every_policy_is_in_a_table():
    rows = "\n".join(line for line in GUIDE.splitlines() if line.startswith("| `"))
    for name in SIGNATURES:
        assert f"`{name}(" in rows, name
    for key in Policy.model_fields:
        assert re.search(rf"`{key}\b|{key}=|\b{key}`", rows), key
