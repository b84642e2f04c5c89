"""The codes of what is wrong with a graph: stable, one meaning each.

`AF1xx` language, `AF2xx` structure, `AF3xx` types, `AF4xx` policy, `AF5xx` liveness. Some are also met at run time,
where a value or a function turns out to be what no check could know. Those from `AF6xx` on stand in the rooms that
raise them; `aiflow codes` prints all.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

Severity = Literal["error", "warning"]

CODES: Final[Mapping[str, tuple[Severity, str]]] = MappingProxyType(
    {
        "AF100": ("error", "the text can't be read"),
        "AF101": ("error", "there is too much of it"),
        "AF102": ("error", "the graph has no nodes"),
        "AF103": ("error", "a name or a value can't be written so"),
        "AF104": ("error", "something is given twice"),
        "AF105": ("error", "the brackets behind an edge say something else than feedback"),
        "AF106": ("error", "a key of the JSON form is unknown, missing or of the wrong type"),
        "AF107": ("error", "a line of Python would have to be run to know what graph it makes"),
        "AF200": ("error", "the spec is not valid"),
        "AF201": ("error", "no operator or function has that name"),
        "AF202": ("error", "two nodes have one name"),
        "AF203": ("error", "the node has no such port, or none was named"),
        "AF204": ("error", "an argument is unknown, missing or has a value that it can't have"),
        "AF205": ("error", "no function, object, exception or flow has that name"),
        "AF206": ("error", "no node has that name"),
        "AF207": ("error", "something is there twice"),
        "AF208": ("error", "no way leads from the node to a sink"),
        "AF209": ("error", "nothing leads to the sink"),
        "AF210": ("error", "a cycle has no feedback edge"),
        "AF211": ("error", "a feedback edge closes no cycle"),
        "AF212": ("warning", "a port is not connected: its events are counted unrouted"),
        "AF213": ("warning", "two sinks write to one place"),
        "AF214": ("error", "a join has fewer than two inputs"),
        "AF215": ("error", "the inputs of a join never share a lineage"),
        "AF216": ("error", "one event becomes many between split and join"),
        "AF217": ("warning", "a text that is taken to name a function may be a slip"),
        "AF301": ("error", "an edge carries what its target can't take"),
        "AF302": ("error", "a model is asked neither a text nor messages"),
        "AF303": ("error", "a function is of a sort that can't be used there"),
        "AF304": ("error", "pieces of a stream go to a node that works on whole values"),
        "AF305": ("warning", "an edge may carry what its target can't take"),
        "AF306": ("error", "the type of what is injected is unknown, or its node can't take it"),
        "AF307": ("warning", "a function has no type hints: it is taken as Any"),
        "AF308": ("error", "a template names what its value does not have"),
        "AF309": ("error", "what an index gave is no list of documents with text"),
        "AF401": ("error", "a policy is unknown or has a value that it can't have"),
        "AF402": ("error", "a node that works one event at a time has several workers"),
        "AF403": ("error", "calls that share state run at once, and no state mode is named"),
        "AF404": ("error", "state that is partitioned has no key, or the key no partitioned state"),
        "AF405": ("warning", "a policy has no effect"),
        "AF406": ("error", "a retry would repeat an effect"),
        "AF407": ("error", "a restart could repeat an effect further on"),
        "AF408": ("error", "a compensation without anything that is tried again"),
        "AF409": ("error", "speculative outputs that no verdict can reach"),
        "AF411": ("error", "verdicts lead to a node that takes none"),
        "AF410": ("warning", "what is dropped between split and join leaves its partner without one"),
        "AF412": ("warning", "a time limit can't be kept"),
        "AF501": ("warning", "branches that meet again may wait for each other"),
        "AF502": ("error", "a join may wait for an event that can't come any more: its limit is too small"),
        "AF503": ("warning", "it is not proved that a loop can't overflow"),
        "AF510": ("error", "a run is stuck: nodes wait for each other"),
    }
)
"""What each code says, and whether the graph may run all the same."""

CERTAIN: Final = frozenset(
    {
        *("AF201", "AF202", "AF203", "AF204", "AF205", "AF206", "AF207", "AF210", "AF303", "AF306", "AF307"),
        *("AF401", "AF402", "AF403", "AF404", "AF406", "AF408", "AF412"),
    }
)
"""What is wrong with a part of a graph whatever the rest of it is: told also where some of its text can't be read."""
