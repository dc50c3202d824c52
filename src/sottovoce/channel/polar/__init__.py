"""The near-limit channel, by polar codes: exact Gaussian noise at 1.3 to 1.7 times the mutual information.

The statistic is rotated and scaled (v); each output coordinate is split into a state, branch bits and a sign
that are uniform under a shared reference distribution; states are selected by Poisson functional
representation, bits by successive cancellation of a polar code with shared dithers. Every step samples the
exact conditional distribution of N(v, 1), so the decoded error is exactly N(0, σ²I) and independent of u;
only the surprises are sent.

A shared random rotation makes every statistic look alike, coordinate by coordinate: H·D₂·H·D₁ with H the
normalized Hadamard matrix and D₁, D₂ shared random signs; applied twice because once leaves sparse vectors
sparse. It is orthonormal, so it keeps N(0, σ²I) exactly. Whole steps are taken off coordinates that lie far
outside the model, and sent as integers: shifting a coordinate by a known amount keeps the distribution of its
error, and keeps the work bounded.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.channel import Channel, coding
from sottovoce.channel.coding import (
    Bytes,
    Integers,
    Reals,
    Words,
    kernel,
    load_tables,
    put_bit,
    put_number,
    take_bit,
    take_number,
)
from sottovoce.channel.polar.folding import (
    branch_bias,
    branch_odds,
    cancel,
    dithers_from,
    given_bit,
    magnitudes,
    sign_bias,
    transform,
)
from sottovoce.channel.polar.model import SCALES, Model, dither_bins, model_for, scale_number
from sottovoce.channel.polar.payload import put_plane, put_states, take_plane, take_states
from sottovoce.channel.polar.states import States, chosen_words, select, uniforms
from sottovoce.channel.wire import ChannelError, PrivateRandomness, SharedRandomness

STEP = 4.0  # in units of σ: what is left is uniform with s² = 4/3, within the tables
_LARGEST_S2 = 1.6  # above, every coordinate gets an offset
_OUTLYING = 6.0  # scales beyond which a single coordinate gets one
_ANY = 64  # weight out of 2^16 of "some offset is not zero"
_BITS = 16
_BYTES_PER_COORDINATE = 96  # more than offset, raw state and all planes of one coordinate can cost


def offsets(v: Reals) -> Integers:
    """Steps to take off each coordinate of v (in units of σ): nearly always all zero."""
    s2 = float(v @ v) / v.size
    steps = np.rint(v / STEP)
    if s2 <= _LARGEST_S2:
        steps[np.abs(v) <= max(_OUTLYING * math.sqrt(s2), STEP)] = 0.0
    return steps.astype(np.int64)


@kernel
def put_offsets(state: Words, out: Bytes, steps: Integers) -> None:
    """Codes the offsets: one cheap decision when all are zero."""
    total = 0.0
    count = 0
    for j in range(steps.size):
        total += abs(steps[j])
        count += steps[j] != 0
    put_bit(state, out, count > 0, _ANY, _BITS)
    if not count:
        return
    shift = 0
    while total / count > 2.0 * (1 << shift):
        shift += 1
    put_number(state, out, shift, 0)
    zero = 1 << (_BITS - 1)
    for j in range(steps.size):
        put_bit(state, out, steps[j] == 0, zero, _BITS)
        zero = _adapted(zero, steps[j] == 0)
        if steps[j] != 0:
            put_bit(state, out, steps[j] < 0, 1, 1)
            put_number(state, out, abs(steps[j]) - 1, shift)


@kernel
def take_offsets(state: Words, data: Bytes, steps: Integers) -> bool:
    """The mirror of `put_offsets`; False for a forged payload."""
    steps[:] = 0
    if not take_bit(state, data, _ANY, _BITS):
        return True
    shift = take_number(state, data, 0)
    if shift < 0 or shift > 48:
        return False
    zero = 1 << (_BITS - 1)
    for j in range(steps.size):
        is_zero = take_bit(state, data, zero, _BITS) == 1
        zero = _adapted(zero, is_zero)
        if not is_zero:
            negative = take_bit(state, data, 1, 1)
            size = take_number(state, data, shift)
            if size < 0:
                return False
            steps[j] = -(size + 1) if negative else size + 1
    return True


@kernel
def _adapted(zero: int, was_zero: bool) -> int:
    """The weight of a zero offset after one more was seen; stays within 2^16's interior."""
    if was_zero:
        return zero + (((1 << _BITS) - zero) >> 5)
    return zero - (zero >> 5)


