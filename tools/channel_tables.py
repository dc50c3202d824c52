"""Make src/sottovoce/channel/tables.npz, the integer tables of the entropy codes (about five minutes).

Run as `python tools/channel_tables.py`. The tables are part of the wire format: changing them needs a new
format version. They shape the length of messages only; the law of what is decoded does not depend on them.
"""

from __future__ import annotations

import math
from pathlib import Path

import numba
import numpy as np
from scipy import special, stats

from sottovoce.channel.polar.folding import (
    branch_bias,
    branch_odds,
    dithers_from,
    fold,
    given_bit,
    magnitudes,
    sign_bias,
)
from sottovoce.channel.polar.model import (
    BINS,
    CLASSES,
    MOST_FOLDS,
    SCALES,
    dither_bins,
    folds_for,
    leaf_classes,
    scale_squared,
)

TARGET = Path(__file__).parent.parent / "src" / "sottovoce" / "channel" / "tables.npz"
HAZARD_ROWS, HAZARD_STEPS = 8, 12
SIZE = 16384


def accepts() -> np.ndarray:
    """P(a model value lies inside the edge) for edges −8 … 8 scales away, in steps of 1/16.

    A 2 % share of values four times as wide keeps rare large coordinates affordable.
    """
    gap = (np.arange(256) + 0.5) / 16 - 8
    share = 0.98 * stats.norm.cdf(gap) + 0.02 * stats.norm.cdf(gap / 4)
    return np.rint(share * 2**16).astype(np.uint16)


def hazards(rng: np.random.Generator, races: int = 200_000, length: int = 200) -> np.ndarray:
    """P(candidate i wins | none before) when ln S is normal with the information of the row's blocks."""
    rows = []
    for row in range(HAZARD_ROWS):
        nats = 0.75 * 2.0 ** (row - HAZARD_ROWS - 3)
        winners = np.concatenate(
            [
                np.argmin(
                    np.log(np.cumsum(rng.exponential(size=(races // 100, length)), axis=1))
                    - rng.normal(-nats, math.sqrt(2 * nats), (races // 100, length)),
                    axis=1,
                )
                for _ in range(100)
            ]
        )
        left = np.array([(winners >= i).sum() for i in range(HAZARD_STEPS)])
        hits = np.array([(winners == i).sum() for i in range(HAZARD_STEPS)])
        rows.append((hits + 0.5) / (left + 1.0))
    return np.clip(np.rint(np.array(rows) * 2**16), 1, 2**16 - 64).astype(np.uint16)


def biases(rng: np.random.Generator, s2: float, folds: int, size: int) -> list[np.ndarray]:
    """Biases of every plane of one message whose statistic has exactly the scale s²."""
    v = rng.standard_normal(size)
    v *= math.sqrt(s2 * size / (v @ v))
    sizes = np.abs(v + rng.standard_normal(size)) / math.sqrt(1 + s2)
    x = fold(sizes, folds)
    branch = np.minimum(
        (special.erf(sizes * math.sqrt(0.5)) * (1 << folds)).astype(np.int64), (1 << folds) - 1
    )
    odds = branch_odds(x, v, folds, s2)
    planes = []
    for plane in range(folds):
        bias = np.empty(size)
        branch_bias(odds, bias)
        odds = given_bit(odds, (branch >> (folds - 1 - plane) & 1).astype(np.uint8))
        planes.append(bias)
    bias = np.empty(size)
    sign_bias(magnitudes(x, branch, folds, s2), v, bias)
    return [*planes, bias]


def mean_squares(rng: np.random.Generator) -> np.ndarray:
    """E[bias²]·2^32 by scale number, folds and plane."""
    table = np.zeros((SCALES, MOST_FOLDS + 1, MOST_FOLDS + 1))
    for number in range(SCALES):
        for folds in range(MOST_FOLDS + 1):
            samples = [biases(rng, scale_squared(number), folds, SIZE) for _ in range(4)]
            for plane in range(folds + 1):
                table[number, folds, plane] = np.mean([np.mean(s[plane] ** 2) for s in samples])
    return np.maximum(np.rint(table * 2**32), 1).astype(np.uint32)


@numba.njit
def leaf_biases(bias, dithers, leaves, bits):  # type: ignore[no-untyped-def]
    """Successive cancellation without pruning: the bias of every leaf."""
    if bias.size == 1:
        leaves[0] = bias[0]
        bits[0] = dithers[0] < -bias[0]
        return
    half = bias.size // 2
    below = np.empty(half)
    for j in range(half):
        below[j] = bias[j] * bias[j + half]
    leaf_biases(below, dithers[:half], leaves[:half], bits[:half])
    for j in range(half):
        a = bias[j] * (1.0 - 2.0 * bits[j])
        below[j] = (bias[j + half] + a) / (1.0 + a * bias[j + half])
    leaf_biases(below, dithers[half:], leaves[half:], bits[half:])
    for j in range(half):
        bits[j] ^= bits[j + half]


def surprises(rng: np.random.Generator, squares: np.ndarray, messages: int = 24) -> np.ndarray:
    """P(surprise) by class of the leaf and bin of the dither: half of P(|bias| > |dither|)."""
    counts = np.zeros((CLASSES, BINS))
    leaves, bits = np.empty(SIZE), np.empty(SIZE, np.uint8)
    for number in range(24, SCALES):
        s2 = scale_squared(number)
        folds = folds_for(SIZE, s2)
        for _ in range(messages):
            for plane, bias in enumerate(biases(rng, s2, folds, SIZE)):
                dithers = dithers_from(rng.integers(0, 2**64, SIZE, dtype=np.uint64))
                leaf_biases(bias, dithers, leaves, bits)
                classes = leaf_classes(SIZE, float(squares[number, folds, plane]) * 2.0**-32)
                np.add.at(counts, (classes, dither_bins(leaves)), 1)
    above = counts[:, ::-1].cumsum(axis=1)[:, ::-1] - 0.5 * counts
    share = 0.5 * above / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return np.rint(share * 2**16).astype(np.uint16)


def main() -> None:
    rng = np.random.default_rng(20)
    squares = mean_squares(rng)
    np.savez_compressed(
        TARGET,
        accepts=accepts(),
        hazards=hazards(rng),
        mean_squares=squares,
        surprises=surprises(rng, squares),
    )


if __name__ == "__main__":
    main()
