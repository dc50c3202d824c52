"""Noise added by the sender: in floating-point numbers (the paper's DG FP32 and DG+Q12), or in whole numbers.

`direct` sends float32(u + ξ) with ξ ~ N(0, σ²I) drawn privately in float64; its only deviation from the
exact distribution is the rounding to float32. `direct-q12` quantizes that noised vector: still private as
post-processing, but its error is Gaussian plus a rounding error of at most half a step.

`integers` sends discrete Gaussians around real centres. N_ℤ(x, τ²)(y) ∝ exp(−(y − x)²/2τ²), y ∈ ℤ, with a
real centre x: the rounding is the noise, and nothing is rounded before it but the centre, to 24
fractional bits. Those are six digits of base 16. From the finest to the coarsest, a digit and what the
finer ones left are a centre in sixteenths, and a whole number is drawn around it with s² = τ²/(1 + 16⁻² +
… + 16⁻¹⁰). By Poisson's summation all six together are N_ℤ(x, τ²), up to a factor e^{±10⁻⁵⁰⁰}. So sixteen
rows of a table are all there is; a draw compares 128 random bits with a row's integers, and no noise is a
floating-point number. The message is made of noised whole numbers and of nothing else: it is private
against whoever reads it, the server with its secret included.

The noise-free ablation `epsilon=inf`, where statistics travel as they are and nobody is protected, exists
to measure what the noise costs (Sec. 3.3 of the paper). It is no channel of the catalog, so that none can
be opened without noise.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from bisect import bisect_right
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel import Channel
from sottovoce.channel.wire import ChannelError, PrivateRandomness, SharedRandomness

_LEVELS = 2047  # 12 bits: −2047 … 2047
TAU_SQUARED = 64
"""τ², the variance of every discrete Gaussian here, for ever: a grid's step scales freely."""
ROUNDED = 2.0
"""r² of the channel: noise of variance τ² on the grid protects as τ² − r² of continuous noise does, up to a
factor e^{±10⁻¹⁶} in each coordinate (the lemma of docs/channel.md)."""
SPARE = 2e-6
"""By how much steps are wider than that asks for: it pays for those factors and for float64, in any run of
less than 10¹⁰ coordinates."""
FRACTION_BITS = 24
DIGIT_BITS, DIGITS = 4, 6
LOWEST, THRESHOLDS = -111, 222
"""The least whole number of a row (13.9 s from its centre), and how many numbers it compares with."""
DIGEST = "daa772335944fcd290d77586a568c1e002b7b339b449c73b5572f196dc3f5119"
_KEY_BITS = 64 - DIGIT_BITS  # of a draw, compared at once; the other 68 are drawn where these are equal
_SLOT_SHIFT = 48


class Direct(Channel):
    """float32 of the noised statistic: 4 bytes per coefficient."""

    formats: ClassVar = {"direct": 0}

    def _encode(self, u: NDArray[np.float64], shared: SharedRandomness, private: PrivateRandomness) -> bytes:
        return _noised(self, u, private).astype("<f4").tobytes()

    def _decode(self, payload: bytes, shared: SharedRandomness) -> NDArray[np.float64]:
        if len(payload) != 4 * self.size:
            raise ChannelError(f"payload has {len(payload)} bytes, not {4 * self.size}; ask for it again")
        y = np.frombuffer(payload, "<f4")
        if not np.isfinite(y).all():
            raise ChannelError("payload holds NaN or infinity; ask for the message again")
        return y.astype(np.float64)


