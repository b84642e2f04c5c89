"""SETTINGS.md names every setting and every environment variable, with its default, and no other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import aiflow_jupyter
from aiflow_jupyter.tiers import config
from aiflow_jupyter.tiers.fields import Other
from aiflow_jupyter.tiers.sections import (
    Budget,
    Cloud,
    Config,
    Conversation,
    GlobusHpc,
    Local,
    LocalHpc,
    PythonHpc,
    Route,
    Tiers,
)

PACKAGE = Path(aiflow_jupyter.__file__).parent
TEXT = (PACKAGE / "tiers" / "SETTINGS.md").read_text("utf-8")
EXAMPLES = {"AIFLOW_RELAY_KEY"}  # a name that a user chooses, in hints


def rows(heading):
    """The first table below a heading: its first cells' names, and the whole row."""
    part = TEXT.partition(f"## {heading}\n")[2].partition("\n##")[0]
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    return {name: line for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[1])}


SECTIONS = {
    "tiers.local": [Local],
    "tiers.hpc": [LocalHpc, GlobusHpc, PythonHpc],
    "tiers.cloud": [Cloud],
    "route": [Route],
    "budget": [Budget],
    "conversation": [Conversation],
}
SETTINGS = [(section, name) for section, models in SECTIONS.items() for name in sorted(models[0].model_fields)]


def test_every_section_is_there():
    named = {f"tiers.{name}" for name in Tiers.model_fields} | (set(Config.model_fields) - {"tiers"})
    assert set(SECTIONS) == named == set(re.findall(r"^## `\[(.*)\]`", TEXT, re.MULTILINE))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_of_a_section_is_there_and_no_other(section):
    assert set(rows(f"`[{section}]`")) == {name for model in SECTIONS[section] for name in model.model_fields}


@pytest.mark.parametrize(("section", "name"), SETTINGS)
def test_a_default_that_a_file_could_hold_is_the_models(section, name):
    cell = rows(f"`[{section}]`")[name].split("|")[3].strip()
    field = SECTIONS[section][0].model_fields[name]
    default = list(field.default) if isinstance(field.default, tuple | frozenset) else field.default
    if re.fullmatch("`[^`]*`", cell):
        assert tomllib.loads(f"x = {cell.strip('`')}")["x"] == default
    else:
        assert default in (None, {}) or field.is_required()


@pytest.mark.parametrize("path", sorted(config.PROJECT_MAY))
def test_what_a_project_may_set_is_marked(path):
    assert "*(project" in rows(f"`[{'.'.join(path[:-1])}]`")[path[-1]]


def test_nothing_else_is_marked_for_projects():
    other = TEXT.partition("### Other models of a tier\n")[2].partition("\n## ")[0]
    assert (TEXT.count("*(project"), other.count("*(project")) == (len(config.PROJECT_MAY) + 3, 3)


def test_what_may_be_said_of_other_models_is_there_and_marked_for_projects_as_it_is_read():
    part = TEXT.partition("### Other models of a tier\n")[2].partition("\n## ")[0]
    lines = {line.split("`")[1]: line for line in part.splitlines() if line.startswith("| `")}
    assert set(lines) == set(Other.model_fields)
    for name, line in lines.items():
        pointing = config.pointers({"tiers": {"cloud": {"models": {"x": {name: 1}}}}})
        assert ("*(project" in line) == (pointing == [])


def test_every_environment_variable_is_there_and_no_other():
    named = set()
    for file in PACKAGE.rglob("*.py"):
        named |= set(re.findall(r"\bAIFLOW_[A-Z][A-Z_]*[A-Z]\b", file.read_text("utf-8")))
    ours = {name for name in rows("Environment variables") if name.startswith("AIFLOW_")}
    assert ours == named - EXAMPLES


def test_where_the_file_is_said_to_be_on_this_system_is_where_it_is_looked_for(monkeypatch):
    monkeypatch.delenv("AIFLOW_CONFIG", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert str(config.user_file()).replace(str(Path.home()), "~") in TEXT
