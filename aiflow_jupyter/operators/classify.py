"""`classify`: gives each event a label, for `route(by="label")` or for whoever reads `event.meta`.

    kind = classify(patterns=(question="[?]$", greeting="(?i)^(hi|hello)"))
    mood = classify(function=sentiment)     # def sentiment(text: str) -> str | None: ...
    kind -> lane                            # lane = route(by="label")

The event stays as it is but for `meta["label"]`. The first pattern that is found wins; with none, or where the function
returns None, the event has no label.

Patterns are looked for in the first `MOST_READ` characters of a text, all of them together for at most `LIMIT_S`
seconds: one that backtracks for longer fails its event by name instead of holding the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import regex

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import Event, Retrieval, ToolResult
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.functions import inlined, user_behaviour
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.returned import decision

MOST_READ: Final = 4_096
LIMIT_S: Final = 0.05
MOST_PATTERN: Final = 1_000

SIGNATURE = OperatorSignature(
    "classify",
    (Parameter("function", "function"), Parameter("patterns", "patterns"), Parameter("inline", "boolean")),
    alternatives=("function", "patterns"),
    single=lambda args: "patterns" in args or inlined(args),
)


def classify(
    function: Callable[..., Any] | None = None,
    *,
    patterns: Mapping[str, str] | None = None,
    inline: bool | None = None,
) -> OperatorCall:
    r"""Give each event a label; give one of the first two.

    Args:
        function: returns the label for a payload (or an `Event`), None for no label; may be `async`.
        patterns: regular expressions by label, such as `{"number": r"\d"}`; the first that is found in a text wins.
        inline: run a plain function on the loop: only for cheap ones.
    """
    return call("classify", function=function, patterns=None if patterns is None else dict(patterns), inline=inline)


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `classify`.

    Raises:
        ConfigError: no such function, or a pattern is no regular expression.
    """
    if "function" in args:
        return user_behaviour(args["function"], binding, labelled, inline=inlined(args), result_as=decision)
    patterns = [(label, _compiled(label, pattern, binding.node)) for label, pattern in args["patterns"].items()]

    def by_pattern(event: Event) -> Event:
        text = _text(event)
        until = time.monotonic() + LIMIT_S
        for label, pattern in patterns:
            try:
                if pattern.search(text, timeout=max(until - time.monotonic(), 1e-3)):
                    return labelled(event, label)
            except TimeoutError:
                raise RunError(
                    f"the pattern of {label!r} takes more than {LIMIT_S:g} s on one text",
                    code="AF628",
                    hint="avoid repeats in repeats, as in (a+)+, or make them possessive: (?:a+)++",
                ) from None
        return labelled(event, None)

    return Behaviour("inline", by_pattern)


def labelled(event: Event, label: Any) -> Event:
    """The same event with a label, or without one."""
    if label is None and "label" not in event.meta:
        return event
    out = event.derive(event.payload)
    out.meta = {**event.meta, "label": str(label)}
    if label is None:
        del out.meta["label"]
    return out


def _compiled(label: str, pattern: Any, node: str) -> Any:
    wrong: object = f"it is no text of at most {MOST_PATTERN:,} characters"
    if isinstance(pattern, str) and len(pattern) <= MOST_PATTERN:
        try:
            return regex.compile(pattern)
        except (regex.error, ValueError, OverflowError, RecursionError) as error:
            wrong = error
    raise ConfigError(f"node {node!r}: the pattern of {label!r} is no regular expression: {wrong}", code="AF204")


def _text(event: Event) -> str:
    payload = event.payload
    if isinstance(payload, Retrieval):
        payload = payload.text
    elif isinstance(payload, ToolResult):
        payload = payload.content
    if not isinstance(payload, str):
        raise RunError(
            f"patterns are looked for in texts, not in {type(payload).__name__}",
            code="AF301",
            hint="use classify(function=...)",
        )
    return payload[:MOST_READ]


CLASSIFY = Operator(SIGNATURE, bind)
