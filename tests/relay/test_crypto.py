"""Keys, sealed requests and sealed results."""

import base64
import errno
import hmac
import os
from hashlib import sha3_256, sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from aiflow_jupyter.relay.crypto import (
    Opening,
    Seal,
    WorkerKey,
    new_secret,
    open_result,
    seal_request,
    seal_result,
)
from aiflow_jupyter.relay.errors import FrameAltered, KeyUnusable, RequestUnreadable
from aiflow_jupyter.relay.frames import HEADER

SECRET, CHANNEL, SALT, OTHER = bytes(range(32)), bytes(range(16)), b"p" * 16, b"c" * 16
KEMS = ["x25519", "mlkem768x25519"]


def expand(prk, info, size):
    out = block = b""
    for counter in range(1, 255):
        if len(out) >= size:
            return out[:size]
        block = hmac.digest(prk, block + info + bytes([counter]), sha256)
        out += block
    return out


def labelled_extract(suite, salt, label, ikm):
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + ikm, sha256)


def labelled_expand(suite, prk, label, info, size):
    return expand(prk, size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info, size)


def x25519_decapsulate(enc, private):
    """RFC 9180 section 4.1, from its text and nothing but primitives."""
    suite, own = b"KEM\x00\x20", private.public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(enc))
    prk = labelled_extract(suite, b"", b"eae_prk", shared)
    return labelled_expand(suite, prk, b"shared_secret", enc + own, 32)


def xwing_decapsulate(enc, lattice, curve):
    """draft-connolly-cfrg-xwing-kem, section 5.4."""
    shared = curve.exchange(X25519PublicKey.from_public_bytes(enc[1088:]))
    own = curve.public_key().public_bytes_raw()
    return sha3_256(lattice.decapsulate(enc[:1088]) + shared + enc[1088:] + own + b"\\.//^\\").digest()


def rfc9180_open(kem, secret, ciphertext, info):
    """RFC 9180 sections 5.1 and 6.1, base mode with HKDF-SHA256 and AES-256-GCM."""
    suite = b"HPKE" + kem + b"\x00\x01\x00\x02"
    context = (
        b"\x00" + labelled_extract(suite, b"", b"psk_id_hash", b"") + labelled_extract(suite, b"", b"info_hash", info)
    )
    prk = labelled_extract(suite, secret, b"secret", b"")
    key = labelled_expand(suite, prk, b"key", context, 32)
    nonce = labelled_expand(suite, prk, b"base_nonce", context, 12)
    return AESGCM(key).decrypt(nonce, ciphertext, b"")


