"""States by Poisson functional representation: pick, among shared candidates, one that follows the target.

Candidate i of a block has a private arrival time T_i and wins with the smallest T_i / S(x⁽ⁱ⁾), S being the
product of the density ratios of its coordinates; only its index is sent. S is unbounded, so a private sample
x* of the target decides first which coordinates (S_j > τ) go raw, or whether the whole block does (product
> C, or several such coordinates); the others are selected among candidates that would not have gone raw. The
mixture is exactly the target; where the model fits, about C + 1 candidates are looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel.coding import Bytes, Integers, Reals, Words, kernel
from sottovoce.channel.polar.folding import fold
from sottovoce.channel.polar.model import Model, guess, log_ratio, reduced_squares, screen
from sottovoce.channel.polar.vector import half_normals
from sottovoce.channel.wire import BELOW_ONE, PrivateRandomness, SharedRandomness

# v, v²/(3s)², edges of blocks, folds, s², ln C, rows of `screen`
Screened = tuple[Reals, Reals, Integers, int, float, float, Reals]

_LOG_TAU = math.log(2.0)
# C is only the encoder's concern: the fewer candidates the smaller, the fewer raw blocks the larger.
_LARGEST_LOG_C = math.log(6.0)
_DEVIATIONS = 5.25  # of a block's ln S, which is about normal with variance twice its information
_FEW = 3  # up to this many blocks, candidates are drawn block by block
GROUP = 4  # candidates of a block that lie together in the shared randomness
# Where the model is far off, outliers abound and candidates without any are rare: then the block goes raw.
_MOST_OUTLIERS = 2
RAW = -1  # index of a block that goes raw


@dataclass(frozen=True)
class States:
    """The selected states, and what a decoder must be told to find them."""

    x: Reals  # (n,)
    index: Integers  # (blocks,): number of the winning candidate, or RAW
    outlier: Bytes  # (n,): 1 where the state goes raw


def chosen_words(shared: SharedRandomness, model: Model, index: Integers) -> Words:
    """The words of candidate `index[b]` of every block b that is not RAW; other places hold anything."""
    words = np.empty(model.size, np.uint64)
    early = shared.words("states", GROUP * model.size) if index.size > _FEW else None
    for block in np.flatnonzero(index != RAW):
        first, last = int(model.edges[block]), int(model.edges[block + 1])
        group, member = divmod(int(index[block]), GROUP)
        start = GROUP * (group * model.size + first) + member * (last - first)
        if early is not None and group == 0:
            words[first:last] = early[start : start + last - first]
        else:
            words[first:last] = shared.words("states", last - first, start)
    return words


def _group(shared: SharedRandomness, model: Model, group: int, wanted: NDArray[np.bool_]) -> Words:
    """Candidates GROUP·group … of the wanted blocks: block b's lie together from GROUP·edges[b] on."""
    blocks = np.flatnonzero(wanted)
    start = group * GROUP * model.size
    if blocks.size > _FEW:
        return shared.words("states", GROUP * model.size, start)
    words = np.empty(GROUP * model.size, np.uint64)
    for block in blocks:
        first, last = GROUP * int(model.edges[block]), GROUP * int(model.edges[block + 1])
        words[first:last] = shared.words("states", last - first, start + first)
    return words


def select(v: Reals, model: Model, shared: SharedRandomness, private: PrivateRandomness) -> States:
    """Draws states from the target given the rotated statistic v (in units of σ)."""
    rows, squares = screen(model.folds, model.s2), reduced_squares(v, model.s2)
    blocks = model.edges.size - 1
    log_c = min(_LARGEST_LOG_C, _DEVIATIONS * math.sqrt(2.0 * model.block_nats))
    screened = (v, squares, model.edges, model.folds, model.s2, log_c, rows)
    x, outlier, index = np.empty(model.size), np.zeros(model.size, np.uint8), np.zeros(blocks, np.int64)
    _screen_private(screened, private.words(model.size), x, outlier, index)
    chosen = np.empty(model.size)
    best = np.full((3, blocks), [[np.inf], [0.0], [0.0]])  # smallest ln T − ln S, its error, its ln T
    arrival = np.zeros(blocks)
    active = index != RAW
    group = 0
    while active.any():
        words = _group(shared, model, group, active)
        gaps = private.uniform(GROUP * blocks)
        _race(screened, words, outlier, group, gaps, arrival, active, best, index, chosen)
        group += 1
    _merge(x, chosen, outlier, index, model.edges)
    return States(x, index, outlier)


@kernel
def uniform(word: np.uint64) -> float:
    """The state that a shared word stands for."""
    return raw_state(word >> np.uint64(11))


@kernel
def uniforms(words: Words) -> Reals:
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
def raw_state(word: int | np.uint64) -> float:
    """The state that a 53-bit integer stands for: the middle of what `raw_word` maps to it, below 1."""
    return min((np.float64(word) + 0.5) * 2.0**-53, BELOW_ONE)


