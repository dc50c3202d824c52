"""The paper's codec: layered rejection-sampled universal quantization (LRSUQ) with a conditional code.

Per block, a shared radius R with R² = σ²·χ²_{b+2} and shared dithers V₁, V₂, … uniform in a lattice cell
of inradius R; the first dither V_H whose quantization error M + V_H − u lies in the ball of radius R is used,
and the decoder outputs M + V_H. The error is uniform in a ball of random radius: exactly N(0, σ²I) for any u.
What is coded is "accepted here, at which M" given how far the dither lies from the ball's edge, under a model
of u with one scale in the message: a wrong model costs bits, never exactness.

`lrsuq-elias` has the plain code of the literature, Elias gamma for H and for every coordinate of M, and shows
what conditional coding saves: radii, dithers and law are the same, and only the code of (H, M) differs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel import Channel, coding
from sottovoce.channel.coding import (
    Bytes,
    Words,
    kernel,
    load_tables,
    peek,
    put,
    put_number,
    take,
    take_number,
)
from sottovoce.channel.lattice import (
    DIMENSION,
    LATTICES,
    MOST_NEIGHBOURS,
    Dithers,
    Integers,
    Reals,
    accept,
    dither,
    in_blocks,
    neighbours,
    unit,
)
from sottovoce.channel.wire import ChannelError, PrivateRandomness, SharedRandomness

_BYTES_PER_TRY = 128  # more than a decision can cost: H, or an escape, and 8 coordinates below 2⁴⁴
_QUARTER_OCTAVES = (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)
_ZERO_SCALE = 64  # scale number of 1·σ
_BITS = 16
_REACH = 5.0  # scales beyond the ball's edge within which a point is listed


class Lrsuq(Channel):
    """LRSUQ on blocks of 4 (Z⁴, D⁴) or 8 (E⁸) coordinates."""

    def __init__(self, name: str, size: int, sigma: float, lattice: str = "Z4") -> None:
        if lattice not in LATTICES:
            raise ChannelError(f"no lattice is called {lattice!r}; choose from D4, E8, Z4")
        super().__init__(name, size, sigma, f"{name}/{lattice}")
        self._lattice = LATTICES[lattice]

    def _encode(self, u: NDArray[np.float64], shared: SharedRandomness, private: PrivateRandomness) -> bytes:
        blocks = in_blocks(u / self.sigma, DIMENSION[self._lattice])
        number = scale_number(blocks)
        state, out = coding.new_encoder(), np.empty(0, np.uint8)
        dithers = Dithers(shared, self._lattice, len(blocks))
        block = 0
        while block < len(blocks):
            words = dithers.more(len(blocks) - block)
            out = coding.with_room(state, out, len(words) * _BYTES_PER_TRY)
            block = _encode_blocks(
                self._lattice, blocks, dithers.radii, words, block, scale(number), _accepts(), state, out
            )
        return bytes([number]) + coding.finish(state, out)

    def _decode(self, payload: bytes, shared: SharedRandomness) -> NDArray[np.float64]:
        if not payload:
            raise ChannelError("payload is empty; ask for the message again")
        dimension = DIMENSION[self._lattice]
        y = np.empty((-(-self.size // dimension), dimension))
        state, data = coding.new_decoder(payload[1:])
        dithers = Dithers(shared, self._lattice, len(y))
        block = 0
        while block < len(y):
            words = dithers.more(len(y) - block)
            block = _decode_blocks(
                self._lattice, y, dithers.radii, words, block, scale(payload[0]), _accepts(), state, data
            )
            if block < 0:
                raise ChannelError("payload names no lattice point; ask for the message again")
        return y.ravel()[: self.size] * self.sigma


def scale(number: int) -> float:
    """The model's standard deviation of u/σ for a scale number 0 … 255: 2^((number − 64)/4)."""
    whole, quarter = divmod(number - _ZERO_SCALE, 4)
    return math.ldexp(_QUARTER_OCTAVES[quarter], whole)


def scale_number(v: Reals) -> int:
    """The scale that suits the bulk of u/σ: from the mean magnitude, which outliers hardly move."""
    mean = float(np.abs(v).mean()) * math.sqrt(math.pi / 2)
    return round(min(max(4.0 * math.log2(mean) + _ZERO_SCALE, 0.0), 255.0)) if mean > 0 else 0


def _accepts() -> Integers:
    return load_tables().accepts


