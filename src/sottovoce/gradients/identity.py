"""The clipped sum where the whole model adapts (k = d): norms by layer, then one weighted sum of gradients.

A linear layer's record gradient δ ⊗ x has the norm ‖δ‖‖x‖, and the sum of all clipped ones is a single matrix
product, so that only the small gradients of other layers are written out per record. All of it is in float64;
on a CPU, inputs of linear layers become so a block of records at a time, while the caches hold them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sottovoce.gradients.clipping import blank, clip_scales
from sottovoce.gradients.layers import Convolution, Linear, by_client
from sottovoce.gradients.stack import Capture
from sottovoce.models import Place, places

_IN_CACHE = 128
"""Records of a block."""


def clipped_sum(module: nn.Module, captures: list[Capture], losses: Tensor, clip: float) -> Tensor:
    """Σ clip_C(∇_θ ℓ) of a chunk with losses (clients, records): float64 (clients, d)."""
    order, count = places(module), len(losses)
    outer: dict[str, tuple[Tensor, Tensor]] = {}
    written: dict[str, Tensor] = {}
    for seen in captures:
        layer = seen.layer
        if isinstance(layer, Linear):
            outer[layer.weight] = (_grouped(seen.deltas, count), by_client(seen.inputs, count))
        elif isinstance(layer, Convolution):
            written[layer.weight] = _grouped(layer.weight_gradients(seen.inputs, seen.deltas), count)
        else:
            written[layer.weight] = _grouped(layer.flat_gradients(seen.inputs, seen.deltas), count)
        if layer.bias is not None:
            written[layer.bias] = _grouped(layer.bias_gradients(seen.deltas), count)
    squares = sum((_squares(g) for g in written.values()), torch.zeros_like(losses, dtype=torch.float64))
    sums = {name: deltas.new_zeros(count, *order[name].shape) for name, (deltas, _) in outer.items()}
    scales = torch.cat(list(_add_outer(sums, outer, squares, losses, clip)), dim=1)
    flat = {name: (blank(g, scales) * scales).sum(1) for name, g in written.items()}
    for seen in captures:
        if isinstance(seen.layer, Convolution):
            flat[seen.layer.weight] = _by_filter(flat[seen.layer.weight], order[seen.layer.weight])
    return torch.cat([sums[name].flatten(1) if name in sums else flat[name] for name in order], dim=1)


def _add_outer(
    sums: dict[str, Tensor],
    outer: dict[str, tuple[Tensor, Tensor]],
    squares: Tensor,
    losses: Tensor,
    clip: float,
) -> Iterator[Tensor]:
    """Adds the clipped δ ⊗ x of linear layers, block by block, and gives the scales (clients, records, 1).

    `squares` are those of the norms of all other layers' gradients.
    """
    records = losses.shape[1]
    block = _IN_CACHE if losses.device.type == "cpu" else records
    of_deltas = {name: _squares(deltas) for name, (deltas, _) in outer.items()}
    kept = {name: torch.empty_like(x[:, :block], dtype=torch.float64) for name, (_, x) in outer.items()}
    for start in range(0, records, block):
        part = slice(start, start + block)
        total = squares[:, part]
        for name, (_, inputs) in outer.items():
            x = kept[name] = kept[name][:, : records - start].copy_(inputs[:, part])
            total = total + of_deltas[name][:, part] * _squares(x)
        scales = clip_scales(total.sqrt(), losses[:, part], clip).unsqueeze(2)
        for name, (deltas, _) in outer.items():
            rows = (blank(deltas[:, part], scales) * scales).transpose(1, 2)
            _add_product(sums[name], rows, blank(kept[name], scales))
        yield scales


def _add_product(sums: Tensor, left: Tensor, right: Tensor) -> None:
    if len(sums) == 1:  # twice as fast as a batch of one, on a CPU
        sums[0].addmm_(left[0], right[0])
    else:
        sums.baddbmm_(left, right)


def _by_filter(summed: Tensor, place: Place) -> Tensor:
    """From the order of `Convolution.weight_gradients` to that of the parameter."""
    filters, channels, *window = place.shape
    return summed.reshape(-1, *window, channels, filters).permute(0, 4, 3, 1, 2).flatten(1)


def _grouped(values: Tensor, clients: int) -> Tensor:
    """(clients·records, ...) to float64 (clients, records, size)."""
    return by_client(values.double(), clients).flatten(2)


def _squares(values: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(values, dim=2)
    return norms.square()
