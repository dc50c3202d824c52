"""The payload of `polar`: indices of states, and the surprises of every plane, as range-coded integers.

A surprise is coded with a weight that depends on its leaf's class and on how far its dither lies from ½.
Leaves whose weight is zero practically never surprise: they are passed over, and the rare exceptions listed.
"""

from __future__ import annotations

from sottovoce.channel.coding import (
    Bytes,
    Integers,
    Reals,
    Words,
    kernel,
    peek,
    put,
    put_bit,
    put_number,
    take,
    take_bit,
    take_number,
)
from sottovoce.channel.polar.states import RAW, raw_state, raw_word

_BITS = 16
_RAW_BLOCK = 16  # weights out of 2^16: a whole block goes raw
_ANY_OUTLIER = 256  # some of a block's states go raw
_ANY_EXCEPTION = 512  # a leaf of weight zero surprises


@kernel
def put_raw(state: Words, out: Bytes, x: float) -> None:
    """A state as 53 plain bits."""
    word = raw_word(x)
    put(state, out, word >> 27, 1, 26)
    put(state, out, word & ((1 << 27) - 1), 1, 27)


@kernel
def take_raw(state: Words, data: Bytes) -> float:
    """The state that `put_raw` wrote."""
    high = peek(state, 26)
    take(state, data, high, 1, 26)
    low = peek(state, 27)
    take(state, data, low, 1, 27)
    return raw_state(high << 27 | low)


@kernel
def put_states(
    state: Words, out: Bytes, x: Reals, index: Integers, outlier: Bytes, edges: Integers, hazards: Integers
) -> None:
    """Codes which candidate won in every block, and the states that go raw."""
    for block in range(index.size):
        first, last = edges[block], edges[block + 1]
        put_bit(state, out, index[block] == RAW, _RAW_BLOCK, _BITS)
        if index[block] == RAW:
            for j in range(first, last):
                put_raw(state, out, x[j])
            continue
        put_index(state, out, index[block], hazards)
        count = 0
        for j in range(first, last):
            count += outlier[j]
        put_bit(state, out, count > 0, _ANY_OUTLIER, _BITS)
        if count:
            put_number(state, out, count - 1, 0)
            before = first
            for j in range(first, last):
                if outlier[j]:
                    put_number(state, out, j - before, 6)
                    put_raw(state, out, x[j])
                    before = j + 1


@kernel
def take_states(
    state: Words, data: Bytes, x: Reals, index: Integers, outlier: Bytes, edges: Integers, hazards: Integers
) -> bool:
    """The mirror of `put_states`: fills `index`, and `x` where `outlier`; False for a forged payload."""
    for block in range(index.size):
        first, last = edges[block], edges[block + 1]
        if take_bit(state, data, _RAW_BLOCK, _BITS):
            index[block] = RAW
            for j in range(first, last):
                outlier[j] = 1
                x[j] = take_raw(state, data)
            continue
        index[block] = take_index(state, data, hazards)
        if index[block] < 0:
            return False
        if take_bit(state, data, _ANY_OUTLIER, _BITS):
            count = take_number(state, data, 0) + 1
            if count <= 0 or count > last - first:
                return False
            j = first
            for _ in range(count):
                step = take_number(state, data, 6)
                if step < 0 or step >= last - j:
                    return False
                j += step
                outlier[j] = 1
                x[j] = take_raw(state, data)
                j += 1
    return True


@kernel
def put_index(state: Words, out: Bytes, index: int, hazards: Integers) -> None:
    """Codes the number of the winning candidate: stop or go on, then a plain number for the long tail."""
    for at in range(hazards.size):
        put_bit(state, out, index == at, hazards[at], _BITS)
        if index == at:
            return
    put_number(state, out, index - hazards.size, 2)


@kernel
def take_index(state: Words, data: Bytes, hazards: Integers) -> int:
    """The mirror of `put_index`; −1 for a forged payload."""
    for at in range(hazards.size):
        if take_bit(state, data, hazards[at], _BITS):
            return at
    tail = take_number(state, data, 2)
    # Random access to candidates counts in 64 bits; no encoder gets near this.
    return -1 if tail < 0 or tail >= 1 << 32 else tail + hazards.size


@kernel
def put_plane(
    state: Words, out: Bytes, surprises: Bytes, classes: Bytes, bins: Bytes, weights: Integers
) -> None:
    """Codes the surprises of one plane."""
    exceptions = 0
    for j in range(surprises.size):
        if surprises[j] and weights[classes[j], bins[j]] == 0:
            exceptions += 1
    put_bit(state, out, exceptions > 0, _ANY_EXCEPTION, _BITS)
    if exceptions:
        put_number(state, out, exceptions - 1, 0)
        before = 0
        for j in range(surprises.size):
            if surprises[j] and weights[classes[j], bins[j]] == 0:
                put_number(state, out, j - before, 10)
                before = j + 1
    for j in range(surprises.size):
        weight = weights[classes[j], bins[j]]
        if weight:
            put_bit(state, out, surprises[j], weight, _BITS)


@kernel
def take_plane(
    state: Words, data: Bytes, surprises: Bytes, classes: Bytes, bins: Bytes, weights: Integers
) -> bool:
    """The mirror of `put_plane`; False for a forged payload."""
    surprises[:] = 0
    if take_bit(state, data, _ANY_EXCEPTION, _BITS):
        count = take_number(state, data, 0) + 1
        if count <= 0 or count > surprises.size:
            return False
        j = 0
        for _ in range(count):
            step = take_number(state, data, 10)
            if step < 0 or step >= surprises.size - j:
                return False
            j += step
            surprises[j] = 1
            j += 1
    for j in range(surprises.size):
        weight = weights[classes[j], bins[j]]
        if weight:
            surprises[j] = take_bit(state, data, weight, _BITS)
    return True
