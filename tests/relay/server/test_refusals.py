"""What a relay refuses, each with its status, a stable code and a sentence."""

from __future__ import annotations

import base64
import os

import pytest

from aiflow_jupyter.relay.capability import Capability, Secret
from aiflow_jupyter.relay.keys import KeyStore


@pytest.mark.parametrize("key", ["nonsense", "afr_" + "A" * 43, "x" * 3000, "afr_\u00e9"])
async def test_an_unknown_key_opens_nothing(serve, key):
    client = await serve()
    answer = await client.post(headers={"Authorization": f"Bearer {key}".encode("latin-1")})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "AF950")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_key_in_another_scheme_or_place_opens_nothing(serve):
    client = await serve()
    for headers in (
        {},
        {"Authorization": f"Basic {client.key}"},
        {"X-Api-Key": client.key},
        {"Authorization": client.key},
    ):
        assert (await client.request("POST", "/channels", headers=headers)).status_code == 401
    assert (await client.request("POST", f"/channels?key={client.key}")).status_code == 404


async def test_a_revoked_key_opens_nothing_and_what_it_opened_can_not_be_joined(serve, tmp_path, tools):
    path = tmp_path / "keys.json"
    client = await serve(keys=KeyStore(path))
    channel = await client.open()
    producer = await client.join(channel, "producer")
    await tools.receive(producer)
    KeyStore(path).revoke("tester")  # as another process would
    assert (await client.post()).status_code == 401
    assert await client.refused(channel, "consumer") == (401, "AF951")


async def test_a_key_added_to_the_file_counts_at_once(serve, tmp_path):
    path = tmp_path / "keys.json"
    client = await serve(keys=KeyStore(path))
    key = KeyStore(path).add("late")
    assert (await client.post(key)).status_code == 201


@pytest.mark.parametrize("mode", [0o644, 0o600])
async def test_a_key_file_that_can_not_be_read_is_the_relays_fault_and_no_keys(serve, tmp_path, mode):
    path = tmp_path / "keys.json"
    client = await serve(keys=KeyStore(path))
    channel, whole = await client.open(), path.read_text()
    path.write_text(whole if mode == 0o644 else "not JSON")
    path.chmod(mode)
    for answer in (await client.post(), await client.request("GET", "/readyz")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "AF968")
        assert "can't read its file of keys" in answer.json()["error"]["message"]
    assert (await client.refused(channel, "producer"))[0] == 503
    path.write_text(whole)
    path.chmod(0o600)
    assert (await client.post()).status_code == 201
    assert (await client.request("GET", "/readyz")).status_code == 200


@pytest.mark.parametrize(
    "body", [b"[]", b"1", b'"x"', b"{", b"\xff", b'{"not_after": "1"}', b'{"not_after": true}', b'{"not_after": 1}',
             b'{"not_after": NaN}', b'{"not_after": -Infinity}', b'{"not_after": []}', b"null", b"[" * 1000]
)  # fmt: skip
async def test_a_post_that_makes_no_sense_opens_nothing(serve, body):
    client = await serve()
    answer = await client.post(json=None, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "AF963")
    assert len(client.relay.channels) == 0


async def test_a_forged_capability_is_refused_whatever_part_is_forged(serve):
    client = await serve()
    channel = await client.open()
    raw = base64.urlsafe_b64decode(channel["producer"])
    for index in range(len(raw)):
        forged = bytearray(raw)
        forged[index] ^= 1
        text = base64.urlsafe_b64encode(bytes(forged)).decode()
        status, code = await client.refused({**channel, "producer": text}, "producer")
        assert (status, code) in {(401, "AF951"), (429, "AF956")}
    other = Secret.fresh().seal(Capability("producer", bytes.fromhex(channel["channel"]), 2**40, bytes(8)))
    for text in (
        "",
        "x",
        other,
        raw.hex(),
        channel["producer"][:-1],
        channel["producer"] + "A",
        "=" * 88,
        "\u00e9" * 44,
    ):
        headers = {"Authorization": f"Bearer {text}".encode("latin-1").decode("latin-1"), "Aiflow-Join": "A" * 43}
        status, _ = await client.refused(channel, "producer", additional_headers=headers)
        assert status in {401, 429}


