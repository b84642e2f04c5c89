"""`PROTOCOL.md` says what the code does, where a test can tell."""

import re
from importlib.resources import files

import pytest

from aiflow_jupyter.relay import errors, frames
from aiflow_jupyter.relay.errors import RelayError
from aiflow_jupyter.relay.joining import SUBPROTOCOL, Close
from aiflow_jupyter.relay.limits import Limits
from aiflow_jupyter.relay.protocol import DEFAULT_LIMITS

TEXT = (files("aiflow_jupyter.relay") / "PROTOCOL.md").read_text()
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RelayError)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not RelayError], ids=lambda kind: kind.__name__)
def test_every_error_is_in_it(kind):
    row = next(line for line in TEXT.splitlines() if line.startswith("| AF") and kind.__name__ in line)
    first, *last = re.findall(r"AF(\d+)", row)
    assert int(first) <= int(kind.code[2:]) <= int((last or [first])[-1])


def test_no_two_errors_share_a_code():
    assert len({kind.code for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", frames.Type)
def test_every_type_of_frame_is_in_it(kind):
    assert f"| {kind.value} {kind.name} |" in TEXT


@pytest.mark.parametrize("code", Close)
def test_every_code_of_a_close_is_in_it_with_whoever_sends_it(code):
    sender = "end" if code is Close.FINISHED else "relay"
    assert f"| {code.value} | {sender} |" in TEXT


def test_it_has_no_code_of_a_close_that_nobody_sends():
    assert {int(code) for code in re.findall(r"^\| (4\d{3}) \|", TEXT, re.MULTILINE)} == set(Close)


@pytest.mark.parametrize(
    "sentence",
    [
        f"`{SUBPROTOCOL}`, required both ways",
        f"finished after {Limits().abandon_timeout / 3600:g} h",
        f"at most {frames.MAX_FRAME:,} bytes".replace(",", " "),
        f"they are {frames.INITIAL_FRAMES} and {frames.INITIAL_BYTES:,}".replace(",", " "),
        f"A value has at most {frames.MAX_VALUE >> 20} MiB",
        f"message (UTF-8, at most {frames.MAX_MESSAGE})",
        f"frames consumed + {DEFAULT_LIMITS.window_frames}",
        f"bytes consumed + {DEFAULT_LIMITS.window_bytes >> 10} KiB",
        f"resend buffer ({DEFAULT_LIMITS.resend_bytes >> 20} MiB)",
        f"up to {DEFAULT_LIMITS.pending_bytes >> 10} KiB",
        f"after {DEFAULT_LIMITS.lost:g} s attached",
        f"after {DEFAULT_LIMITS.linger:g} s without STATE",
        f"{DEFAULT_LIMITS.resumes} reconnections",
        f"not written to for\n{DEFAULT_LIMITS.idle * 1e6:g} us",
        f"multiple of {DEFAULT_LIMITS.pad} bytes",
    ],
)
def test_every_limit_is_in_it(sentence):
    assert sentence in TEXT
