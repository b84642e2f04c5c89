"""Puts what the tests share within reach: they are imported by file."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "runtime"), str(HERE.parent / "hpc")]
