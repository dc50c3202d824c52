"""Masks that hide all but a sum: a client adds one stream for each helper, a helper answers with their sum.

A client sends c_i = Y_i + Σ_h PRG(s_ih) modulo 2^b. Helper h answers a round once, for one set U of at least
`threshold` planned clients, with Σ_{i∈U} PRG(s_ih) (`helper`); then Σc − Σ answers is ΣY, and nothing else
opens while one helper is honest. s_ih comes of two key exchanges, the client's ephemeral key with the
helper's key of the round and both long-term keys, and of all that was agreed: who holds another agreement
(another roster, threshold, schedule or size) computes other masks. Clients that vanish cost nothing.

Only primitives of `cryptography`: X25519, HKDF-SHA256, ChaCha20, Ed25519.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sottovoce.channel.wire import Stream
from sottovoce.errors import SottovoceError

KEY_BYTES = 32
KIND = "gradient"
"""The kind of release whose rounds are masked."""
_VERSION = "sottovoce masks 1"

Words = NDArray[np.unsignedinteger]
Integers = NDArray[np.int64]


class MaskingError(SottovoceError):
    """A mask, key or answer that does not fit what was agreed."""


@dataclass(frozen=True)
class HelperKeys:
    """The public long-term keys of a helper: one to exchange secrets with, one to check signatures."""

    name: str
    exchange: str
    signing: str


@dataclass(frozen=True)
class MaskTerms:
    """All that clients and helpers of a run must have agreed on, letter by letter; keys in hexadecimal."""

    run: str
    size: int
    word: int
    threshold: int
    colluding: int
    clients: tuple[str, ...]
    """Long-term X25519 keys, by a participant's number."""
    helpers: tuple[HelperKeys, ...]
    schedule: tuple[tuple[int, ...], ...]
    """The participants planned for each round."""
    rest: str = ""
    """Everything else that was agreed (bounds, noise, sizes), or a digest of it."""

    def __post_init__(self) -> None:
        keys = [*self.clients, *(key for one in self.helpers for key in (one.exchange, one.signing))]
        names = [one.name for one in self.helpers]
        if len(set(keys)) != len(keys) or len(set(names)) != len(names):
            raise MaskingError("two sites or helpers have one key or one name: each needs its own")
        if any(len(bytes.fromhex(key)) != KEY_BYTES for key in keys):
            raise MaskingError(f"a key has {KEY_BYTES} bytes, in hexadecimal: exchange the keys again")
        if not self.helpers:
            raise MaskingError("without a helper nothing is masked: name at least one")
        fewest = min((len(set(planned)) for planned in self.schedule), default=0)
        if not (1 <= self.colluding < self.threshold <= fewest and self.word in (16, 32) and self.size >= 1):
            raise MaskingError(
                f"a round of {fewest} clients, {self.threshold} of them in every sum and {self.colluding} "
                "colluding, protects nobody: agree on other numbers"
            )

    @cached_property
    def digest(self) -> bytes:
        """A: 32 bytes that are equal only if everything is."""
        text = json.dumps([_VERSION, asdict(self)], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()

    def planned(self, round_number: int) -> tuple[int, ...]:
        """Returns who is planned for a round, numbered from 1."""
        if not 1 <= round_number <= len(self.schedule):
            raise MaskingError(f"round {round_number} is not in the schedule that was agreed: refused")
        return self.schedule[round_number - 1]

    @property
    def length(self) -> int:
        """Bytes of the words of a message, or of an answer."""
        return self.size * self.word // 8

    @property
    def unsigned(self) -> str:
        """The type of a word."""
        return f"<u{self.word // 8}"

    def words(self, data: bytes) -> Words:
        """The words of a message or an answer."""
        if len(data) != self.length:
            raise MaskingError(f"{len(data)} bytes are not {self.size} words of {self.word} bits: ask again")
        return np.frombuffer(data, self.unsigned)


@dataclass(frozen=True)
class RoundKey:
    """A helper's public key of one round, signed by its long-term key."""

    helper: int
    round: int
    public: bytes
    signature: bytes

    @classmethod
    def signed(
        cls, terms: MaskTerms, helper: int, round_number: int, public: bytes, key: Ed25519PrivateKey
    ) -> RoundKey:
        return cls(helper, round_number, public, key.sign(_to_sign(terms, helper, round_number, public)))

    def check(self, terms: MaskTerms) -> None:
        """Raises unless the helper that was agreed on has signed it, for this round of this run."""
        told = _to_sign(terms, self.helper, self.round, self.public)
        try:
            signing = bytes.fromhex(terms.helpers[self.helper].signing)
            Ed25519PublicKey.from_public_bytes(signing).verify(self.signature, told)
        except (InvalidSignature, IndexError, ValueError):
            raise MaskingError(
                f"the key of round {self.round} is not signed by helper {self.helper}: refused"
            ) from None


def public_hex(key: X25519PrivateKey | Ed25519PrivateKey) -> str:
    """The public half of a key, as it stands in the terms."""
    return key.public_key().public_bytes_raw().hex()


def masked(
    terms: MaskTerms, key: X25519PrivateKey, round_number: int, keys: Sequence[RoundKey], values: Integers
) -> bytes:
    """A client's message: a fresh public key, then its whole numbers under one mask for each helper.

    Who the client is follows from its long-term `key`; `keys` are those of the round, one for each helper.
    """
    mine, planned = public_hex(key), terms.planned(round_number)
    client = next((number for number in planned if terms.clients[number] == mine), None)
    if client is None:
        raise MaskingError(f"this client is not planned for round {round_number}: refused")
    if [one.helper for one in keys] != list(range(len(terms.helpers))):
        raise MaskingError("every helper that was agreed on must have sent its key of the round")
    ephemeral = X25519PrivateKey.generate()
    public = ephemeral.public_key().public_bytes_raw()
    total = values.astype(terms.unsigned)
    for one in keys:
        if one.round != round_number:
            raise MaskingError(f"a key of round {one.round} does not serve round {round_number}: refused")
        one.check(terms)
        long_term = bytes.fromhex(terms.helpers[one.helper].exchange)
        both = exchanged(ephemeral, one.public) + exchanged(key, long_term)
        seed = derived(both, terms, round_number, client, one.helper, public, one.public)
        total = total + terms.words(stream(seed, terms.length))
    return public + total.astype(terms.unsigned).tobytes()


def covered(
    terms: MaskTerms, key: X25519PrivateKey, keys: Sequence[RoundKey], message: bytes, stream: Stream
) -> bytes:
    """The share of a stream under a client's masks, as it is stored; any other message as it is."""
    _, _, kind, number = stream
    if kind != KIND:
        return message
    return masked(terms, key, int(number), keys, terms.words(message).astype(np.int64))


def ephemeral_of(message: bytes) -> bytes:
    """The fresh public key with which a client's message begins: what helpers are told of it."""
    return message[:KEY_BYTES]


def unmasked(terms: MaskTerms, messages: Mapping[int, bytes], answers: Sequence[bytes]) -> Integers:
    """ΣY over the clients of `messages`, from the answers of all helpers for exactly this set."""
    if len(answers) != len(terms.helpers):
        raise MaskingError(f"{len(answers)} of {len(terms.helpers)} helpers have answered: nothing opens")
    total = np.zeros(terms.size, terms.unsigned)
    for message in messages.values():
        total = total + terms.words(message[KEY_BYTES:])
    for answer in answers:
        total = total - terms.words(answer)
    return total.view(f"<i{terms.word // 8}").astype(np.int64)


def derived(
    secrets: bytes, terms: MaskTerms, round_number: int, client: int, helper: int, e: bytes, round_key: bytes
) -> bytes:
    """s_ih: HKDF-SHA256 of both exchanges, under the digest of all that was agreed."""
    info = prefixed(
        _VERSION, terms.run, KIND, round_number, "client", client, "helper", helper, terms.size, terms.word,
        e, round_key,
    )  # fmt: skip
    return HKDF(SHA256(), length=32, salt=terms.digest, info=info).derive(secrets)


def stream(seed: bytes, count: int) -> bytes:
    """The first bytes of ChaCha20 under a key that is used once."""
    return Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(count))


def prefixed(*parts: str | int | bytes) -> bytes:
    """Parts with their lengths before them: other parts never give the same bytes.

    >>> prefixed("a", 7, b"z")
    b'\\x00\\x00\\x00\\x01a\\x00\\x00\\x00\\x017\\x00\\x00\\x00\\x01z'
    """
    texts = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(struct.pack(">I", len(text)) + text for text in texts)


def exchanged(mine: X25519PrivateKey, theirs: bytes) -> bytes:
    """The secret of a private and another public key; small-order keys are refused."""
    try:
        return mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise MaskingError("that is not an X25519 public key: refused") from None


def _to_sign(terms: MaskTerms, helper: int, round_number: int, public: bytes) -> bytes:
    return prefixed(_VERSION + " round key", terms.digest, terms.run, helper, KIND, round_number, public)
