"""Successive cancellation: sample n independent biased bits in an order that concentrates the surprises.

The polar transform turns bits B into U with B = U·G. For i = 1 … n the exact bias of U_i given U_<i follows
from the biases of B by a·b and (b ± a)/(1 ± ab), and U_i is set by a dither that both ends share, so the law
of B is exact whatever the biases. Most U_i are as good as unbiased and equal what the dither alone says; only
the exceptions, the surprises, are sent. A subtree none of whose dithers can be crossed is decided at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel.kernel import kernel, summing_kernel

Reals = NDArray[np.float64]
Bits = NDArray[np.uint8]

# A leaf's bias is at most Σ artanh|d| over its subtree, and artanh|d| ≤ 1.0987·|d| while |d| ≤ ½.
_LEAF_BOUND = 1.1002


@kernel
def dithers_from(words: NDArray[np.uint64]) -> Reals:
    """Dithers uniform on [−1, 1): twice the distance of a shared uniform from ½."""
    dithers = np.empty(words.size)
    for j in range(words.size):
        dithers[j] = np.float64(np.int64(words[j] ^ np.uint64(1 << 63))) * 2.0**-63
    return dithers


@kernel
def _smallest(dithers: Reals) -> Reals:
    """Heap of the smallest |dither| in each subtree: 1 is the root, 2i and 2i + 1 the halves of i."""
    size = dithers.size
    heap = np.empty(2 * size)
    for j in range(size):
        heap[size + j] = abs(dithers[j])
    first = size // 2
    while first > 0:
        for node in range(first, 2 * first):
            a, b = heap[2 * node], heap[2 * node + 1]
            heap[node] = a if a < b else b
        first //= 2
    return heap


@summing_kernel
def _total(values: Reals) -> float:
    total = 0.0
    for j in range(values.size):
        total += abs(values[j])
    return total


@kernel
def transform(bits: Bits) -> None:
    """Multiply by G over GF(2), in place; its own inverse. The length is a power of two."""
    half = 1
    if bits.size >= 8:
        words = bits.view(np.uint64)  # eight bits at a time; the first byte is the lowest
        for j in range(words.size):
            word = words[j]
            word ^= (word >> np.uint64(8)) & np.uint64(0x0001000100010001)
            word ^= (word >> np.uint64(16)) & np.uint64(0x0000010100000101)
            words[j] = word ^ (word >> np.uint64(32)) & np.uint64(0x0000000001010101)
        half = 8
    while half < bits.size:
        for start in range(0, bits.size, 2 * half):
            low, high = bits[start : start + half], bits[start + half : start + 2 * half]
            for j in range(half):
                low[j] ^= high[j]
        half *= 2


@kernel
def cancel(bias: Reals, dithers: Reals, bits: Bits, surprises: Bits) -> None:
    """Sample bits with P(0) − P(1) = bias: fills `bits` (B) and `surprises` (where U_i defies its dither).

    All arrays have the same length, a power of two.
    """
    size = bias.size
    depths = 0
    while size >> depths > 1:
        depths += 1
    smallest = _smallest(dithers)
    rows = np.empty(size)  # biases of the current node at depths 1, 2, …, one after the other
    stage = np.zeros(depths + 1, np.int64)
    surprises[:] = 0
    depth, at = 0, 0
    while depth >= 0:
        width = size >> depth
        half = width >> 1
        first = 0 if depth == 0 else size - (size >> (depth - 1))
        here = bias if depth == 0 else rows[first : first + width]
        if stage[depth] == 0:
            if width == 1:
                bits[at] = dithers[at] < -here[0]
                surprises[at] = bits[at] ^ (dithers[at] < 0.0)
                depth -= 1
                continue
            total = _total(here)
            if total < 0.5 and _LEAF_BOUND * total < smallest[(1 << depth) + (at >> (depths - depth))]:
                for j in range(at, at + width):
                    bits[j] = dithers[j] < 0.0
                transform(bits[at : at + width])
                depth -= 1
                continue
            below = rows[size - (size >> depth) : size - (size >> depth) + half]
            for j in range(half):
                below[j] = here[j] * here[j + half]
            stage[depth] = 1
            depth += 1
            stage[depth] = 0
        elif stage[depth] == 1:
            below = rows[size - (size >> depth) : size - (size >> depth) + half]
            known = bits[at : at + half]
            for j in range(half):
                a = here[j] * (1.0 - 2.0 * known[j])
                below[j] = (here[j + half] + a) / (1.0 + a * here[j + half])
            at += half
            stage[depth] = 2
            depth += 1
            stage[depth] = 0
        else:
            at -= half
            for j in range(at, at + half):
                bits[j] ^= bits[j + half]
            depth -= 1
