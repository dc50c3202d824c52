"""Per-record coefficient gradients of any model, by torch.func: the reference that the fast paths must match.

One record at a time is differentiated (Eq. 4 of the paper, as Pᵀ∇_θ ℓ), vectorized over chunks of records.
It works for every module whose forward is functional, and is what `clipped_mean` uses where no fast path
applies.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from sottovoce.gradients.clipping import sum_clipped
from sottovoce.models import output_at, parameters_at
from sottovoce.subspace import Basis
from sottovoce.tasks import Losses, cross_entropy


def record_gradients(
    module: nn.Module,
    theta: Tensor,
    basis: Basis,
    x: Tensor,
    y: Tensor,
    *,
    loss: Losses = cross_entropy,
    chunk: int = 32,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of per-record coefficient gradients (≤ chunk, k) and losses (≤ chunk,), in order."""

    def alone(flat: Tensor, xi: Tensor, yi: Tensor) -> Tensor:
        outputs = output_at(module, parameters_at(module, flat), xi.unsqueeze(0))
        return loss(outputs, yi.unsqueeze(0))[0]

    each = vmap(grad_and_value(alone), in_dims=(None, 0, 0))
    for start in range(0, len(x), chunk):
        xs, ys = x[start : start + chunk], y[start : start + chunk]
        if xs.dtype == torch.int64:  # a record with a token outside the vocabulary cannot be used
            usable = (xs >= 0).flatten(1).all(dim=1)
            gradients, losses = each(theta.detach(), xs.clamp_min(0), ys)
            losses = torch.where(usable, losses, torch.nan)
        else:
            gradients, losses = each(theta.detach(), xs, ys)
        yield basis.project(gradients), losses.detach()


def clipped_sum(
    module: nn.Module,
    theta: Tensor,
    basis: Basis,
    x: Tensor,
    y: Tensor,
    clip: float,
    loss: Losses = cross_entropy,
) -> Tensor:
    """Σ clip_C(g(z)) over the records, float64 (k,)."""
    basis = basis.to(theta.device)
    total = torch.zeros(basis.coefficients, dtype=torch.float64, device=theta.device)
    for gradients, losses in record_gradients(module, theta, basis, x, y, loss=loss):
        total += sum_clipped([gradients.T.unsqueeze(0)], losses.unsqueeze(0), clip)[0]
    return total
