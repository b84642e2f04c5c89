"""What can go wrong between a question and the cluster, each with a code and what mends it.

| code | what it means |
|---|---|
| AF981 | the request is larger than the control plane takes |
| AF982 | notebook and worker speak different versions |
| AF983 | the job came too late, nobody waits for its answer any more |
| AF984 | the job found no live consumer |
| AF985 | the job failed, or ended without what it promised |
| AF986 | no worker in time |
| AF987 | the model server did not get ready in time |
| AF988 | no token in time |
| AF989 | a result that can't be read |
| AF990 | the answer is larger than the control plane takes |
| AF991 | a setting of this tier |
| AF992 to AF995 | Globus Compute: not installed, endpoint, login, refused |
| AF996 | the executor is closed |

What the model server says goes by `providers.refusals`' codes (AF70x), what the relay does by its own (AF9xx). No
message holds a key, and none that travels in clear holds anything of prompt or answer.
"""

from __future__ import annotations

from aiflow_jupyter.errors import ProviderError


class HpcError(ProviderError):
    """The cluster could not answer."""

    code = "AF985"


class ResultLost(HpcError):
    """The control plane took the job and can't tell how it ends; what the relay brings still counts."""

    code = "AF995"
