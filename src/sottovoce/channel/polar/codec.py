"""The near-limit channel: exact Gaussian noise at 1.3 to 1.7 times the mutual information.

The statistic is rotated and scaled (v); each output coordinate is split into a state, branch bits and a sign
that are uniform under a shared reference law; states are selected by Poisson functional representation, bits
by successive cancellation of a polar code with shared dithers. Every step samples the exact conditional law
of N(v, 1), so the decoded error is exactly N(0, σ²I) and independent of u; only the surprises are sent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel import rangecoder
from sottovoce.channel.base import Channel
from sottovoce.channel.polar.cancellation import cancel, dithers_from, transform
from sottovoce.channel.polar.folding import branch_bias, branch_odds, given_bit, magnitudes, sign_bias
from sottovoce.channel.polar.model import SCALES, Law, dither_bins, model, scale_number
from sottovoce.channel.polar.offsets import STEP, offsets, put_offsets, take_offsets
from sottovoce.channel.polar.rotation import rotate, signs_from, unrotate
from sottovoce.channel.polar.states import States, chosen_words, select, uniforms
from sottovoce.channel.polar.surprises import put_plane, put_states, take_plane, take_states
from sottovoce.channel.randomness import PrivateRandomness, SharedRandomness
from sottovoce.channel.tables import load_tables
from sottovoce.channel.wire import ChannelError, Stream

Reals = NDArray[np.float64]
Bits = NDArray[np.uint8]

_BYTES_PER_COORDINATE = 96  # more than offset, raw state and all planes of one coordinate can cost


class Polar(Channel):
    """Channel simulation with polar codes; see docs/channel.md."""

    def __init__(self, name: str, size: int, sigma: float) -> None:
        super().__init__(name, "polar", size, sigma)
        self._padded = 1 << (self.size - 1).bit_length()

    def _encode(self, u: NDArray[np.float64], shared: SharedRandomness, private: PrivateRandomness) -> bytes:
        v = np.zeros(self._padded)
        v[: self.size] = u / self.sigma
        rotate(v, self._signs(shared))
        steps = offsets(v)
        v -= STEP * steps
        number = scale_number(float(v @ v) / v.size)
        law = model(self._padded, number)
        states = select(v, law, shared, private)
        state = rangecoder.new_encoder()
        out = rangecoder.with_room(state, np.empty(0, np.uint8), _BYTES_PER_COORDINATE * self._padded + 64)
        put_offsets(state, out, steps)
        put_states(state, out, states.x, states.index, states.outlier, law.edges, law.hazards)
        weights = load_tables().surprises
        for (surprises, dithers), classes in zip(planes(v, law, states, shared), law.classes, strict=True):
            put_plane(state, out, surprises, classes, dither_bins(dithers), weights)
        return bytes([number]) + rangecoder.finish(state, out)

    def _decode(self, payload: bytes, shared: SharedRandomness) -> NDArray[np.float64]:
        if not payload or payload[0] >= SCALES:
            raise ChannelError("payload names no scale; ask for the message again")
        law = model(self._padded, payload[0])
        state, data = rangecoder.new_decoder(payload[1:])
        steps = np.empty(law.size, np.int64)
        x, outlier = np.empty(law.size), np.zeros(law.size, np.uint8)
        index = np.empty(law.edges.size - 1, np.int64)
        sound = take_offsets(state, data, steps)
        sound = sound and take_states(state, data, x, index, outlier, law.edges, law.hazards)
        if not sound:
            raise ChannelError("payload is not one an encoder makes; ask for the message again")
        np.copyto(x, uniforms(chosen_words(shared, law, index)), where=outlier == 0)
        branch = np.zeros(law.size, np.int64)
        bits = np.empty(law.size, np.uint8)
        weights = load_tables().surprises
        for plane, classes in enumerate(law.classes):
            dithers = dithers_from(shared.words("planes", law.size, plane * law.size))
            if not take_plane(state, data, bits, classes, dither_bins(dithers), weights):
                raise ChannelError("payload is not one an encoder makes; ask for the message again")
            bits ^= dithers < 0.0
            transform(bits)
            if plane < law.folds:
                branch = 2 * branch + bits
        y = magnitudes(x, branch, law.folds, law.s2) * (1.0 - 2.0 * bits) + STEP * steps
        unrotate(y, self._signs(shared))
        released: Reals = y[: self.size] * self.sigma
        return released

    def rotated(self, vector: Reals, secret: bytes, stream: Stream) -> Reals:
        """A vector as the code sees it, padded and rotated with a stream's signs; for tests of exactness."""
        v = np.zeros(self._padded)
        v[: self.size] = vector
        rotate(v, self._signs(SharedRandomness(self._envelope(secret, stream))))
        return v

    def _signs(self, shared: SharedRandomness) -> Reals:
        return signs_from(shared.words("rotation", -(-2 * self._padded // 64)), self._padded)


def planes(v: Reals, law: Law, states: States, shared: SharedRandomness) -> list[tuple[Bits, Reals]]:
    """Sample the planes, branch bits from coarse to fine and then the sign: surprises and dithers."""
    odds = branch_odds(states.x, v, law.folds, law.s2)
    branch = np.zeros(law.size, np.int64)
    bias, bits = np.empty(law.size), np.empty(law.size, np.uint8)
    found = []
    for plane in range(law.folds + 1):
        if plane < law.folds:
            branch_bias(odds, bias)
        else:
            sign_bias(magnitudes(states.x, branch, law.folds, law.s2), v, bias)
        dithers = dithers_from(shared.words("planes", law.size, plane * law.size))
        surprises = np.empty(law.size, np.uint8)
        cancel(bias, dithers, bits, surprises)
        found.append((surprises, dithers))
        if plane < law.folds:
            odds = given_bit(odds, bits)
            branch = 2 * branch + bits
    return found
