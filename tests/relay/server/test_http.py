"""Hostile and clumsy HTTP: every request has one meaning or none, and costs little."""

from __future__ import annotations

import asyncio
import json
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiflow_jupyter.relay.request import Head, Refusal, parse_head


async def test_health_is_plain_http_for_a_load_balancer(serve):
    client = await serve()
    for path, status in (("/healthz", "alive"), ("/readyz", "ready")):
        answer = await client.request("GET", path)
        assert (answer.status_code, answer.json()) == (200, {"status": status})
    assert (await client.exchange(b"GET /healthz HTTP/1.0\r\n\r\n"))[0] == 200


async def test_http_1_0_can_not_become_a_websocket(serve):
    client = await serve()
    channel = await client.open()
    handshake = client.handshake(channel, "producer").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    assert (await client.exchange(handshake))[0] == 400


POST = b"POST /channels HTTP/1.1\r\nHost: relay\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http://relay/healthz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"CONNECT relay:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n", 400),
        (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
        (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400),
        (POST + b"Content-Length: -2\r\n\r\n{}", 400),
        (POST + b"Content-Length: +2\r\n\r\n{}", 400),
        (POST + b"Content-Length: 0x2\r\n\r\n{}", 400),
        (POST + b"Content-Length: \xb2\r\n\r\n{}", 400),
        (POST + b"Content-Length: 9" + b"9" * 30 + b"\r\n\r\n{}", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
        (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
        (POST + b"Content-Length: 2\r\ntransfer-encoding: identity\r\n\r\n{}", 400),
        (POST + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400),
        (POST + b"Content-Length: 2\r\n\r\n{}GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (POST + b"Content-Length: 1025\r\n\r\n", 413),
        (POST + b"Content-Length: 999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"x" * 100_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),  # a TLS hello
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", 400),
        (bytes(range(256)), 400),
    ],
)
async def test_what_is_no_request_is_refused(serve, request_, status):
    client = await serve()
    got, body = await client.exchange(request_)
    assert got == status
    assert set(json.loads(body)["error"]) == {"code", "message"}
    assert (await client.request("GET", "/healthz")).status_code == 200


async def test_a_client_that_goes_on_writing_after_its_refusal_is_cut(serve, tools):
    client = await serve()
    _, writer = await client.raw(POST + b"Content-Length: 999999999\r\n\r\n")

    async def go_on():
        while True:
            writer.write(bytes(65536))
            await writer.drain()

    async with asyncio.timeout(60):
        with pytest.raises(ConnectionError):
            await go_on()
    await tools.until(lambda: not client.relay._connections)
    writer.close()


async def test_a_request_in_single_bytes_is_a_request(serve, tools):
    client = await serve()
    reader, writer = await client.raw(b"")
    for byte in b"GET /healthz HTTP/1.1\r\nHost: relay\r\n\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()


@pytest.mark.parametrize("part", [b"", b"GET /healthz HTTP/1.1\r\n", POST + b"Content-Length: 10\r\n\r\n{"])
async def test_a_slow_request_is_refused_in_time(serve, part):
    client = await serve(handshake_timeout=0.2)
    reader, writer = await client.raw(part)
    assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_client_that_stops_within_its_request_leaves_nothing_behind(serve, tools):
    client = await serve()
    for part in (b"", b"GET /hea", POST + b"Content-Length: 10\r\n\r\n{"):
        _, writer = await client.raw(part)
        writer.close()
    await tools.until(lambda: not client.relay._connections and not client.relay._handshakes)
    assert not client.relay._per_source


async def test_bytes_that_are_no_frames_close_the_socket_and_not_the_relay(serve, tools):
    client = await serve()
    producer, consumer = await client.pair()
    for garbage in (b"\xff" * 50, b"\x82\x05hello", b"\x83\x80\0\0\0\0", b"\x82\xff" + b"\xff" * 8 + bytes(4)):
        channel = await client.open()
        joined = client.relay.metrics.joins
        reader, writer = await client.raw(client.handshake(channel, "producer"))
        await tools.until(lambda: client.relay.metrics.joins > joined)  # noqa: B023
        writer.write(garbage)
        async with asyncio.timeout(30):
            await reader.read()
        writer.close()
    await producer.send(b"undisturbed")
    assert await tools.receive(consumer) == b"undisturbed"
    assert client.relay.metrics.closes.total() == 4


@given(st.binary(max_size=400))
def test_any_bytes_are_a_request_or_a_refusal(noise):
    try:
        head = parse_head(noise + b"\r\n\r\n")
    except Refusal:
        return
    assert isinstance(head, Head)
    assert head.path.startswith("/")


async def test_metrics_are_prometheus_text_with_nothing_that_names_anyone(serve, tools):
    client = await serve()
    channel = await client.open()
    producer, consumer = await client.pair(channel)
    await producer.send(b"12345")
    await tools.receive(consumer)
    await client.refused(channel, "consumer")
    text = (await client.request("GET", "/metrics")).text
    kinds, values = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            found = re.fullmatch(r'([a-z_]+)(\{[a-z]+="[a-z0-9-]+"\})? ([0-9.]+)', line)
            assert found, line
            assert found[1] in kinds
            values[found[1] + (found[2] or "")] = float(found[3])
    assert {"gauge", "counter"} == set(kinds.values())
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items())
    assert values["aiflow_relay_channels"] == 1
    assert values["aiflow_relay_attached"] == 2
    assert values["aiflow_relay_frames_total"] == 1
    assert values["aiflow_relay_bytes_total"] == 5
    assert values['aiflow_relay_refusals_total{reason="third-party"}'] == 1
    assert values["aiflow_relay_uptime_seconds"] >= 0
    for secret in (*channel.values(), client.key, "tester", "127.0.0.1"):
        assert str(secret) not in text


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
async def test_metrics_are_for_this_machine_by_ipv6_too(serve):
    client = await serve(host="::1")
    assert (await client.request("GET", "/metrics")).status_code == 200


async def test_metrics_are_for_this_machine_or_need_their_token(serve):
    client = await serve()
    for header in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"):
        assert (await client.request("GET", "/metrics", headers={header: "192.0.2.1"})).status_code == 403
    client = await serve(metrics_token="s3cret")
    assert (await client.request("GET", "/metrics")).status_code == 403
    assert (await client.request("GET", "/metrics", headers={"Authorization": "Bearer wrong"})).status_code == 403
    assert (await client.request("GET", "/metrics", headers={"Authorization": "Bearer s3cret"})).status_code == 200
