"""What a GPU does in its own way: float64 sums of float32 gradients without a copy of them, and patches.

Many clients are worked on together there, and their records are interleaved (record 0 of all clients, then
record 1, …), so that a convolution with weights of its own for each client is one grouped convolution. Where
Triton is installed, which CUDA builds of torch bring along, kernels of ours (`kernels`) read what torch would
copy. Each function gives what torch's own operations give, and is tested against them.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sottovoce.gradients.patches import Window


def on_card(values: Tensor) -> bool:
    """Whether this is worked on as a GPU likes it."""
    return values.device.type != "cpu"


@cache
def kernels(device: str) -> ModuleType | None:
    """Our kernels, for devices that have them."""
    if device != "cuda":
        return None
    try:
        from sottovoce.gradients import kernels as found
    except ImportError:
        return None
    return found


def squares(values: Tensor, dim: int) -> Tensor:
    """Σ v² along an axis, in float64."""
    norms: Tensor = torch.linalg.vector_norm(values, dim=dim, dtype=torch.float64)
    return norms.square()


def exact(values: Tensor, scales: Tensor) -> Tensor:
    """`values` in float64, with zeros where the scale is zero, so that nothing non-finite meets a product."""
    return torch.where(scales > 0, values, values.new_zeros(1, dtype=torch.float64))


def weighted_sum(values: Tensor, scales: Tensor) -> Tensor:
    """Σ scale·value over records with a scale above zero: float64 (clients, size).

    `values` are (clients, size, records) of any strides, `scales` float64 (clients, records).
    """
    found = kernels(values.device.type)
    if found is None:
        return torch.bmm(exact(values, scales[:, None]), scales[:, :, None]).squeeze(2)
    total: Tensor = found.weighted_sum(values, scales)
    return total


def patches(window: Window, images: Tensor) -> Tensor | None:
    """`Window.patches` as one kernel, (n, taps·channels, positions); None where there is none."""
    found = kernels(images.device.type)
    return None if found is None else found.patches(window, images)
