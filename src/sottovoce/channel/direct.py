"""Noise added by the sender: the paper's DG FP32, and DG+Q12 that quantizes it to 12 bits.

`direct` sends float32(u + ξ) with ξ ~ N(0, σ²I) drawn privately in float64; its only deviation from the exact
law is the rounding to float32. `direct-q12` quantizes that noised vector: still private as post-processing,
but its error is Gaussian plus a rounding error of at most half a step.

The noise-free ablation `epsilon=inf`: statistics travel as they are, and nobody is protected.

It exists to measure what the noise costs (Sec. 3.3 of the paper). It is kept out of `sottovoce.channel`, so
that no channel there can be opened without noise.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel import Channel
from sottovoce.channel.randomness import PrivateRandomness, SharedRandomness
from sottovoce.channel.wire import ChannelError

_LEVELS = 2047  # 12 bits: −2047 … 2047


class Direct(Channel):
    """float32 of the noised statistic: 4 bytes per coefficient."""

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

    def encode(self, u: Any, *, secret: bytes, stream: Any, private: Any = None) -> bytes:
        return np.asarray(u, dtype="<f4").tobytes()

    def decode(self, message: bytes, *, secret: bytes, stream: Any) -> NDArray[np.float64]:
        return np.frombuffer(message, dtype="<f4").astype(np.float64)
