"""The paper's codec: layered rejection-sampled universal quantization (LRSUQ) with a conditional code.

Per block, a shared radius R with R² = σ²·χ²_{b+2} and shared dithers V₁, V₂, … uniform in a lattice cell
of inradius R; the first dither V_H whose quantization error M + V_H − u lies in the ball of radius R is used,
and the decoder outputs M + V_H. The error is uniform in a ball of random radius: exactly N(0, σ²I) for any u.
What is coded is "accepted here, at which M" given how far the dither lies from the ball's edge, under a model
of u with one scale in the message: a wrong model costs bits, never exactness.

`lrsuq-elias` has the plain code of the literature, Elias gamma for H and for every coordinate of M, and shows
what conditional coding saves: radii, dithers and noise are the same, and only the code of (H, M) differs.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel import Channel, coding
from sottovoce.channel.coding import (
    Bytes,
    Integers,
    Reals,
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
    UNIT,
    Dithers,
    accept,
    dither,
    in_blocks,
    neighbours,
)
from sottovoce.channel.wire import ChannelError, PrivateRandomness, SharedRandomness

_BYTES_PER_TRY = 128  # more than a decision can cost: H, or an escape, and 8 coordinates below 2⁴⁴
_QUARTER_OCTAVES = (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)
_ZERO_SCALE = 64  # scale number of 1·σ
_BITS = 16
_REACH = 5.0  # scales beyond the ball's edge within which a point is listed


class Lrsuq(Channel):
    """LRSUQ on blocks of 4 (Z⁴, D⁴) or 8 (E⁸) coordinates."""

    formats: ClassVar = {"lrsuq/Z4": 2, "lrsuq/D4": 3, "lrsuq/E8": 4}
    options = ("lattice",)
    bound = True
    modelled = True
    """Whether (H, M) is coded under a model of u, whose scale is the first byte of the payload."""

    def __init__(self, name: str, size: int, sigma: float, lattice: str = "Z4") -> None:
        if lattice not in LATTICES:
            raise ChannelError(f"no lattice is called {lattice!r}; choose from D4, E8, Z4")
        super().__init__(name, size, sigma, f"{name}/{lattice}")
        self._lattice = LATTICES[lattice]

    def _encode(self, u: NDArray[np.float64], shared: SharedRandomness, private: PrivateRandomness) -> bytes:
        blocks = in_blocks(u / self.sigma, DIMENSION[self._lattice])
        head = bytes([scale_number(blocks)]) if self.modelled else b""
        model = (scale(head[0]) if head else 0.0, load_tables().accepts)
        state, out = coding.new_encoder(), np.empty(0, np.uint8)
        dithers = Dithers(shared, self._lattice, len(blocks))
        progress = np.zeros(2, np.int64)
        while progress[0] < len(blocks):
            words = dithers.more(len(blocks) - int(progress[0]))
            out = coding.with_room(state, out, len(words) * _BYTES_PER_TRY)
            _encode_blocks(self._lattice, blocks, dithers.radii, words, progress, *model, state, out)
        return head + coding.finish(state, out)

    def _decode(self, payload: bytes, shared: SharedRandomness) -> NDArray[np.float64]:
        if self.modelled and not payload:
            raise ChannelError("payload is empty; ask for the message again")
        model = (scale(payload[0]) if self.modelled else 0.0, load_tables().accepts)
        dimension = DIMENSION[self._lattice]
        y = np.empty((-(-self.size // dimension), dimension))
        state, data = coding.new_decoder(payload[int(self.modelled) :])
        dithers = Dithers(shared, self._lattice, len(y))
        progress = np.array([0, -1])
        while progress[0] < len(y):
            words = dithers.more(len(y) - int(progress[0]))
            if not _decode_blocks(self._lattice, y, dithers.radii, words, progress, *model, state, data):
                raise ChannelError("payload names no lattice point; ask for the message again")
        return y.ravel()[: self.size] * self.sigma


class LrsuqElias(Lrsuq):
    """LRSUQ whose messages hold H and M in Elias gamma code."""

    formats: ClassVar = {"lrsuq-elias/Z4": 5, "lrsuq-elias/D4": 6, "lrsuq-elias/E8": 7}
    modelled = False


def scale(number: int) -> float:
    """The model's standard deviation of u/σ for a scale number 0 … 255: 2^((number − 64)/4)."""
    whole, quarter = divmod(number - _ZERO_SCALE, 4)
    return math.ldexp(_QUARTER_OCTAVES[quarter], whole)