@kernel
def put_point(state: Words, out: Bytes, point: Integers, shift: int) -> None:
    """Code the coordinates of a lattice point, 0, −1, 1, −2, 2, … as the numbers 0, 1, 2, 3, 4, …"""
    for j in range(point.size):
        put_number(state, out, 2 * point[j] if point[j] >= 0 else -2 * point[j] - 1, shift)


@kernel
def take_point(state: Words, data: Bytes, point: Integers, shift: int) -> bool:
    """The mirror of `put_point`: fills `point`; False where a forged payload names none."""
    for j in range(point.size):
        value = take_number(state, data, shift)
        if value < 0:
            return False
        point[j] = -((value + 1) >> 1) if value & 1 else value >> 1
    return True


@kernel
def _odds(
    lattice: int, v: Reals, radius: float, s: float, accepts: Integers, points: Integers, squares: Reals
) -> tuple[int, int]:
    """Model of one try: fills `points` and turns `squares` into integer weights of accepting at each point.

    Returns how many points are listed, and the weight of "accepted at an unlisted point". The rest of 2^16,
    at least 1, is the weight of "rejected".
    """
    b = v.size
    length = unit(lattice) * radius
    reach = (radius + _REACH * s) / length
    count = neighbours(lattice, v, reach * reach, points, squares)
    # The typical distance of u from a ball's centre at d is √(d² + (b − 1)s²): curvature of the sphere.
    spread = (b - 1) * s * s
    total = 0
    for row in range(count):
        gap = (radius - math.sqrt(squares[row] * length * length + spread)) / s
        at = min(max(math.floor((gap + 8.0) * 16.0), 0), accepts.size - 1)
        squares[row] = accepts[at]
        total += accepts[at]
    far = min(max(math.floor((8.0 - radius / s) * 16.0), 0), accepts.size - 1)
    unlisted = 1 + min(accepts[far], 1 << (_BITS - 3))
    # Where u is wider than the ball, a try is rejected about half the time whatever the distances say.
    most = (1 << (_BITS - 1 if s > radius else _BITS)) - 1 - unlisted
    if total > most:
        for row in range(count):
            squares[row] = max(1.0, math.floor(squares[row] * (most - count) / total))
    return count, unlisted


@kernel
def _equal(points: Integers, row: int, point: Integers) -> bool:
    for j in range(point.size):  # noqa: SIM110 (a loop compiles to less than a generator)
        if points[row, j] != point[j]:
            return False
    return True


@kernel
def _encode_blocks(
    lattice: int,
    u: Reals,
    radii: Reals,
    words: NDArray[np.uint64],
    block: int,
    s: float,
    accepts: Integers,
    state: Words,
    out: Bytes,
) -> int:
    """Use all `words` from `block` on, or finish; returns the first unfinished block."""
    tries, b = words.shape
    v, x = np.empty(b), np.empty(b)
    point, other = np.empty(b, np.int64), np.empty(b, np.int64)
    points, squares = np.empty((MOST_NEIGHBOURS, b), np.int64), np.empty(MOST_NEIGHBOURS)
    for at in range(tries):
        radius = radii[block]
        dither(lattice, words[at], 0, v, point, other)
        accepted = accept(lattice, u[block], radius, v, x, point, other)
        count, unlisted = _odds(lattice, v, radius, s, accepts, points, squares)
        start = 0
        chosen = -1
        for row in range(count):
            if accepted and chosen < 0 and _equal(points, row, point):
                chosen = row
                put(state, out, start, int(squares[row]), _BITS)
            start += int(squares[row])
        if chosen < 0 and accepted:
            put(state, out, start, unlisted, _BITS)
            put_point(state, out, point, _magnitude_bits(s / (unit(lattice) * radius)))
        elif chosen < 0:
            start += unlisted
            put(state, out, start, (1 << _BITS) - start, _BITS)
        if accepted:
            block += 1
            if block == u.shape[0]:
                break
    return block


