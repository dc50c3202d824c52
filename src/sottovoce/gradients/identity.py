"""The clipped sum where the whole model adapts (k = d): norms by layer, then one weighted sum of gradients.

A linear layer's record gradient δ ⊗ x has the norm ‖δ‖‖x‖, and the sum of all clipped ones is a single matrix
product, so that only the small gradients of other layers are written out per record. All of it is in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sottovoce.gradients import card
from sottovoce.gradients.clipping import blank, clip_scales
from sottovoce.gradients.layers import Convolution, Linear, by_client
from sottovoce.gradients.stack import Capture
from sottovoce.models import places

_IN_CACHE = 128
"""Records whose inputs become float64 at once, on a CPU."""


def clipped_sum(module: nn.Module, captures: list[Capture], losses: Tensor, clip: float) -> Tensor:
    """Σ clip_C(∇_θ ℓ) of a chunk with losses (clients, records): float64 (clients, d)."""
    count = len(losses)
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
    norms = sum((_squares(g) for g in written.values()), torch.zeros_like(losses, dtype=torch.float64))
    for deltas, inputs in outer.values():
        norms = norms + _squares(deltas) * card.squares(inputs, 2)
    scales = clip_scales(norms.sqrt(), losses, clip)
    sums = {name: _weighted_sum(g, scales) for name, g in written.items()}
    for name, (deltas, inputs) in outer.items():
        sums[name] = _outer_sum(deltas, inputs, scales.unsqueeze(2))
    order = places(module)
    for seen in captures:
        if isinstance(seen.layer, Convolution):
            filters, channels, *window = order[seen.layer.weight].shape
            by_tap = sums[seen.layer.weight].reshape(count, *window, channels, filters)
            sums[seen.layer.weight] = by_tap.permute(0, 4, 3, 1, 2).flatten(1)
    return torch.cat([sums[name] for name in order], dim=1)


def _outer_sum(deltas: Tensor, inputs: Tensor, scales: Tensor) -> Tensor:
    """Σ scale·δ ⊗ x over records with a scale above zero; all are (clients, records, size)."""
    if card.on_card(inputs):
        return torch.bmm((card.exact(deltas, scales) * scales).mT, card.exact(inputs, scales)).flatten(1)
    deltas = blank(deltas, scales) * scales
    total = deltas.new_zeros(len(deltas), deltas.shape[2], inputs.shape[2])
    # In float64 all inputs would leave a CPU's caches before they are read.
    for start in range(0, inputs.shape[1], _IN_CACHE):
        part = slice(start, start + _IN_CACHE)
        x = blank(inputs[:, part].double(), scales[:, part])
        total.baddbmm_(deltas[:, part].transpose(1, 2), x)
    return total.flatten(1)


def _weighted_sum(values: Tensor, scales: Tensor) -> Tensor:
    """Σ scale·value over the records of (clients, records, size)."""
    if card.on_card(values):
        return card.weighted_sum(values.mT, scales)
    scales = scales.unsqueeze(2)
    return (blank(values, scales) * scales).sum(1)


def _grouped(values: Tensor, clients: int) -> Tensor:
    """(clients·records, ...) to (clients, records, size): in float64, but a GPU converts as it reads."""
    return by_client(values if card.on_card(values) else values.double(), clients).flatten(2)


def _squares(values: Tensor) -> Tensor:
    return card.squares(values, 2) if card.on_card(values) else values.square().sum(2)