def scale_number(v: Reals) -> int:
    """The scale that suits the bulk of u/σ: from the mean magnitude, which outliers hardly move."""
    mean = float(np.abs(v).mean()) * math.sqrt(math.pi / 2)
    return round(min(max(4.0 * math.log2(mean) + _ZERO_SCALE, 0.0), 255.0)) if mean > 0 else 0


@kernel
def put_point(state: Words, out: Bytes, point: Integers, shift: int) -> None:
    """Codes the coordinates of a lattice point, 0, −1, 1, −2, 2, … as the numbers 0, 1, 2, 3, 4, …"""
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
    length = UNIT[lattice] * radius
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
def _magnitude_bits(ratio: float) -> int:
    """Low bits of a coordinate that the model says are as good as random."""
    bits = 0
    while ratio > 1.0 and bits < 44:
        ratio *= 0.5
        bits += 1
    return bits


@kernel
def _encode_blocks(
    lattice: int,
    u: Reals,
    radii: Reals,
    words: NDArray[np.uint64],
    progress: Integers,
    s: float,
    accepts: Integers,
    state: Words,
    out: Bytes,
) -> None:
    """Uses all `words`, or finishes; progress: first unfinished block, dithers already rejected for it.

    `s` is the model's scale of u; 0 stands for Elias gamma codes, which have no model.
    """
    tries, b = words.shape
    v, x = np.empty(b), np.empty(b)
    point, other = np.empty(b, np.int64), np.empty(b, np.int64)
    points, squares = np.empty((MOST_NEIGHBOURS, b), np.int64), np.empty(MOST_NEIGHBOURS)
    for at in range(tries):
        block = progress[0]
        radius = radii[block]
        dither(lattice, words[at], v, point, other)
        accepted = accept(lattice, u[block], radius, v, x, point, other)
        if s > 0.0:
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
                put_point(state, out, point, _magnitude_bits(s / (UNIT[lattice] * radius)))
            elif chosen < 0:
                start += unlisted
                put(state, out, start, (1 << _BITS) - start, _BITS)
        elif accepted:
            put_number(state, out, progress[1], 0)
            put_point(state, out, point, 0)
        progress[1] += 1
        if accepted:
            progress[0] += 1
            progress[1] = 0
            if progress[0] == u.shape[0]:
                break


@kernel
def _decode_blocks(
    lattice: int,
    y: Reals,
    radii: Reals,
    words: NDArray[np.uint64],
    progress: Integers,
    s: float,
    accepts: Integers,
    state: Words,
    data: Bytes,
) -> bool:
    """The mirror of `_encode_blocks`; False where a forged payload names no point.

    progress: first unfinished block, dithers still to pass over without a model (−1: not read yet).
    """
    tries, b = words.shape
    v = np.empty(b)
    point, other = np.empty(b, np.int64), np.empty(b, np.int64)
    points, squares = np.empty((MOST_NEIGHBOURS, b), np.int64), np.empty(MOST_NEIGHBOURS)
    for at in range(tries):
        block = progress[0]
        length = UNIT[lattice] * radii[block]
        if s > 0.0:
            dither(lattice, words[at], v, point, other)
            count, unlisted = _odds(lattice, v, radii[block], s, accepts, points, squares)
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
                    return False
            else:
                start += unlisted
                take(state, data, start, (1 << _BITS) - start, _BITS)
                continue
        else:
            if progress[1] < 0:
                progress[1] = take_number(state, data, 0)
                if progress[1] < 0:
                    return False
            progress[1] -= 1
            if progress[1] >= 0:
                continue
            dither(lattice, words[at], v, point, other)
            if not take_point(state, data, point, 0):
                return False
        for j in range(b):
            y[block, j] = (point[j] + v[j]) * length
        progress[0] += 1
        if progress[0] == y.shape[0]:
            break
    return True
