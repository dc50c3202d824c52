"""Whole steps taken off coordinates that lie far outside the model, sent as integers.

Shifting a coordinate by a known amount keeps the law of its error, and keeps the work bounded: what is left
after the shift is as small as the model expects.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel.kernel import kernel
from sottovoce.channel.rangecoder import Bytes, Words, put_bit, put_number, take_bit, take_number

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]

STEP = 4.0  # in units of σ: what is left is uniform with s² = 4/3, within the tables
_LARGEST_S2 = 1.6  # above, every coordinate gets an offset
_OUTLYING = 6.0  # scales beyond which a single coordinate gets one
_ANY = 64  # weight out of 2^16 of "some offset is not zero"
_BITS = 16


def offsets(v: Reals) -> Integers:
    """Steps to take off each coordinate of v (in units of σ): nearly always all zero."""
    s2 = float(v @ v) / v.size
    steps = np.rint(v / STEP)
    if s2 <= _LARGEST_S2:
        steps[np.abs(v) <= max(_OUTLYING * math.sqrt(s2), STEP)] = 0.0
    return steps.astype(np.int64)


@kernel
def put_offsets(state: Words, out: Bytes, steps: Integers) -> None:
    """Code the offsets: one cheap decision when all are zero."""
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
