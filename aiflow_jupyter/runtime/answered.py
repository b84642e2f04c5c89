"""The models' answers of a run, as its result lists them: the last `MOST_ANSWERS`, so that a run may stay open.

What was said is no part of it; this is who gave each answer, and when. How many were let go, `let_go` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aiflow_jupyter.runtime.metrics import Answer

MOST_ANSWERS: Final = 1_024
"""Answers that a run lists."""


class Answered(list[Answer]):
    """The last answers, in the order in which they were asked for.

    Attributes:
        let_go: how many there were before them.
        first_token: when the first token came of the first of these that has one, 0 where none has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.let_go = self.first_token = 0

    def append(self, answer: Answer) -> None:
        """List an answer, and let go the oldest where there are too many."""
        super().append(answer)
        if len(self) > MOST_ANSWERS:
            self.let_go += 1
            oldest = self.pop(0)
            self.first_token = self.first_token or oldest.first

    def extend(self, answers: Iterable[Answer]) -> None:
        """List the answers of a run within this one."""
        if isinstance(answers, Answered):
            self.let_go += answers.let_go
        for answer in answers:
            self.append(answer)
