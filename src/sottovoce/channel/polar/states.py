"""States by Poisson functional representation: pick, among shared candidates, one that follows the target.

Candidate i of a block has a private arrival time T_i and wins with the smallest T_i / S(x⁽ⁱ⁾), S being the
product of the density ratios of its coordinates; only its index is sent. S is unbounded, so a private sample
x* of the target decides first which coordinates (S_j > τ), or whether the whole block (product > C), go raw;
the others are selected among candidates that would not have gone raw. The mixture is exactly the target, and
the expected number of candidates is at most C + 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel.kernel import kernel
from sottovoce.channel.polar.folding import fold
from sottovoce.channel.polar.model import Model
from sottovoce.channel.polar.screen import guess, log_ratio, screen
from sottovoce.channel.polar.vector import half_normals
from sottovoce.channel.randomness import PrivateRandomness, SharedRandomness

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]
Bits = NDArray[np.uint8]

_LOG_TAU = math.log(2.0)
# C is only the encoder's concern: the fewer candidates the smaller, the fewer raw blocks the larger.
_LARGEST_LOG_C = math.log(6.0)
_DEVIATIONS = 4.75  # of a block's ln S, which is about normal with variance twice its information
_FEW = 3  # up to this many blocks, candidates are drawn block by block
_LAYERS = 4  # candidates drawn together
RAW = -1  # index of a block that goes raw


@dataclass(frozen=True)
class States:
    """The selected states, and what a decoder must be told to find them."""

    x: Reals  # (n,)
    index: Integers  # (blocks,): number of the winning candidate, or RAW
    outlier: Bits  # (n,): 1 where the state goes raw


def candidates(
    shared: SharedRandomness, model: Model, index: Integers, only: NDArray[np.bool_]
) -> NDArray[np.uint64]:
    """The words of candidate `index[b]` of every block b with only[b]; other places hold anything."""
    words = np.empty(model.size, np.uint64)
    blocks = np.flatnonzero(only)
    numbers, counts = np.unique(index[blocks], return_counts=True)
    for number in numbers[counts > _FEW]:
        words[:] = shared.words("states", model.size, int(number) * model.size)
    for block in blocks:
        if counts[numbers == index[block]] <= _FEW:
            first, last = int(model.edges[block]), int(model.edges[block + 1])
            words[first:last] = shared.words("states", last - first, int(index[block]) * model.size + first)
    return words


def select(v: Reals, model: Model, shared: SharedRandomness, private: PrivateRandomness) -> States:
    """Draw states from the target given the rotated statistic v (in units of σ)."""
    rows = screen(model.folds, model.s2)
    blocks = model.edges.size - 1
    log_c = min(_LARGEST_LOG_C, _DEVIATIONS * math.sqrt(2.0 * model.block_nats))
    x = np.empty(model.size)
    outlier = np.zeros(model.size, np.uint8)
    index = np.zeros(blocks, np.int64)
    noise = private.words(model.size)
    _screen_private(v, noise, model.edges, model.folds, model.s2, log_c, rows, x, outlier, index)
    chosen = np.empty(model.size)
    best = np.full((3, blocks), [[np.inf], [0.0], [0.0]])  # smallest ln T − ln S, its error, its ln T
    arrival = np.zeros(blocks)
    active = index != RAW
    layer = 0
    while active.any():
        if layer % _LAYERS == 0:
            gaps = -np.log(private.uniform(_LAYERS * blocks)).reshape(_LAYERS, blocks)
        if layer < _LAYERS:
            if layer == 0:
                early = shared.words("states", _LAYERS * model.size).reshape(_LAYERS, model.size)
            words = early[layer]
        else:
            words = candidates(shared, model, np.full(blocks, layer), active)
        arrival += gaps[layer % _LAYERS]
        _race(
            words, v, outlier, model.edges, model.folds, model.s2, log_c, rows,
            layer, arrival, active, best, index, chosen,
        )  # fmt: skip
        layer += 1
    return States(_merge(x, chosen, outlier, index, model.edges), index, outlier)


@kernel
def uniform(word: np.uint64) -> float:
    """The state that a shared word stands for."""
    return (np.float64(word >> np.uint64(11)) + 0.5) * 2.0**-53


@kernel
def uniforms(words: NDArray[np.uint64]) -> Reals:
    """`uniform` of every word."""
    x = np.empty(words.size)
    for j in range(words.size):
        x[j] = uniform(words[j])
    return x


@kernel
def raw_word(x: float) -> int:
    """The 53-bit integer that sends a state raw."""
    return min(max(int(x * 2.0**53), 0), (1 << 53) - 1)


@kernel
def _normals(words: NDArray[np.uint64]) -> Reals:
    """A standard normal from every word: 53 bits of magnitude, one of sign."""
    q, p = np.empty(words.size), np.empty(words.size)
    size, bits = np.empty(words.size), np.empty(words.size, np.int64)
    for j in range(words.size):
        q[j] = uniform(words[j])
        p[j] = 1.0 - q[j]
    half_normals(q, p, 0.0, 1.0, size, bits)
    for j in range(words.size):
        size[j] = -size[j] if words[j] & np.uint64(1) else size[j]
    return size


@kernel
def _screen_private(
    v: Reals,
    noise: NDArray[np.uint64],
    edges: Integers,
    folds: int,
    s2: float,
    log_c: float,
    rows: Reals,
    x: Reals,
    outlier: Bits,
    index: Integers,
) -> None:
    """Draw x* from the target; mark outliers, and blocks whose remaining product exceeds C."""
    c = math.sqrt(1.0 + s2)
    normal = _normals(noise)
    for block in range(edges.size - 1):
        total, error = 0.0, 0.0
        for j in range(edges[block], edges[block + 1]):
            word = raw_word(fold(abs(v[j] + normal[j]) / c, folds))
            x[j] = (np.float64(word) + 0.5) * 2.0**-53
            value, slack = guess(x[j], v[j], folds, s2, rows)
            if value + slack > _LOG_TAU:
                value, slack = log_ratio(x[j], v[j], folds, s2), 0.0
                if value > _LOG_TAU:
                    outlier[j] = 1
                    continue
            total += value
            error += slack
        if abs(total - log_c) <= error:
            total = _exact(x, v, outlier, edges[block], edges[block + 1], folds, s2)
        index[block] = RAW if total > log_c else 0


@kernel
def _exact(
    x: Reals, v: Reals, outlier: Bits, first: int, last: int, folds: int, s2: float
) -> float:
    """ln of the product of S_j over a block's coordinates that do not go raw."""
    total = 0.0
    for j in range(first, last):
        if not outlier[j]:
            total += log_ratio(x[j], v[j], folds, s2)
    return total


