"""Makes `aiflow_jupyter/relay/vectors.json`: `python tests/relay/vectors.py` writes it, `test_vectors` compares.

Sealed requests are random by nature: they are made once, kept in the file and only opened again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import aiflow_jupyter.relay.protocol as protocol_module
from aiflow_jupyter.relay.crypto import Opening, Seal, WorkerKey, _derive, seal_request, seal_result
from aiflow_jupyter.relay.frames import (
    End,
    Flag,
    Hint,
    Kind,
    State,
    Status,
    Type,
    pack_batch,
    pack_beat,
    pack_data,
    pack_end,
    pack_hint,
    pack_state,
)
from aiflow_jupyter.relay.protocol import Consumer, Producer, pack

PATH = Path(protocol_module.__file__).with_name("vectors.json")
SECRET = bytes(range(32))
CHANNEL = bytes(range(0x40, 0x50))
PRODUCER_SALT = bytes(range(0x50, 0x60))
CONSUMER_SALT = bytes(range(0x60, 0x70))
VALUES = ["The dose is ", "", "10 mg", {"usage": {"tokens": 3}}]


def keys() -> dict[str, str]:
    salts = PRODUCER_SALT + CONSUMER_SALT
    return {
        "open P": _derive(SECRET, CHANNEL, b"open", b"P").hex(),
        "open C": _derive(SECRET, CHANNEL, b"open", b"C").hex(),
        "seal P": _derive(SECRET, CHANNEL, b"seal", b"P" + salts).hex(),
        "seal C": _derive(SECRET, CHANNEL, b"seal", b"C" + salts).hex(),
        "result of salt producer": _derive(SECRET, CHANNEL, b"result", PRODUCER_SALT).hex(),
    }


def frames() -> list[dict[str, Any]]:
    down = Seal(SECRET, CHANNEL, b"P", PRODUCER_SALT, CONSUMER_SALT)
    up = Seal(SECRET, CHANNEL, b"C", PRODUCER_SALT, CONSUMER_SALT)
    rows = [
        ("P", Type.DATA, 1, pack_batch([pack("hello"), pack("")], 64), "a batch of two texts"),
        ("P", Type.DATA, 2, pack_data(Kind.PART, pack(b"part")[:3], 0), "the first part of a value, not padded"),
        ("P", Type.DATA, 3, pack_data(Kind.LAST, pack(b"part")[3:], 0), "its last part, not padded"),
        ("P", Type.END, 4, pack_end(End(Status.ERROR, 3, 3, bytes(range(32)), "why é"), 64), "an end with an error"),
        ("P", Type.BEAT, 1, pack_beat(5, 64), "a sign of life"),
        ("C", Type.STATE, 1, pack_state(State(1, 256, 262144, Flag.NONE), 64), "a state"),
        ("C", Type.STATE, 2, pack_state(State(3, 300, 300000, Flag.RESEND | Flag.CANCEL), 64), "a state with flags"),
    ]
    out = [
        {"what": what, "direction": way, "type": int(kind), "seq": seq, "plain": plain.hex(),
         "frame": (down if way == "P" else up).seal(kind, seq, plain).hex()}
        for way, kind, seq, plain, what in rows
    ]  # fmt: skip
    hello = Opening(SECRET, CHANNEL, b"C").pack(CONSUMER_SALT, bytes(16))
    out.append({"what": "a consumer's first hello", "direction": "C", "type": 1, "seq": 0, "frame": hello.hex()})
    out.append({"what": "the relay's hint: attached", "type": 0, "seq": 0, "frame": pack_hint(Hint.ATTACHED).hex()})
    return out


def stream() -> list[list[str]]:
    """A whole short stream, as [from, message] in the order of a line without delay."""
    producer = Producer(SECRET, CHANNEL, salt=PRODUCER_SALT)
    consumer = Consumer(SECRET, CHANNEL, salt=CONSUMER_SALT)
    log: list[list[str]] = []
    now = 0.0

    def move() -> None:
        while True:
            down, up = producer.data_to_send(), consumer.data_to_send()
            if not down and not up:
                return
            for frame in down:
                log.append(["P", frame.hex()])
                consumer.receive(frame, now)
            for frame in up:
                log.append(["C", frame.hex()])
                producer.receive(frame, now)
            consumer.take(now)

    consumer.attach(now)
    consumer.data_to_send()  # nobody is there yet: the relay drops it
    producer.attach(now)
    move()
    for value in VALUES:
        now += 1
        producer.send(pack(value), now)
        move()
    producer.end(Status.OK, "", now)
    move()
    assert producer.over
    return log


def requests() -> list[dict[str, str]]:
    rows = []
    for kem, size in (("x25519", 32), ("mlkem768x25519", 96)):
        key = WorkerKey(kem, bytes(range(1, size + 1)))
        sealed = seal_request(key.public, b"a prompt", purpose="run", context=b"job 1")
        rows.append({"secret": key.secret_text(), "public": key.public, "purpose": "run",
                     "context": b"job 1".hex(), "payload": b"a prompt".hex(), "sealed": sealed.hex()})  # fmt: skip
    return rows


def vectors() -> dict[str, Any]:
    """Everything that can be made again, without the sealed requests and results."""
    return {
        "secret": SECRET.hex(),
        "channel": CHANNEL.hex(),
        "producer salt": PRODUCER_SALT.hex(),
        "consumer salt": CONSUMER_SALT.hex(),
        "keys": keys(),
        "frames": frames(),
        "stream": {"values": VALUES, "messages": stream()},
    }


if __name__ == "__main__":
    kept = json.loads(PATH.read_text()) if PATH.exists() and "--fresh" not in sys.argv else {}
    made = vectors()
    made["requests"] = kept.get("requests") or requests()
    made["result"] = kept.get("result") or {
        "payload": b"an answer".hex(), "sealed": seal_result(SECRET, CHANNEL, b"an answer").hex()
    }  # fmt: skip
    PATH.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
