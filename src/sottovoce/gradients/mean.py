"""One function chooses how a client's clipped mean is computed, without changing result or bound."""

from __future__ import annotations

from torch import Tensor, nn

from sottovoce.errors import SottovoceError
from sottovoce.gradients import oracle
from sottovoce.gradients.clipping import refuse_coupled_records
from sottovoce.subspace import Basis


def clipped_mean(
    module: nn.Module, theta: Tensor, basis: Basis, x: Tensor, y: Tensor, *, clip: float, denominator: int
) -> Tensor:
    """Σ_z clip_C(Pᵀ∇_θ ℓ(θ; z)) / m over the records (x, y) with cross-entropy loss ℓ: float64 (k,).

    `theta` (d,) is in the order of `parameters_to_vector`; `x` is (m, ...), `y` (m,) class labels.
    `denominator` is fixed in advance and need not equal the number of records. The norm of no record's
    contribution exceeds clip/denominator, in float64; a record whose loss or gradient is not finite
    contributes zero. The parameters of `module` are neither read nor changed.

    >>> import torch
    >>> from sottovoce.subspace import Identity
    >>> net, x, y = torch.nn.Linear(2, 3), torch.ones(4, 2), torch.tensor([0, 1, 2, 0])
    >>> mean = clipped_mean(net, torch.zeros(9), Identity(9), x, y, clip=0.1, denominator=4)
    >>> bool(mean.norm() <= 0.1)
    True
    """
    refuse_coupled_records(module)
    if not clip > 0 or denominator < 1:
        raise SottovoceError(f"clip={clip} and denominator={denominator} must both be positive")
    return oracle.clipped_sum(module, theta, basis, x, y, clip) / denominator