@kernel
def _normals(words: Words) -> Reals:
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
def _screen_private(screened: Screened, noise: Words, x: Reals, outlier: Bytes, index: Integers) -> None:
    """Draws x* from the target; marks outliers, and blocks whose remaining product exceeds C."""
    v, squares, edges, folds, s2, log_c, rows = screened
    c = math.sqrt(1.0 + s2)
    sizes = _normals(noise)
    for j in range(v.size):
        sizes[j] = abs(v[j] + sizes[j]) / c
    folded = fold(sizes, folds)
    for j in range(v.size):
        x[j] = raw_state(raw_word(folded[j]))
    value, error = np.empty(v.size), np.empty(v.size)
    guess(x, squares, rows, value, error)
    for block in range(edges.size - 1):
        total, slack = 0.0, 0.0
        outliers = 0
        for j in range(edges[block], edges[block + 1]):
            if not value[j] + error[j] <= _LOG_TAU:
                value[j], error[j] = log_ratio(x[j], v[j], folds, s2), 0.0
                if value[j] > _LOG_TAU:
                    outlier[j] = 1
                    outliers += 1
                    continue
            total += value[j]
            slack += error[j]
        if abs(total - log_c) <= slack:
            total = _exact(x, v, outlier, edges[block], edges[block + 1], folds, s2)
        index[block] = RAW if total > log_c or outliers > _MOST_OUTLIERS else 0


@kernel
def _exact(x: Reals, v: Reals, outlier: Bytes, first: int, last: int, folds: int, s2: float) -> float:
    """ln of the product of S_j over a block's coordinates that do not go raw."""
    total = 0.0
    for j in range(first, last):
        if not outlier[j]:
            total += log_ratio(x[j], v[j], folds, s2)
    return total


@kernel
def _race(
    screened: Screened,
    words: Words,
    outlier: Bytes,
    group: int,
    gaps: Reals,
    arrival: Reals,
    active: NDArray[np.bool_],
    best: Reals,
    index: Integers,
    chosen: Reals,
) -> None:
    """Let a group of candidates of every active block compete; blocks that are decided turn inactive."""
    v, squares, edges, folds, s2, log_c, rows = screened
    x, value, error = np.empty(v.size), np.empty(v.size), np.empty(v.size)
    for block in range(active.size):
        first, last = edges[block], edges[block + 1]
        for member in range(GROUP):
            if not active[block]:
                break
            arrival[block] -= math.log(gaps[block * GROUP + member])
            time = math.log(arrival[block])
            if time - log_c >= best[0, block] + best[1, block]:
                active[block] = False
                break
            start = GROUP * first + member * (last - first)
            for j in range(first, last):
                x[j] = uniform(words[start + j - first])
            guess(x[first:last], squares[first:last], rows, value[first:last], error[first:last])
            total, slack = _product(x, v, outlier, first, last, folds, s2, value, error)
            if abs(total - log_c) <= slack:
                total, slack = _exact(x, v, outlier, first, last, folds, s2), 0.0
            if total > log_c:
                continue
            score = time - total
            if abs(score - best[0, block]) <= slack + best[1, block]:
                score = time - _exact(x, v, outlier, first, last, folds, s2)
                slack = 0.0
                if best[1, block] > 0.0:
                    exact = _exact(chosen, v, outlier, first, last, folds, s2)
                    best[0, block], best[1, block] = best[2, block] - exact, 0.0
            if score < best[0, block]:
                best[0, block], best[1, block], best[2, block] = score, slack, time
                index[block] = group * GROUP + member
                for j in range(first, last):
                    chosen[j] = x[j]


@kernel
def _product(
    x: Reals,
    v: Reals,
    outlier: Bytes,
    first: int,
    last: int,
    folds: int,
    s2: float,
    value: Reals,
    error: Reals,
) -> tuple[float, float]:
    """ln of the product of S_j over a block, and its error; infinite for a candidate with an outlier."""
    total, slack = 0.0, 0.0
    for j in range(first, last):
        if outlier[j]:
            continue
        if not value[j] + error[j] <= _LOG_TAU:
            value[j], error[j] = log_ratio(x[j], v[j], folds, s2), 0.0
            if value[j] > _LOG_TAU:
                return np.inf, 0.0
        total += value[j]
        slack += error[j]
    return total, slack


@kernel
def _merge(x: Reals, chosen: Reals, outlier: Bytes, index: Integers, edges: Integers) -> None:
    """Leaves the private sample where it goes raw, and puts the winning candidates elsewhere."""
    for block in range(index.size):
        if index[block] != RAW:
            for j in range(edges[block], edges[block + 1]):
                if not outlier[j]:
                    x[j] = chosen[j]
