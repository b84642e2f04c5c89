"""Puts what the tests share within reach: they are imported by file."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from aiflow_jupyter.providers.embedded import EmbeddedModel

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "runtime"), str(HERE.parent / "hpc")]


@pytest.fixture(scope="module")
def embedded(model):
    """The embedded model, started once for all tests of a file; each of them has a loop of its own."""
    source = EmbeddedModel(model, threads=1)
    asyncio.run(source.start())
    yield source
    asyncio.run(source.aclose())