@kernel
def _decode_blocks(
    lattice: int,
    y: Reals,
    radii: Reals,
    words: NDArray[np.uint64],
    block: int,
    s: float,
    accepts: Integers,
    state: Words,
    data: Bytes,
) -> int:
    """The mirror of `_encode_blocks`; −1 where a forged payload names no point."""
    tries, b = words.shape
    v = np.empty(b)
    point, other = np.empty(b, np.int64), np.empty(b, np.int64)
    points, squares = np.empty((MOST_NEIGHBOURS, b), np.int64), np.empty(MOST_NEIGHBOURS)
    for at in range(tries):
        radius = radii[block]
        length = unit(lattice) * radius
        dither(lattice, words[at], 0, v, point, other)
        count, unlisted = _odds(lattice, v, radius, s, accepts, points, squares)
        mark = peek(state, _BITS)
        start = 0
        row = 0
        while row < count and mark >= start + int(squares[row]):
            start += int(squares[row])
            row += 1
        if row < count:
            take(state, data, start, int(squares[row]), _BITS)
            for j in range(b):
                point[j] = points[row, j]
        elif mark < start + unlisted:
            take(state, data, start, unlisted, _BITS)
            if not take_point(state, data, point, _magnitude_bits(s / length)):
                return -1
        else:
            start += unlisted
            take(state, data, start, (1 << _BITS) - start, _BITS)
            continue
        for j in range(b):
            y[block, j] = (point[j] + v[j]) * length
        block += 1
        if block == y.shape[0]:
            break
    return block


@kernel
def _magnitude_bits(ratio: float) -> int:
    """Low bits of a coordinate that the model says are as good as random."""
    bits = 0
    while ratio > 1.0 and bits < 44:
        ratio *= 0.5
        bits += 1
    return bits


class LrsuqElias(Lrsuq):
    """LRSUQ whose messages hold H and M in Elias gamma code."""

    def _encode(self, u: NDArray[np.float64], shared: SharedRandomness, private: PrivateRandomness) -> bytes:
        blocks = in_blocks(u / self.sigma, DIMENSION[self._lattice])
        state, out = coding.new_encoder(), np.empty(0, np.uint8)
        dithers = Dithers(shared, self._lattice, len(blocks))
        progress = np.zeros(2, np.int64)
        while progress[0] < len(blocks):
            words = dithers.more(len(blocks) - int(progress[0]))
            out = coding.with_room(state, out, len(words) * _BYTES_PER_TRY)
            _put_blocks(self._lattice, blocks, dithers.radii, words, progress, state, out)
        return coding.finish(state, out)

    def _decode(self, payload: bytes, shared: SharedRandomness) -> NDArray[np.float64]:
        dimension = DIMENSION[self._lattice]
        y = np.empty((-(-self.size // dimension), dimension))
        state, data = coding.new_decoder(payload)
        dithers = Dithers(shared, self._lattice, len(y))
        progress = np.array([0, -1])
        while progress[0] < len(y):
            words = dithers.more(len(y) - int(progress[0]))
            if not _take_blocks(self._lattice, y, dithers.radii, words, progress, state, data):
                raise ChannelError("payload names no lattice point; ask for the message again")
        return y.ravel()[: self.size] * self.sigma


@kernel
def _put_blocks(
    lattice: int,
    u: Reals,
    radii: Reals,
    words: NDArray[np.uint64],
    progress: Integers,
    state: Words,
    out: Bytes,
) -> None:
    """Use all `words`, or finish; progress: first unfinished block, dithers already rejected for it."""
    tries, b = words.shape
    v, x = np.empty(b), np.empty(b)
    point, other = np.empty(b, np.int64), np.empty(b, np.int64)
    for at in range(tries):
        block = progress[0]
        dither(lattice, words[at], 0, v, point, other)
        if accept(lattice, u[block], radii[block], v, x, point, other):
            put_number(state, out, progress[1], 0)
            put_point(state, out, point, 0)
            progress[0] += 1
            progress[1] = 0
            if progress[0] == u.shape[0]:
                break
        else:
            progress[1] += 1


@kernel
def _take_blocks(
    lattice: int,
    y: Reals,
    radii: Reals,
    words: NDArray[np.uint64],
    progress: Integers,
    state: Words,
    data: Bytes,
) -> bool:
    """The mirror of `_put_blocks`; progress: block, dithers still to pass over (−1: not read yet)."""
    tries, b = words.shape
    v = np.empty(b)
    point, other = np.empty(b, np.int64), np.empty(b, np.int64)
    for at in range(tries):
        block = progress[0]
        if progress[1] < 0:
            progress[1] = take_number(state, data, 0)
            if progress[1] < 0:
                return False
        if progress[1] > 0:
            progress[1] -= 1
            continue
        dither(lattice, words[at], 0, v, point, other)
        if not take_point(state, data, point, 0):
            return False
        for j in range(b):
            y[block, j] = (point[j] + v[j]) * (unit(lattice) * radii[block])
        progress[0] += 1
        progress[1] = -1
        if progress[0] == y.shape[0]:
            break
    return True
