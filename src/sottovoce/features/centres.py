"""Centres: what the description of a generated picture is on average, and descriptions measured from there.

A description is standardized over all its numbers, less its average over generated pictures (`images.py`),
scaled to unit norm. What all pictures have in common would use up most of the norm and separate none of them.
The averages are public constants, one for each wavelet path and each channel of the network, the same at
every place. `pretrain.py` measures them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

SHIPPED = Path(__file__).with_name("centres.safetensors")


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


def channels(maps: Tensor, each: int) -> Tensor:
    """Maps of the pattern network (n, C·each, 4, 4) to (n, C, each, 16)."""
    return maps.reshape(len(maps), -1, each, 16)


def shipped() -> dict[str, Tensor]:
    """The centres of the package: `scattering` (81,) and `patterns` (channels of the shipped network,)."""
    return load_file(SHIPPED)
