"""The operators in Python: each call makes a node that passes its checks, and reads the same in every form."""

from __future__ import annotations

import aiflow_jupyter as aiflow
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.graph.forms.document import read_json
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.graph.forms.printing import as_json, as_text
from aiflow_jupyter.graph.forms.python import as_python
from aiflow_jupyter.operators import SIGNATURES


def weather(city: str) -> str:
    return city


def search(query: str) -> list[str]:
    return [query]


def clean(text: str) -> bool:
    return bool(text)


def key(value: object) -> int:
    return hash(value)


def flow_of_all():
    other = aiflow.Flow("other")
    other.add("ask", aiflow.generate()) >> other.add("out", aiflow.sink(display=True))
    flow = aiflow.Flow("all")
    find = flow.add("find", aiflow.retrieve(search, k=3, together=True))
    ask = flow.add("ask", aiflow.generate(tools=(weather, search), temperature=0))
    lane = flow.add("lane", aiflow.route(by="kind"))
    act = flow.add("act", aiflow.tools((weather, search)), workers=2, hold=8)
    safe = flow.add("safe", aiflow.guard(clean, hold=4, inline=True))
    tail = flow.add("tail", aiflow.guard(clean))
    one = flow.add("one", aiflow.reduce("join"))
    two = flow.add("two", aiflow.reduce("count"))
    both = flow.add("both", aiflow.join(by=key, timeout=9.5, limit=900))
    sub = flow.add("sub", aiflow.delegate(other))
    all_ = flow.add("all", aiflow.merge(order="source"), hold=9_000)
    out = flow.add("out", aiflow.sink(var="x"))
    find >> ask >> lane
    lane["token"] >> safe >> tail
    tail >> [one, two]
    [one, two] >> both >> all_
    tail >> sub >> all_
    all_ >> out
    lane["tool_fragment"] >> act
    act.feedback(ask, limit=8, hops=5)
    return flow


def test_every_form_says_the_same():
    flow = flow_of_all()
    spec = flow.spec
    require(spec, SIGNATURES, flow.functions, flows=["other"])
    assert spec.nodes["ask"].args["tools"] == ["weather", "search"]
    assert spec.nodes["sub"].args == {"flow": "other"}
    assert parse(as_text(spec, SIGNATURES), "all", SIGNATURES).spec == spec
    assert read_json(as_json(spec)).spec == spec
    source = as_python(spec, SIGNATURES)
    assert all(f"{name}(" in source for name in ("retrieve", "tools", "guard", "join", "delegate", "merge"))
