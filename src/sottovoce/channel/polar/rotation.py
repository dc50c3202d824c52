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
    return 1.0 - 2.0 * bits.reshape(2, size)


@kernel
def _hadamard(v: Reals) -> None:
    size = v.size
    half = 1
    while half < size:
        for start in range(0, size, 2 * half):
            for j in range(start, start + half):
                a, b = v[j], v[j + half]
                v[j], v[j + half] = a + b, a - b
        half *= 2
    v /= np.sqrt(np.float64(size))
