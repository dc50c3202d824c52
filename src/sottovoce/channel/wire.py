"""The envelope of a message, one format byte, a keyed tag, then the payload; and the randomness behind a
release.

The tag binds a message to the secret, the channel, the size, σ and the stream, and covers every payload
byte, so a damaged, truncated, foreign or misplaced message is refused before anything in it is read. It
detects accidents and mix-ups (a random change passes with probability 2⁻³²); messages still travel
encrypted.

Where the noise comes from randomness that both ends share, whoever repeats a stream would repeat the noise.
So such a message is bound to more (version 2): to the request that it answers, which both ends know, and to
two bytes that are drawn at each encoding and stand behind the tag. Nothing in a header is made from the
statistic but the tag, and that of the payload beside it. Messages of version 1 are still decoded, but no run
takes them.

Shared randomness is AES-256 in counter mode under a key derived per envelope and purpose, so both ends
reach any part of it without sending it and no two streams overlap. Private draws come from the operating
system (long ones stretched by AES-256 under a key drawn for this one use) unless a simulation passes a
seeded generator. All integers and all normals are the same on every machine.

Both ends must compute the same radii and the same bins, but libraries differ in the last place of log.
Only +, −, ×, ÷ and √ are correctly rounded everywhere (IEEE 754), so the logarithm is built from those.
The same lines run on numpy arrays and inside compiled kernels.
"""

from __future__ import annotations

import hashlib
import hmac
import operator
import os
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import SottovoceError

PLAIN, BOUND = 1, 2
"""The versions of a message: bound to its stream, or to its request and a draw besides."""
TAG_BYTES = 4
HEADER_BYTES = 1 + TAG_BYTES
DRAWN_BYTES = 2
"""Drawn at each encoding, in the header of a bound message: two agree once in 65,536 times."""
SECRET_BYTES = 32
FORMATS: dict[str, int] = {}
"""What a message may be, and its number in the first byte: of all channels whose classes are imported."""

Stream = tuple[str | int, ...]
_LN2_HIGH = 0.693147180369123816490  # ln 2 with its last 21 bits zero: products with exponents are exact
_LN2_LOW = 1.90821492927058770002e-10
_BLOCK = 16  # bytes of one AES block
_STRETCHED_ABOVE = 1024  # bytes; the system's generator is slow for more
BELOW_ONE = 1.0 - 2.0**-53
"""The largest number of the open interval (0, 1)."""


class ChannelError(SottovoceError):
    """A statistic that cannot be sent, or a message that must not be read."""


def stream_bytes(stream: Stream) -> bytes:
    """The stream as bytes; different streams never share an encoding.

    >>> stream_bytes(("client", 7))
    b's\\x00\\x00\\x00\\x06clienti\\x00\\x00\\x00\\x017'
    """
    if not isinstance(stream, tuple):
        raise ChannelError(f"a stream is a tuple of strings and integers, not {type(stream).__name__}")
    parts = []
    for item in stream:
        if isinstance(item, str):
            kind, text = b"s", item.encode()
        else:
            try:
                kind, text = b"i", str(operator.index(item)).encode()
            except TypeError:
                raise ChannelError(
                    f"a stream holds strings and integers, not {type(item).__name__}; convert it first"
                ) from None
        parts.append(kind + struct.pack(">I", len(text)) + text)
    return b"".join(parts)


def derive(secret: bytes, purpose: bytes, context: bytes) -> bytes:
    """A 32-byte key: HKDF-SHA256 of `secret` for one purpose in one context (RFC 5869, one block)."""
    if len(secret) != SECRET_BYTES:
        raise ChannelError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}; try secrets.token_bytes")
    extracted = hmac.digest(b"sottovoce channel", secret, "sha256")
    info = struct.pack(">H", len(purpose)) + purpose + hashlib.sha256(context).digest()
    return hmac.digest(extracted, info + b"\x01", "sha256")


def version_of(message: bytes) -> int:
    """The version in a message's first byte; 0 of what is no message."""
    return message[0] >> 4 if isinstance(message, bytes | bytearray | memoryview) and len(message) else 0


