"""Descriptions of one record alone in which nothing is learned: pictures by wavelets, series by spectra,
tokens by hashed counts.

Wavelet scattering sees a picture through fixed oriented wavelets. With ψ_{j,θ} a Morlet wavelet of scale
2^j (j = 0, 1; eight orientations θ) and φ a Gaussian of scale 4,

    S₀ = x ⋆ φ        S₁ = |x ⋆ ψ_{j,θ}| ⋆ φ        S₂ = ||x ⋆ ψ_{0,θ}| ⋆ ψ_{1,θ'}| ⋆ φ :

1 + 16 + 64 = 81 coefficients a channel, each on a grid of a quarter of the picture's height and width
(rounded up). Convolutions are circular on the picture extended by reflection. Every grid is centred on the
picture, so the coefficients of a mirror image are the picture's with grid and orientations mirrored: exact
for even widths, and without a further transform.

A series (T, F) is described twice, each time by cosines of random directions, whose inner products are
those of a Gaussian kernel (Rahimi and Recht, 2007): by its *levels*, means of each value over four parts
of the time, and by its *rhythm*, the shape of each value's spectrum, how much it moves, and which values
move together. Values of unlike scales are compressed by logarithms and norms of the record's own. When a
window begins does not change its rhythm, which no linear model of samples can say.

Tokens are described by hashed counts of tokens and of pairs of neighbours: which ones, not where.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sottovoce.errors import SottovoceError
from sottovoce.models.tiles import WHOLE

ORIENTATIONS = 8
COEFFICIENTS = 1 + 2 * ORIENTATIONS + ORIENTATIONS**2  # 81
CHUNK = 2**14  # pixels (of all channels) worked on at once: what they become stays in the cache
SIZE = 2048
"""Numbers of each description."""
PARTS_OF_TIME, BANDS, MOST_CORRELATED, MOST_INPUTS = 4, 32, 64, 4096
LEVELS_SHARE = 0.6
"""Of the squared norm; rhythm has the rest."""
LEVELS_SCALE, RHYTHM_SCALE = 2.5, 1.2
_TINY = 1e-6
_TOKENS = 2**20  # hashed at once
_MIX = (-7046029254386353131, -4417276706812531889, -8663945395140668459)  # odd: a product is a permutation


def morlet(dy: Tensor, dx: Tensor, scale: int, orientation: int) -> tuple[Tensor, Tensor]:
    """Wave and window of ψ_{scale, θ} at the offsets (dy, dx), θ = π·orientation/8; ψ = wave − κ·window.

    The window is a Gaussian of width 0.8·2^j along θ and twice that across, the wave that window times
    exp(i·3π/4·2^-j·along); κ is the ratio of their sums on a grid, so that ψ ignores brightness.
    """
    theta, sigma = math.pi * orientation / ORIENTATIONS, 0.8 * 2**scale
    along = dx * math.cos(theta) + dy * math.sin(theta)
    across = dy * math.cos(theta) - dx * math.sin(theta)
    window = torch.exp(-(along**2 + across**2 / 4) / (2 * sigma**2)) / (4 * math.pi * sigma**2)
    return torch.polar(window, 0.75 * math.pi / 2**scale * along), window


def gaussian(d: Tensor) -> Tensor:
    """φ along one axis at the offsets `d`: a Gaussian of width 1.6 pixels."""
    return torch.exp(-(d**2) / (2 * 1.6**2)) / (1.6 * math.sqrt(2 * math.pi))


def extended(length: int) -> Tensor:
    """Returns the pixel at each place of an axis, reflected to a multiple of 4 and 4 more at each end.

    >>> extended(5).tolist()
    [3, 4, 3, 2, 1, 0, 1, 2, 3, 4, 3, 2, 1, 0, 1, 2]
    """
    total = 4 * math.ceil(length / 4) + 8
    place = torch.arange(total) - (total - length) // 2
    period = max(2 * (length - 1), 1)
    return (length - 1) - ((place % period) - (length - 1)).abs()


class Scattering:
    """Scattering of pictures of one height and width, any number of channels, in any range.

    >>> scatter = Scattering(32, 32)
    >>> scatter(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 3, 9, 9, 8, 8])
    """

    def __init__(
        self,
        height: int,
        width: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        self._reflect = [torch.eye(n)[extended(n)].to(device, dtype) for n in (height, width)]
        self.grid = (math.ceil(height / 4), math.ceil(width / 4))
        self.mirrors = width % 2 == 0
        size = (len(self._reflect[0]), len(self._reflect[1]))
        rows, columns = (torch.arange(n, dtype=torch.float64) / n for n in size)
        shift = torch.polar(torch.ones((), dtype=torch.float64), math.pi * (rows[:, None] + columns))
        fine = torch.stack([_spectrum(size, 0, o) for o in range(ORIENTATIONS)])
        coarse = torch.stack([_spectrum(size, 1, o) for o in range(ORIENTATIONS)])
        # Real up to the shift by half a pixel that all coarse wavelets share: it is put on the spectrum once.
        # Every second value of a signal has the spectrum's mean over four aliases: hence the quarter.
        self._fine = _doubled(fine.real).to(device, dtype)
        self._coarse = _aliases(_doubled((coarse * shift.conj()).real / 4)).to(device, dtype)
        self._shift = shift.to(device, dtype.to_complex())
        self._smooth = [_smoothing(n, 1).to(device, dtype) for n in size]
        self._smooth_half = [_smoothing(n, 2).to(device, dtype) for n in size]

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """(n, C, H, W) to (n, C, 9, 9, ⌈H/4⌉, ⌈W/4⌉).

        Along the first nine: [S₀, S₁ of the fine scale at each θ], then for each θ [S₁ of the coarse scale
        at θ, S₂ at θ and each θ'].
        """
        n, channels, height, width = x.shape
        pictures = x.reshape(n * channels, height, width)
        step = channels * alike(n, CHUNK // (channels * height * width))
        parts = [self._scatter(part) for part in torch.split(pictures, step)]
        return torch.cat(parts).reshape(n, channels, 9, 9, *self.grid)

    def _scatter(self, x: Tensor) -> Tensor:
        x = (self._reflect[0] @ x @ self._reflect[1].T).unsqueeze(1)
        rows, columns = x.shape[-2:]
        waves = torch.view_as_real(torch.fft.fft2(x)).mul(self._fine)
        first = torch.cat([x, _modulus(torch.fft.ifft2(torch.view_as_complex(waves)))], dim=1)
        spectrum = torch.view_as_real(torch.fft.fft2(first).mul_(self._shift))
        blocks = spectrum.reshape(-1, 9, 1, 2, rows // 2, 2, columns)
        half = blocks[:, :, :, 0, :, 0] * self._coarse[0]
        for alias, (a, b) in enumerate(((0, 1), (1, 0), (1, 1)), start=1):
            half.addcmul_(blocks[:, :, :, a, :, b], self._coarse[alias])
        half = half.view(*half.shape[:-1], columns // 2, 2)
        second = _modulus(torch.fft.ifft2(torch.view_as_complex(half)))
        out = x.new_empty(len(x), 9, 9, *self.grid)
        out[:, 0] = self._smooth[0] @ first @ self._smooth[1].T
        out[:, 1:, 1:] = (smoothed := self._smooth_half[0] @ second @ self._smooth_half[1].T)[:, 1:]
        out[:, 1:, 0] = smoothed[:, 0]
        return out


def alike(records: int, most: int) -> int:
    """The largest number of records, at most so many, of which all parts have alike many.

    >>> alike(32, 41), alike(32, 10), alike(1, 0)
    (32, 8, 1)
    """
    return next(each for each in range(max(1, min(most, records)), 0, -1) if records % each == 0)


def mirrored(coefficients: Tensor) -> Tensor:
    """The coefficients of the mirror image (left for right), from those of a picture of even width."""
    turned = [0, *(1 + (-o) % ORIENTATIONS for o in range(ORIENTATIONS))]
    return coefficients[..., turned, :, :, :][..., turned, :, :].flip(-1)


def _spectrum(size: tuple[int, int], scale: int, orientation: int) -> Tensor:
    """Fourier transform of the periodic wavelet on the full grid; the coarse scale sits between pixels."""
    total = [torch.zeros(size, dtype=torch.complex128), torch.zeros(size, dtype=torch.float64)]
    offsets = [torch.arange(n, dtype=torch.float64) + scale / 2 for n in size]
    for down in range(-2, 2):
        for right in range(-2, 2):
            dy, dx = offsets[0][:, None] + down * size[0], offsets[1] + right * size[1]
            for sums, part in zip(total, morlet(dy, dx, scale, orientation), strict=True):
                sums += part
    wave, window = total
    spectrum: Tensor = torch.fft.fft2(wave - wave.sum() / window.sum() * window)
    return spectrum


def _smoothing(length: int, spacing: int) -> Tensor:
    """φ from places 0, 1, … (spacing 1) or ½, 2½, … (spacing 2) to every fourth, centred: (out, in)."""
    inputs = torch.arange(length // spacing, dtype=torch.float64) * spacing + (spacing - 1) / 2
    outputs = torch.arange((length - 8) // 4, dtype=torch.float64) * 4 + 5.5
    offsets = outputs[:, None] - inputs
    return spacing * torch.stack([gaussian(offsets + turn * length) for turn in range(-2, 3)]).sum(0)


def _doubled(filters: Tensor) -> Tensor:
    """One factor for each of the real and the imaginary part."""
    return filters.unsqueeze(-1).expand(*filters.shape, 2).contiguous()


def _aliases(filters: Tensor) -> Tensor:
    """(o, rows, columns, 2) to (4, o, rows/2, columns/2·2): the parts that fall together on the half grid."""
    o, rows, columns, _ = filters.shape
    parts = filters.reshape(o, 2, rows // 2, 2, columns)
    return parts.permute(1, 3, 0, 2, 4).reshape(4, o, rows // 2, columns).contiguous()


def _modulus(z: Tensor) -> Tensor:
    squares = torch.view_as_real(z).square()
    return (squares[..., 0] + squares[..., 1]).sqrt_()


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
        whole = nn.functional.pad(directions[:, :paired], (0, 0, 0, -paired % WHOLE))
        together = (whole @ whole.transpose(1, 2))[:, first, second]
        kinds = [_unit(shapes.flatten(1)), _beside_one(strengths), _beside_one(together) / 2]
        where = levels(_beside_one(means.sign() * means.abs().log1p()))
        how = rhythm(torch.cat(kinds, dim=1))
        return torch.cat([math.sqrt(LEVELS_SHARE) * where, math.sqrt(1 - LEVELS_SHARE) * how], dim=1)

    return describe


def ngrams(x: Tensor) -> Tensor:
    """Tokens (n, L), int64, to (n, SIZE) of unit norm; a record with a token below 0 becomes NaN.

    Each token and each pair of neighbours has a public random place and sign; a place holds the root of its
    count, so that what is said ten times does not drown the rest.

    >>> ngrams(torch.tensor([[3, 5, 5, 0], [3, 5, 5, -1]])).isfinite().all(dim=1)
    tensor([ True, False])
    """
    if x.dtype != torch.int64:
        raise SottovoceError(
            'features=ngrams describes tokens: say kind = "tokens" in records.toml, or use none'
        )
    step = max(1, _TOKENS // max(1, x.shape[1]))
    counts = torch.cat([_counted(part) for part in torch.split(x, step)])
    described = _unit(counts.sign() * counts.abs().sqrt())
    return torch.where((x >= 0).all(dim=1, keepdim=True), described, torch.nan)


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