def rotate(v: Reals, signs: Reals) -> None:
    """Rotates `v` (length a power of two) in place; `signs` has shape (2, len(v)) and entries ±1."""
    for row in signs:
        v *= row
        _hadamard(v)


def unrotate(v: Reals, signs: Reals) -> None:
    """Undoes `rotate` in place."""
    for row in signs[::-1]:
        _hadamard(v)
        v *= row


def signs_from(words: Words, size: int) -> Reals:
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


class Polar(Channel):
    """Channel simulation with polar codes; see docs/channel.md."""

    formats: ClassVar = {"polar": 8}
    bound = True

    def __init__(self, name: str, size: int, sigma: float) -> None:
        super().__init__(name, size, sigma)
        self._padded = 1 << (self.size - 1).bit_length()

    def _encode(self, u: Reals, shared: SharedRandomness, private: PrivateRandomness) -> bytes:
        v = np.zeros(self._padded)
        v[: self.size] = u / self.sigma
        rotate(v, self.signs(shared))
        steps = offsets(v)
        v -= STEP * steps
        number = scale_number(float(v @ v) / v.size)
        model = model_for(self._padded, number)
        states = select(v, model, shared, private)
        state = coding.new_encoder()
        out = coding.with_room(state, np.empty(0, np.uint8), _BYTES_PER_COORDINATE * self._padded + 64)
        put_offsets(state, out, steps)
        put_states(state, out, states.x, states.index, states.outlier, model.edges, model.hazards)
        weights = load_tables().surprises
        made = planes(v, model, states, shared)
        for (surprises, dithers), classes in zip(made, model.classes, strict=True):
            put_plane(state, out, surprises, classes, dither_bins(dithers), weights)
        return bytes([number]) + coding.finish(state, out)

    def _decode(self, payload: bytes, shared: SharedRandomness) -> Reals:
        if not payload or payload[0] >= SCALES:
            raise ChannelError("payload names no scale; ask for the message again")
        model = model_for(self._padded, payload[0])
        state, data = coding.new_decoder(payload[1:])
        steps = np.empty(model.size, np.int64)
        x, outlier = np.empty(model.size), np.zeros(model.size, np.uint8)
        index = np.empty(model.edges.size - 1, np.int64)
        sound = take_offsets(state, data, steps)
        sound = sound and take_states(state, data, x, index, outlier, model.edges, model.hazards)
        if not sound:
            raise ChannelError("payload is not one an encoder makes; ask for the message again")
        np.copyto(x, uniforms(chosen_words(shared, model, index)), where=outlier == 0)
        branch = np.zeros(model.size, np.int64)
        bits = np.empty(model.size, np.uint8)
        weights = load_tables().surprises
        for plane, classes in enumerate(model.classes):
            dithers = dithers_from(shared.words("planes", model.size, plane * model.size))
            if not take_plane(state, data, bits, classes, dither_bins(dithers), weights):
                raise ChannelError("payload is not one an encoder makes; ask for the message again")
            bits ^= dithers < 0.0
            transform(bits)
            if plane < model.folds:
                branch = 2 * branch + bits
        y = magnitudes(x, branch, model.folds, model.s2) * (1.0 - 2.0 * bits) + STEP * steps
        unrotate(y, self.signs(shared))
        released: Reals = y[: self.size] * self.sigma
        return released

    def signs(self, shared: SharedRandomness) -> Reals:
        """The shared signs of a rotation, (2, padded size)."""
        return signs_from(shared.words("rotation", -(-2 * self._padded // 64)), self._padded)


def planes(v: Reals, model: Model, states: States, shared: SharedRandomness) -> list[tuple[Bytes, Reals]]:
    """Samples the planes, branch bits from coarse to fine and then the sign: surprises and dithers."""
    odds = branch_odds(states.x, v, model.folds, model.s2)
    branch = np.zeros(model.size, np.int64)
    bias, bits = np.empty(model.size), np.empty(model.size, np.uint8)
    found = []
    for plane in range(model.folds + 1):
        if plane < model.folds:
            branch_bias(odds, bias)
        else:
            sign_bias(magnitudes(states.x, branch, model.folds, model.s2), v, bias)
        dithers = dithers_from(shared.words("planes", model.size, plane * model.size))
        surprises = np.empty(model.size, np.uint8)
        cancel(bias, dithers, bits, surprises)
        found.append((surprises, dithers))
        if plane < model.folds:
            odds = given_bit(odds, bits)
            branch = 2 * branch + bits
    return found