@kernel
def _race(
    words: NDArray[np.uint64],
    v: Reals,
    outlier: Bits,
    edges: Integers,
    folds: int,
    s2: float,
    log_c: float,
    rows: Reals,
    layer: int,
    arrival: Reals,
    active: NDArray[np.bool_],
    best: Reals,
    index: Integers,
    chosen: Reals,
) -> None:
    """Let candidate `layer` of every active block compete; blocks that no later one can win turn inactive."""
    x = np.empty(words.size)
    for block in range(active.size):
        if not active[block]:
            continue
        time = math.log(arrival[block])
        if time - log_c >= best[0, block] + best[1, block]:
            active[block] = False
            continue
        first, last = edges[block], edges[block + 1]
        total, error = 0.0, 0.0
        admitted = True
        for j in range(first, last):
            x[j] = uniform(words[j])
            if outlier[j]:
                continue
            value, slack = guess(x[j], v[j], folds, s2, rows)
            if value + slack > _LOG_TAU:
                value, slack = log_ratio(x[j], v[j], folds, s2), 0.0
                if value > _LOG_TAU:
                    admitted = False
                    break
            total += value
            error += slack
        if not admitted:
            continue
        if abs(total - log_c) <= error:
            total, error = _exact(x, v, outlier, first, last, folds, s2), 0.0
        if total > log_c:
            continue
        score = time - total
        if abs(score - best[0, block]) <= error + best[1, block]:
            score = time - _exact(x, v, outlier, first, last, folds, s2)
            error = 0.0
            if best[1, block] > 0.0:
                exact = _exact(chosen, v, outlier, first, last, folds, s2)
                best[0, block], best[1, block] = best[2, block] - exact, 0.0
        if score < best[0, block]:
            best[0, block], best[1, block], best[2, block] = score, error, time
            index[block] = layer
            chosen[first:last] = x[first:last]


@kernel
def _merge(x: Reals, chosen: Reals, outlier: Bits, index: Integers, edges: Integers) -> Reals:
    """The private sample where it goes raw, the winning candidates elsewhere."""
    for block in range(index.size):
        if index[block] != RAW:
            for j in range(edges[block], edges[block + 1]):
                if not outlier[j]:
                    x[j] = chosen[j]
    return x
