"""`classify`: the same event, with a label."""

from __future__ import annotations

import pytest
from driven import Node, token, value

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import Retrieval
from aiflow_jupyter.operators.classify import LIMIT_S, MOST_READ, classify

PATTERNS = {"greeting": "(?i)^(hi|hello)", "question": "[?]$", "any": "a"}


@pytest.mark.parametrize(
    ("text", "label"), [("Hello?", "greeting"), ("who?", "question"), ("cat", "any"), ("", None), ("xyz", None)]
)
def test_the_first_pattern_that_is_found_gives_the_label(text, label):
    event = token(text, sequence=4)
    (out,) = Node("classify", patterns=PATTERNS).put(event)
    assert out.meta.get("label") == label
    assert (out.payload, out.identity, out.phase, out.kind) == (text, event.identity, "answer", "token")
    assert "label" not in event.meta, "branches share the event"


def test_an_event_that_nothing_is_found_in_loses_the_label_it_had():
    (out,) = Node("classify", patterns=PATTERNS).put(token("xyz", label="old"))
    assert "label" not in out.meta
    assert out.phase == "answer"


def test_a_function_gives_the_label_also_an_async_one():
    async def slow(number):
        return "big" if number > 9 else None

    for function, mode in ((lambda n: "big" if n > 9 else None, "thread"), (slow, "await")):
        node = Node("classify", function="f", functions={"f": function})
        assert node.behaviour.mode == mode
        assert [out.meta.get("label") for out in node.put(value(10), value(1))] == ["big", None]


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "[", "*", "a" * 2_000])
def test_what_is_no_pattern_is_refused_by_its_label(pattern):
    with pytest.raises(ConfigError, match="'bad'") as error:
        Node("classify", patterns={"bad": pattern})
    assert error.value.code == "AF204"


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"(.*,){11}P"])
def test_a_pattern_that_backtracks_for_ever_fails_its_event_by_name(pattern):
    text = "a" * 3_000 + "b" if "," not in pattern else "1,2," * 1_000
    with pytest.raises(RunError, match="'slow'") as error:
        Node("classify", patterns={"fast": "^x", "slow": pattern}).put(value(text))
    assert error.value.code == "AF628"
    assert f"{LIMIT_S:g}" in error.value.message


def test_only_the_beginning_of_a_long_text_is_read():
    node = Node("classify", patterns={"end": "z"})
    near, far = node.put(value("a" * (MOST_READ - 1) + "z"), value("a" * MOST_READ + "z"))
    assert (near.meta.get("label"), far.meta.get("label")) == ("end", None)


def test_patterns_are_for_texts():
    node = Node("classify", patterns={"any": "a"})
    assert node.put(value(Retrieval("a")))[0].meta["label"] == "any"
    with pytest.raises(RunError) as error:
        node.put(value(3))
    assert error.value.code == "AF301"


def test_in_python_it_takes_a_function_or_patterns():
    assert classify(patterns={"a": "b"}).args == {"patterns": {"a": "b"}}
    assert classify(len, inline=True).args == {"function": "len", "inline": True}
