"""Secrets and seals: what lies in a ledger, passes the SuperLink or waits at the server dies with its key.

Client and server share a secret: X25519 at enrolment, stretched with HKDF-SHA256. Each end keeps its private
key, or what came of it, in a file that only its owner can read, and sends its public key. Nobody who only
sees the messages of an enrolment can compute the secret; that the keys belong to the right ends is what TLS
and Flower's node keys certify.

The server draws a key pair for each release it asks for and sends the public half with the request. The
client seals its message to it before the message is stored, with a key of its own that it forgets at once, so
from then on only the holder of the server's private half can read it. The server erases that half when the
release is applied, and with it every copy of the message, wherever one was kept.

    sealed = server's public key (32) · sender's public key (32) · bucket (4) · ChaCha20-Poly1305 of the
    padded message, under HKDF-SHA256 of the X25519 exchange with the secret of the enrolment as salt

The salt means that a stranger who passes a key of his own off as the server's cannot read the answer either.
What goes the other way, a client's final coefficients, is sealed with the secret of the enrolment alone.

An entropy-coded message is longer where the statistic is unusual; padded to a multiple of the bucket, most
messages of a run have one length, which says little about the statistic inside.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sottovoce.channel.wire import ChannelError, Stream, stream_bytes
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan
from sottovoce.release.secrets import client_secret, participant_name, seeded_master

KEY_BYTES = 32
_TAG_BYTES = 16
MOST_BUCKET = 2**16
"""Bytes: a server that asked for more could have a client make and store any number of them."""
MODEL: Literal["model"] = "model"
"""The purpose of the one message under seal that goes to a client."""


class EnrolmentError(SottovoceError):
    """An enrolment that is refused."""


class Declined(SottovoceError):
    """The request is not one that this member answers; says nothing about its records."""


def new_key() -> bytes:
    """A fresh private key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key to send."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed_secret(private: bytes | X25519PrivateKey, theirs: bytes, *, run: str, name: str) -> bytes:
    """The 32 bytes that both ends compute, each from its own private and the other's public key.

    Who uses one private key for many others reads it once: reading costs as much as agreeing.

    >>> server, client = new_key(), new_key()
    >>> here = agreed_secret(server, public_key(client), run="demo", name="participant-3")
    >>> there = agreed_secret(client, public_key(server), run="demo", name="participant-3")
    >>> here == there, len(here)
    (True, 32)
    """
    mine = X25519PrivateKey.from_private_bytes(private) if isinstance(private, bytes) else private
    try:
        shared = mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise EnrolmentError("that is not an X25519 public key: enrol again") from None
    both = b"".join(sorted((mine.public_key().public_bytes_raw(), theirs)))
    info = b"sottovoce channel secret:" + f"{run}:{name}:".encode() + both
    return HKDF(SHA256(), length=32, salt=None, info=info).derive(shared)


def channel_secret(plan: Plan, agreed: bytes, participant: int) -> bytes:
    """Returns what channels use: the agreed secret, or in a seeded simulation the reproducible one."""
    if plan.seeded:
        return client_secret(seeded_master(plan), participant_name(participant))
    return agreed


def bound_to(plan: Plan, key: bytes) -> bytes:
    """Returns which key of a request its answer is bound to; none in a seeded simulation, which repeats."""
    return b"" if plan.seeded else key


def proof(agreed: bytes, nonce: bytes) -> bytes:
    """Shows that the sender holds the secret without showing it."""
    return hmac.digest(agreed, b"sottovoce enrolment:" + nonce, "sha256")


_HEADER = struct.Struct(f">{KEY_BYTES}s{KEY_BYTES}sI")
_LENGTH = struct.Struct(">I")
SEAL_BYTES = _HEADER.size + _TAG_BYTES
"""By how much a seal makes a padded message longer."""
_NONCE = bytes(12)  # every key seals one message


def seal(message: bytes, stream: Stream, *, to: bytes, agreed: bytes, bucket: int = 0) -> bytes:
    """The message, padded to the bucket, for the holder of the private half of `to` alone.

    >>> server, stream = new_key(), ("run", "participant-3", "gradient", 1)
    >>> sealed = seal(b"release", stream, to=public_key(server), agreed=bytes(32))
    >>> len(sealed) - SEAL_BYTES, unseal(sealed, stream, private=server, agreed=bytes(32))
    (7, b'release')
    """
    if len(to) != KEY_BYTES:
        raise ChannelError("the request has no key to seal its answer for: update the server")
    check_bucket(bucket)
    private = new_key()
    header = _HEADER.pack(to, public_key(private), bucket)
    cipher = ChaCha20Poly1305(_key(private, to, header, agreed, stream))
    return header + cipher.encrypt(_NONCE, pad(message, bucket), header)