def claim(format: str, number: int) -> None:
    """Gives a format its number on the wire, 0 to 15, once for ever."""
    if not 0 <= number <= 15 or FORMATS.get(format, number) != number:
        raise ChannelError(f"format {format} cannot have number {number}: it keeps one from 0 to 15")
    if number in FORMATS.values() and format not in FORMATS:
        raise ChannelError(f"format {format} cannot have number {number}: it is taken")
    FORMATS[format] = number


@dataclass(frozen=True)
class Envelope:
    """What both ends know before a message exists; seals payloads and opens messages."""

    format: str  # of `FORMATS`
    size: int
    sigma: float
    secret: bytes
    stream: Stream
    request: bytes | None = None
    """What the message answers, where it is bound to that; None: a plain one."""
    drawn: bytes = b""
    """The bytes that a bound message has drawn."""

    @property
    def version(self) -> int:
        """That of the message, in the first byte."""
        return PLAIN if self.request is None else BOUND

    @property
    def number(self) -> int:
        """The format's number in the first byte."""
        return FORMATS[self.format]

    @cached_property
    def context(self) -> bytes:
        """Version, channel, size, σ, stream, and what a message is bound to: the context of every key."""
        head = struct.pack(">BBQd", self.version, self.number, self.size, self.sigma)
        bound = b"" if self.request is None else b"r" + struct.pack(">I", len(self.request)) + self.request
        return head + stream_bytes(self.stream) + bound + self.drawn

    def _tag(self, payload: bytes) -> bytes:
        key = derive(self.secret, b"tag", self.context)
        return hmac.digest(key, payload, "sha256")[:TAG_BYTES]

    def seal(self, payload: bytes) -> bytes:
        """The message that carries `payload`: HEADER_BYTES longer, and the draw of a bound one."""
        return self._head + self._tag(payload) + self.drawn + payload

    @property
    def _head(self) -> bytes:
        return bytes([self.version << 4 | self.number])

    def opened(self, message: bytes) -> tuple[Envelope, bytes]:
        """This envelope as it was when `message` was sealed, and the payload.

        A ChannelError says why a message is refused.
        """
        if not isinstance(message, bytes | bytearray | memoryview):
            raise ChannelError(f"a message is bytes, not {type(message).__name__}")
        message = bytes(message)
        start = HEADER_BYTES + (0 if self.request is None else DRAWN_BYTES)
        if len(message) < start:
            raise ChannelError(f"message of {len(message)} bytes is shorter than a header; ask for it again")
        sealed, payload = replace(self, drawn=message[HEADER_BYTES:start]), message[start:]
        if not hmac.compare_digest(message[:HEADER_BYTES], sealed._head + sealed._tag(payload)):
            raise ChannelError(self._refusal(message[0]))
        return sealed, payload

    def _refusal(self, found: int) -> str:
        version, channel = found >> 4, found & 15
        if version != self.version:
            return f"message has format version {version}, not {self.version}; update the older end"
        if channel != self.number:
            names = {number: name for name, number in FORMATS.items()}
            sender = names.get(channel, f"number {channel}")
            return f"message was made by channel {sender}, not {self.format}; open one channel at both ends"
        return (
            "message does not match its tag: it was damaged, or secret, stream, request, size or sigma "
            "differ between the two ends"
        )


Real = TypeVar("Real", float, NDArray[np.float64])


def log_mantissa(mantissa: Real, exponent: Real) -> Real:
    """ln(mantissa · 2^exponent) for ½ ≤ mantissa < 1, within 1e-15 relative of the true value.

    >>> round(log_mantissa(0.5, 2.0), 15) == round(0.6931471805599453, 15)
    True
    """
    # ln m = 2 artanh z with z = (m − 1)/(m + 1); √½ ≤ m < √2 gives |z| < 0.172 and full accuracy around 1.
    low = 1.0 * (mantissa < 0.7071067811865476)
    mantissa = mantissa * (1.0 + low)
    exponent = exponent - low
    z = (mantissa - 1.0) / (mantissa + 1.0)
    w = z * z
    series = 1.0 / 23.0 + w * (1.0 / 25.0)
    series = 1.0 / 19.0 + w * (1.0 / 21.0 + w * series)
    series = 1.0 / 15.0 + w * (1.0 / 17.0 + w * series)
    series = 1.0 / 11.0 + w * (1.0 / 13.0 + w * series)
    series = 1.0 / 7.0 + w * (1.0 / 9.0 + w * series)
    series = 1.0 / 3.0 + w * (1.0 / 5.0 + w * series)
    tail = 2.0 * z + 2.0 * z * w * series
    return exponent * _LN2_HIGH + (tail + exponent * _LN2_LOW)


