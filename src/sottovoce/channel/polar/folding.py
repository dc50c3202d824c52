"""One output coordinate as a state, branch bits and a sign, all uniform under the reference distribution.

Reference N(0, c²) with c² = 1 + s²: |y|/c is the half-normal quantile of a uniform q; q lies in one of 2^k
intervals (the branch), and its place within the interval, mirrored in every odd one, is the state x ∈ (0, 1).
Mirroring makes the distribution of x under the target N(v, 1) flat to order 4^−k, so x carries almost no
information.

Bits are sampled by successive cancellation, in an order that concentrates the surprises. The polar transform
turns bits B into U with B = U·G. For i = 1 … n the exact bias of U_i given U_<i follows from the biases of B
by a·b and (b ± a)/(1 ± ab), and U_i is set by a dither that both ends share, so the distribution of B is
exact whatever the biases. Most U_i are as good as unbiased and equal what the dither alone says; only the
exceptions, the surprises, are sent. A subtree none of whose dithers can be crossed is decided at once.
"""

from __future__ import annotations

import math

import numpy as np

from sottovoce.channel.coding import Bytes, Integers, Reals, Words, kernel, summing_kernel
from sottovoce.channel.polar.vector import exponentials, half_normal, half_normals, upper_tails

_CHUNK = 512  # coordinates worked on at a time: temporaries stay in the fastest cache
# A leaf's bias is at most Σ artanh|d| over its subtree, and artanh|d| ≤ 1.0987·|d| while |d| ≤ ½.
_LEAF_BOUND = 1.1002


@kernel
def unfold(x: float, branch: int, folds: int) -> float:
    """|y|/c for state x in the given branch, 0 ≤ branch < 2^folds."""
    width = 1.0 / (1 << folds)
    above, below = (x, 1.0 - x) if branch & 1 else (1.0 - x, x)
    return half_normal((branch + below) * width, ((1 << folds) - 1 - branch + above) * width)


@kernel
def fold(sizes: Reals, folds: int) -> Reals:
    """The states x of |y|/c = sizes."""
    count = 1 << folds
    p, bits = np.empty(sizes.size), np.empty(sizes.size, np.int64)
    upper_tails(sizes, p, bits)
    x = np.empty(sizes.size)
    for j in range(sizes.size):
        q = 1.0 - p[j]
        branch = min(int(q * count), count - 1)
        # Odd branches are measured from above, where p keeps the digits that q has lost in the tail.
        x[j] = p[j] * count - (count - 1 - branch) if branch & 1 else q * count - branch
    return x


@kernel
def state_ratio(x: float, v: float, folds: int, s2: float) -> float:
    """S(x): density of the state under the target N(v, 1) over its density under the reference."""
    c = math.sqrt(1.0 + s2)
    total = 0.0
    for branch in range(1 << folds):
        h = unfold(x, branch, folds)
        e = math.exp(c * h * v)
        total += math.exp(-0.5 * s2 * h * h) * (e + 1.0 / e)
    return total * c * math.exp(-0.5 * v * v) / (2 << folds)


@kernel
def branch_odds(x: Reals, v: Reals, folds: int, s2: float) -> Reals:
    """Relative odds of the branches given the states under the target: shape (2^folds, n)."""
    c = math.sqrt(1.0 + s2)
    count = 1 << folds
    odds = np.empty((count, x.size))
    width = 1.0 / count
    most = min(_CHUNK, x.size)
    q, p, h = np.empty(most), np.empty(most), np.empty(most)
    z, e, bits = np.empty(most), np.empty(most), np.empty(most, np.int64)
    for first in range(0, x.size, most):
        xs, vs = x[first : first + most], v[first : first + most]
        for branch in range(count):
            row = odds[branch, first : first + most]
            for j in range(most):
                below = 1.0 - xs[j] if branch & 1 else xs[j]
                above = xs[j] if branch & 1 else 1.0 - xs[j]
                q[j] = (branch + below) * width
                p[j] = (count - 1 - branch + above) * width
            half_normals(q, p, branch * width, (branch + 1) * width, h, bits)
            for j in range(most):
                z[j] = h[j] * (c * vs[j] - 0.5 * s2 * h[j])
            exponentials(z, row, bits)
            for j in range(most):
                z[j] = h[j] * (-c * vs[j] - 0.5 * s2 * h[j])
            exponentials(z, e, bits)
            for j in range(most):
                row[j] += e[j]
    return odds


@kernel
def branch_bias(odds: Reals, bias: Reals) -> None:
    """P(0) − P(1) of the coarsest branch bit that `odds` leave open."""
    half = odds.shape[0] // 2
    low, high = np.zeros(bias.size), np.zeros(bias.size)
    for row in range(half):
        low += odds[row]
        high += odds[row + half]
    for j in range(bias.size):
        bias[j] = (low[j] - high[j]) / (low[j] + high[j])


@kernel
def given_bit(odds: Reals, bit: Bytes) -> Reals:
    """The odds that remain when the coarsest open branch bit is known; overwrites their first half."""
    half = odds.shape[0] // 2
    is_one = bit.astype(np.float64)
    for row in range(half):
        zero, one = odds[row], odds[row + half]
        for j in range(bit.size):
            zero[j] = one[j] * is_one[j] + zero[j] * (1.0 - is_one[j])  # exact, and faster than a branch
    return odds[:half]


@kernel
def magnitudes(x: Reals, branch: Integers, folds: int, s2: float) -> Reals:
    """|y| of every coordinate from its state and branch."""
    c = math.sqrt(1.0 + s2)
    count = 1 << folds
    width = 1.0 / count
    q, p = np.empty(x.size), np.empty(x.size)
    h, bits = np.empty(x.size), np.empty(x.size, np.int64)
    for j in range(x.size):
        odd = branch[j] & 1
        q[j] = (branch[j] + (1.0 - x[j] if odd else x[j])) * width
        p[j] = (count - 1 - branch[j] + (x[j] if odd else 1.0 - x[j])) * width
    half_normals(q, p, 0.0, 1.0, h, bits)
    h *= c
    return h


@kernel
def sign_bias(magnitude: Reals, v: Reals, bias: Reals) -> None:
    """P(y > 0) − P(y < 0) given |y|: tanh(|y|·v)."""
    z, bits = np.empty(v.size), np.empty(v.size, np.int64)
    for j in range(v.size):
        z[j] = 2.0 * magnitude[j] * v[j]
    exponentials(z, bias, bits)
    for j in range(v.size):
        bias[j] = (bias[j] - 1.0) / (bias[j] + 1.0)


@kernel
def dithers_from(words: Words) -> Reals:
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
def transform(bits: Bytes) -> None:
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
def cancel(bias: Reals, dithers: Reals, bits: Bytes, surprises: Bytes) -> None:
    """Samples bits with P(0) − P(1) = bias: fills `bits` (B) and `surprises` (where U_i defies its dither).

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
