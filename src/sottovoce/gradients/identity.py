"""The clipped sum where the whole model adapts (k = d): norms by layer, then one weighted sum of gradients.

A linear layer's record gradient δ ⊗ x has the norm ‖δ‖‖x‖, and the sum of all clipped ones is a single matrix
product, so that only the small gradients of other layers are written out per record. All of it is in float64;
on a CPU, inputs of linear layers become so a block of records at a time, while the caches hold them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sottovoce.gradients import card
from sottovoce.gradients.clipping import blank, clip_scales
from sottovoce.gradients.layers import Convolution, Linear, by_client
from sottovoce.gradients.stack import Capture
from sottovoce.models import Place, places

_IN_CACHE = 80
"""Records of a block."""


def clipped_sum(
    module: nn.Module, captures: list[Capture], losses: Tensor, clip: float, known: Tensor | None = None
) -> Tensor:
    """Σ clip_C(∇_θ ℓ) of a chunk with losses (clients, records): float64 (clients, d).

    `known` (clients, records) are `squares` of the inputs of the first layer with parameters, if linear.
    """
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
    if card.on_card(losses):
        flat = _on_card(outer, written, losses, clip)
    else:
        first = {} if known is None else {captures[0].layer.weight: known}
        flat = _in_blocks(outer, written, losses, clip, first)
    for seen in captures:
        if isinstance(seen.layer, Convolution):
            flat[seen.layer.weight] = _by_filter(flat[seen.layer.weight], order[seen.layer.weight])
    return torch.cat([flat[name] for name in order], dim=1)


def _on_card(
    outer: dict[str, tuple[Tensor, Tensor]], written: dict[str, Tensor], losses: Tensor, clip: float
) -> dict[str, Tensor]:
    """The sums (clients, size) by name: a GPU takes all records at once, and what it reads for itself."""
    total = torch.zeros_like(losses, dtype=torch.float64)
    for gradients in written.values():
        total = total + card.squares(gradients, 2)
    for deltas, inputs in outer.values():
        total = total + card.squares(deltas, 2) * card.squares(inputs, 2)
    scales = clip_scales(total.sqrt(), losses, clip)
    sums = {name: card.weighted_sum(gradients.mT, scales) for name, gradients in written.items()}
    scales = scales.unsqueeze(2)
    for name, (deltas, inputs) in outer.items():
        rows = (card.exact(deltas, scales) * scales).mT
        sums[name] = torch.bmm(rows, card.exact(inputs, scales)).flatten(1)
    return sums


def _in_blocks(
    outer: dict[str, tuple[Tensor, Tensor]],
    written: dict[str, Tensor],
    losses: Tensor,
    clip: float,
    known: dict[str, Tensor],
) -> dict[str, Tensor]:
    """The sums (clients, size) by name, on a CPU; `known` are squares of the norms of inputs."""
    total = torch.zeros_like(losses, dtype=torch.float64)
    for gradients in written.values():
        total = total + squares(gradients)
    for name, (deltas, inputs) in outer.items():
        of_inputs = known[name] if name in known else squares(inputs)
        total = total + squares(deltas) * of_inputs
    scales = clip_scales(total.sqrt(), losses, clip).unsqueeze(2)
    if not bool((scales > 0).all()):  # asking costs less than blanking
        written = {name: blank(gradients, scales) for name, gradients in written.items()}
        outer = {name: (blank(d, scales), blank(x, scales)) for name, (d, x) in outer.items()}
    sums = {name: (gradients * scales).sum(1) for name, gradients in written.items()}
    return sums | {name: _outer_sum(deltas * scales, inputs) for name, (deltas, inputs) in outer.items()}


def _outer_sum(deltas: Tensor, inputs: Tensor) -> Tensor:
    """Σ δ ⊗ x, (clients, rows·size), block by block."""
    total = deltas.new_zeros(len(deltas), deltas.shape[2], inputs.shape[2])
    memory = torch.empty_like(inputs[:, :_IN_CACHE], dtype=torch.float64)
    for start in range(0, inputs.shape[1], _IN_CACHE):
        rows, x = deltas[:, start : start + _IN_CACHE].mT, inputs[:, start : start + _IN_CACHE]
        x = memory[:, : x.shape[1]].copy_(x)
        if len(total) == 1:  # twice as fast as a batch of one
            total[0].addmm_(rows[0], x[0])
        else:
            total.baddbmm_(rows, x)
    return total.flatten(1)


def squares(values: Tensor) -> Tensor:
    """‖v‖² in float64 of every record of (clients, records, size), on a CPU block by block.

    >>> squares(torch.tensor([[[3.0, 4.0], [1.0, 0.0]]]))
    tensor([[25.,  1.]], dtype=torch.float64)
    """
    blocks = torch.split(values, _IN_CACHE, dim=1)
    return torch.cat([torch.linalg.vector_norm(block.double(), dim=2) for block in blocks], dim=1).square()


def _by_filter(summed: Tensor, place: Place) -> Tensor:
    """From the order of `Convolution.weight_gradients` to that of the parameter."""
    filters, channels, *window = place.shape
    return summed.reshape(-1, *window, channels, filters).permute(0, 4, 3, 1, 2).flatten(1)


def _grouped(values: Tensor, clients: int) -> Tensor:
    """(clients·records, ...) to (clients, records, size): float64, to which a GPU converts as it reads."""
    return by_client(values if card.on_card(values) else values.double(), clients).flatten(2)
