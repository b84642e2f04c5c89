"""What can go wrong between a question and the cluster, each with a code and what mends it.

What each code (AF98x, AF99x) says stands in `codes`. What the model server says goes by `providers.refusals`' codes
(AF70x), what the relay does by its own (AF9xx). No message holds a key, and none that travels in clear holds anything
of prompt or answer.
"""

from __future__ import annotations

from aiflow_jupyter.errors import ProviderError


class HpcError(ProviderError):
    """The cluster could not answer."""

    code = "AF985"


class ResultLost(HpcError):
    """The control plane took the job and can't tell how it ends; what the relay brings still counts."""

    code = "AF995"