_ZEROS = bytes(1 << 16)


class PrivateRandomness(ABC):
    """A source of independent draws that only the encoder sees."""

    @abstractmethod
    def bytes(self, count: int) -> bytes:
        """`count` independent uniform bytes."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` independent uniform 64-bit integers."""
        return np.frombuffer(self.bytes(8 * count), "<u8").astype(np.uint64, copy=False)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """`count` uniforms on the open interval (0, 1), with 53 random bits each."""
        middles = ((self.words(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return np.minimum(middles, BELOW_ONE)  # the last of them would be rounded to 1

    def normal(self, count: int) -> NDArray[np.float64]:
        """`count` standard normals by Marsaglia's polar method, in float64."""
        found: list[NDArray[np.float64]] = []
        missing = count
        while missing > 0:
            # A pair is kept with probability π/4 and gives two normals; the margin makes one pass the rule.
            pairs = int(missing * 0.65) + 16
            point = 2.0 * self.uniform(2 * pairs).reshape(2, pairs) - 1.0
            square = point[0] * point[0] + point[1] * point[1]
            keep = square < 1.0
            point, square = point[:, keep], square[keep]
            mantissa, exponent = np.frexp(square)
            stretch = np.sqrt(-2.0 * log_mantissa(mantissa, exponent.astype(np.float64)) / square)
            found.append((point * stretch).ravel()[:missing])
            missing -= found[-1].size
        return np.concatenate(found) if found else np.empty(0)


class SystemRandomness(PrivateRandomness):
    """The operating system's cryptographic generator: what a real release uses."""

    def bytes(self, count: int) -> bytes:
        if count <= _STRETCHED_ABOVE:
            return os.urandom(count)
        try:
            return _keystream(os.urandom(32), count).tobytes()
        except ImportError:
            return os.urandom(count)


class SeededRandomness(PrivateRandomness):
    """Draws fixed by a seed, for simulations that must repeat. A release made with it is not private.

    >>> SeededRandomness(b"demo").bytes(4) == SeededRandomness(b"demo").bytes(4)
    True
    """

    def __init__(self, seed: bytes) -> None:
        key = np.frombuffer(hashlib.sha256(seed).digest()[:16], "<u8").astype(np.uint64)
        self._source = np.random.Philox(key=key)

    def bytes(self, count: int) -> bytes:
        words: NDArray[np.uint64] = self._source.random_raw(-(-count // 8))
        return words.astype("<u8").tobytes()[:count]


class SharedRandomness:
    """Randomness that encoder and decoder compute alike; one independent sequence per purpose."""

    def __init__(self, envelope: Envelope) -> None:
        self._secret, self._context = envelope.secret, envelope.context
        self._keys: dict[str, bytes] = {}

    def words(self, purpose: str, count: int, start: int = 0) -> NDArray[np.uint64]:
        """Uniform 64-bit integers number `start` … `start + count − 1` of the sequence for `purpose`."""
        key = self._keys.get(purpose)
        if key is None:
            key = derive(self._secret, b"shared:" + purpose.encode(), self._context)
            self._keys[purpose] = key
        skipped, first = start % 2, start // 2
        try:
            out = _keystream(key, 8 * (count + skipped), first)
        except ImportError:
            raise ChannelError(
                "this channel needs the package 'cryptography': install it, or use channel=direct"
            ) from None
        return out[8 * skipped :].view("<u8").astype(np.uint64, copy=False)


def _keystream(key: bytes, count: int, first: int = 0) -> NDArray[np.uint8]:
    """`count` bytes of AES-256-CTR under `key`, from block number `first` on."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(key), modes.CTR(first.to_bytes(_BLOCK, "big"))).encryptor()
    out = np.empty(count + _BLOCK, np.uint8)  # the cipher asks for one block of spare room
    for at in range(0, count, len(_ZEROS)):
        piece = min(len(_ZEROS), count - at)
        stream.update_into(memoryview(_ZEROS)[:piece], out.data[at:])
    return out[:count]