def check_bucket(bucket: int) -> None:
    """Refuses multiples to which no message is padded."""
    if not 0 <= bucket <= MOST_BUCKET:
        raise ChannelError(
            f"messages are padded to multiples of {MOST_BUCKET} bytes at most, not of {bucket}: lower bucket"
        )


def unseal(sealed: bytes, stream: Stream, *, private: bytes, agreed: bytes) -> bytes:
    """The message inside; a ChannelError where it was sealed for another key, client or release."""
    if len(sealed) < SEAL_BYTES:
        raise ChannelError(f"message of {len(sealed)} bytes is shorter than a seal: ask for it again")
    _, sender, bucket = _HEADER.unpack_from(sealed)
    header, body = sealed[: _HEADER.size], sealed[_HEADER.size :]
    cipher = ChaCha20Poly1305(_key(private, sender, header, agreed, stream))
    try:
        return unpad(cipher.decrypt(_NONCE, body, header), bucket)
    except InvalidTag:
        raise ChannelError(
            "message does not match its seal: it is damaged, or of another client, release or key"
        ) from None


def seal_downward(message: bytes, stream: Stream, *, agreed: bytes) -> bytes:
    """Returns a message to one client alone, sealed with the secret of its enrolment and a fresh salt.

    >>> sealed = seal_downward(b"model", ("run", "participant-3", "model", 0), agreed=bytes(32))
    >>> unseal_downward(sealed, ("run", "participant-3", "model", 0), agreed=bytes(32))
    b'model'
    """
    salt = secrets.token_bytes(KEY_BYTES)
    return salt + ChaCha20Poly1305(_downward(salt, agreed, stream)).encrypt(_NONCE, message, salt)


def unseal_downward(sealed: bytes, stream: Stream, *, agreed: bytes) -> bytes:
    """The message inside; a ChannelError where it is not this server's, for this client."""
    salt, body = sealed[:KEY_BYTES], sealed[KEY_BYTES:]
    try:
        return ChaCha20Poly1305(_downward(salt, agreed, stream)).decrypt(_NONCE, body, salt)
    except InvalidTag:
        raise ChannelError(
            "message does not match its seal: it is damaged, or for another client or run"
        ) from None


def _downward(salt: bytes, agreed: bytes, stream: Stream) -> bytes:
    info = b"sottovoce sealed model:" + stream_bytes(stream)
    return HKDF(SHA256(), length=32, salt=salt, info=info).derive(agreed)


def sealed_for(sealed: bytes) -> bytes:
    """The public key whose holder can read a sealed message."""
    return sealed[:KEY_BYTES]


def _key(private: bytes, theirs: bytes, header: bytes, agreed: bytes, stream: Stream) -> bytes:
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(theirs)
        )
    except ValueError:
        raise ChannelError(
            "the message was sealed with something other than a key: ask for it again"
        ) from None
    info = b"sottovoce sealed release:" + header + stream_bytes(stream)
    return HKDF(SHA256(), length=32, salt=agreed, info=info).derive(shared)


def pad(message: bytes, bucket: int) -> bytes:
    """The message in the smallest multiple of `bucket` bytes that holds it; a bucket of 0 leaves it alone.

    >>> len(pad(b"release", 64)), unpad(pad(b"release", 64), 64)
    (64, b'release')
    """
    if not bucket:
        return message
    framed = _LENGTH.pack(len(message)) + message
    return framed + bytes(-len(framed) % bucket)


def unpad(padded: bytes, bucket: int) -> bytes:
    """The message inside; a ChannelError where the length it states is not the length it has."""
    if not bucket:
        return padded
    if len(padded) < _LENGTH.size or len(padded) % bucket:
        raise ChannelError(f"message of {len(padded)} bytes is not padded to multiples of {bucket}: refused")
    [length] = _LENGTH.unpack_from(padded)
    end = _LENGTH.size + length
    if not end <= len(padded) < end + bucket or any(padded[end:]):
        raise ChannelError(f"message says it holds {length} bytes, which its {len(padded)} cannot: refused")
    return padded[_LENGTH.size : end]
