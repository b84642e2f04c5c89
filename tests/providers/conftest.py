"""The real model for the tests of the providers, where there is one."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from aiflow_jupyter.errors import ModelMissing
from aiflow_jupyter.providers.models import Model, default_model

# Tests are imported by file, so that what they share (`provider_replies.py`) has to be put within reach.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def model() -> Model:
    """The model on this machine; skips, or fails where everything is required, if there is none or no engine."""
    why = ""
    found = None
    if importlib.util.find_spec("xllamacpp") is None:
        why = "xllamacpp is not installed"
    else:
        try:
            found = default_model()
            why = "" if found else "no model: run `aiflow models fetch`"
        except ModelMissing as error:
            why = str(error)
    if found is None:
        (pytest.fail if os.environ.get("AIFLOW_REQUIRE_ALL") == "1" else pytest.skip)(why)
    return found
