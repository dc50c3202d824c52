"""Pictures of nothing: noise processes that the pattern network is trained on. No dataset, no person in them.

Four textures (1/f spectra, stacks of random oriented filters over noise, random sine networks of the
coordinates, gratings) and, made from them, scenes of overlapping leaves: round, angular and lobed shapes
whose sizes follow a power law, each filled with color, texture and shading, later ones in front of earlier.
Everything is batched tensor arithmetic on one device, and a function of the generator's seed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LEAVES = (4, 40)  # fewest and most leaves of a scene


def generate(n: int, size: int, rng: torch.Generator, share: float = 0.5) -> Tensor:
    """`n` pictures (n, 3, size, size) in [0, 1]: this share of them scenes, the others pure textures.

    >>> generate(4, 16, torch.Generator().manual_seed(1)).shape
    torch.Size([4, 3, 16, 16])
    """
    fills = textures(n, size, rng)
    pictures = torch.where(_uniform(rng, n, 1, 1, 1) < share, scenes(fills, rng), fills)
    return _developed(pictures, rng)


def textures(n: int, size: int, rng: torch.Generator) -> Tensor:
    """`n` textures (n, 3, size, size) of mean 0 and deviation 1: one of four kinds each, or two mixed."""
    kinds = torch.stack(
        [kind(n, size, rng) for kind in (spectra, filter_stacks, sine_networks, gratings)]
    )  # every kind for every picture: simpler than sorting them, and fast
    of = torch.arange(n, device=rng.device)
    first = kinds[torch.randint(4, (n,), generator=rng, device=rng.device), of]
    second = kinds[torch.randint(4, (n,), generator=rng, device=rng.device), of]
    share = _uniform(rng, n, 1, 1, 1)
    mask = (
        first.mean(1, keepdim=True) * 4 + _normal(rng, n, 1, 1, 1)
    ).sigmoid()  # the second in holes of the first
    mixed = torch.where(
        share < 0.5, first, torch.where(share < 0.75, first + second, mask * first + (1 - mask) * second)
    )
    return _standardized(mixed)


def spectra(n: int, size: int, rng: torch.Generator) -> Tensor:
    """Noise of spectrum 1/f^a, a from 0.5 to 3, stretched along one direction; some folded or hardened."""
    fy, fx = torch.fft.fftfreq(size, device=rng.device)[:, None], torch.fft.rfftfreq(size, device=rng.device)
    angle, stretch = math.pi * _uniform(rng, n, 1, 1, 1), torch.exp(1.5 * _uniform(rng, n, 1, 1, 1))
    along, across = fx * angle.cos() + fy * angle.sin(), fy * angle.cos() - fx * angle.sin()
    radius = ((along * stretch).square() + (across / stretch).square()).sqrt().clamp_min(1 / size)
    exponent = 0.5 + 2.5 * _uniform(rng, n, 1, 1, 1)
    noise = torch.fft.rfft2(_normal(rng, n, 3, size, size))
    field = _standardized(torch.fft.irfft2(noise * radius.pow(-exponent), s=(size, size)))
    kind = _uniform(rng, n, 1, 1, 1)
    sharp = torch.tanh(field * torch.exp(2 * _uniform(rng, n, 1, 1, 1)))
    field = torch.where(kind < 0.2, field.abs(), torch.where(kind < 0.4, sharp, field))
    return _colored(field, rng)


def filter_stacks(n: int, size: int, rng: torch.Generator, layers: int = 3, width: int = 8) -> Tensor:
    """Noise through layers of random oriented band-pass filters and rectifiers, from coarse to fine."""
    maps = _normal(rng, n, width, size, size)
    fy, fx = torch.fft.fftfreq(size, device=rng.device)[:, None], torch.fft.rfftfreq(size, device=rng.device)
    for layer in range(layers):
        angle = math.pi * _uniform(rng, n, width, 1, 1)
        center = 0.02 * torch.exp(math.log(15) * _uniform(rng, n, width, 1, 1))  # cycles a pixel, 0.02 to 0.3
        spread = center * (0.3 + 0.7 * _uniform(rng, n, width, 1, 1))
        along, across = fx * angle.cos() + fy * angle.sin(), fy * angle.cos() - fx * angle.sin()
        band = torch.exp(-((along.abs() - center).square() + across.square()) / (2 * spread.square()))
        maps = _standardized(torch.fft.irfft2(torch.fft.rfft2(maps) * band, s=(size, size)), each=True)
        mix = _normal(rng, n, width, width) / math.sqrt(width)
        maps = torch.einsum("noi,nihw->nohw", mix, maps) + 0.3 * _normal(rng, n, width, 1, 1)
        if layer + 1 < layers:
            maps = torch.nn.functional.leaky_relu(maps, 0.2)
            maps = maps + 0.1 * _normal(rng, n, width, size, size)
    return _standardized(maps[:, :3] + maps[:, 3:4] * _uniform(rng, n, 1, 1, 1) * 2)


def sine_networks(n: int, size: int, rng: torch.Generator, width: int = 16) -> Tensor:
    """Random three-layer networks of the coordinates with sine activations: smooth, warped shapes."""
    y, x = _plane(size, rng)
    symmetric = _uniform(rng, n, 1, 1) < 0.3
    x, y = x.reshape(1, 1, -1), y.reshape(1, 1, -1)
    scale, center = torch.exp(_normal(rng, n, 1, 1)), _normal(rng, n, 2, 1) * 0.5
    x, y = x - center[:, :1], y - center[:, 1:]
    inputs = (
        torch.cat([torch.where(symmetric, x.abs(), x), y, (x.square() + y.square()).sqrt()], dim=1) * scale
    )
    hidden = torch.sin(_normal(rng, n, width, 3) @ inputs * 2 + 3 * _normal(rng, n, width, 1))
    hidden = torch.sin(_normal(rng, n, width, width) @ hidden / 2 + 3 * _normal(rng, n, width, 1))
    return _standardized((_normal(rng, n, 3, width) @ hidden).reshape(n, 3, size, size))


def gratings(n: int, size: int, rng: torch.Generator) -> Tensor:
    """Stripes, checks and rings in two colors, of random sharpness, bent by slow noise."""
    y, x = _plane(size, rng)
    bend = _bends(n, size, rng)
    angle = math.pi * _uniform(rng, n, 1, 1, 1)
    period = torch.exp(math.log(3) + 2 * _uniform(rng, n, 1, 1, 1))  # 3 to 22 pixels
    waves = math.pi * size / period
    u, v = x * angle.cos() + y * angle.sin() + bend, y * angle.cos() - x * angle.sin() + bend.flip(-1)
    rings = ((x - 0.3).square() + y.square()).sqrt() + bend
    kind = _uniform(rng, n, 1, 1, 1)
    wave = torch.where(
        kind < 0.5,
        torch.sin(waves * u),
        torch.where(kind < 0.8, torch.sin(waves * u) * torch.sin(waves * v), torch.sin(waves * rings)),
    )
    wave = torch.tanh(wave * torch.exp(3 * _uniform(rng, n, 1, 1, 1) - 1))
    return _standardized(wave * _normal(rng, n, 3, 1, 1) + 0.1 * _normal(rng, n, 3, size, size))


def scenes(fills: Tensor, rng: torch.Generator) -> Tensor:
    """Leaves laid over one another, filled from `fills` (n, 3, s, s) of other pictures, background first."""
    n, _, size, _ = fills.shape
    y, x = _plane(size, rng)
    canvas = _filled(fills, rng, x, y)
    least, most = _LEAVES
    leaves = least + (most - least) * _uniform(rng, n, 1, 1, 1).square()
    largest = 0.3 + 0.7 * _uniform(rng, n, 1, 1, 1)
    for leaf in range(most):
        alpha = _leaf(n, x, y, largest, rng)
        # A drop shadow beside some leaves: a hint of depth.
        shadow = (
            torch.roll(alpha, (size // 24 + 1, size // 24 + 1), (2, 3))
            * 0.6
            * (_uniform(rng, n, 1, 1, 1) < 0.3)
        )
        present = (leaf < leaves).float()
        canvas = canvas - present * shadow * (1 - alpha)
        canvas = torch.lerp(canvas, _filled(fills, rng, x, y), alpha * present)
    return canvas


def _leaf(n: int, x: Tensor, y: Tensor, largest: Tensor, rng: torch.Generator) -> Tensor:
    """Opacity (n, 1, s, s) of one leaf each: superellipses, polygons or lobed blobs."""
    size = x.shape[-1]
    smallest = 3.0 / size
    u = _uniform(rng, n, 1, 1, 1)
    radius = (smallest**-2 + u * (largest**-2 - smallest**-2)).rsqrt()  # density ∝ r⁻³, as in dead leaves
    radius = torch.where(
        _uniform(rng, n, 1, 1, 1) < 0.2, largest * (0.4 + 0.6 * u), radius
    )  # and some large ones
    angle, stretch = 2 * math.pi * _uniform(rng, n, 1, 1, 1), torch.exp(0.5 * _normal(rng, n, 1, 1, 1))
    dx, dy = x - (2.4 * _uniform(rng, n, 1, 1, 1) - 1.2), y - (2.4 * _uniform(rng, n, 1, 1, 1) - 1.2)
    a = (dx * angle.cos() + dy * angle.sin()) / (radius * stretch)
    b = (dy * angle.cos() - dx * angle.sin()) / radius * stretch
    power = 1 + 5 * _uniform(rng, n, 1, 1, 1)
    superellipse = (a.abs().clamp_min(1e-4).pow(power) + b.abs().clamp_min(1e-4).pow(power)).pow(1 / power)
    polar, distance = torch.atan2(b, a), (a.square() + b.square()).sqrt()
    corners = torch.randint(3, 7, (n, 1, 1, 1), generator=rng, device=rng.device)
    sector = math.pi / corners
    polygon = distance * torch.cos(torch.remainder(polar, 2 * sector) - sector) / torch.cos(sector)
    lobes = torch.ones_like(distance)
    for harmonic in range(2, 6):
        lobes = lobes + _normal(rng, n, 1, 1, 1) * 0.5 / harmonic * torch.cos(
            harmonic * polar + 2 * math.pi * _uniform(rng, n, 1, 1, 1)
        )
    blob = distance / lobes.clamp_min(0.2)
    kind = _uniform(rng, n, 1, 1, 1)
    depth = 1 - torch.where(kind < 0.35, superellipse, torch.where(kind < 0.6, polygon, blob))
    softness = radius * size / 2 * torch.where(_uniform(rng, n, 1, 1, 1) < 0.85, 1.0, 0.25)
    return (depth * softness + 0.5).clamp(0, 1)


def _filled(fills: Tensor, rng: torch.Generator, x: Tensor, y: Tensor) -> Tensor:
    """Color + texture of another picture + a slope of light, one for each picture."""
    n = len(fills)
    texture = fills[torch.randperm(n, generator=rng, device=rng.device)]
    color = 1.2 * _normal(rng, n, 3, 1, 1) + 0.8 * _normal(rng, n, 1, 1, 1)
    strength = _uniform(rng, n, 1, 1, 1).square()
    light = 0.6 * (_normal(rng, n, 1, 1, 1) * x + _normal(rng, n, 1, 1, 1) * y)
    return color + strength * texture + light


def _bends(n: int, size: int, rng: torch.Generator) -> Tensor:
    slow = torch.nn.functional.interpolate(_normal(rng, n, 1, 4, 4), (size, size), mode="bicubic")
    return slow * 0.2 * _uniform(rng, n, 1, 1, 1).square()


def _colored(field: Tensor, rng: torch.Generator) -> Tensor:
    """Colors that belong together: the channels mixed so that one of them carries most of the contrast."""
    mix = _normal(rng, len(field), 3, 3) * 0.4
    mix[:, :, 0] += 1
    return _standardized(torch.einsum("noi,nihw->nohw", mix, field))


def _developed(pictures: Tensor, rng: torch.Generator) -> Tensor:
    """To [0, 1]: random exposure, contrast and saturation."""
    n = len(pictures)
    pictures = _standardized(pictures)
    gray = pictures.mean(1, keepdim=True)
    pictures = gray + (pictures - gray) * _uniform(rng, n, 1, 1, 1) * 1.3
    exposure, contrast = 0.45 + 0.15 * _normal(rng, n, 1, 1, 1), 0.12 + 0.18 * _uniform(rng, n, 1, 1, 1)
    return (exposure + contrast * pictures).clamp(0, 1)


def _standardized(pictures: Tensor, *, each: bool = False) -> Tensor:
    """Mean 0 and deviation 1 of a picture, or of `each` of its channels."""
    dims = (2, 3) if each else (1, 2, 3)
    mean = pictures.mean(dims, keepdim=True)
    return (pictures - mean) / pictures.std(dims, keepdim=True).clamp_min(1e-4)


def _plane(size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    axis = torch.linspace(-1, 1, size, device=rng.device)
    return axis.view(1, 1, size, 1).expand(1, 1, size, size), axis.view(1, 1, 1, size).expand(
        1, 1, size, size
    )


def _uniform(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=rng, device=rng.device)


def _normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)
