"""Conversations as text: the list of all, one in full, as a tier is sent it, and what differs between the two."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.conversation.store import Overview
from aiflow_jupyter.tiers.conversation.turns import Turn
from aiflow_jupyter.tiers.counting import parts
from aiflow_jupyter.tiers.terms import Fitted


def listing(found: Sequence[Overview]) -> str:
    """All conversations, a line for each."""
    if not found:
        return "no conversation is kept yet; aiflow ask -c NAME begins one (in a notebook: %%aiflow -c NAME)"
    width = max(len(each.name) for each in found)
    return "\n".join(
        f"{each.name:<{width}}  {counted(each.turns, 'turn')}, {when(each.begun)} to {when(each.last)}"
        + (f", {each.unstored} of them in this process only" if each.unstored else "")
        for each in found
    )


def when(at: float) -> str:
    """A time for people."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if at else "an unknown time"
    except (OverflowError, ValueError, OSError):  # beyond every calendar
        return "an unknown time"


def heading(number: int, turn: Turn) -> str:
    """What stands above a turn: its number, when it was, who answered."""
    who = " ".join(part for part in (turn.tier, turn.model) if part)
    stays = {"local": "stays on this machine", "institution": "stays within the institution"}.get(turn.stay, "")
    said = [f"Turn {number}", when(turn.at), who, stays, "" if turn.stored else "not stored"]
    return " · ".join(part for part in said if part)


def spoken(message: Message) -> str:
    """A message's text, with the calls that it holds."""
    return parts(message)[0]


def transcript(turns: Sequence[Turn]) -> str:
    """A conversation in full."""
    return "\n\n".join(
        "\n".join([heading(number, turn), *(f"{each['role']}: {spoken(each)}" for each in turn.messages)])
        for number, turn in enumerate(turns, 1)
    )


def view(fitted: Fitted) -> str:
    """A conversation as a tier is sent it; what nobody said, but folding put in, is marked."""
    said = []
    for each in fitted.messages:
        put = " (put in by folding)" if any(each is one for one in _put(fitted)) else ""
        said.append(f"{each['role']}{put}: {spoken(each)}")
    return "\n\n".join([*said, summing_up(fitted)])


def difference(full: Sequence[Message], fitted: Fitted) -> str:
    """What folding took away (`-`) and put in its place (`+`)."""
    if not fitted.folded:
        return summing_up(fitted)
    systems = sum(each["role"] == "system" for each in full)
    said = [each for each in full if each["role"] != "system"]
    return "\n".join(
        [
            *_marked("-", said[: fitted.folded]),
            *_marked("+", _put(fitted)),
            f"  {counted(len(said) - fitted.folded + systems, 'more message')} unchanged",
            summing_up(fitted),
        ]
    )


def summing_up(fitted: Fitted) -> str:
    """How much is folded, and how."""
    folded = f"{counted(fitted.folded, 'older message')} folded" if fitted.folded else "nothing folded"
    return f"({folded}; about {fitted.tokens:,} tokens{f'; {fitted.note}' if fitted.note else ''})"


def _put(fitted: Fitted) -> Sequence[Message]:
    """The messages that stand for the folded ones: a summary, and an answer to it, as some models want their turns."""
    return [each for each in fitted.messages if each["role"] != "system"][:2] if fitted.folded else []


def _marked(mark: str, messages: Sequence[Message]) -> list[str]:
    return [f"{mark} {line}" for each in messages for line in f"{each['role']}: {spoken(each)}".splitlines() or [""]]
