"""Keys: of a stream's two directions, of an answer sent in one piece, and of requests sealed for a worker.

A stream has a fresh 32-byte secret that only its two ends know. From it and the channel's id come, by HKDF-SHA256, one
MAC key per direction for OPEN and, once both ends' salts are known, one AES-256-GCM key per direction. As both salts
are in it, a key exists for one pair of processes only: a restarted process, or a job started twice, gets another key,
so no nonce is used twice under one key and no frame of an earlier pair can be replayed into a later one.

Requests are sealed with HPKE (RFC 9180, base mode): X25519, or the hybrid of ML-KEM-768 and X25519, with HKDF-SHA256
and AES-256-GCM. `PROTOCOL.md` states it for other languages; `vectors.json` holds test vectors.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import struct
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.relay.errors import FrameAltered, KeyUnusable, RequestUnreadable
from aiflow_jupyter.relay.frames import CHANNEL_BYTES, HEADER, SALT_BYTES, TAG_BYTES, VERSION, Type
from aiflow_jupyter.relay.private import read_private, write_private

SECRET_BYTES = 32
MAC_BYTES = 32
PRODUCER = b"P"  # the direction producer to consumer
CONSUMER = b"C"

_NONCE = struct.Struct(">B3xQ")
_OPEN = struct.Struct(f"{SALT_BYTES}s{SALT_BYTES}s{MAC_BYTES}s")
OPEN_BYTES = HEADER.size + _OPEN.size

Kem = Literal["x25519", "mlkem768x25519"]


def new_secret() -> bytes:
    """A fresh stream secret: one per stream, never used again."""
    return os.urandom(SECRET_BYTES)


def _derive(secret: bytes, channel: bytes, label: bytes, rest: bytes) -> bytes:
    if len(secret) != SECRET_BYTES or len(channel) != CHANNEL_BYTES:
        raise KeyUnusable("a stream secret has 32 bytes and a channel id 16")
    return HKDF(SHA256(), 32, salt=channel, info=b"aiflow-relay/1 " + label + rest).derive(secret)


class Opening:
    """Makes and checks the OPEN frames of one direction.

    A MAC and not AES-GCM: its key is the same for every process that knows the secret, where a counter nonce would be
    used twice.
    """

    __slots__ = ("_key", "_prefix")

    def __init__(self, secret: bytes, channel: bytes, direction: bytes) -> None:
        self._key = _derive(secret, channel, b"open", direction)
        self._prefix = channel + direction

    def _mac(self, head: bytes) -> bytes:
        return hmac.digest(self._key, self._prefix + head, sha256)

    def pack(self, own: bytes, peer: bytes) -> bytes:
        """An OPEN frame with the sender's salt and the peer's, zeros while that is not known."""
        head = HEADER.pack(VERSION, Type.OPEN, 0) + own + peer
        return head + self._mac(head)

    def unpack(self, frame: bytes) -> tuple[bytes, bytes]:
        """The salts of sender and peer.

        Raises:
            FrameAltered: the MAC does not hold.
        """
        head, mac = frame[:-MAC_BYTES], frame[-MAC_BYTES:]
        if len(frame) != OPEN_BYTES or not hmac.compare_digest(mac, self._mac(head)):
            raise FrameAltered("an OPEN that the other end did not send, or that was changed on the way")
        return head[HEADER.size : HEADER.size + SALT_BYTES], head[HEADER.size + SALT_BYTES :]


class Seal:
    """Seals and opens the frames of one direction between one pair of processes.

    The nonce is the type and the sequence; the associated data are channel, direction, version, type and sequence.
    Whoever seals never repeats a type and sequence: a resend repeats the stored frame.
    """

    __slots__ = ("_aead", "_prefix")

    def __init__(self, secret: bytes, channel: bytes, direction: bytes, producer: bytes, consumer: bytes) -> None:
        self._aead = AESGCM(_derive(secret, channel, b"seal", direction + producer + consumer))
        self._prefix = channel + direction

    def seal(self, kind: int, seq: int, plain: bytes) -> bytes:
        """A whole frame."""
        head = HEADER.pack(VERSION, kind, seq)
        return head + self._aead.encrypt(_NONCE.pack(kind, seq), plain, self._prefix + head)

    def open(self, frame: bytes, kind: int, seq: int) -> bytes:
        """The plaintext of a frame whose header said `kind` and `seq`.

        Raises:
            FrameAltered: the tag does not hold.
        """
        try:
            return self._aead.decrypt(_NONCE.pack(kind, seq), frame[HEADER.size :], self._prefix + frame[: HEADER.size])
        except (InvalidTag, ValueError):
            raise FrameAltered(
                f"frame {seq} (type {kind}) is not what the other end sent",
                hint="the relay or something before it changed the stream; what arrived before is sound",
            ) from None


def seal_result(secret: bytes, channel: bytes, payload: bytes) -> bytes:
    """An answer in one piece, for the way back through the control plane: 16 random bytes, ciphertext, tag.

    Its key is made for this one message, so that a job started twice seals under two keys.
    """
    salt = os.urandom(SALT_BYTES)
    key = _derive(secret, channel, b"result", salt)
    return salt + AESGCM(key).encrypt(bytes(12), payload, channel)


def open_result(secret: bytes, channel: bytes, sealed: bytes) -> bytes:
    """The payload of `seal_result`.

    Raises:
        FrameAltered: it was not sealed under this secret and channel, or was changed.
    """
    if len(sealed) < SALT_BYTES + TAG_BYTES:
        raise FrameAltered("a sealed result that is too short to be one")
    key = _derive(secret, channel, b"result", sealed[:SALT_BYTES])
    try:
        return AESGCM(key).decrypt(bytes(12), sealed[SALT_BYTES:], channel)
    except InvalidTag:
        raise FrameAltered("a sealed result that is not what the worker sent") from None


# Requests sealed for a worker ---------------------------------------------------------------------------------------

_KEMS: dict[Kem, int] = {"x25519": 1, "mlkem768x25519": 2}
_MLKEM_SEED, _MLKEM_PUBLIC, _X25519 = 64, 1184, 32
_MAKE = "make one with `aiflow keys worker`, on the cluster: `python aiflow-worker.pyz keys`"


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _hpke(kem: Kem) -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import hpke  # noqa: PLC0415  # older releases have none
    except ImportError:
        raise KeyUnusable(
            "this cryptography has no HPKE", hint="pip install --upgrade cryptography, at both ends"
        ) from None
    kems = {"x25519": hpke.KEM.X25519, "mlkem768x25519": hpke.KEM.MLKEM768_X25519}
    return hpke, hpke.Suite(kems[kem], hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)


def _mlkem() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import mlkem  # noqa: PLC0415  # older releases have none
    except ImportError:
        raise KeyUnusable("this cryptography has no ML-KEM", hint="use a key of kind x25519") from None
    return mlkem


def _info(purpose: str, context: bytes) -> bytes:
    if "|" in purpose:
        raise RequestUnreadable("a purpose has no |")
    return b"aiflow-relay/1 request|" + purpose.encode() + b"|" + context


class WorkerKey:
    """The private key of a worker, which opens the requests sealed for its public one.

    Its texts are `aiflow-x25519:...` (public) and `aiflow-x25519-secret:...`, or the same with `mlkem768x25519`.
    """

    __slots__ = ("_key", "_raw", "kem", "public")

    def __init__(self, kem: Kem, raw: bytes) -> None:
        self.kem = kem
        self._raw = raw
        try:
            if kem == "x25519":
                self._key: Any = X25519PrivateKey.from_private_bytes(raw)
                public = self._key.public_key().public_bytes_raw()
            else:
                hpke, _ = _hpke(kem)
                lattice = _mlkem().MLKEM768PrivateKey.from_seed_bytes(raw[:_MLKEM_SEED])
                curve = X25519PrivateKey.from_private_bytes(raw[_MLKEM_SEED:])
                self._key = hpke.MLKEM768X25519PrivateKey(lattice, curve)
                public = lattice.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw()
        except (ValueError, UnsupportedAlgorithm):
            raise KeyUnusable(f"no usable {kem} key", hint=_MAKE) from None
        self.public = f"aiflow-{kem}:{_b64(public)}"

    def __repr__(self) -> str:
        return f"<WorkerKey {self.public[:28]}...>"

    @classmethod
    def generate(cls, kem: Kem = "x25519") -> WorkerKey:
        """A new key; `mlkem768x25519` also withstands a quantum computer, where this installation has it."""
        return cls(kem, os.urandom(_X25519 if kem == "x25519" else _MLKEM_SEED + _X25519))

    @classmethod
    def parse(cls, text: str) -> WorkerKey:
        """The key of its secret text.

        Raises:
            KeyUnusable: it is none.
        """
        head, _, body = text.strip().partition(":")
        for kem in _KEMS:
            if head == f"aiflow-{kem}-secret":
                try:
                    return cls(kem, _unb64(body))
                except (binascii.Error, ValueError):
                    break
        raise KeyUnusable(
            "that is no worker key", hint="it starts with aiflow-x25519-secret: or aiflow-mlkem768x25519-secret:"
        )

    def secret_text(self) -> str:
        """The secret text; whoever has it reads every request."""
        return f"aiflow-{self.kem}-secret:{_b64(self._raw)}"

    @classmethod
    def load(
        cls, path: Path | None = None, *, variable: str = "AIFLOW_WORKER_KEY", env: Mapping[str, str] | None = None
    ) -> WorkerKey:
        """The key in the environment variable `variable`, else in the file `path`.

        Raises:
            KeyUnusable: neither is there, or the file is empty, not the caller's own or open to others.
        """
        text = (os.environ if env is None else env).get(variable, "")
        if text:
            return cls.parse(text)
        if path is None:
            raise KeyUnusable(f"no worker key: {variable} is not set", hint=_MAKE)
        try:
            text = read_private(path)
        except ConfigError as error:
            raise KeyUnusable(f"no worker key: {error.message}", hint=error.hint or _MAKE) from None
        if not text.strip():
            raise KeyUnusable(f"the worker key file {path} is empty", hint=f"delete it, and {_MAKE}")
        return cls.parse(text)

    def save(self, path: Path) -> None:
        """Write the secret text to a new file that only its owner reads: whole, or not at all.

        Raises:
            KeyUnusable: the file exists or can't be made.
        """
        try:
            written = write_private(path, self.secret_text() + "\n")
        except ConfigError as error:
            raise KeyUnusable(f"the key was not saved: {error.message}", hint=error.hint) from None
        if not written:
            raise KeyUnusable(f"the key was not saved: {path} is there already, and is kept", hint="name another file")

    def open_request(self, sealed: bytes, *, purpose: str, context: bytes = b"") -> bytes:
        """The payload of a request that was sealed for this key, purpose and context.

        Raises:
            RequestUnreadable: it was sealed for another, or changed on the way.
        """
        _, suite = _hpke(self.kem)
        if sealed[:2] != bytes([VERSION, _KEMS[self.kem]]):
            raise RequestUnreadable(
                "a sealed request of another version or kind of key", hint="compare the public keys at both ends"
            )
        try:
            return bytes(suite.decrypt(sealed[2:], self._key, info=_info(purpose, context)))
        except (InvalidTag, ValueError):
            raise RequestUnreadable(
                "a sealed request that this key can't open", hint="compare the public keys at both ends"
            ) from None


def seal_request(public: str, payload: bytes, *, purpose: str, context: bytes = b"") -> bytes:
    """A request that only the holder of a worker's private key can read.

    Nothing in it says who sealed it: whoever knows the public key can. Who may start jobs, the control plane decides.

    Args:
        public: the worker's public key as text.
        payload: what to seal.
        purpose: what it is for, without `|`; the opener has to name the same.
        context: what else both sides know and want bound to it.

    Raises:
        KeyUnusable: the public key is none.
    """
    head, _, body = public.strip().partition(":")
    kem: Kem
    try:
        if head == "aiflow-x25519":
            kem = "x25519"
            key: Any = X25519PublicKey.from_public_bytes(_unb64(body))
        elif head == "aiflow-mlkem768x25519":
            kem = "mlkem768x25519"
            raw = _unb64(body)
            hpke, _suite = _hpke(kem)
            lattice = _mlkem().MLKEM768PublicKey.from_public_bytes(raw[:_MLKEM_PUBLIC])
            key = hpke.MLKEM768X25519PublicKey(lattice, X25519PublicKey.from_public_bytes(raw[_MLKEM_PUBLIC:]))
        else:
            raise KeyUnusable("that is no worker's public key", hint="it starts with aiflow-x25519:")
    except (binascii.Error, ValueError, UnsupportedAlgorithm):
        raise KeyUnusable("that is no worker's public key", hint="copy the whole line, without spaces") from None
    _, suite = _hpke(kem)
    return bytes([VERSION, _KEMS[kem]]) + bytes(suite.encrypt(payload, key, info=_info(purpose, context)))
