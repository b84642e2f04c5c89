"""What may be put into a node from outside is what its graph declares, in the checks and in the run alike."""

from __future__ import annotations

import pytest
from graphs import spec_of

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.events import Retrieval, ToolCall, Usage
from aiflow_jupyter.graph.checks.checking import check
from aiflow_jupyter.graph.checks.types import PAYLOADS
from aiflow_jupyter.runtime.injection import kind_of


@pytest.mark.parametrize(
    ("type_", "good", "wrong"),
    [
        ("label", "question", 5),
        ("usage", Usage(), 5),
        ("chunk", "text", b"text"),
        ("retrieval", Retrieval("text"), "text"),
        ("tool_call", ToolCall("1", "f", {}), {}),
        ("int", 5, True),
        ("float", 5, True),
        ("bool", True, 5),
        ("list", (1, 2), "12"),
        ("dict", {}, []),
    ],
)
def test_value_is_of_the_declared_type(type_, good, wrong):
    spec = spec_of("a", [], {}).model_copy(update={"inject": {"a": type_}})
    assert kind_of(spec, "a", good, {}) == (type_ if type_ in PAYLOADS else "value")
    with pytest.raises(CommandError, match=f"takes {type_} from outside, not {type(wrong).__name__}") as raised:
        kind_of(spec, "a", wrong, {})
    assert raised.value.code == "AF807"


def test_checks_know_that_a_label_is_a_text():
    def double(number: int) -> int:
        return 2 * number

    spec = spec_of("a", [], {})
    spec.nodes["a"] = spec.nodes["a"].model_copy(update={"operator": "double"})
    codes = [each.code for each in check(spec.model_copy(update={"inject": {"a": "label"}}), {}, {"double": double})]
    assert "AF306" in codes
