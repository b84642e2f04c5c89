"""The vectors other languages are checked with are what this code does."""

import json

import pytest
import vectors

from aiflow_jupyter.relay.crypto import Seal, WorkerKey, open_result
from aiflow_jupyter.relay.frames import Status
from aiflow_jupyter.relay.protocol import Consumer

FILE = json.loads(vectors.PATH.read_text())


def test_the_file_is_what_the_generator_makes():
    assert {name: FILE[name] for name in vectors.vectors()} == vectors.vectors()


@pytest.mark.parametrize("row", [row for row in FILE["frames"] if "plain" in row], ids=lambda row: row["what"])
def test_a_sealed_frame_opens_to_its_plaintext(row):
    salts = bytes.fromhex(FILE["producer salt"]), bytes.fromhex(FILE["consumer salt"])
    seal = Seal(bytes.fromhex(FILE["secret"]), bytes.fromhex(FILE["channel"]), row["direction"].encode(), *salts)
    assert seal.open(bytes.fromhex(row["frame"]), row["type"], row["seq"]).hex() == row["plain"]


def test_the_stream_yields_its_values():
    consumer = Consumer(
        bytes.fromhex(FILE["secret"]), bytes.fromhex(FILE["channel"]), salt=bytes.fromhex(FILE["consumer salt"])
    )
    consumer.attach(0)
    got = []
    for sender, message in FILE["stream"]["messages"]:
        if sender == "P":
            consumer.receive(bytes.fromhex(message), 0)
            got += consumer.take(0)
    assert got == FILE["stream"]["values"]
    assert consumer.end.status is Status.OK


@pytest.mark.parametrize("row", FILE["requests"], ids=lambda row: row["public"][:22])
def test_a_sealed_request_opens(row):
    key = WorkerKey.parse(row["secret"])
    assert key.public == row["public"]
    opened = key.open_request(
        bytes.fromhex(row["sealed"]), purpose=row["purpose"], context=bytes.fromhex(row["context"])
    )
    assert opened.hex() == row["payload"]


def test_the_sealed_result_opens():
    sealed = bytes.fromhex(FILE["result"]["sealed"])
    opened = open_result(bytes.fromhex(FILE["secret"]), bytes.fromhex(FILE["channel"]), sealed)
    assert opened.hex() == FILE["result"]["payload"]
