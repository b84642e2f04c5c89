"""A thought that a server left in the answer's text, told from the answer by its `<think>` tags.

Servers that know their model's template send its thought in a field of its own; others leave it in the content, as
Qwen's and DeepSeek's models write it: `<think>`, the thought, `</think>`, the answer. Only a tag that the content
begins with counts: further on, it may be what the answer is about. A tag may come cut anywhere, so what could be the
beginning of one is held back until the next piece tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from aiflow_jupyter.events import Phase

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_MOST_SPACE: Final = 64


class Tags:
    """The content of one answer on its way in."""

    def __init__(self) -> None:
        self._state: Literal["start", "thought", "answer"] = "start"
        self._held = ""
        self._gap = False  # the space after a tag belongs to neither

    def feed(self, text: str) -> Iterator[tuple[str, Phase]]:
        """The pieces of thought and answer that `text` completes."""
        if self._state == "start":
            text = self._begin(text)
        if self._state == "thought":
            text, self._held = self._held + text, ""
            thought, closed, after = text.partition(_CLOSE)
            if closed:
                yield from self._shown(thought, "reasoning")
                self._state, self._gap, text = "answer", True, after
            else:
                end = len(text) - _begun(text, _CLOSE)
                self._held = text[end:]
                yield from self._shown(text[:end], "reasoning")
        if self._state == "answer":
            yield from self._shown(text, "answer")

    def rest(self) -> Iterator[tuple[str, Phase]]:
        """What was held back and turned out to be no tag."""
        text, self._held = self._held, ""
        if self._state == "start" and text:
            self._state = "answer"
        yield from self._shown(text, "reasoning" if self._state == "thought" else "answer")

    def none(self) -> Iterator[tuple[str, Phase]]:
        """From here on all content is the answer: the server told the thought from it. Gives what was held back."""
        yield from self.rest()
        self._state = "answer"

    def _begin(self, text: str) -> str:
        """Whether the content begins with a tag, as soon as that is known; what is to be read on from there."""
        text, self._held = self._held + text, ""
        begins = text.lstrip()
        if begins.startswith(_OPEN):
            self._state, self._gap = "thought", True
            return begins.removeprefix(_OPEN)
        if _OPEN.startswith(begins) and len(text) - len(begins) <= _MOST_SPACE:
            self._held = text
            return ""
        self._state = "answer"
        return text

    def _shown(self, text: str, phase: Phase) -> Iterator[tuple[str, Phase]]:
        if self._gap:
            text = text.lstrip()
            self._gap = not text
        if text:
            yield text, phase


def _begun(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)