class DirectQ12(Channel):
    """The noised statistic on 4,095 levels between ± its largest magnitude: 1.5 bytes per coefficient."""

    formats: ClassVar = {"direct-q12": 1}

    @property
    def rounding(self) -> float:
        """Half a step in every coordinate, where a step is the largest of them over 2,047."""
        return math.sqrt(self.size) / (2 * _LEVELS) + 1e-6

    def _encode(self, u: NDArray[np.float64], shared: SharedRandomness, private: PrivateRandomness) -> bytes:
        noised = _noised(self, u, private)
        step = np.float32(np.abs(noised).max() / _LEVELS)
        levels = np.clip(np.rint(noised / np.float64(step)), -_LEVELS, _LEVELS).astype(np.int64) + _LEVELS
        return struct.pack("<f", step) + _pack12(levels.astype(np.uint16))

    def _decode(self, payload: bytes, shared: SharedRandomness) -> NDArray[np.float64]:
        expected = 4 + -(-3 * self.size // 2)
        if len(payload) != expected:
            raise ChannelError(f"payload has {len(payload)} bytes, not {expected}; ask for it again")
        step: float = struct.unpack_from("<f", payload)[0]
        if not math.isfinite(step):
            raise ChannelError("payload holds NaN or infinity; ask for the message again")
        return (_unpack12(payload[4:], self.size).astype(np.float64) - _LEVELS) * step


def _noised(channel: Channel, u: NDArray[np.float64], private: PrivateRandomness) -> NDArray[np.float64]:
    return u + channel.sigma * private.normal(channel.size)


def _pack12(values: NDArray[np.uint16]) -> bytes:
    padded = np.concatenate([values, np.zeros(values.size % 2, np.uint16)]).reshape(-1, 2)
    low, high = padded[:, 0], padded[:, 1]
    triples = np.stack([low & 255, (low >> 8) | ((high & 15) << 4), high >> 4], axis=1)
    return triples.astype(np.uint8).tobytes()[: -(-3 * values.size // 2)]


def _unpack12(packed: bytes, count: int) -> NDArray[np.uint16]:
    padded = np.frombuffer(packed + bytes(-len(packed) % 3), np.uint8).reshape(-1, 3).astype(np.uint16)
    pairs = np.stack([padded[:, 0] | (padded[:, 1] & 15) << 8, padded[:, 1] >> 4 | padded[:, 2] << 4], axis=1)
    return pairs.ravel()[:count]


class Noiseless:
    """The shape of a channel with σ = 0: float32 there and back."""

    name = "noiseless"
    sigma = 0.0
    rounding = 1e-6  # float32
    widening = 0.0

    def __init__(self, size: int) -> None:
        self.size = size

    def encode(
        self, u: Any, *, secret: bytes, stream: Any, request: bytes = b"", private: Any = None
    ) -> bytes:
        return np.asarray(u, dtype="<f4").tobytes()

    def decode(
        self, message: bytes, *, secret: bytes, stream: Any, request: bytes | None = None
    ) -> NDArray[np.float64]:
        return np.frombuffer(message, dtype="<f4").astype(np.float64)


class Integers(Channel):
    """γ·N_ℤ(u/γ, τ²) with γ = σ/√(τ² − r²): as private as u + N(0, σ²I), its variance 3 % larger."""

    formats: ClassVar = {"integers": 9}

    def __init__(self, name: str, size: int, sigma: float) -> None:
        super().__init__(name, size, sigma)
        self.step = sigma * (1 + SPARE) / math.sqrt(TAU_SQUARED - ROUNDED)
        """γ, the distance of neighbours on the grid."""

    @property
    def rounding(self) -> float:
        return math.sqrt(TAU_SQUARED / (TAU_SQUARED - ROUNDED)) - 1 + 1e-5

    @property
    def widening(self) -> float:
        return self.step * widening(self.size)

    def _encode(self, u: NDArray[np.float64], shared: SharedRandomness, private: PrivateRandomness) -> bytes:
        return _packed(draw(u / self.step, private))

    def _decode(self, payload: bytes, shared: SharedRandomness) -> NDArray[np.float64]:
        return _unpacked(payload, self.size).astype(np.float64) * self.step


def widening(size: int) -> float:
    """Returns how much farther apart two vectors of `size` centres may be once they are rounded, in ‖·‖₂."""
    return math.sqrt(size) * 2.0**-FRACTION_BITS


def draw(centres: NDArray[np.float64], private: PrivateRandomness) -> NDArray[np.int64]:
    """Independent whole numbers, each N_ℤ(x, τ²) around its centre x, |x| < 2⁵²."""
    whole = np.floor(centres)
    rest = np.rint((centres - whole) * 2.0**FRACTION_BITS).astype(np.int64)
    drawn = np.zeros(centres.shape, np.int64)
    for _ in range(DIGITS):
        sixteenths = (rest & 15) + drawn
        drawn = (sixteenths >> DIGIT_BITS) + _row_draws(sixteenths & 15, private)
        rest >>= DIGIT_BITS
    return whole.astype(np.int64) + rest + drawn


def _row_draws(rows: NDArray[np.int64], private: PrivateRandomness) -> NDArray[np.int64]:
    """One whole number around each centre row/16: as many as the row has numbers up to a 128-bit draw."""
    keys, slots, exact = _table()
    drawn = private.words(rows.size) >> np.uint64(DIGIT_BITS)
    probes = (rows.astype(np.uint64) << np.uint64(_KEY_BITS)) | drawn
    slot = (probes >> np.uint64(_SLOT_SHIFT)).astype(np.int64)
    found = slots[slot]
    close = np.flatnonzero(slots[slot + 1] != found)  # a key lies in the same slot: once in 80 draws
    found[close] = np.searchsorted(keys, probes[close], side="right")
    below = found - THRESHOLDS * rows
    for i in close[keys[found[close] - 1] == probes[close]]:  # once in 2⁵² draws
        rest = int.from_bytes(private.bytes(9), "big") >> 4
        below[i] = bisect_right(exact[rows[i]], int(drawn[i]) << 128 - _KEY_BITS | rest)
    return below + LOWEST


@functools.cache
def _table() -> tuple[NDArray[np.uint64], NDArray[np.int64], list[list[int]]]:
    """The shipped rows: row and first 60 bits of every number as one sorted key, `slots` of these keys, and
    the numbers themselves.

    Number i of row j is 2¹²⁸·P(y ≤ LOWEST + i) for N_ℤ(j/16, s²), rounded, and at most 2¹²⁸ − 1.
    """
    stored = (Path(__file__).parent / "integers.bin").read_bytes()
    if hashlib.sha256(stored).hexdigest() != DIGEST:
        raise ChannelError("the table of discrete Gaussians is damaged; install the package again")
    words = np.frombuffer(stored, ">u8").astype(np.uint64).reshape(1 << DIGIT_BITS, THRESHOLDS, 2)
    rows = np.arange(1 << DIGIT_BITS, dtype=np.uint64)[:, None] << np.uint64(_KEY_BITS)
    exact = [[int(high) << 64 | int(low) for high, low in row] for row in words.tolist()]
    keys = (rows | words[:, :, 0] >> np.uint64(DIGIT_BITS)).ravel()
    return keys, slots_of(keys), exact


def slots_of(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns how many keys lie below each slot of 2⁴⁸ numbers, and how many there are."""
    starts = np.arange(1 << 64 - _SLOT_SHIFT, dtype=np.uint64) << np.uint64(_SLOT_SHIFT)
    return np.append(np.searchsorted(keys, starts), len(keys))


def _packed(values: NDArray[np.int64]) -> bytes:
    """Rice's code: a byte with the parameter p, the p lower bits of all numbers, then the rest in unary."""
    folded = np.where(values >= 0, 2 * values, -2 * values - 1).astype(np.uint64)
    lengths = [p * folded.size + int((folded >> np.uint64(p)).sum()) for p in range(48)]
    parameter = int(np.argmin(lengths))
    shifts = np.arange(parameter, dtype=np.uint64)
    lower = (folded[:, None] >> shifts & np.uint64(1)).astype(np.uint8)
    ends = np.cumsum((folded >> np.uint64(parameter)).astype(np.int64) + 1) - 1
    unary = np.ones(ends[-1] + 1, np.uint8)
    unary[ends] = 0
    return bytes([parameter]) + np.packbits(np.concatenate([lower.ravel(), unary])).tobytes()


def _unpacked(payload: bytes, size: int) -> NDArray[np.int64]:
    """The mirror of `_packed`."""
    parameter = payload[0] if payload else 255
    bits = np.unpackbits(np.frombuffer(payload[1:], np.uint8))
    ends = np.flatnonzero(bits[parameter * size :] == 0)[:size]
    if parameter > 47 or ends.size < size or (parameter * size + ends[-1] + 8) // 8 != len(payload) - 1:
        raise ChannelError("payload does not hold as many whole numbers as this channel carries; ask again")
    lower = bits[: parameter * size].reshape(size, parameter).astype(np.int64)
    upper = np.diff(ends, prepend=-1) - 1
    folded = (upper << parameter) + (lower << np.arange(parameter)).sum(axis=1)
    values: NDArray[np.int64] = np.where(folded & 1, -(folded >> 1) - 1, folded >> 1)
    return values