class TestRequests:
    @pytest.mark.parametrize("kem", KEMS)
    def test_only_the_right_key_purpose_and_context_open_a_request(self, kem):
        key = WorkerKey.generate(kem)
        sealed = seal_request(key.public, b"prompt", purpose="run", context=b"job")
        assert key.open_request(sealed, purpose="run", context=b"job") == b"prompt"
        assert WorkerKey.parse(key.secret_text()).open_request(sealed, purpose="run", context=b"job") == b"prompt"
        for opener, purpose, context in (
            (WorkerKey.generate(kem), "run", b"job"),
            (key, "other", b"job"),
            (key, "run", b""),
            (WorkerKey.generate(KEMS[kem == KEMS[0]]), "run", b"job"),
        ):
            with pytest.raises(RequestUnreadable):
                opener.open_request(sealed, purpose=purpose, context=context)

    @pytest.mark.parametrize("kem", KEMS)
    def test_a_bit_flipped_anywhere_makes_a_request_unreadable(self, kem):
        key = WorkerKey.generate(kem)
        sealed = seal_request(key.public, b"prompt", purpose="run")
        for at in range(len(sealed)):
            altered = bytearray(sealed)
            altered[at] ^= 0x40
            with pytest.raises(RequestUnreadable):
                key.open_request(bytes(altered), purpose="run")
        for size in range(0, len(sealed), 7):
            with pytest.raises(RequestUnreadable):
                key.open_request(sealed[:size], purpose="run")

    @given(st.binary(max_size=200))
    def test_any_bytes_are_unreadable_and_nothing_else(self, sealed):
        with pytest.raises(RequestUnreadable):
            WorkerKey("x25519", bytes(range(32))).open_request(b"\x01\x01" + sealed, purpose="run")

    def test_sealing_is_hpke_as_rfc_9180_has_it(self):
        raw = os.urandom(32)
        sealed = seal_request(WorkerKey("x25519", raw).public, b"prompt", purpose="run", context=b"job")[2:]
        secret = x25519_decapsulate(sealed[:32], X25519PrivateKey.from_private_bytes(raw))
        assert rfc9180_open(b"\x00\x20", secret, sealed[32:], b"aiflow-relay/1 request|run|job") == b"prompt"

    def test_the_hybrid_is_x_wing(self):
        raw = os.urandom(96)
        sealed = seal_request(WorkerKey("mlkem768x25519", raw).public, b"prompt", purpose="run", context=b"job")[2:]
        lattice = MLKEM768PrivateKey.from_seed_bytes(raw[:64])
        secret = xwing_decapsulate(sealed[:1120], lattice, X25519PrivateKey.from_private_bytes(raw[64:]))
        assert rfc9180_open(b"\x64\x7a", secret, sealed[1120:], b"aiflow-relay/1 request|run|job") == b"prompt"

    def test_a_purpose_can_not_run_into_the_context(self):
        with pytest.raises(RequestUnreadable):
            seal_request(WorkerKey.generate().public, b"", purpose="run|job")

    @pytest.mark.parametrize(
        "public",
        [
            "",
            "aiflow-x25519:",
            "aiflow-x25519:!!",
            "aiflow-mlkem768x25519:AAAA",
            "ssh-ed25519 AAAA",
            "aiflow-x25519:AA",
        ],
    )
    def test_what_is_no_public_key_is_refused(self, public):
        with pytest.raises(KeyUnusable):
            seal_request(public, b"", purpose="run")


