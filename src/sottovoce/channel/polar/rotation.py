"""A shared random rotation that makes every statistic look alike, coordinate by coordinate.

H·D₂·H·D₁ with H the normalized Hadamard matrix and D₁, D₂ shared random signs; applied twice because once
leaves sparse vectors sparse. It is orthonormal, so it keeps N(0, σ²I) exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel.kernel import kernel

Reals = NDArray[np.float64]


def rotate(v: Reals, signs: Reals) -> None:
    """Rotate `v` (length a power of two) in place; `signs` has shape (2, len(v)) and entries ±1."""
    for row in signs:
        v *= row
        _hadamard(v)


def unrotate(v: Reals, signs: Reals) -> None:
    """Undo `rotate` in place."""
    for row in signs[::-1]:
        _hadamard(v)
        v *= row


def signs_from(words: NDArray[np.uint64], size: int) -> Reals:
    """Two rows of `size` signs, one per bit of `words`."""
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=2 * size, bitorder="little")
    return 1.0 - 2.0 * bits.reshape(2, size).astype(np.float64)


@kernel
def _hadamard(v: Reals) -> None:
    size = v.size
    half = 1
    if size >= 8:
        for j in range(0, size, 8):
            a, b, c, d = v[j] + v[j + 1], v[j] - v[j + 1], v[j + 2] + v[j + 3], v[j + 2] - v[j + 3]
            e, f, g, h = v[j + 4] + v[j + 5], v[j + 4] - v[j + 5], v[j + 6] + v[j + 7], v[j + 6] - v[j + 7]
            a, b, c, d = a + c, b + d, a - c, b - d
            e, f, g, h = e + g, f + h, e - g, f - h
            v[j], v[j + 1], v[j + 2], v[j + 3] = a + e, b + f, c + g, d + h
            v[j + 4], v[j + 5], v[j + 6], v[j + 7] = a - e, b - f, c - g, d - h
        half = 8
    while half < size:
        for start in range(0, size, 2 * half):
            low, high = v[start : start + half], v[start + half : start + 2 * half]
            for j in range(half):
                a, b = low[j], high[j]
                low[j], high[j] = a + b, a - b
        half *= 2
    v /= np.sqrt(np.float64(size))
