"""Puts what the tests of the providers share (`provider_replies.py`) within their reach: tests are imported by file."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