async def test_a_capability_is_good_for_one_channel_and_one_role(serve):
    client = await serve()
    one, two = await client.open(), await client.open()
    assert await client.refused({**one, "consumer": one["producer"]}, "consumer") == (403, "AF953")
    assert await client.refused({**one, "producer": two["producer"]}, "producer") == (403, "AF953")


@pytest.mark.parametrize("token", ["short", "A" * 42, "A" * 44, "!" * 43, "A" * 42 + "="])
async def test_a_join_needs_a_join_token(serve, token):
    client = await serve()
    channel = await client.open()
    assert await client.refused(channel, "producer", token) == (400, "AF963")
    headers = {"Authorization": f"Bearer {channel['producer']}"}
    assert await client.refused(channel, "producer", additional_headers=headers) == (400, "AF963")


async def test_a_join_needs_the_subprotocol(serve):
    client = await serve()
    channel = await client.open()
    assert await client.refused(channel, "producer", subprotocols=None) == (400, "AF963")
    assert await client.refused(channel, "producer", subprotocols=["chat"]) == (400, "AF963")


async def test_compression_is_not_agreed_to(serve, tools):
    client = await serve()
    channel = await client.open()
    end = await client.join(channel, "producer", compression="deflate")
    assert end.protocol.extensions == []


async def test_a_browser_on_a_websockets_address_is_told_to_upgrade(serve):
    client = await serve()
    answer = await client.request("GET", f"/channels/{os.urandom(16).hex()}/producer")
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers["Upgrade"]) == (
        426,
        "AF962",
        "websocket",
    )


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "AF960"),
        ("GET", "/nothing", 404, "AF960"),
        ("GET", "/channels/", 404, "AF960"),
        ("GET", "/channels/xyz/producer", 404, "AF960"),
        ("GET", f"/channels/{'A' * 32}/producer", 404, "AF960"),
        ("GET", f"/channels/{'a' * 32}/spectator", 404, "AF960"),
        ("GET", f"/channels/{'a' * 32}/producer/", 404, "AF960"),
        ("GET", "/healthz?x", 404, "AF960"),
        ("GET", "/../etc/passwd", 404, "AF960"),
        ("GET", "/channels", 405, "AF961"),
        ("DELETE", "/channels", 405, "AF961"),
        ("POST", "/healthz", 405, "AF961"),
        ("POST", f"/channels/{'a' * 32}/producer", 405, "AF961"),
    ],
)
async def test_anything_else_is_answered_with_an_error_in_json(serve, method, path, status, code):
    client = await serve()
    answer = await client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["Content-Type"] == "application/json"
    assert ("Allow" in answer.headers) == (status == 405)


async def test_text_is_refused_with_1003(serve, tools):
    client = await serve()
    producer, consumer = await client.pair()
    await producer.send("words")
    assert await tools.closed(producer) == 1003
    assert await tools.receive(consumer) == tools.ALONE


async def test_text_in_fragments_is_refused_with_1003(serve, tools):
    client = await serve()
    producer, _ = await client.pair()
    await producer.send(["wo", "rds"])
    assert await tools.closed(producer) == 1003


async def test_a_message_over_the_limit_is_refused_with_1009(serve, tools):
    client = await serve()
    producer, consumer = await client.pair()
    await producer.send(bytes(16 * 1024 + 64))
    assert len(await tools.receive(consumer)) == 16 * 1024 + 64
    await producer.send(bytes(16 * 1024 + 65))
    assert await tools.closed(producer) == 1009
    assert await tools.receive(consumer) == tools.ALONE


async def test_fragments_over_the_limit_together_are_refused_with_1009(serve, tools):
    client = await serve()
    producer, _ = await client.pair()
    await producer.send([bytes(9000), bytes(9000)])
    assert await tools.closed(producer) == 1009


async def test_endless_empty_fragments_are_refused_with_1009(serve, tools):
    client = await serve()
    producer, _ = await client.pair()
    await producer.send([b""] * 200)
    assert await tools.closed(producer) == 1009
