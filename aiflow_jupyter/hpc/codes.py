"""The codes of the way to the cluster: stable, one meaning each; what the relay does has codes of its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AF981": "a request is larger than the control plane takes",
        "AF982": "the notebook and the worker speak different versions",
        "AF983": "the job started after its request had expired",
        "AF984": "the job found nobody who waits for its answer",
        "AF985": "the job failed, or ended without what it promised",
        "AF986": "no worker came in time",
        "AF987": "the model server did not get ready in time",
        "AF988": "an answer, or its next token, did not come in time",
        "AF989": "a sealed task or a job's result can't be read",
        "AF990": "an answer, or an event of it, is larger than its way takes",
        "AF991": "a setting or a file of the hpc tier can't be used",
        "AF992": "Globus Compute's SDK is not installed",
        "AF993": "the endpoint is unknown, or its identifier is none",
        "AF994": "nobody is logged in to Globus, or the endpoint is not for them",
        "AF995": "Globus Compute did not take the job, or can't tell how it ends",
        "AF996": "the hpc tier is closed",
    }
)
"""What each code says."""
