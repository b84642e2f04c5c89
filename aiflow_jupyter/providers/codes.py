"""The codes of models and of who serves them: stable, one meaning each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AF700": "a provider could not answer",
        "AF701": "nothing answers where a model should be",
        "AF702": "a stream ended before its finish: what came is a part of the answer",
        "AF703": "a server refused the key, or wants one",
        "AF704": "a server knows no such model or path",
        "AF705": "a server has had too many requests",
        "AF706": "a server refused the request",
        "AF707": "a server failed",
        "AF708": "a server sent what is no answer of its protocol",
        "AF709": "a server said nothing for too long",
        "AF710": "no model is where one should be",
        "AF711": "what the embedded model needs, its engine or pip, is missing or failed",
        "AF712": "there is no room for a model, or its folder can't be written",
        "AF713": "what was downloaded is not the model that it should be",
        "AF714": "llama.cpp can't load a model's file",
        "AF715": "the engine of the embedded model ended while it was starting",
        "AF716": "an environment variable names a proxy or certificates that can't be used",
        "AF739": "a model is answered elsewhere than on this machine",
        "AF744": "a trace has fewer answers than the run that it is played to asks for",
        "AF746": "the speed of a replay is out of range",
    }
)
"""What each code says."""
