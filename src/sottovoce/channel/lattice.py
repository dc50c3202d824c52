"""Lattices whose cell, scaled to a given inradius, holds the ball that LRSUQ needs: Z⁴, D⁴ and E⁸.

Points are integer coordinates times `UNIT[lattice]·R`, where R is the inradius (coordinates of E⁸ are doubled
to be integers). Dithers and nearby points use correctly rounded operations only, so both ends see the same.

Shared radii and dithers of LRSUQ, and the test that accepts a dither.

R² = σ²·χ²_{b+2} per block, because a Gaussian in b dimensions is a mixture of uniform balls of such radii;
for even b that is −2σ² ln of a product of b/2 + 1 uniforms. Both ends compute the same bits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel.coding import Integers, Reals, kernel
from sottovoce.channel.wire import ChannelError, SharedRandomness, log_mantissa

Z4, D4, E8 = 0, 1, 2
LATTICES = {"Z4": Z4, "D4": D4, "E8": E8}
DIMENSION = (4, 4, 8)
# Probability that a dither is accepted: volume of the ball over volume of the cell.
DENSITY = (math.pi**2 / 32, math.pi**2 / 16, math.pi**4 / 384)
MOST_NEIGHBOURS = 241

UNIT = (2.0, 1.4142135623730951, 0.7071067811865476)
"""Length of one integer coordinate when the inradius is 1."""
# Dithers that a decoder follows: this many, and a hundred more for each block. The acceptance rate is at
# least 0.25 for any u, so a message needs more with probability below 10^-1000; an encoder that ever did
# would refuse, not truncate.
MOST_TRIES = 10_000


@kernel
def _nearest_even(x: Reals, shift: float, point: Integers, step: int) -> float:
    """Nearest point of step·(D_b + shift) to x, where x is in units of 1; returns the squared distance."""
    total = 0
    worst, worst_gap = 0, -1.0
    distance = 0.0
    for j in range(x.size):
        low = math.floor(x[j] - shift + 0.5)
        gap = x[j] - shift - low
        total += low
        distance += gap * gap
        if abs(gap) > worst_gap:
            worst, worst_gap = j, abs(gap)
        point[j] = low * step + int(step * shift)
    if total & 1:
        gap = x[worst] - shift - math.floor(x[worst] - shift + 0.5)
        point[worst] += step if gap > 0 else -step
        distance += 1.0 - 2.0 * worst_gap
    return distance


@kernel
def nearest(lattice: int, x: Reals, point: Integers, other: Integers) -> None:
    """Writes to `point` the lattice point nearest to x; x is in integer coordinates, `other` is scratch."""
    if lattice == Z4:
        for j in range(x.size):
            point[j] = math.floor(x[j] + 0.5)
    elif lattice == D4:
        _nearest_even(x, 0.0, point, 1)
    else:
        for j in range(x.size):
            x[j] *= 0.5
        whole = _nearest_even(x, 0.0, point, 2)
        half = _nearest_even(x, 0.5, other, 2)
        if half < whole:
            for j in range(x.size):
                point[j] = other[j]
        for j in range(x.size):
            x[j] *= 2.0


@kernel
def dither(lattice: int, words: NDArray[np.uint64], v: Reals, p: Integers, q: Integers) -> None:
    """Writes to `v` a point uniform in the cell around 0, in integer coordinates, from words (b,)."""
    # 2Z^b (4Z^b in doubled coordinates) lies in the lattice, so uniform in its cube is uniform modulo it.
    width = 1.0 if lattice == Z4 else (2.0 if lattice == D4 else 4.0)
    for j in range(v.size):
        v[j] = (np.float64(words[j] >> np.uint64(11)) * 2.0**-53 - 0.5) * width
    if lattice != Z4:
        nearest(lattice, v, p, q)
        for j in range(v.size):
            v[j] -= p[j]


@kernel
def neighbours(lattice: int, v: Reals, limit: float, points: Integers, squares: Reals) -> int:
    """List the origin and the points near −v: those with |point + v|² ≤ limit (in integer coordinates).

    Rows of `points` and entries of `squares` are overwritten; returns how many. Points beyond the first shell
    (Z⁴: beyond one step towards −v) are never listed: whoever meets one names it explicitly.
    """
    b = v.size
    square = 0.0
    for j in range(b):
        square += v[j] * v[j]
        points[0, j] = 0
    squares[0] = square
    found = 1
    if lattice == Z4:
        for j in range(b):
            extra = 1.0 - 2.0 * abs(v[j])
            for row in range(found):
                if squares[row] + extra <= limit:
                    for i in range(b):
                        points[found, i] = points[row, i]
                    points[found, j] = -1 if v[j] > 0 else 1
                    squares[found] = squares[row] + extra
                    found += 1
        return found
    scale = 1.0 if lattice == D4 else 2.0
    for i in range(b):
        for j in range(i + 1, b):
            # 2 scale² is the squared length of a first-shell point.
            if square + 2.0 * scale * (scale - abs(v[i]) - abs(v[j])) <= limit:
                for signs in range(4):
                    si, sj = 1 - 2 * (signs & 1), 1 - (signs & 2)
                    near = square + 2.0 * scale * (scale + si * v[i] + sj * v[j])
                    if near <= limit:
                        points[found, :] = 0
                        points[found, i] = si * int(scale)
                        points[found, j] = sj * int(scale)
                        squares[found] = near
                        found += 1
    if lattice == E8:
        total = 0.0
        for j in range(b):
            total += abs(v[j])
        if square + 8.0 - 2.0 * total <= limit:
            sums = np.empty(128)  # 2⟨point, v⟩ over all coordinates but the last, by sign pattern
            sums[0] = 2.0 * (v[0] + v[1] + v[2] + v[3] + v[4] + v[5] + v[6])
            for j in range(7):
                for signs in range(1 << j):
                    sums[signs | 1 << j] = sums[signs] - 4.0 * v[j]
            for signs in range(128):
                parity = signs ^ signs >> 4
                parity = 0x6996 >> (parity & 15) & 1
                near = square + 8.0 + sums[signs] + 2.0 * (1 - 2 * parity) * v[7]
                if near <= limit:
                    for j in range(7):
                        points[found, j] = 1 - 2 * (signs >> j & 1)
                    points[found, 7] = 1 - 2 * parity
                    squares[found] = near
                    found += 1
    return found


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
    length = UNIT[lattice] * radius
    for j in range(u.size):
        x[j] = u[j] / length - v[j]
    nearest(lattice, x, point, other)
    error = 0.0
    for j in range(u.size):
        error += (point[j] - x[j]) ** 2
    return error * length * length <= radius * radius
