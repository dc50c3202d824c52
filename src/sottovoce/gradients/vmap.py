"""Per-record coefficient gradients of any model, by torch.func: the reference that the fast paths must match.

One record at a time is differentiated (Eq. 4 of the paper, as Pᵀ∇_θ ℓ), vectorized over tiles of records,
each of which has parameters of its own: what is merged so are products of one record each, and never a
product of all of them. It works for every module whose forward is functional, and is what `clipped_mean` uses
where no fast path applies.

Where a protected unit has several records their gradients are averaged within the unit, then clipped. A unit
moves the sum by at most 2C, however many records it has: clipping each record first and averaging then would
be a bound too, but of another and smaller signal; dividing by the number of records would let a unit move the
denominators of others. Gradients of a unit that cancel would leave what rounding makes of their order,
however small: so none counts for more than `LONGEST` times the clip bound in its unit's average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from sottovoce.gradients.clipping import sum_clipped
from sottovoce.models.bases import Basis
from sottovoce.models.parameters import output_at, parameters_at
from sottovoce.models.tasks import Losses, cross_entropy
from sottovoce.models.tiles import drawn_parameters, tile_of, tiles

LONGEST = 1e6
"""Float64 keeps ten digits of the clip bound beside a gradient that is so many times as long."""

Rows = Callable[[Tensor, Tensor], Iterator[tuple[Tensor, Tensor]]]
"""From records and targets to coefficient gradients (n, k) and losses (n,), a few at a time, in order."""


def record_gradients(
    module: nn.Module,
    theta: Tensor,
    basis: Basis,
    x: Tensor,
    y: Tensor,
    *,
    loss: Losses = cross_entropy,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Per-record coefficient gradients (≤ TILE, k) and losses (≤ TILE,), in order."""

    def alone(flat: Tensor, xi: Tensor, yi: Tensor) -> Tensor:
        outputs = output_at(module, parameters_at(module, flat), xi.unsqueeze(0))
        return loss(outputs, yi.unsqueeze(0))[0]

    each = vmap(grad_and_value(alone))

    def rows(flat: Tensor, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
        tokens = xs.dtype == torch.int64
        gradients, losses = each(flat.expand(len(xs), -1), xs.clamp_min(0) if tokens else xs, ys)
        if tokens:  # a record with a token outside the vocabulary cannot be used
            losses = torch.where((xs >= 0).flatten(1).all(dim=1), losses, torch.nan)
        return basis.project(gradients), losses.detach()

    def tried(records: Tensor) -> tuple[Tensor, Tensor]:
        return rows(drawn_parameters(theta), records, y.new_zeros(len(records), *y.shape[1:]))

    size = tile_of(module, (basis.kind, basis.coefficients, theta.dtype, loss), tried, x)
    for xs, ys, left in zip(tiles(x, size), tiles(y, size), range(len(x), 0, -size), strict=True):
        gradients, losses = rows(theta.detach(), xs, ys)
        yield gradients[:left], losses[:left]


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


def clipped_unit_sum(rows: Rows, x: Tensor, y: Tensor, unit: Tensor, clip: float, size: int) -> Tensor:
    """Σ_u clip_C(mean of g(z) over the records z of unit u), float64 (size,).

    Records whose loss or gradient is not finite are left out of their unit's mean; a unit without others
    contributes zero.
    """
    order = unit.argsort(stable=True)
    x, y, unit = x[order.to(x.device)], y[order.to(y.device)], unit[order].to(x.device)
    total = torch.zeros(size, dtype=torch.float64, device=x.device)
    open_sum, open_count, last = torch.zeros_like(total), total.new_zeros(()), None
    start = 0
    for gradients, losses in rows(x, y):
        mine = unit[start : start + len(losses)]
        start += len(losses)
        finite = losses.isfinite() & gradients.isfinite().all(dim=1)
        values = torch.where(finite[:, None], gradients, 0.0).double()
        values *= (LONGEST * clip / torch.linalg.vector_norm(values, dim=1)).clamp_max(1.0)[:, None]
        names, dense = torch.unique_consecutive(mine, return_inverse=True)
        sums = values.new_zeros(len(names), size).index_add_(0, dense, values)
        counts = values.new_zeros(len(names)).index_add_(0, dense, finite.double())
        if last is not None and names[0] == last:
            sums[0] += open_sum
            counts[0] += open_count
        elif last is not None:
            total += _clipped(open_sum[None], open_count[None], clip)
        total += _clipped(sums[:-1], counts[:-1], clip)
        open_sum, open_count, last = sums[-1], counts[-1], names[-1]
    return total if last is None else total + _clipped(open_sum[None], open_count[None], clip)


def _clipped(sums: Tensor, counts: Tensor, clip: float) -> Tensor:
    """Σ clip_C of the means of closed units, (k,)."""
    if not len(sums):
        return sums.new_zeros(sums.shape[1])
    means = sums / counts.clamp_min(1.0)[:, None]
    return sum_clipped([means.T[None]], torch.zeros_like(counts)[None], clip)[0]
