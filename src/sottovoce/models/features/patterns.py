"""Patterns: a small residual network that has seen nothing but noise processes (`studies/images.py`).

Its last map, averaged to 4×4, describes a picture. It runs on raw pictures in [0, 1]: three channels are read
as colors, any other number as so many gray pictures. The batch normalization of its training is folded into
the convolutions that are shipped.

Centres: what the description of a generated picture is on average, and descriptions measured from there.

A description is standardized over all its numbers, less its average over generated pictures, scaled to unit
norm. What all pictures have in common would use up most of the norm and separate none of them.
The averages are public constants, one for each wavelet path and each channel of the network, the same at
every place. `pretrain.py` measures them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sottovoce.models.features.fixed import alike

SHIPPED_CENTRES = Path(__file__).with_name("centres.safetensors")


def standardized(values: Tensor) -> Tensor:
    """Values (n, …) with mean 0 and variance 1 for each of the n records; a constant record becomes 0."""
    flat = values.flatten(1)
    return nn.functional.layer_norm(flat, flat.shape[1:]).view_as(values)


def centred(values: Tensor, centre: Tensor) -> Tensor:
    """Values (n, C, k, places) and the centre (k,) to descriptions (n, C·k·places) of unit norm."""
    return nn.functional.normalize((standardized(values) - centre.view(-1, 1)).flatten(1), dim=1)


def paths(coefficients: Tensor) -> Tensor:
    """Scattering (n, C, 9, 9, h, w) to logarithms (n, C, 81, h·w): contrasts become differences.

    A thousandth is added first: weaker than one step of a byte, it keeps flat places finite.
    """
    return (coefficients + 1e-3).log().flatten(4).flatten(2, 3)


def by_kind(coefficients: Tensor) -> Tensor:
    """Scattering (n, C, 9, 9, h, w) to unit norm, each kind of coefficient standardized by itself.

    The kinds are S₀, S₁ of the fine scale, S₁ of the coarse one, S₂ at each first orientation.

    For drawings: most places of a digit are empty, which no generated picture is, and the logarithm of
    nothing would outweigh the strokes.
    """
    kinds = [coefficients[:, :, 0, :1], coefficients[:, :, 0, 1:], coefficients[:, :, 1:, 0]]
    kinds += [coefficients[:, :, first, 1:] for first in range(1, 9)]
    return nn.functional.normalize(torch.cat([standardized(kind).flatten(1) for kind in kinds], dim=1), dim=1)


def shipped() -> dict[str, Tensor]:
    """The centres of the package: `scattering` (81,) and `patterns` (channels of the shipped network,)."""
    return load_file(SHIPPED_CENTRES)


SHIPPED = Path(__file__).with_name("patterns.safetensors")
_CHUNK = 64  # pictures at once: what they become stays in the cache


class Block(nn.Module):
    """x ↦ relu(x + conv(relu(conv(x))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Network(nn.Module):
    """Pictures (n, 3, H, W) in [0, 1] to a map (n, out, H/4, W/4), not negative.

    Half the resolution after two convolutions, a quarter in the middle; `blocks` residual blocks at each.
    """

    def __init__(self, stem: int, widths: tuple[int, int], blocks: tuple[int, int], out: int) -> None:
        super().__init__()
        fine, coarse = widths
        self.stem = nn.Conv2d(3, stem, 3, padding=1)
        self.to_half = nn.Conv2d(stem, fine, 3, 2, padding=1)
        self.fine = nn.Sequential(*(Block(fine) for _ in range(blocks[0])))
        self.to_quarter = nn.Conv2d(fine, coarse, 3, 2, padding=1)
        self.coarse = nn.Sequential(*(Block(coarse) for _ in range(blocks[1])))
        self.out = nn.Conv2d(coarse, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.45) / 0.25
        x = self.fine(torch.relu(self.to_half(torch.relu(self.stem(x)))))
        x = self.coarse(torch.relu(self.to_quarter(x)))
        return torch.relu(self.out(x))

    @classmethod
    def restored(cls, weights: Mapping[str, Tensor]) -> Network:
        """The network of such weights, its shape read from them."""
        stem, fine = weights["stem.weight"].shape[0], weights["to_half.weight"].shape[0]
        out, coarse = weights["out.weight"].shape[:2]
        depth = [len({n.split(".")[1] for n in weights if n.startswith(f"{s}.")}) for s in ("fine", "coarse")]
        network = cls(stem, (fine, coarse), (depth[0], depth[1]), out)
        network.load_state_dict({name: value.float() for name, value in weights.items()})
        return network.eval().requires_grad_(False)

    @classmethod
    def shipped(cls) -> Network:
        """The network of the package; its model card is beside the weights."""
        return cls.restored(load_file(SHIPPED))


class Patterns:
    """The map's 4×4 averages for pictures of any size and channel count.

    Pictures whose longer side is not 24 to 48 pixels are resized so that it is 32, what the network was
    trained on.
    """

    def __init__(self, network: Network) -> None:
        self.network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.channels = network.out.out_channels

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] to (n, 1 if C = 3 else C, channels, 16)."""
        n, channels, height, width = x.shape
        if channels != 3:
            x = x.reshape(n * channels, 1, height, width).expand(-1, 3, -1, -1)
        longer = max(height, width)
        if not 24 <= longer <= 48:
            size = [max(4, round(side * 32 / longer)) for side in (height, width)]
            x = nn.functional.interpolate(x, size, mode="bilinear", antialias=True)
        step = len(x) // n * alike(n, _CHUNK * n // len(x))
        parts = (part.contiguous(memory_format=torch.channels_last) for part in torch.split(x, step))
        maps = [nn.functional.adaptive_avg_pool2d(self.network(part), 4) for part in parts]
        return torch.cat(maps).reshape(n, -1, self.channels, 16)
