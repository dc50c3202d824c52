"""A fast approximation of ln S(x) with a known error: the exact one is computed only where it matters.

S(x) is the density of a state under the target over its density under the reference. Selecting a state
compares many of them; a comparison that the approximation cannot settle is settled exactly, so the law of the
selected state does not depend on the approximation.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.channel.kernel import kernel
from sottovoce.channel.polar.folding import state_ratio, unfold

Reals = NDArray[np.float64]

_BINS = 1024
_FEW, _MANY = 4, 8  # terms in v²: few are enough while s is small
_FEW_UP_TO = 0.06
_REACH = 3.0  # the approximation covers |v| ≤ 3s
_WORST = 1e-4  # bins that do worse are always computed exactly
_SAFETY = 4.0  # claimed error over the largest error seen in a bin
_ROUNDING = 1e-13


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
    """Fill `value` with ln S of each coordinate and `error` with its bound, infinite where out of reach."""
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
