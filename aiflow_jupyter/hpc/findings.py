"""What a look at an installation finds, one thing at a time. Standard library alone: it runs on the cluster too."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: the part.
        found: what there is; no secret.
        wrong: whether something has to be mended.
        mend: the command or step that mends it; empty when nothing is wrong.
    """

    what: str
    found: str
    wrong: bool = False
    mend: str = ""

    def line(self) -> str:
        """The finding as one line, and what mends it below."""
        mark = "missing" if self.wrong else ("note" if self.mend else "ok")
        mend = "".join(f"\n{'':<26}{line}" for line in self.mend.splitlines())
        return f"{mark:<8} {self.what:<16} {self.found}{mend}"

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON."""
        return asdict(self)
