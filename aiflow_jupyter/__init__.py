"""Streaming LLM graphs in Jupyter.

    %load_ext aiflow_jupyter          # not needed in the kernel "Python 3 (AiFlow)"

    %%aiflow
    Why is the sky blue?

In Python: `ask("Why is the sky blue?")`, and `Flow` with the operators. Names are imported when first used, so that
loading the extension is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiflow_jupyter.errors import AiflowError as AiflowError
    from aiflow_jupyter.events import Event as Event
    from aiflow_jupyter.graph.builder import Flow as Flow
    from aiflow_jupyter.notebook.answer import Reply as Reply
    from aiflow_jupyter.operators import classify as classify
    from aiflow_jupyter.operators import delegate as delegate
    from aiflow_jupyter.operators import filter as filter  # noqa: A004
    from aiflow_jupyter.operators import flat_map as flat_map
    from aiflow_jupyter.operators import generate as generate
    from aiflow_jupyter.operators import guard as guard
    from aiflow_jupyter.operators import join as join
    from aiflow_jupyter.operators import map as map  # noqa: A004
    from aiflow_jupyter.operators import merge as merge
    from aiflow_jupyter.operators import prompt as prompt
    from aiflow_jupyter.operators import reduce as reduce
    from aiflow_jupyter.operators import retrieve as retrieve
    from aiflow_jupyter.operators import route as route
    from aiflow_jupyter.operators import segment as segment
    from aiflow_jupyter.operators import sink as sink
    from aiflow_jupyter.operators import tools as tools
    from aiflow_jupyter.operators import window as window
    from aiflow_jupyter.providers.replay import replay as replay
    from aiflow_jupyter.runtime.replay.faults import Burst as Burst
    from aiflow_jupyter.runtime.replay.faults import Cut as Cut
    from aiflow_jupyter.runtime.replay.faults import Fail as Fail
    from aiflow_jupyter.runtime.replay.faults import Slow as Slow
    from aiflow_jupyter.runtime.replay.faults import Stall as Stall
    from aiflow_jupyter.runtime.run import Result as Result

_HOMES = {
    "AiflowError": "errors",
    "Burst": "runtime.replay.faults",
    "Cut": "runtime.replay.faults",
    "Event": "events",
    "Fail": "runtime.replay.faults",
    "Flow": "graph.builder",
    "Reply": "notebook.answer",
    "Result": "runtime.run",
    "Slow": "runtime.replay.faults",
    "Stall": "runtime.replay.faults",
    "classify": "operators",
    "filter": "operators",
    "flat_map": "operators",
    "generate": "operators",
    "map": "operators",
    "prompt": "operators",
    "reduce": "operators",
    "replay": "providers.replay",
    "route": "operators",
    "segment": "operators",
    "tools": "operators",
    "retrieve": "operators",
    "guard": "operators",
    "join": "operators",
    "merge": "operators",
    "delegate": "operators",
    "sink": "operators",
    "window": "operators",
}

__all__ = [
    "AiflowError",
    "Burst",
    "Cut",
    "Event",
    "Fail",
    "Flow",
    "Reply",
    "Result",
    "Slow",
    "Stall",
    "__version__",
    "ask",
    "classify",
    "delegate",
    "filter",
    "flat_map",
    "generate",
    "guard",
    "join",
    "map",
    "merge",
    "prompt",
    "reduce",
    "replay",
    "retrieve",
    "route",
    "run",
    "segment",
    "sink",
    "tools",
    "window",
]


def ask(
    prompt: str,
    *,
    tier: str = "auto",
    stay: str | None = None,
    fallback: bool = False,
    model: str | None = None,
    system: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    conversation: str | None = None,
    store: bool = True,
) -> Reply:
    """Ask a model and wait for the whole answer.

    Args:
        prompt: the question.
        tier: `auto`, `local`, `hpc` or `cloud`; a named tier is strict.
        stay: how far the text may go, which nothing overrides: `local` (this machine), `institution` (its cluster too)
            or `anywhere`; None for what the settings say.
        fallback: whether another tier may answer where the named one fails before its first token.
        model: the model's name, for tiers that have several.
        system: a system message before the question.
        temperature: 0 for the likeliest token each time.
        max_tokens: the most tokens of the answer.
        seed: makes sampling repeatable where the server supports it.
        conversation: ask as a turn of the conversation of this name, with all turns before it.
        store: keep that turn on the disk, until `%aiflow conversation forget`; False for this kernel's memory only.

    Returns:
        the reply: `str(reply)` is its text; it also has `tier`, `model`, `ttft`, `usage` and `why`.

    Raises:
        AiflowError: no answer came, or only a part of one.
    """
    from aiflow_kernel.host import current_host

    from aiflow_jupyter.notebook.answer import ask as ask_host

    return ask_host(
        current_host(),
        prompt,
        tier=tier,
        stay=stay,
        fallback=fallback,
        model=model,
        system=system,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        conversation=conversation,
        store=store,
    )


def run(flow: Flow, value: Any, *, to: str | None = None) -> Result:
    """Run a flow on one input and wait for its result.

    Args:
        flow: a graph built in Python.
        value: what goes to its input, for `generate` a text or a list of messages.
        to: the input node, where there are several.

    Raises:
        GraphError: the graph does not pass its checks.
        RunError: a node failed; what had come until then is its `result`.
    """
    from aiflow_kernel.host import current_host

    from aiflow_jupyter.notebook.flows import run_flow

    return run_flow(current_host(), flow, value, to=to)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext aiflow_jupyter`."""
    from aiflow_kernel.extension import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext aiflow_jupyter`."""
    from aiflow_kernel.extension import unload

    unload(shell)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("aiflow-jupyter")
    if name in _HOMES:
        return getattr(import_module(f"aiflow_jupyter.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'aiflow_jupyter' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
