"""`prompt`: templates hold names and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from driven import Node, Scripted, tell, value
from hypothesis import given
from hypothesis import strategies as st

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import Retrieval
from aiflow_jupyter.operators.prompt import parts


def filled(template, payload):
    (out,) = Node("prompt", template=template).put(value(payload, sequence=3))
    assert (out.kind, out.identity) == ("value", ("0", 3))
    return out.payload


@dataclass
class Patient:
    name: str
    age: int


FOUND = [Retrieval("Water boils at 100 °C.", "boiling?"), Retrieval("Ice melts at 0 °C.", "boiling?", rank=1)]


@pytest.mark.parametrize(
    ("template", "payload", "text"),
    [
        ("Summarise: {text}", "a text", "Summarise: a text"),
        ("{}|{value}", 3, "3|3"),
        ("{name} is {age}", {"name": "Ada", "age": 36}, "Ada is 36"),
        ("{name} is {age}", Patient("Ada", 36), "Ada is 36"),
        ("{{{text}}}", "x", "{x}"),
        ("{text}", "{value} {0} %s {", "{value} {0} %s {"),
        ("{passages}? {query}", FOUND, "[1] Water boils at 100 °C.\n\n[2] Ice melts at 0 °C.? boiling?"),
        ("{text} ({query})", FOUND[0], "Water boils at 100 °C. (boiling?)"),
        ("{q}: {docs}", {"q": "?", "docs": FOUND[:1]}, "?: Water boils at 100 °C."),
        ("{rows}", {"rows": {"a": [1, Patient("Ada", 36)]}}, '{"a": [1, {"name": "Ada", "age": 36}]}'),
        ("{}", ["one", "two"], "one\ntwo"),
        ("no field", 1, "no field"),
    ],
)
def test_fields_stand_for_what_the_value_has(template, payload, text):
    assert filled(template, payload) == text


@pytest.mark.parametrize(
    "template",
    [
        "{a.b}",
        "{a[0]}",
        "{0}",
        "{a!r}",
        "{a:>10}",
        "{a:{b}}",
        "{",
        "}",
        "{a",
        "a}",
        "{a b}",
        "{text.__class__}",
        "{ a}",
    ],
)
def test_a_template_holds_no_code_paths(template):
    with pytest.raises(ConfigError) as error:
        Node("prompt", template=template)
    assert error.value.code == "AF204"


def test_a_missing_field_names_the_fields_there_are():
    with pytest.raises(RunError) as error:
        filled("{nme}", {"name": "Ada", "age": 36})
    assert error.value.code == "AF308"
    assert "{nme}" in error.value.message
    assert "name, age" in error.value.hint


@given(st.text(), st.text())
def test_any_text_around_a_field_and_in_it_stays_as_it_is(around, inside):
    template = around.replace("{", "{{").replace("}", "}}")
    assert filled(f"{template}{{text}}{template}", inside) == f"{around}{inside}{around}"


@given(st.text(alphabet="{}ab_.![:0 ", max_size=12))
def test_every_template_is_refused_or_made_of_names(template):
    try:
        found = parts(template)
    except ValueError:
        return
    assert all(name is None or name.isidentifier() for _, name in found)


def test_a_prompt_is_what_the_model_is_asked():
    source = Scripted("yes")
    text = 'p = prompt(template="Is {text} true?")\nask = generate()\nout = sink(var="x")\np -> ask -> out'
    _, result = tell(text, source, value="it")
    assert source.requests[0].messages[-1]["content"] == "Is it true?"
    assert result["x"] == "yes"
