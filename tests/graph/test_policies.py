"""Policies of the standard operators: time limits that can't be kept, and verdicts that are on nothing that is held."""

from __future__ import annotations

import pytest

from aiflow_jupyter.graph.checks.checking import examine
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import SIGNATURES


def tidy(text: str) -> str:
    return text


async def look(text: str) -> str:
    return text


def good(text: str) -> bool:
    return bool(text)


def glued(texts: list[str]) -> str:
    return "".join(texts)


def named(text: str) -> str:
    return text


FUNCTIONS = {"tidy": tidy, "look": look, "good": good, "glued": glued, "named": named}


def codes(text: str) -> list[str]:
    source = parse(text, "g", SIGNATURES)
    found = examine(source.spec, SIGNATURES, FUNCTIONS, source)
    return [problem.code for problem in (*found.errors, *found.warnings)]


ON_LOOP = [
    "route(by=named)",
    "route(by=kind)",
    "segment()",
    "merge()",
    "window(count=2)",
    "join(by=named)",
    "join()",
    'prompt("say {text}")',
    'classify(patterns=(a="x"))',
    'reduce("join")',
    "reduce(glued, inline=true)",
    "map(tidy, inline=true)",
    "guard(good, inline=true)",
    'sink(var="x")',
    "sink(display=true)",
]
OFF_LOOP = [
    "generate()",
    "map(tidy)",
    "map(look, inline=true)",
    "tidy",
    "filter(good)",
    "classify(named)",
    "reduce(glued)",
    "guard(good)",
    "sink(function=tidy)",
    'sink(jsonl="x")',
]


@pytest.mark.parametrize(("operator", "kept"), [*((o, False) for o in ON_LOOP), *((o, True) for o in OFF_LOOP)])
def test_time_limit_of_what_holds_the_loop_cannot_be_kept_and_is_told(operator, kept):
    def found(policy):
        return codes(f"a = tidy\nb = tidy\nn = {operator} {policy}\na -> n\nb -> n")

    assert ("AF412" not in found("[timeout=1]")) is kept
    assert "AF412" not in found("")
    assert "AF412" not in found("[timeout=1, effect=speculative]")  # there it is the wait for the verdict


JUDGED = """
ask = generate()
safe = guard(good)
{node}
ask -> safe
ask -> {way} -> out
safe.verdict -> act
out = sink(var="o")
"""


@pytest.mark.parametrize(
    ("node", "way", "covered"),
    [
        ("act = map(tidy) [effect=speculative]", "act", True),
        ("act = segment() [effect=speculative]", "act", True),
        ("act = window(count=2) [effect=speculative]", "act", True),
        ("s = segment()\nact = map(tidy) [effect=speculative]", "s -> act", True),
        ('act = map(tidy) [effect=speculative]\nr = reduce("join")', "act -> r", True),
        ('r = reduce("join")\nact = generate() [effect=speculative]', "r -> act", False),
        ('act = reduce("join") [effect=speculative]', "act", False),
        ('r = reduce("join")\nact = map(tidy) [effect=speculative]', "r -> act", False),
        ("s = segment()\nfind = generate()\nact = map(tidy) [effect=speculative]", "s -> find -> act", True),
        ('s = segment()\nfind = generate()\nact = reduce("join") [effect=speculative]', "s -> find -> act", True),
    ],
)
def test_verdict_on_an_answer_covers_its_parts_and_what_is_made_of_them_and_not_what_was_gathered(node, way, covered):
    assert ("AF409" not in codes(JUDGED.format(node=node, way=way))) is covered


def test_verdict_on_an_input_covers_all_that_is_made_of_it_but_no_window_of_several():
    text = """
    start = tidy
    safe = guard(good)
    {nodes}
    start -> safe
    start -> {way} -> out
    safe.verdict -> act
    out = sink(var="o")
    inject start: token
    """
    whole = 'ask = generate()\nact = reduce("join") [effect=speculative]'
    several = "act = window(count=2) [effect=speculative]"
    behind = "w = window(count=2)\nact = map(glued) [effect=speculative]"
    for nodes, way, covered in ((whole, "ask -> act", True), (several, "act", False), (behind, "w -> act", False)):
        assert ("AF409" not in codes(text.format(nodes=nodes, way=way))) is covered
