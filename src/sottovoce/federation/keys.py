"""The secret that a client and the server share: X25519 at enrolment, stretched with HKDF-SHA256.

Each end keeps its private key, or what came of it, in a file that only its owner can read, and sends its
public key. Nobody who only sees the messages of an enrolment can compute the secret; that the keys belong to
the right ends is what TLS and Flower's node keys vouch for.
"""

from __future__ import annotations

import hmac

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sottovoce.blueprint import client_secret, participant_name, seeded_master
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan

KEY_BYTES = 32


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
    """What channels use: the agreed secret, or in a seeded simulation the reproducible one."""
    if plan.seeded:
        return client_secret(seeded_master(plan), participant_name(participant))
    return agreed


def proof(agreed: bytes, nonce: bytes) -> bytes:
    """Shows that the sender holds the secret without showing it."""
    return hmac.digest(agreed, b"sottovoce enrolment:" + nonce, "sha256")
