"""LRSUQ with the plain code of the literature: Elias gamma for H and for every coordinate of M.

It shows what conditional coding saves: radii, dithers and law are those of `lrsuq`, and only the code of
(H, M) differs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel import rangecoder
from sottovoce.channel.kernel import kernel
from sottovoce.channel.lattice import DIMENSION, Dithers, Integers, Reals, accept, dither, in_blocks, unit
from sottovoce.channel.lrsuq import Lrsuq, put_point, take_point
from sottovoce.channel.randomness import PrivateRandomness, SharedRandomness
from sottovoce.channel.rangecoder import Bytes, Words, put_number, take_number
from sottovoce.channel.wire import ChannelError

_BYTES_PER_TRY = 128  # more than H and 8 coordinates below 2⁴⁴ can cost


class LrsuqElias(Lrsuq):
    """LRSUQ whose messages hold H and M in Elias gamma code."""

    def _encode(self, u: NDArray[np.float64], shared: SharedRandomness, private: PrivateRandomness) -> bytes:
        blocks = in_blocks(u / self.sigma, DIMENSION[self._lattice])
        state, out = rangecoder.new_encoder(), np.empty(0, np.uint8)
        dithers = Dithers(shared, self._lattice, len(blocks))
        progress = np.zeros(2, np.int64)
        while progress[0] < len(blocks):
            words = dithers.more(len(blocks) - int(progress[0]))
            out = rangecoder.with_room(state, out, len(words) * _BYTES_PER_TRY)
            _encode_blocks(self._lattice, blocks, dithers.radii, words, progress, state, out)
        return rangecoder.finish(state, out)

    def _decode(self, payload: bytes, shared: SharedRandomness) -> NDArray[np.float64]:
        dimension = DIMENSION[self._lattice]
        y = np.empty((-(-self.size // dimension), dimension))
        state, data = rangecoder.new_decoder(payload)
        dithers = Dithers(shared, self._lattice, len(y))
        progress = np.array([0, -1])
        while progress[0] < len(y):
            words = dithers.more(len(y) - int(progress[0]))
            if not _decode_blocks(self._lattice, y, dithers.radii, words, progress, state, data):
                raise ChannelError("payload names no lattice point; ask for the message again")
        return y.ravel()[: self.size] * self.sigma


@kernel
def _encode_blocks(
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
def _decode_blocks(
    lattice: int,
    y: Reals,
    radii: Reals,
    words: NDArray[np.uint64],
    progress: Integers,
    state: Words,
    data: Bytes,
) -> bool:
    """The mirror of `_encode_blocks`; progress: block, dithers still to pass over (−1: not read yet)."""
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