class TestKeyFiles:
    def test_a_key_comes_back_from_its_file_which_only_its_owner_reads(self, tmp_path):
        key = WorkerKey.generate()
        key.save(tmp_path / "keys" / "worker")
        assert (tmp_path / "keys" / "worker").stat().st_mode & 0o777 == 0o600
        assert WorkerKey.load(tmp_path / "keys" / "worker", env={}).public == key.public

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o777])
    def test_a_file_that_others_can_open_is_refused(self, tmp_path, mode):
        WorkerKey.generate().save(tmp_path / "key")
        (tmp_path / "key").chmod(mode)
        with pytest.raises(KeyUnusable, match="chmod 600"):
            WorkerKey.load(tmp_path / "key", env={})

    def test_an_existing_file_is_never_overwritten(self, tmp_path):
        WorkerKey.generate().save(tmp_path / "key")
        with pytest.raises(KeyUnusable):
            WorkerKey.generate().save(tmp_path / "key")

    def test_a_full_disk_leaves_no_half_of_a_key(self, tmp_path, monkeypatch):
        def no_room(_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", no_room)
        with pytest.raises(KeyUnusable, match="No space left"):
            WorkerKey.generate().save(tmp_path / "key")
        assert list(tmp_path.iterdir()) == []

    def test_an_empty_file_is_said_to_be_empty(self, tmp_path):
        (tmp_path / "key").touch(mode=0o600)
        with pytest.raises(KeyUnusable, match="is empty") as caught:
            WorkerKey.load(tmp_path / "key", env={})
        assert "aiflow keys worker" in caught.value.hint

    def test_the_environment_goes_before_the_file(self, tmp_path):
        WorkerKey.generate().save(tmp_path / "key")
        key = WorkerKey.generate()
        assert WorkerKey.load(tmp_path / "key", env={"AIFLOW_WORKER_KEY": key.secret_text()}).public == key.public

    @pytest.mark.parametrize(
        "content", [b"", b"\xff\xfe", b"aiflow-x25519-secret:AAAA", b"aiflow-x25519-secret:?", b"no key"]
    )
    def test_a_file_that_holds_no_key_is_refused(self, tmp_path, content):
        (tmp_path / "key").write_bytes(content)
        (tmp_path / "key").chmod(0o600)
        with pytest.raises(KeyUnusable):
            WorkerKey.load(tmp_path / "key", env={})

    def test_no_key_at_all_is_an_error_with_a_name(self, tmp_path):
        with pytest.raises(KeyUnusable):
            WorkerKey.load(tmp_path / "none", env={})
        with pytest.raises(KeyUnusable):
            WorkerKey.load(env={})

    @pytest.mark.parametrize("kem", KEMS)
    def test_no_secret_is_in_a_repr(self, kem):
        key = WorkerKey.generate(kem)
        assert key.secret_text().split(":")[1][:20] not in repr(key)


class TestStreamKeys:
    def test_the_key_schedule_is_hkdf_as_written_down(self):
        prk = hmac.digest(CHANNEL, SECRET, sha256)
        key = expand(prk, b"aiflow-relay/1 sealP" + SALT + OTHER, 32)
        frame = Seal(SECRET, CHANNEL, b"P", SALT, OTHER).seal(2, 7, b"plain")
        head = b"\x01\x02" + (7).to_bytes(8, "big")
        assert frame == head + AESGCM(key).encrypt(
            b"\x02\0\0\0" + (7).to_bytes(8, "big"), b"plain", CHANNEL + b"P" + head
        )
        mac = expand(prk, b"aiflow-relay/1 openC", 32)
        hello = b"\x01\x01" + bytes(8) + OTHER + SALT
        assert Opening(SECRET, CHANNEL, b"C").pack(OTHER, SALT) == hello + hmac.digest(
            mac, CHANNEL + b"C" + hello, sha256
        )

    def test_everything_a_key_is_for_makes_another_key(self):
        plain = bytes(64)
        frames = {
            Seal(secret, channel, direction, producer, consumer).seal(2, 1, plain)
            for secret in (SECRET, bytes(32))
            for channel in (CHANNEL, bytes(16))
            for direction in (b"P", b"C")
            for producer, consumer in ((SALT, OTHER), (OTHER, SALT), (SALT, SALT))
        }
        assert len({frame[HEADER.size :] for frame in frames}) == 24

    def test_types_do_not_share_nonces(self):
        seal = Seal(SECRET, CHANNEL, b"P", SALT, OTHER)
        assert len({seal.seal(kind, 1, bytes(64))[HEADER.size : -16] for kind in range(2, 6)}) == 4

    @pytest.mark.parametrize(("secret", "channel"), [(b"short", CHANNEL), (SECRET, b"short")])
    def test_secrets_and_channels_of_the_wrong_size_are_refused(self, secret, channel):
        with pytest.raises(KeyUnusable):
            Seal(secret, channel, b"P", SALT, OTHER)

    def test_secrets_are_fresh(self):
        assert new_secret() != new_secret()


class TestResults:
    def test_a_result_opens_only_where_it_belongs_and_unchanged(self):
        sealed = seal_result(SECRET, CHANNEL, b"answer")
        assert open_result(SECRET, CHANNEL, sealed) == b"answer"
        for at in range(len(sealed)):
            altered = bytearray(sealed)
            altered[at] ^= 1
            with pytest.raises(FrameAltered):
                open_result(SECRET, CHANNEL, bytes(altered))
        for secret, channel, text in (
            (bytes(32), CHANNEL, sealed),
            (SECRET, bytes(16), sealed),
            (SECRET, CHANNEL, b""),
        ):
            with pytest.raises(FrameAltered):
                open_result(secret, channel, text)

    def test_a_job_started_twice_does_not_seal_under_one_key(self):
        assert seal_result(SECRET, CHANNEL, b"a")[:16] != seal_result(SECRET, CHANNEL, b"a")[:16]


def test_texts_of_keys_have_no_padding_and_survive_spaces_around_them():
    key = WorkerKey.generate()
    assert "=" not in key.public
    assert len(base64.urlsafe_b64decode(key.public.split(":")[1] + "=")) == 32
    assert WorkerKey.parse(f" {key.secret_text()}\n").public == key.public
