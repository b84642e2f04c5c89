"""What users do with conversations, in the notebook and on the command line.

conversation                         all of them
conversation NAME                    one in full; --view TIER as that tier is sent it, --diff what that changes
conversation undo NAME               take the last turn away
conversation forget NAME             delete it, from the disk too
conversation export NAME FILE        write it to a file of JSON lines
conversation import NAME FILE        begin one from such a file
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.tiers.conversation.printing import difference, spoken, view
from aiflow_jupyter.tiers.conversation.store import Conversations
from aiflow_jupyter.tiers.conversation.turns import ACTIONS, Turn, chat, require_name
from aiflow_jupyter.tiers.terms import PLACES, Fitted, Misfit, TierName, strictest, within

_ASKED = 60
"""Letters of a question that is taken away."""


def understood(words: Sequence[str], tier: str | None, *, diff: bool) -> tuple[str, str, Path | None]:
    """What is to be done, with which conversation and which file; no action shows it, no name lists all.

    Args:
        words: the command's.
        tier: as which tier is sent it, None for as it is.
        diff: only what that changes.

    Raises:
        CommandError: words are missing or too many, no conversation can have that name, or an option has no sense.
    """
    action, rest = (words[0], list(words[1:])) if words and words[0] in ACTIONS else ("", list(words))
    wanted = {"export": ("NAME", "FILE"), "import": ("NAME", "FILE")}.get(action, ("NAME",))
    if len(rest) > len(wanted) or (action and len(rest) < len(wanted)):
        takes = f"conversation {action} {' '.join(wanted)}" if action else "conversation [NAME]"
        raise CommandError(f"{' '.join(['conversation', *words])} can't be understood", code="AF801", hint=takes)
    if diff and tier is None:
        raise CommandError("--diff needs --view TIER", code="AF801")
    if tier is not None and (action or not rest):
        hint = f"conversation NAME --view {tier}"
        raise CommandError("--view shows one conversation", code="AF801", hint=hint)
    if rest:
        require_name(rest[0])
    return action, rest[0] if rest else "", Path(rest[1]).expanduser() if len(rest) > 1 else None


def act(book: Conversations, action: str, name: str, file: Path | None) -> str:
    """Do one of `ACTIONS`, and say what was done.

    Raises:
        CommandError: there is no such conversation, or the file is not what it has to be.
        ConfigError: the database can't be used.
    """
    from aiflow_jupyter.tiers.conversation.exchange import export_to, import_from  # noqa: PLC0415 - loads pydantic

    if action == "undo":
        question = next((spoken(each) for each in book.undo(name).messages if each["role"] == "user"), "")
        left = len(book.turns(name))
        return f"{name}: the last turn is gone ({' '.join(question.split())[:_ASKED]}); {left} left"
    if action == "forget":
        gone = counted(book.forget(name), "turn")
        return f"{name}: {gone} forgotten; what that cost stays in the ledger, under that name"
    assert file is not None
    if action == "export":
        turns = book.known(name)
        export_to(file, name, turns)
        return f"{name}: {counted(len(turns), 'turn')} written to {file}"
    turns = import_from(file)
    book.add(name, turns)
    return f"{name}: {counted(len(turns), 'turn')} read from {file}"


def viewed(turns: Sequence[Turn], tier: TierName, fitted: Fitted | Misfit, *, diff: bool) -> str:
    """A conversation as a tier is sent it, or what that changes, and whether it is ever sent there."""
    if isinstance(fitted, Misfit):
        text = f"it can't be made to fit: {fitted.why}"
    else:
        text = difference(chat(turns), fitted) if diff else view(fitted)
    floor = strictest(*(turn.stay for turn in turns))
    if within(PLACES[tier], floor):
        return text
    return f"{tier} is never sent this, as it was asked with --stay {floor}; if it were:\n{text}"
