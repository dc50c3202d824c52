"""What follows from the size and the one scale number in a message, computed once.

The scale number says how large the statistic is against the noise (s² = ‖u‖²/(nσ²), in steps of 2^¼). It
fixes the reference distribution, the number of branch bits, the blocks of states and the class of every leaf.
A number that does not fit the statistic costs bits, never exactness. Integers and correctly rounded
operations only.

The encoder alone screens states by a fast approximation of ln S(x) with a known error: S(x) is the density of
a state under the target over its density under the reference. Selecting a state compares many of them; a
comparison that the approximation cannot decide is decided exactly, so the distribution of the selected state
does not depend on the approximation.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from sottovoce.channel.coding import Bytes, Integers, Reals, kernel, load_tables
from sottovoce.channel.polar.folding import state_ratio, unfold

SCALES = 86
MOST_FOLDS = 5
BLOCK_NATS = 0.05  # information of one block of states: larger blocks need many more candidates
_FOLD_NATS = 1.0  # states may hold this much before another branch bit is cheaper
_QUARTER_OCTAVES = (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)
_SMALLEST_EXPONENT = -20
_CLASS_SHIFT = 51  # half octaves of a float64's bits
_CLASS_BASE = (1023 - 24) << 1
_BIN_SHIFT = 50  # quarter octaves
_BIN_BASE = (1023 - 16) << 2
CLASSES, BINS = 64, 64
_BINS = 1024
_FEW, _MANY = 4, 8  # terms in v²: few are enough while s is small
_FEW_UP_TO = 0.06
_REACH = 3.0  # the approximation covers |v| ≤ 3s
_WORST = 1e-4  # bins that do worse are always computed exactly
_SAFETY = 4.0  # claimed error over the largest error seen in a bin
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Model:
    """Everything but the secret that a decoder needs before it reads the payload."""

    size: int  # a power of two
    s2: float
    folds: int
    block_nats: float  # information of one block of states
    edges: Integers  # block b holds the states edges[b] … edges[b + 1] − 1
    hazards: Integers  # weight out of 2^16 of "this candidate", given none before
    classes: Bytes  # (folds + 1, size): class of each leaf in each plane, the sign's plane last


def scale_squared(number: int) -> float:
    """s² of a scale number: 2^(number/4 − 20)."""
    return math.ldexp(_QUARTER_OCTAVES[number % 4], number // 4 + _SMALLEST_EXPONENT)


def scale_number(s2: float) -> int:
    """The scale number that fits s², as near as the grid allows."""
    if s2 <= 0.0:
        return 0
    return min(max(round(4.0 * (math.log2(s2) - _SMALLEST_EXPONENT)), 0), SCALES - 1)


def state_nats(size: int, s2: float, folds: int) -> float:
    """Information left in `size` states after folding: n s⁴/2 · 4^−k."""
    return 0.5 * size * s2 * s2 / (1 << 2 * folds)


def folds_for(size: int, s2: float) -> int:
    """Branch bits per coordinate: as many as leave the states little to say."""
    folds = 0
    while folds < MOST_FOLDS and state_nats(size, s2, folds) > _FOLD_NATS:
        folds += 1
    return folds


@functools.lru_cache(maxsize=32)
def model_for(size: int, number: int) -> Model:
    """The model for `size` coordinates (a power of two) and a scale number below SCALES."""
    s2 = scale_squared(number)
    folds = folds_for(size, s2)
    nats = state_nats(size, s2, folds)
    blocks = min(max(math.ceil(nats / BLOCK_NATS), 1), size)
    edges = np.arange(blocks + 1) * size // blocks
    tables = load_tables()
    row = min(max(math.frexp(nats / blocks)[1] + len(tables.hazards) + 3, 0), len(tables.hazards) - 1)
    starts = tables.mean_squares[number, folds, : folds + 1]
    classes = np.stack([leaf_classes(size, float(start) * 2.0**-32) for start in starts])
    return Model(size, s2, folds, nats / blocks, edges, tables.hazards[row], classes)


@kernel
def leaf_classes(size: int, mean_square: float) -> Bytes:
    """Class of every leaf, by its expected squared bias when every bit starts with `mean_square`.

    Half octaves of m/(1 − m), where m goes to m² in the first half of a node and to 2m − 1.15m² + 0.15m³ in
    the second: between an erasure channel (1.0) and the true evolution, within 1 % of the best ordering.
    """
    m = np.empty(size)
    m[0] = mean_square
    width = 1
    while width < size:
        for j in range(width - 1, -1, -1):
            a = m[j]
            m[2 * j] = max(a * a, 1e-40)
            m[2 * j + 1] = a * (2.0 - a * (1.15 - 0.15 * a))
        width *= 2
    classes = np.empty(size, np.uint8)
    odds = m / np.maximum(1.0 - m, 1e-9)
    bits = odds.view(np.int64)
    for j in range(size):
        classes[j] = min(max((bits[j] >> _CLASS_SHIFT) - _CLASS_BASE, 0), CLASSES - 1)
    return classes


@kernel
def dither_bins(dithers: Reals) -> Bytes:
    """Bin of every |dither|: quarter octaves, the last one just below 1."""
    bits = np.abs(dithers).view(np.int64)
    bins = np.empty(dithers.size, np.uint8)
    for j in range(dithers.size):
        bins[j] = min(max((bits[j] >> _BIN_SHIFT) - _BIN_BASE, 0), BINS - 1)
    return bins


@functools.lru_cache(maxsize=32)
def screen(folds: int, s2: float) -> Reals:
    """Per bin of x: coefficients in v²/(3s)², their slopes in x, and the error."""
    terms = _FEW if s2 <= _FEW_UP_TO else _MANY
    most = _REACH * _REACH * s2
    nodes = 0.5 - 0.5 * np.cos(np.pi * (np.arange(terms) + 0.5) / terms)
    solve = np.linalg.inv(np.vander(nodes, terms, increasing=True))
    ends = np.clip(np.arange(_BINS + 1) / _BINS, 1e-9, 1.0 - 1e-9)
    edges = _log_ratios(ends, most * nodes, folds, s2) @ solve.T
    rows = np.zeros((_BINS, 2 * terms + 1))
    rows[:, :terms] = edges[:-1]
    rows[:, terms:-1] = np.diff(edges, axis=0)
    checks = np.array([0.0, 0.02, 0.1, 0.3, 0.6, 0.85, 1.0])
    powers = np.vander(checks, terms, increasing=True)
    for place in (0.02, 0.25, 0.5, 0.75, 0.98):
        exact = _log_ratios((np.arange(_BINS) + place) / _BINS, most * checks, folds, s2)
        guessed = (rows[:, :terms] + place * rows[:, terms:-1]) @ powers.T
        rows[:, -1] = np.maximum(rows[:, -1], np.abs(exact - guessed).max(axis=1))
    rows[:, -1] = np.where(rows[:, -1] < _WORST, _SAFETY * rows[:, -1] + _ROUNDING, np.inf)
    return rows


def reduced_squares(v: Reals, s2: float) -> Reals:
    """v²/(3s)²: what `guess` takes; above 1 the approximation does not reach."""
    return v * v / (_REACH * _REACH * s2)


@kernel
def _log_ratios(x: Reals, squares: Reals, folds: int, s2: float) -> Reals:
    """ln S at every x and every v with v² in `squares`."""
    c = math.sqrt(1.0 + s2)
    out = np.zeros((x.size, squares.size))
    for i in range(x.size):
        for branch in range(1 << folds):
            h = unfold(x[i], branch, folds)
            weight = math.exp(-0.5 * s2 * h * h)
            for m in range(squares.size):
                out[i, m] += weight * math.cosh(c * h * math.sqrt(squares[m]))
        for m in range(squares.size):
            out[i, m] = math.log(out[i, m] * c / (1 << folds)) - 0.5 * squares[m]
    return out


@kernel
def log_ratio(x: float, v: float, folds: int, s2: float) -> float:
    """ln S(x) for one coordinate, exactly."""
    return math.log(state_ratio(x, v, folds, s2))


@kernel
def guess(x: Reals, squares: Reals, rows: Reals, value: Reals, error: Reals) -> None:
    """Fills `value` with ln S of each coordinate and `error` with its bound, infinite where out of reach."""
    if rows.shape[1] // 2 == _FEW:
        for j in range(x.size):
            at = np.int64(x[j] * _BINS)
            f, t = x[j] * _BINS - at, squares[j]
            r = rows[at, 3] + f * rows[at, 7]
            r = r * t + (rows[at, 2] + f * rows[at, 6])
            r = r * t + (rows[at, 1] + f * rows[at, 5])
            value[j] = r * t + (rows[at, 0] + f * rows[at, 4])
            error[j] = rows[at, 8]
    else:
        for j in range(x.size):
            at = np.int64(x[j] * _BINS)
            f, t = x[j] * _BINS - at, squares[j]
            r = rows[at, 7] + f * rows[at, 15]
            r = r * t + (rows[at, 6] + f * rows[at, 14])
            r = r * t + (rows[at, 5] + f * rows[at, 13])
            r = r * t + (rows[at, 4] + f * rows[at, 12])
            r = r * t + (rows[at, 3] + f * rows[at, 11])
            r = r * t + (rows[at, 2] + f * rows[at, 10])
            r = r * t + (rows[at, 1] + f * rows[at, 9])
            value[j] = r * t + (rows[at, 0] + f * rows[at, 8])
            error[j] = rows[at, 16]
    for j in range(x.size):
        error[j] = np.inf if squares[j] > 1.0 else error[j]
