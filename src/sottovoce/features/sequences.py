"""Series and tokens: a description of one record alone, made of sums, spectra and public random numbers.

A series (T, F) is described twice, each time by cosines of random directions, whose inner products are those
of a Gaussian kernel (Rahimi and Recht, 2007): by its *levels*, means of each value over four parts of the
time, and by its *rhythm*, the shape of each value's spectrum, how much it moves, and which values move
together. Values of unlike scales are compressed by logarithms and norms of the record's own. When a window
begins does not change its rhythm, which no linear model of samples can say.

Tokens are described by hashed counts of tokens and of pairs of neighbours: which ones, not where.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

SIZE = 2048
"""Numbers of each description."""
PARTS_OF_TIME, BANDS, MOST_CORRELATED, MOST_INPUTS = 4, 32, 64, 4096
LEVELS_SHARE = 0.6
"""Of the squared norm; rhythm has the rest."""
LEVELS_SCALE, RHYTHM_SCALE = 2.5, 1.2
_TINY = 1e-6
_TOKENS = 2**20  # hashed at once
_MIX = (-7046029254386353131, -4417276706812531889, -8663945395140668459)  # odd: a product is a permutation


def spectrum(steps: int, values: int) -> Callable[[Tensor], Tensor]:
    """Series (n, steps, values) to (n, SIZE) of unit norm.

    >>> describe = spectrum(64, 3)
    >>> describe(torch.zeros(2, 64, 3)).shape
    torch.Size([2, 2048])
    """
    band_of, parts = _bands(steps // 2), min(PARTS_OF_TIME, steps)
    bands = len(torch.bincount(band_of))
    window = torch.hann_window(steps, periodic=False)
    paired = min(values, MOST_CORRELATED)
    first, second = torch.triu_indices(paired, paired, offset=1)
    levels = _cosines(values * parts + 1, LEVELS_SCALE, 1)
    rhythm = _cosines(values * bands + values + 1 + len(first) + 1, RHYTHM_SCALE, 2)

    def describe(x: Tensor) -> Tensor:
        across = x.transpose(1, 2)
        means = nn.functional.adaptive_avg_pool1d(across, parts).flatten(1)
        moves = across - across.mean(2, keepdim=True)
        amplitudes = torch.fft.rfft(moves * window.to(x.device)).abs()[..., 1:]
        heights = amplitudes.new_zeros(*amplitudes.shape[:2], bands)
        heights = heights.index_add(2, band_of.to(x.device), amplitudes)
        shapes = (heights / (heights.norm(dim=2, keepdim=True) + _TINY)).sqrt()
        strengths = torch.log10(moves.square().mean(2).sqrt() + _TINY)
        directions = moves / (moves.norm(dim=2, keepdim=True) + _TINY)
        together = (directions @ directions.transpose(1, 2))[:, first, second]
        kinds = [_unit(shapes.flatten(1)), _beside_one(strengths), _beside_one(together) / 2]
        where = levels(_beside_one(means.sign() * means.abs().log1p()))
        how = rhythm(torch.cat(kinds, dim=1))
        return torch.cat([math.sqrt(LEVELS_SHARE) * where, math.sqrt(1 - LEVELS_SHARE) * how], dim=1)

    return describe


def ngrams() -> Callable[[Tensor], Tensor]:
    """Tokens (n, L), int64, to (n, SIZE) of unit norm; a record with a token below 0 becomes NaN.

    Each token and each pair of neighbours has a public random place and sign; a place holds the root of its
    count, so that what is said ten times does not drown the rest.

    >>> describe = ngrams()
    >>> describe(torch.tensor([[3, 5, 5, 0], [3, 5, 5, -1]])).isfinite().all(dim=1)
    tensor([ True, False])
    """

    def describe(x: Tensor) -> Tensor:
        step = max(1, _TOKENS // max(1, x.shape[1]))
        counts = torch.cat([_counted(part) for part in torch.split(x, step)])
        described = _unit(counts.sign() * counts.abs().sqrt())
        return torch.where((x >= 0).all(dim=1, keepdim=True), described, torch.nan)

    return describe


def _counted(tokens: Tensor) -> Tensor:
    single = _hashed(tokens + 1)
    pairs = _hashed(single[:, :-1] * _MIX[2] + single[:, 1:])
    codes = torch.cat([single, pairs], dim=1)
    counts = torch.zeros(len(tokens), SIZE, device=tokens.device)
    return counts.scatter_add_(1, (codes >> 8) & (SIZE - 1), ((codes >> 40) & 1).mul(2).sub(1).float())


def _hashed(codes: Tensor) -> Tensor:
    """Whole numbers to well mixed ones: products modulo 2^64 between shifts, the same on every machine."""
    for factor in _MIX[:2]:
        codes = codes * factor
        codes = codes ^ (codes >> 31)
    return codes


def _bands(bins: int) -> Tensor:
    """The band of each of a spectrum's bins: each its own where there are few, else wider from low to high.

    >>> _bands(4).tolist(), _bands(1000).bincount()[-2:].tolist()
    ([0, 1, 2, 3], [157, 194])
    """
    edges, last = [1], bins + 1
    for i in range(1, BANDS):
        edges.append(min(max(edges[-1] + 1, round(last ** (i / BANDS))), last))
    return torch.bucketize(torch.arange(1, last), torch.tensor(edges), right=True) - 1


def _cosines(inputs: int, scale: float, seed: int) -> Callable[[Tensor], Tensor]:
    """(n, inputs) to cosines of random directions and phases, (n, SIZE / 2) of unit norm."""
    kept, half = min(inputs, MOST_INPUTS), SIZE // 2
    rng = torch.Generator().manual_seed(seed)
    directions = scale * torch.randn(kept, half, generator=rng)
    phases = 2 * math.pi * torch.rand(half, generator=rng)
    places = torch.randint(kept, (inputs,), generator=rng)
    signs = torch.randint(2, (inputs,), generator=rng).mul(2).sub(1).float()

    def describe(values: Tensor) -> Tensor:
        if inputs > kept:  # so many that directions for each would not fit into memory: sums of some
            few = values.new_zeros(len(values), kept)
            values = few.index_add(1, places.to(values.device), values * signs.to(values.device))
        return _unit(torch.cos(values @ directions.to(values.device) + phases.to(values.device)))

    return describe


def _unit(values: Tensor) -> Tensor:
    return nn.functional.normalize(values, dim=1)


def _beside_one(values: Tensor) -> Tensor:
    """Values and a 1, scaled to unit norm together: bounded, and small ones stay smaller than large ones."""
    return _unit(torch.cat([values, values.new_ones(len(values), 1)], dim=1))
