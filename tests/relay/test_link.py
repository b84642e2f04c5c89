"""The way to a relay: TLS with certificates of one's own, proxies, and relays that keep one waiting."""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import random
import socket
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.server import serve

from aiflow_jupyter.relay import link
from aiflow_jupyter.relay.client import StreamConsumer, StreamLimits, StreamProducer, create_channel
from aiflow_jupyter.relay.crypto import new_secret
from aiflow_jupyter.relay.errors import (
    CapabilityRefused,
    RelayError,
    RelayLimit,
    RelayRefused,
    RelayUnreachable,
)
from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.reasons import why
from aiflow_jupyter.relay.server import RelayServer

CHANNEL = "00" * 16


@pytest.fixture
def certificate(tmp_path):
    """A key and a certificate for 127.0.0.1 that nobody else signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "relay")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "relay.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


async def one_stream(channel, **options):
    secret = new_secret()
    consumer = StreamConsumer(channel.relay, channel.id, channel.consumer, secret, **options)
    consumer.start()
    async with StreamProducer(channel.relay, channel.id, channel.producer, secret, **options) as producer:
        await producer.send("through")
    async with consumer:
        return [value async for value in consumer]


class TestTls:
    async def test_a_certificate_of_ones_own_can_be_trusted_and_no_other_is(self, certificate):
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(certificate)
        keys = KeyStore()
        key = keys.add("tests")
        trusting = ssl.create_default_context(cafile=certificate)
        async with RelayServer(keys, tls=served) as relay:
            url = f"https://127.0.0.1:{relay.port}"
            channel = await create_channel(url, key, tls=trusting)
            assert await one_stream(channel, tls=trusting) == ["through"]
            with pytest.raises(RelayRefused, match="certificate"):
                async with StreamConsumer(url, channel.id, channel.consumer, new_secret()) as consumer:
                    await consumer.wait_for_producer(10)
            with pytest.raises(RelayUnreachable):
                await create_channel(url, key)

    async def test_certificates_come_from_the_environment(self, certificate, monkeypatch):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(certificate)
        keys = KeyStore()
        keys.add("tests")
        async with RelayServer(keys, tls=served) as relay:
            with pytest.raises(CapabilityRefused):  # so the line stood
                async with StreamConsumer(
                    f"https://127.0.0.1:{relay.port}", CHANNEL, "nonsense", new_secret()
                ) as consumer:
                    await consumer.wait_for_producer(10)

    @pytest.mark.parametrize("what", ["SSL_CERT_FILE", "nothing"])
    async def test_a_channel_is_opened_by_the_same_certificates_as_it_is_joined(self, certificate, monkeypatch, what):
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        monkeypatch.setenv(what, str(certificate))
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(certificate)
        keys = KeyStore()
        key = keys.add("tests")
        async with RelayServer(keys, tls=served) as relay:
            url = f"https://127.0.0.1:{relay.port}"
            if what == "SSL_CERT_FILE":
                assert await one_stream(await create_channel(url, key)) == ["through"]
            else:
                with pytest.raises(RelayUnreachable, match=r"certificate is not trusted here.*SSL_CERT_FILE can name"):
                    await create_channel(url, key)


class TestReasons:
    """What keeps one from a relay is said in words, with host and port."""

    @pytest.fixture
    async def plain(self):
        keys = KeyStore()
        keys.add("tests")
        async with RelayServer(keys) as relay:
            yield relay

    @pytest.fixture
    async def secure(self, certificate):
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(certificate)
        async with RelayServer(KeyStore(), tls=served) as relay:
            yield relay

    async def refused(self, url):
        with pytest.raises(RelayUnreachable) as caught:
            await create_channel(url, "afr_key", timeout=5)
        with pytest.raises((RelayUnreachable, RelayRefused)) as joining:
            await link.Link(url, CHANNEL, "consumer", "capability").connect()
        place = url.partition("//")[2]
        assert f"the relay {place} could not be reached (" in caught.value.message
        assert place in joining.value.message
        return caught.value.message

    async def test_nobody_listens(self, unused_tcp_port):
        assert "(connection refused)" in await self.refused(f"http://127.0.0.1:{unused_tcp_port}")

    async def test_https_to_a_relay_without_tls(self, plain):
        assert "does not speak TLS" in await self.refused(f"https://127.0.0.1:{plain.port}")

    async def test_http_to_a_relay_with_tls(self, secure):
        assert "https:// instead of http://" in await self.refused(f"http://127.0.0.1:{secure.port}")

    def test_a_name_that_nobody_has(self):
        error = OSError("All connection attempts failed")
        error.__cause__ = socket.gaierror(-2, "Name or service not known")
        assert why(error) == "its name can't be resolved"

    @pytest.mark.parametrize("status", [401, 403])
    @pytest.mark.parametrize("body", [b"", b"<html>log in</html>", b'{"error": {"message": "who?", "code": "E1"}}'])
    def test_what_another_program_refuses_is_not_the_relays_word(self, status, body):
        with pytest.raises(RelayError, match="not in a relay's words"):
            link.refuse(status, body)

    def test_what_a_relay_refuses_is(self):
        with pytest.raises(CapabilityRefused, match="does not accept this key"):
            link.refuse(401, b'{"error": {"message": "unknown", "code": "AF950"}}')


class TestProxies:
    async def test_a_proxy_of_the_environment_is_used_but_not_on_loopback(self, monkeypatch):
        asked = []

        async def proxy(reader, writer):
            line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode()
            asked.append(line)
            host, _, port = line.split()[1].rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

            async def pump(source, sink):
                with contextlib.suppress(OSError):
                    while data := await source.read(4096):
                        sink.write(data)
                        await sink.drain()
                sink.close()

            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

        keys = KeyStore()
        key = keys.add("tests")
        async with RelayServer(keys) as relay, await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            for name in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, address)
            monkeypatch.delenv("no_proxy", raising=False)
            channel = await create_channel(relay.url, key)
            assert await one_stream(channel) == ["through"]
            assert asked == []
            monkeypatch.setattr(link, "loopback", lambda _: False)  # as if the relay were another machine
            channel = link.Channel(channel.relay, *_fresh(await create_again(relay, key)))
            assert await one_stream(channel, allow_plain=True) == ["through"]
            assert [line.split()[0] for line in asked] == ["CONNECT", "CONNECT"]


async def create_again(relay, key):
    import httpx

    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{relay.url}/channels", json={}, headers={"Authorization": f"Bearer {key}"})
    return answer.json()


def _fresh(answer):
    return answer["channel"], answer["producer"], answer["consumer"], answer["not_after"]


class TestWaiting:
    async def test_a_relay_that_is_full_is_asked_again_as_late_as_it_said(self):
        times = []

        def busy(connection, request):
            times.append(asyncio.get_running_loop().time())
            response = connection.respond(503, "")
            response.headers["Retry-After"] = "1"
            return response

        async with serve(lambda _: None, "127.0.0.1", 0, process_request=busy) as other:
            url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
            async with StreamConsumer(url, CHANNEL, "capability", new_secret(), give_up=1) as consumer:
                with pytest.raises(RelayUnreachable):
                    await consumer.wait_for_producer(10)
        assert len(times) in {2, 3}
        assert times[1] - times[0] >= 1

    async def test_a_relay_that_lets_in_and_closes_at_once_is_not_hammered_and_given_up(self):
        joins = 0

        async def turn_away(socket):
            nonlocal joins
            joins += 1
            await socket.close(1011)

        class Highest(random.Random):
            def uniform(self, a, b):
                return b

        async with serve(turn_away, "127.0.0.1", 0, subprotocols=["aiflow-relay.1"]) as other:
            url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
            async with StreamConsumer(url, CHANNEL, "capability", new_secret(), give_up=0.5, rng=Highest()) as consumer:
                with pytest.raises(RelayUnreachable):
                    await consumer.wait_for_producer(10)
        assert joins < 10

    @pytest.mark.parametrize(("status", "kind"), [(429, RelayLimit), (503, RelayUnreachable)])
    @pytest.mark.parametrize(
        ("said", "wait"), [("7", 7), (None, 0), ("soon", 0), ("-1", 0), ("1e9", 0), ("9" * 30, 0), ("²", 0)]
    )
    def test_what_a_relay_says_about_waiting_is_read_with_care(self, status, kind, said, wait):
        with pytest.raises(kind) as caught:
            link.refuse(status, b"", said)
        assert caught.value.retry_after == wait

    @pytest.mark.parametrize(
        ("channel", "capability"),
        [("", "c"), ("0" * 31, "c"), ("../../x", "c"), (CHANNEL, ""), (CHANNEL, "a\r\nX: y"), (CHANNEL, "é")],
    )
    def test_what_is_no_channel_or_capability_is_refused_before_it_is_sent(self, channel, capability):
        with pytest.raises(CapabilityRefused):
            StreamProducer("http://127.0.0.1", channel, capability, new_secret(), limits=StreamLimits())

    async def test_what_is_no_key_is_refused_before_it_is_sent(self):
        with pytest.raises(CapabilityRefused):
            await create_channel("http://127.0.0.1", "a\r\nb")
