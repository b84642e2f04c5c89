import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `lines`

ON_BOTH_LOOPS = {"test_client.py", "test_link.py", "test_wire.py", "test_channel.py"}


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config, item):
    """What a line does is tried on uvloop too, where the extra `fast` is installed."""
    factories = {"asyncio": asyncio.new_event_loop}
    if item.path.name in ON_BOTH_LOOPS and importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factories["uvloop"] = uvloop.new_event_loop
    return factories
