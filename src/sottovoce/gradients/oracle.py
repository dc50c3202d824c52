"""Per-record coefficient gradients of any model, by torch.func: the reference that the fast paths must match.

One record at a time is differentiated (Eq. 4 of the paper, as Pᵀ∇_θ ℓ), vectorized over chunks of records.
It works for every module whose forward is functional, and is what `clipped_mean` uses where no fast path
applies.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from sottovoce.gradients.clipping import clip_scales
from sottovoce.subspace import Basis


def unflatten(module: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    """Views of the flat parameters (..., d) by name, in the order of `parameters_to_vector`."""
    named = dict(module.named_parameters())
    parts = theta.split([p.numel() for p in named.values()], dim=-1)
    return {
        name: part.unflatten(-1, p.shape) if p.ndim else part.squeeze(-1)
        for (name, p), part in zip(named.items(), parts, strict=True)
    }


def record_gradients(
    module: nn.Module, theta: Tensor, basis: Basis, x: Tensor, y: Tensor, *, chunk: int = 32
) -> Iterator[tuple[Tensor, Tensor]]:
    """Per-record coefficient gradients, in chunks (≤ chunk, k) and losses (≤ chunk,), in the records' order."""

    def loss(flat: Tensor, xi: Tensor, yi: Tensor) -> Tensor:
        logits = functional_call(module, unflatten(module, flat), (xi.unsqueeze(0),))
        return F.cross_entropy(logits, yi.unsqueeze(0))

    each = vmap(grad_and_value(loss), in_dims=(None, 0, 0))
    for xs, ys in zip(x.split(chunk), y.split(chunk), strict=True):
        gradients, losses = each(theta.detach(), xs, ys)
        yield basis.project(gradients), losses.detach()


def clipped_sum(module: nn.Module, theta: Tensor, basis: Basis, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Σ clip_C(g(z)) over the records, float64 (k,)."""
    total = torch.zeros(basis.coefficients, dtype=torch.float64, device=theta.device)
    for gradients, losses in record_gradients(module, theta, basis, x, y):
        total += add_clipped(gradients, losses, clip)
    return total


def add_clipped(gradients: Tensor, losses: Tensor, clip: float) -> Tensor:
    """Σ clip_C(g) over written-out gradients (m, k), in float64 (k,)."""
    gradients = gradients.double()
    scales = clip_scales(torch.linalg.vector_norm(gradients, dim=1), losses, clip)
    return scales @ torch.where(scales[:, None] > 0, gradients, 0.0)
