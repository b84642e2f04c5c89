"""The relay's life: where it listens, how it goes, what a restart keeps, what it writes down."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import sys

import pytest
from click.testing import CliRunner
from websockets.asyncio.client import connect

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.relay.capability import Capability, Secret
from aiflow_jupyter.relay.command import keys as keys_command
from aiflow_jupyter.relay.command import relay as relay_command
from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.selfrelay import SelfRelay
from aiflow_jupyter.relay.server import RelayServer
from aiflow_jupyter.relay.service import tls_context


async def test_draining_is_announced_and_ends_when_the_streams_do(serve, tools):
    client = await serve()
    channel = await client.open()
    producer, consumer = await client.pair(channel)
    draining = asyncio.create_task(client.relay.drain(grace=30))
    assert await tools.receive(producer) == tools.GOING_AWAY
    assert await tools.receive(consumer) == tools.GOING_AWAY
    ready = await client.request("GET", "/readyz")
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, "AF957")
    assert (await client.request("GET", "/healthz")).status_code == 200
    assert (await client.post()).status_code == 503
    assert await client.refused(channel, "producer") == (503, "AF957")
    await producer.send(b"the rest")
    assert await tools.receive(consumer) == b"the rest"
    await producer.close()
    await consumer.close()
    await draining


async def test_draining_closes_with_1001_what_is_there_after_the_grace(serve, tools):
    client = await serve()
    producer, consumer = await client.pair()
    await client.relay.drain(grace=0.05)
    assert await tools.closed(producer) == 1001
    assert await tools.closed(consumer) == 1001


async def test_a_restart_with_the_same_secret_file_is_the_same_as_a_reconnect(serve, tools, tmp_path):
    store, token = KeyStore(tmp_path / "keys.json"), {"producer": tools.join_token(), "consumer": tools.join_token()}
    first = await serve(keys=store, secret=Secret.load(tmp_path / "secret"))
    channel = await first.open()
    old = {role: await first.join(channel, role, token[role]) for role in token}
    port = first.relay.port
    await first.relay.abort()
    for end in old.values():
        assert await tools.closed(end) == 1006
    second = await serve(keys=KeyStore(tmp_path / "keys.json"), secret=Secret.load(tmp_path / "secret"), port=port)
    producer = await second.join(channel, "producer", token["producer"])
    assert await tools.receive(producer) == tools.ALONE
    consumer = await second.join(channel, "consumer", token["consumer"])
    assert await tools.receive(consumer) == tools.PRESENT
    await producer.send(b"again")
    assert await tools.receive(consumer) == b"again"
    assert await second.refused(channel, "producer") == (409, "AF954")


async def test_a_restart_without_a_secret_file_invalidates_capabilities(serve):
    store = KeyStore()
    first = await serve(keys=store)
    channel = await first.open()
    port = first.relay.port
    await first.relay.close()
    second = await serve(keys=store, port=port)
    assert await second.refused(channel, "producer") == (401, "AF951")


async def test_a_closed_relay_leaves_no_task_and_no_socket(serve, tools):
    before = asyncio.all_tasks()
    client = await serve()
    await client.pair()
    await client.relay.close()
    assert not client.relay._sockets
    assert not client.relay._connections
    await client.close()
    await tools.until(lambda: asyncio.all_tasks() == before)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "relay.example.org", ""])
def test_strangers_are_not_served_without_tls_unless_asked_for(host):
    with pytest.raises(ConfigError, match="AF973"):
        RelayServer(KeyStore(), host=host)
    RelayServer(KeyStore(), host=host, insecure=True)
    RelayServer(KeyStore(), host=host, behind_proxy=True)


def test_the_default_is_loopback():
    assert RelayServer(KeyStore()).url.startswith("http://127.0.0.1:")


async def test_a_port_in_use_is_said(serve):
    client = await serve()
    with pytest.raises(ConfigError, match=r"can't listen on 127\.0\.0\.1"):
        await RelayServer(KeyStore(), port=client.relay.port).start()


async def test_a_relay_ends_tls_itself(serve, tools, certificate):
    import ssl

    path, key = certificate
    client = await serve(tls=tls_context(path, key))
    assert client.relay.url.startswith("https://")
    trust = ssl.create_default_context(cafile=path)
    trust.check_hostname = False
    import httpx

    async with httpx.AsyncClient(verify=trust, trust_env=False) as http:
        channel = (
            await http.post(client.relay.url + "/channels", headers={"Authorization": f"Bearer {client.key}"})
        ).json()
        assert (await http.post(client.relay.url + "/channels")).status_code == 401
    producer = await client.join(channel, "producer", ssl=trust)
    consumer = await client.join(channel, "consumer", ssl=trust)
    assert await tools.receive(consumer) == tools.PRESENT
    messages = [bytes([index]) * 16000 for index in range(200)]

    async def send():
        for message in messages:
            await producer.send(message)

    sending = asyncio.create_task(send())
    assert [await tools.receive(consumer) for _ in messages] == messages
    await sending
    await consumer.close(4001)
    assert [await tools.receive(producer) for _ in range(2)] == [tools.ALONE, tools.ATTACHED]
    assert await tools.closed(producer) == 4010


@pytest.fixture
def certificate(tmp_path):
    import datetime as dt
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "relay")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return tmp_path / "cert.pem", tmp_path / "key.pem"


def test_a_certificate_that_can_not_be_used_is_said(tmp_path):
    with pytest.raises(ConfigError, match="AF973"):
        tls_context(tmp_path / "none.pem", tmp_path / "none.key")


# --- files ---


def test_the_secret_file_is_made_once_and_for_its_owner_only(tmp_path):
    path = tmp_path / "secret"
    first = Secret.load(path)
    assert path.stat().st_mode & 0o777 == 0o600
    capability = Capability("consumer", os.urandom(16), 2**33, os.urandom(8))
    assert Secret.load(path).open(first.seal(capability)) == capability
    assert repr(first) == "Secret(...)"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_files_that_others_may_read_or_write_are_refused(tmp_path, mode):
    Secret.load(tmp_path / "secret")
    KeyStore(tmp_path / "keys.json").add("one")
    for path, load in ((tmp_path / "secret", Secret.load), (tmp_path / "keys.json", KeyStore)):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            load(path)


@pytest.mark.parametrize("content", ["", "00", "xyz", "00" * 31, "00" * 33])
def test_a_secret_file_that_holds_no_secret_is_refused(tmp_path, content):
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="AF970"):
        Secret.load(path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"version": 2, "keys": []}', '{"version": 1, "keys": [{"name": "a", "sha256": "00"}]}',
                '{"version": 1, "keys": [1]}', '{"version": 1, "keys": {}}']
)  # fmt: skip
def test_a_key_file_that_holds_no_keys_is_refused(tmp_path, content):
    path = tmp_path / "keys.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="AF972"):
        KeyStore(path)


def test_only_the_hash_of_a_key_is_stored(tmp_path):
    path = tmp_path / "keys.json"
    key = KeyStore(path).add("alice", channels=3, joins_per_minute=5)
    assert key.startswith("afr_")
    assert len(key) == 4 + 43
    assert path.stat().st_mode & 0o777 == 0o600
    assert key not in path.read_text()
    assert key[4:] not in path.read_text()
    found = KeyStore(path).find(key)
    assert (found.name, found.channels, found.joins_per_minute) == ("alice", 3, 5)
    assert KeyStore(path).find(key[:-1]) is None
    assert not [left for left in tmp_path.iterdir() if left != path]


@pytest.mark.parametrize("name", ["", "a b", "-x", "a\nb", "\u00e9", "x" * 65, "../x"])
def test_a_name_that_could_confuse_a_log_is_refused(name):
    with pytest.raises(ConfigError, match="AF972"):
        KeyStore().add(name)


def test_keys_are_added_listed_and_revoked_by_command(tmp_path):
    run = lambda *words: CliRunner().invoke(keys_command, ["relay", *words, "--state", str(tmp_path / "state")])
    made = run("add", "alice", "--channels", "2")
    assert made.exit_code == 0
    key = made.stdout.strip()
    assert KeyStore(tmp_path / "state" / "keys.json").find(key).channels == 2
    assert isinstance(run("add", "alice").exception, ConfigError)
    listed = run("list").stdout
    assert "alice  channels 2  joins per minute default" in listed
    assert key not in listed
    assert run("revoke", "alice").exit_code == 0
    assert isinstance(run("revoke", "alice").exception, ConfigError)
    assert run("list").stdout == ""
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_the_command_refuses_strangers_without_tls(tmp_path):
    result = CliRunner().invoke(relay_command, ["--host", "0.0.0.0", "--state", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert CliRunner().invoke(relay_command, ["--tls-cert", "x", "--state", str(tmp_path)]).exit_code == 2


@pytest.mark.skipif(os.name != "posix", reason="signals")
async def test_sigterm_drains_a_relay_that_was_started_by_command(tmp_path, tools):
    key = KeyStore(tmp_path / "keys.json").add("alice")
    code = "from aiflow_jupyter.relay.command import relay; relay()"
    words = ["--state", str(tmp_path), "--port", "0", "--drain", "0.3"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *words, stderr=asyncio.subprocess.PIPE)
    try:
        url = ""
        while "relay on " not in url:
            url = (await process.stderr.readline()).decode()
            assert url, "it ended"
        url = url.split()[2].rstrip(";")
        import httpx

        async with httpx.AsyncClient(trust_env=False) as http:
            channel = (await http.post(url + "/channels", headers={"Authorization": f"Bearer {key}"})).json()
        headers = {"Authorization": f"Bearer {channel['producer']}", "Aiflow-Join": tools.join_token()}
        address = f"{url.replace('http', 'ws')}/channels/{channel['channel']}/producer"
        options = {"subprotocols": ["aiflow-relay.1"], "additional_headers": headers, "proxy": None}
        async with connect(address, **options) as end:
            assert await tools.receive(end) == tools.ALONE
            process.send_signal(signal.SIGTERM)
            assert await tools.receive(end) == tools.GOING_AWAY
            assert await tools.closed(end) == 1001
        rest = (await process.stderr.read()).decode()
        assert await process.wait() == 0
        assert "event=draining" in rest
        assert "Traceback" not in rest
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# --- a relay of one's own ---


async def test_a_relay_of_ones_own_has_an_address_and_a_key(tools):
    import httpx

    async with SelfRelay() as relay:
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.post(relay.url + "/channels", headers={"Authorization": f"Bearer {relay.key}"})
        assert answer.status_code == 201
    async with httpx.AsyncClient(trust_env=False) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(relay.url + "/healthz")


def test_a_relay_of_ones_own_is_not_open_to_strangers_unless_asked_for():
    with pytest.raises(ConfigError):
        SelfRelay("0.0.0.0")
    relay = SelfRelay("0.0.0.0", 8000, public_host="login1.cluster", insecure=True)
    assert relay.url == "http://login1.cluster:8000"


# --- logs ---


async def test_no_log_at_debug_shows_a_secret_or_a_payload(serve, tools, caplog):
    """Whatever runs in the relay's process may log: only what the clients of this test say is left out."""
    asyncio.get_running_loop().set_debug(True)
    stream = io.StringIO()
    catcher = logging.StreamHandler(stream)
    catcher.setFormatter(logging.Formatter("%(name)s %(message)s"))
    catcher.addFilter(lambda record: not record.name.startswith(("websockets.client", "httpcore", "httpx")))
    root = logging.getLogger()
    root.addHandler(catcher)
    caplog.set_level(logging.DEBUG)
    for name in list(logging.Logger.manager.loggerDict):
        if name.startswith(("websockets", "aiflow_jupyter", "asyncio")):
            logging.getLogger(name).setLevel(logging.DEBUG)
    try:
        client = await serve()
        channel, token = await client.open(), {"producer": tools.join_token(), "consumer": tools.join_token()}
        producer = await client.join(channel, "producer", token["producer"])
        consumer = await client.join(channel, "consumer", token["consumer"])
        await producer.send(b"canary-payload")
        await consumer.send([b"canary-", b"payload"])
        await tools.until(lambda: client.relay.metrics.frames == 2)
        stranger = tools.join_token()
        await client.refused(channel, "consumer", stranger)
        await client.refused({**channel, "consumer": channel["producer"]}, "consumer")
        await client.post("afr_canary-key")
        await client.post(content=b'{"canary-body', json=None)
        await client.request("GET", "/canary-path?canary-query", headers={"X-Canary": "canary-header"})
        await client.exchange(b"canary-garbage\r\n\r\n")
        await client.exchange(b"GET /canary HTTP/1.1\r\nHost: canary-host\r\ncanary\r\n\r\n")
        await producer.send("canary-text")
        await tools.closed(producer)
        await consumer.send(b"canary-large" * 2000)
        await tools.closed(consumer)
        reader, writer = await client.raw(client.handshake(channel, "producer", token["producer"]))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\xffcanary-frame" + b"canary" * 30)
        await reader.read()
        writer.close()
        again = await client.join(channel, "consumer", token["consumer"])
        await again.close(4001, "canary-reason")
        await client.relay.drain(grace=0.01)
    finally:
        root.removeHandler(catcher)
        asyncio.get_running_loop().set_debug(False)
    text = stream.getvalue()
    assert "event=join" in text
    assert "event=third-party" in text
    secrets = {
        **channel,
        **token,
        "stranger": stranger,
        "key": client.key,
        "key id": client.relay.keys.find(client.key).id.hex(),
        "canary": "canary",
        "canary in hexadecimal": b"canary".hex(),
        "half of the channel": channel["channel"][:16],
    }
    del secrets["not_after"]
    for name, secret in secrets.items():
        assert secret not in text, f"the log shows the {name}"
