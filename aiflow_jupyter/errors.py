"""The one error family: a code, what is wrong, where, and what to do.

Every failure that a user can cause or mend is an `AiflowError`. In a notebook it prints as one readable message
(`_render_traceback_`, which IPython honours) and still fails the cell; the cause stays on `__cause__` for `%debug`.
Codes are stable: `AF1xx` language, `AF2xx` structure, `AF3xx` types, `AF4xx` policy, `AF5xx` liveness,
`AF6xx` run, `AF7xx` provider and model, `AF8xx` notebook and command line, `AF9xx` relay and cluster. What each says
stands in `codes` of its room; `aiflow codes` prints all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

PACKAGE: Final = str(Path(__file__).parent)
"""How the file names of this library's own code begin."""

_HALF = re.compile(r"[\ud800-\udfff]")
_STEERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
"""What moves a cursor, turns the direction of writing, or is not seen. The joiners U+200C and U+200D are left: Persian,
the scripts of India and emoji are written with them."""


def encodable(text: str) -> str:
    """The text with halves of a character put together, and single ones, which no encoding can hold, shown as such."""
    if _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def plain(text: str) -> str:
    """The text for a terminal: what could steer it, or is not seen, is taken out; line ends and tabs stay."""
    return _STEERS.sub("", encodable(text).replace("\r\n", "\n"))


class AiflowError(Exception):
    """A failure with a stable code, a sentence, and what mends it.

    Args:
        message: what is wrong, and where, in one sentence.
        code: stable identifier, such as `"AF201"`.
        hint: what to do about it; empty when the message says it all.
    """

    code: str = "AF600"

    def __init__(self, message: str, *, code: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def lines(self) -> list[str]:
        """The message as lines of plain text; the words of a server or a file that are in it can't steer a terminal."""
        first = f"{type(self).__name__} {self.code}: {self.message}"
        return [*plain(first).splitlines(), *(f"  {line}" for line in plain(self.hint).splitlines())]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _render_traceback_(self) -> list[str]:
        return self.lines()


def words(error: BaseException) -> str:
    """What an exception says, cut to what anybody reads; safe for one whose own `__str__` fails."""
    try:
        said = str(error)
    except BaseException:  # noqa: BLE001 - a user's class
        said = "(its message can't be shown)"
    return said[:500]


def where_raised(error: BaseException) -> str:
    """The last line of the user's own code that an exception came through; empty where there is none."""
    step, found = error.__traceback__, ""
    while step is not None:
        code = step.tb_frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            found = f"in {code.co_name}, line {step.tb_lineno}"
        step = step.tb_next
    return found


class GraphError(AiflowError):
    """A graph that does not pass its checks; `problems` holds every one of them, in source order."""

    code = "AF200"

    def __init__(self, problems: Sequence[AiflowError], *, title: str = "") -> None:
        self.problems = tuple(problems)
        many = f"{len(self.problems)} problems" if len(self.problems) > 1 else "1 problem"
        super().__init__(
            f"the graph{f' {title!r}' if title else ''} has {many}",
            code=self.problems[0].code if len(self.problems) == 1 else None,
        )

    def lines(self) -> list[str]:
        """Every problem, as lines of plain text."""
        if len(self.problems) == 1:
            return self.problems[0].lines()
        rows = super().lines()
        for problem in self.problems:
            rows += ["", *problem.lines()]
        return rows


class GraphProblem(AiflowError):
    """One finding of the parser or the checks, with its place in the source where the graph was text.

    Attributes:
        severity: an `error` keeps the graph from running; a `warning` says what may surprise.
        path: where in the spec it stands, as the steps of a JSON pointer; empty where the spec has no such place.
        place: line and column (from 1) in the text that was read; None where there was none, or `path` says it.
    """

    code = "AF200"
    place: tuple[int, int] | None = None
    severity: Literal["error", "warning"] = "error"
    path: tuple[str | int, ...] = ()


class RunError(AiflowError):
    """A run that failed: names the node, the event's sequence, and the cause (also on `__cause__`).

    Attributes:
        result: what had come until then, a `Result` that is not complete; None where no run had begun.
    """

    code = "AF600"
    node: str = ""
    sequence: int | None = None
    result: Any = None


class RunCancelled(AiflowError):
    """A run that was cancelled before it was complete."""

    code = "AF601"


class ProviderError(AiflowError):
    """A provider that could not answer, or whose answer broke off; never carries a key or a header.

    Attributes:
        retry_after: seconds for which it asked to be left alone, None where it did not.
        unread: whether no model has read the request, so that there is nothing to pay.
        of_request: whether it says nothing of the provider's health: no such model, a request that is refused.
    """

    code = "AF700"
    retry_after: float | None = None
    unread: bool = False
    of_request: bool = False

    def __init__(
        self, message: str, *, code: str | None = None, hint: str = "", unread: bool = False, of_request: bool = False
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.unread = unread or self.unread
        self.of_request = of_request


class StreamCut(ProviderError):
    """A stream that ended before its finish reason: what came so far is a part, not an answer."""

    code = "AF702"


class ModelMissing(ProviderError):
    """No model file where one was expected, or the engine that serves it is not installed."""

    code = "AF710"
    unread = True


class ConfigError(AiflowError):
    """A setting, tier or option that does not exist or has a value it can't have."""

    code = "AF720"


class CommandError(AiflowError):
    """A cell or a command line that can't be understood or names something unknown."""

    code = "AF800"


FAMILY: Final = frozenset(
    name for name, each in globals().items() if isinstance(each, type) and issubclass(each, AiflowError)
)
"""The names of these errors, by which `retry_on` knows them."""
