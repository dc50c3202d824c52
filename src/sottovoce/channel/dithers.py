"""Shared radii and dithers of LRSUQ, and the test that accepts a dither.

R² = σ²·χ²_{b+2} per block, because a Gaussian in b dimensions is a mixture of uniform balls of such radii;
for even b that is −2σ² ln of a product of b/2 + 1 uniforms. Both ends compute the same bits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel.kernel import kernel
from sottovoce.channel.lattice import DENSITY, DIMENSION, nearest, unit
from sottovoce.channel.randomness import SharedRandomness
from sottovoce.channel.reproducible import log_mantissa
from sottovoce.channel.wire import ChannelError

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]

# Dithers that a decoder follows: this many, and a hundred more for each block. The acceptance rate is at
# least 0.25 for any u, so a message needs more with probability below 10^-1000; an encoder that ever did
# would refuse, not truncate.
MOST_TRIES = 10_000
_log_mantissa = kernel(log_mantissa)


class Dithers:
    """The shared radii of all blocks, and the shared dithers as long as anyone asks for more."""

    def __init__(self, shared: SharedRandomness, lattice: int, blocks: int) -> None:
        self._shared, self._lattice, self._blocks = shared, lattice, blocks
        self._drawn = 0
        self.radii = _radii(shared.words("radii", blocks * (DIMENSION[lattice] // 2 + 1)), blocks)

    def more(self, blocks: int) -> NDArray[np.uint64]:
        """The next dithers, (tries, b) words: about as many as `blocks` unfinished blocks will need."""
        if self._drawn > MOST_TRIES + 100 * self._blocks:
            raise ChannelError("payload never accepts a dither; ask for the message again")
        expected = blocks / DENSITY[self._lattice]
        tries = int(expected + 3.0 * math.sqrt(4.0 * expected)) + 4
        dimension = DIMENSION[self._lattice]
        words = self._shared.words("dithers", tries * dimension, self._drawn * dimension)
        self._drawn += tries
        return words.reshape(tries, dimension)


def in_blocks(v: Reals, dimension: int) -> Reals:
    """`v` as rows of `dimension` coordinates, padded with zeros."""
    return np.concatenate([v, np.zeros(-len(v) % dimension)]).reshape(-1, dimension)


@kernel
def _radii(words: NDArray[np.uint64], blocks: int) -> Reals:
    """R/σ of every block: R² = −2 ln of a product of b/2 + 1 uniforms, so R²/σ² is χ² with b + 2 degrees."""
    each = words.size // blocks
    radii = np.empty(blocks)
    for block in range(blocks):
        product = 1.0
        for j in range(each):
            product *= (np.float64(words[block * each + j] >> np.uint64(11)) + 0.5) * 2.0**-53
        mantissa, exponent = math.frexp(product)
        radii[block] = math.sqrt(-2.0 * _log_mantissa(mantissa, np.float64(exponent)))
    return radii


@kernel
def accept(
    lattice: int, u: Reals, radius: float, v: Reals, x: Reals, point: Integers, other: Integers
) -> bool:
    """Quantize u − v to `point`, and say whether the error lies in the ball; `x` and `other` are scratch."""
    length = unit(lattice) * radius
    for j in range(u.size):
        x[j] = u[j] / length - v[j]
    nearest(lattice, x, point, other)
    error = 0.0
    for j in range(u.size):
        error += (point[j] - x[j]) ** 2
    return error * length * length <= radius * radius
